//! Which addresses the kernel has.

use std::ffi::CStr;
use std::io;
use std::net::Ipv4Addr;

use crate::spec::Prefix;

/// Every IPv4 address of every interface in this network namespace.
pub(crate) fn all() -> io::Result<Vec<(String, Prefix)>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: on success the call stores a list in `list`, which is freed below and nowhere else.
    if unsafe { libc::getifaddrs(&raw mut list) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list.cast_const();
    // SAFETY: each entry up to the null that ends the list is valid until the list is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: an address in the list is null, or points to as many bytes as its family has.
        let both = unsafe { (ipv4_of(entry.ifa_addr), ipv4_of(entry.ifa_netmask)) };
        if let (Some(address), Some(mask)) = both {
            // SAFETY: the name is a C string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }
                .to_string_lossy()
                .into_owned();
            found.push((
                name,
                Prefix {
                    address,
                    len: u32::from(mask).leading_ones() as u8,
                },
            ));
        }
    }
    // SAFETY: `list` came from getifaddrs and nothing points into it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The address, when it is IPv4.
///
/// # Safety
/// `address` is null or points to a socket address whose family says how long it is.
unsafe fn ipv4_of(address: *const libc::sockaddr) -> Option<Ipv4Addr> {
    // SAFETY: the caller vouches that what is not null is a socket address.
    let family = unsafe { address.as_ref() }?.sa_family;
    if i32::from(family) != libc::AF_INET {
        return None;
    }
    // SAFETY: of this family, it is a sockaddr_in; it is read as one at whatever alignment.
    let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
    Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()))
}
