//! Socket addresses between C's structures and ours.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{AF_INET, AF_INET6, AF_UNSPEC};

use crate::outcome::Outcome;

/// Length of the longest address there is here.
pub const LEN_MAX: usize = 28;

/// Reads an address; none is `AF_UNSPEC`. IPv4 in its IPv6-mapped form is IPv4 for a socket of
/// IPv6.
///
/// # Errors
/// `EINVAL` for one that is too short, `EAFNOSUPPORT` for another family than the socket's.
pub fn parse(bytes: &[u8], family: c_int) -> Outcome<Option<SocketAddr>> {
    let Some(&[one, two]) = bytes.first_chunk() else {
        return Err(libc::EINVAL);
    };
    let port = || match bytes.get(2..4) {
        Some(&[one, two]) => Ok(u16::from_be_bytes([one, two])),
        _ => Err(libc::EINVAL),
    };
    match c_int::from(u16::from_ne_bytes([one, two])) {
        AF_UNSPEC => Ok(None),
        AF_INET if family == AF_INET => {
            let octets: [u8; 4] = *bytes
                .get(4..16)
                .and_then(|rest| rest.first_chunk())
                .ok_or(libc::EINVAL)?;
            Ok(Some(SocketAddr::new(
                Ipv4Addr::from(octets).into(),
                port()?,
            )))
        }
        AF_INET6 if family == AF_INET6 => {
            let octets: [u8; 16] = *bytes
                .get(8..24)
                .and_then(|rest| rest.first_chunk())
                .ok_or(libc::EINVAL)?;
            let address = IpAddr::from(Ipv6Addr::from(octets)).to_canonical();
            Ok(Some(SocketAddr::new(address, port()?)))
        }
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// An address as C has it, in the family of the socket, and its length.
pub fn format(address: SocketAddr, family: c_int) -> ([u8; LEN_MAX], usize) {
    let mut bytes = [0; LEN_MAX];
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match (family, address.ip()) {
        (AF_INET6, IpAddr::V6(ip)) => bytes[8..24].copy_from_slice(&ip.octets()),
        // A socket that is bound to nothing shows `::`.
        (AF_INET6, IpAddr::V4(ip)) if ip.is_unspecified() => {}
        (AF_INET6, IpAddr::V4(ip)) => bytes[8..24].copy_from_slice(&ip.to_ipv6_mapped().octets()),
        (_, IpAddr::V4(ip)) => bytes[4..8].copy_from_slice(&ip.octets()),
        (_, IpAddr::V6(_)) => {}
    }
    (bytes, if family == AF_INET6 { LEN_MAX } else { 16 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went() {
        for (text, family, len) in [
            ("10.1.2.3:80", AF_INET, 16),
            ("[2001:db8::1]:443", AF_INET6, 28),
            ("10.1.2.3:80", AF_INET6, 28),
        ] {
            let address: SocketAddr = text.parse().expect("an address");
            let (bytes, used) = format(address, family);
            assert_eq!(used, len);
            assert_eq!(parse(&bytes[..used], family), Ok(Some(address)));
            let other = if family == AF_INET { AF_INET6 } else { AF_INET };
            assert_eq!(parse(&bytes[..used], other), Err(libc::EAFNOSUPPORT));
        }
        for len in 0..16 {
            let (bytes, _) = format(SocketAddr::from(([10, 1, 2, 3], 80)), AF_INET);
            assert_eq!(parse(&bytes[..len], AF_INET), Err(libc::EINVAL), "{len}");
        }
        assert_eq!(parse(&[0; 16], AF_INET), Ok(None));
    }
}
