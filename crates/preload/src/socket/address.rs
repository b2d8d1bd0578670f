//! Conversion of socket addresses between the C library's structures and millrace's.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{sockaddr, socklen_t};
use millrace_context::Address;
use rustix::io::Errno;

use crate::socket::device_binding;
use crate::sys::Result;
use crate::sys::user_buffers;

/// The kinds of address that a program can pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// An IP address and a port, which the engine may serve. IPv4 may be in its IPv6-mapped form.
    Ip(IpAddr, u16),
    /// AF_UNSPEC, which removes the peer.
    Unspecified,
    /// Any other address, which the kernel serves or refuses.
    Other,
}

/// Reads a program's address. `FAULT`: the pointer cannot be valid. `INVAL`: no address has this
/// length.
///
/// # Safety
/// `address` points to `len` bytes, or is an invalid pointer.
pub unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<Given> {
    let len = len as usize;
    if len > size_of::<libc::sockaddr_storage>() {
        return Err(Errno::INVAL);
    }
    if len < size_of::<libc::sa_family_t>() {
        return Ok(Given::Other);
    }
    user_buffers::check(address.cast(), len)?;
    let mut bytes = [0u8; 28];
    let taken = len.min(bytes.len());
    // SAFETY: the caller's promise; at most `len` bytes are read.
    unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), bytes.as_mut_ptr(), taken) };
    let bytes = &bytes[..taken];
    // The length is less than that of the family's address, as in the kernel.
    let least = match c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET => 16,
        libc::AF_INET6 => 24,
        _ => 0,
    };
    if taken < least {
        return Err(Errno::INVAL);
    }
    Ok(parse(bytes))
}

fn parse(bytes: &[u8]) -> Given {
    let family = c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
    match family {
        libc::AF_UNSPEC => Given::Unspecified,
        libc::AF_INET if bytes.len() >= 16 => Given::Ip(
            IpAddr::from([bytes[4], bytes[5], bytes[6], bytes[7]]),
            u16::from_be_bytes([bytes[2], bytes[3]]),
        ),
        libc::AF_INET6 if bytes.len() >= 24 => {
            let port = u16::from_be_bytes([bytes[2], bytes[3]]);
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[8..24]);
            let ip = Ipv6Addr::from(octets);
            let scope = bytes.get(24..28).and_then(|scope| scope.first_chunk());
            let scope = scope.map_or(0, |scope| u32::from_ne_bytes(*scope));
            // An address that needs a device is left to the kernel, which has the devices. A group
            // is the engine's unless the address names another device.
            if ip.is_unicast_link_local()
                || ip.is_multicast() && device_binding::is_foreign_scope(scope)
            {
                Given::Other
            } else {
                Given::Ip(ip.to_canonical(), port)
            }
        }
        _ => Given::Other,
    }
}

/// Writes an address for the program in the family of its socket, cut to the room that the program
/// gave. The room becomes the length.
///
/// # Safety
/// The pointers are valid for the C library's functions, or null.
pub unsafe fn write(
    address: &Address,
    family: c_int,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    let (bytes, used) = format(address, family);
    if to.is_null() {
        return Ok(());
    }
    user_buffers::check(len.cast(), size_of::<socklen_t>())?;
    // SAFETY: the caller's promise.
    let room = unsafe { *len } as c_int;
    if room < 0 {
        return Err(Errno::INVAL);
    }
    let copied = used.min(room as usize);
    user_buffers::check(to.cast(), copied)?;
    // SAFETY: the caller's promise: `room` bytes are there.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast::<u8>(), copied);
        *len = used as socklen_t;
    }
    Ok(())
}

/// An address in the C library's form, and its length.
pub fn format(address: &Address, family: c_int) -> ([u8; 28], usize) {
    let mut bytes = [0; 28];
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port.to_be_bytes());
    if family == libc::AF_INET6 {
        // A socket that is not bound shows `::`, as on Linux.
        if address.as_v4() != Some(Ipv4Addr::UNSPECIFIED) {
            bytes[8..24].copy_from_slice(&address.ip);
        }
        (bytes, 28)
    } else {
        let v4 = address.as_v4().unwrap_or(Ipv4Addr::UNSPECIFIED);
        bytes[4..8].copy_from_slice(&v4.octets());
        (bytes, 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_c_form() {
        let address = Address::v4(Ipv4Addr::new(10, 9, 0, 2), 8080);
        for family in [libc::AF_INET, libc::AF_INET6] {
            let (bytes, len) = format(&address, family);
            assert_eq!(
                parse(&bytes[..len]),
                Given::Ip(Ipv4Addr::new(10, 9, 0, 2).into(), 8080)
            );
        }
        let any = Ipv6Addr::UNSPECIFIED.into();
        let (bytes, len) = format(&Address::NONE, libc::AF_INET6);
        assert_eq!(parse(&bytes[..len]), Given::Ip(any, 0));
        let own: std::net::SocketAddr = "[fd00:9::2]:443".parse().unwrap();
        let (bytes, len) = format(&own.into(), libc::AF_INET6);
        assert_eq!(parse(&bytes[..len]), Given::Ip(own.ip(), 443));
    }

    #[test]
    fn what_is_too_short_or_foreign_is_left_to_the_kernel() {
        let (mut bytes, _) = format(&Address::NONE, libc::AF_INET);
        assert_eq!(parse(&bytes[..8]), Given::Other);
        bytes[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        assert_eq!(parse(&bytes), Given::Other);
        bytes[..2].copy_from_slice(&0u16.to_ne_bytes());
        assert_eq!(parse(&bytes), Given::Unspecified);
        let mut v6 = [0u8; 28];
        v6[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        v6[8..10].copy_from_slice(&[0xfe, 0x80]);
        v6[23] = 1;
        assert_eq!(parse(&v6), Given::Other, "fe80::1 is the kernel's");
    }

    #[test]
    fn an_address_is_cut_to_its_room() {
        let address = Address::v4(Ipv4Addr::new(1, 2, 3, 4), 5);
        let mut to = [0xffu8; 16];
        let mut len: socklen_t = 6;
        // SAFETY: six bytes of sixteen are written.
        unsafe { write(&address, libc::AF_INET, to.as_mut_ptr().cast(), &mut len) }.unwrap();
        assert_eq!((len, &to[4..8]), (16, &[1, 2, 0xff, 0xff][..]));
    }
}
