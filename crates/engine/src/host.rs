//! The kernel's IPv6 addresses at its end of the link.

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

/// Adds addresses with the bits of their prefixes to a device. Nobody but the stack is at the other end, so the kernel need not look for duplicates: that
/// would take seconds in which its addresses are of no use.
///
/// # Errors
/// Those of the kernel; without IPv6 in it there is nothing to set.
pub(crate) fn add_addresses(device: &str, addresses: &[(Ipv6Addr, u8)]) -> io::Result<()> {
    if addresses.is_empty() {
        return Ok(());
    }
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/accept_dad"), "0")?;
    let socket = socket_with(
        AddressFamily::INET6,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let index = netdevice::name_to_index(&socket, device)?;
    for &(address, bits) in addresses {
        let request = libc::in6_ifreq {
            ifr6_addr: libc::in6_addr {
                s6_addr: address.octets(),
            },
            ifr6_prefixlen: bits.into(),
            ifr6_ifindex: index as libc::c_int,
        };
        add(&socket, &request)?;
    }
    Ok(())
}

fn add(socket: &OwnedFd, request: &libc::in6_ifreq) -> io::Result<()> {
    // SAFETY: on a socket of IPv6, SIOCSIFADDR reads one `struct in6_ifreq`, which outlives the call.
    let result = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFADDR as libc::Ioctl,
            std::ptr::from_ref(request),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
