//! Socket addresses in shared memory and in messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An IP address and port in 24 bytes without padding. IPv4 is held as IPv4-mapped IPv6 (RFC 4291
/// 2.5.5.2), so that one form serves both.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Address {
    /// The address in network order, IPv4 mapped into `::ffff:0:0/96`.
    pub ip: [u8; 16],
    /// The port in host order.
    pub port: u16,
    /// Always zero.
    pub reserved: [u16; 3],
}

impl Address {
    /// The unspecified address, port 0.
    pub const NONE: Address = Address {
        ip: [0; 16],
        port: 0,
        reserved: [0; 3],
    };

    /// From an IPv4 address and a port.
    pub fn v4(ip: Ipv4Addr, port: u16) -> Address {
        Address {
            ip: ip.to_ipv6_mapped().octets(),
            port,
            reserved: [0; 3],
        }
    }

    /// The IPv4 address, if it is one (the unspecified IPv6 address counts as 0.0.0.0, since a
    /// dual-stack socket binds it for both).
    pub fn as_v4(&self) -> Option<Ipv4Addr> {
        let ip = Ipv6Addr::from(self.ip);
        if ip.is_unspecified() {
            Some(Ipv4Addr::UNSPECIFIED)
        } else {
            ip.to_ipv4_mapped()
        }
    }

    /// The address as three words, for a submission or a slot.
    pub fn to_words(self) -> [u64; 3] {
        let (high, low) = self.ip.split_at(8);
        let word = |half: &[u8]| u64::from_ne_bytes(half.try_into().unwrap_or([0; 8]));
        [word(high), word(low), u64::from(self.port)]
    }

    /// The address from its three words.
    pub fn from_words(words: [u64; 3]) -> Address {
        let mut ip = [0; 16];
        ip[..8].copy_from_slice(&words[0].to_ne_bytes());
        ip[8..].copy_from_slice(&words[1].to_ne_bytes());
        Address {
            ip,
            port: words[2] as u16,
            reserved: [0; 3],
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(from: SocketAddr) -> Address {
        match from.ip() {
            IpAddr::V4(ip) => Address::v4(ip, from.port()),
            IpAddr::V6(ip) => Address {
                ip: ip.octets(),
                port: from.port(),
                reserved: [0; 3],
            },
        }
    }
}

impl From<Address> for SocketAddr {
    fn from(from: Address) -> SocketAddr {
        let ip = Ipv6Addr::from(from.ip);
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        SocketAddr::new(ip, from.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_words_and_back() {
        for text in ["10.9.0.2:80", "[2001:db8::7]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let shared = Address::from(address);
            assert_eq!(Address::from_words(shared.to_words()), shared);
            assert_eq!(SocketAddr::from(shared), address);
        }
        assert_eq!(Address::NONE.as_v4(), Some(Ipv4Addr::UNSPECIFIED));
    }
}
