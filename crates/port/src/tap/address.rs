//! Gives the kernel an address on a device, by one netlink message.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `sizeof(struct nlmsghdr)`.
const HEADER_LEN: usize = 16;

/// A socket to the kernel's addresses.
///
/// # Errors
/// Those of the kernel.
pub(super) fn socket() -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    // NETLINK_ROUTE is protocol 0.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, None)?;
    rustix::net::bind(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

/// Adds an address with the bits of its prefix to the device with this index, and waits for the
/// kernel's answer.
///
/// # Errors
/// Those of the kernel.
pub(super) fn add(socket: &OwnedFd, device: u32, ip: IpAddr, bits: u8) -> io::Result<()> {
    rustix::net::send(
        socket.as_fd(),
        &message(device, ip, bits),
        SendFlags::empty(),
    )?;
    let mut answer = [0; 256];
    let (len, _) = rustix::net::recv(socket.as_fd(), &mut answer, RecvFlags::empty())?;
    // `struct nlmsgerr` begins with the number of the error, negated.
    let number = answer[..len].get(HEADER_LEN..HEADER_LEN + 4);
    let number = number.and_then(|bytes| bytes.try_into().ok());
    match number.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(-number)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// `RTM_NEWADDR`: `struct nlmsghdr`, `struct ifaddrmsg`, attributes.
fn message(device: u32, ip: IpAddr, bits: u8) -> Vec<u8> {
    let (family, octets) = match ip {
        IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
    };
    let mut body = vec![family as u8, bits, 0, 0];
    body.extend(device.to_ne_bytes());
    let mut attribute = |kind: u16, value: &[u8]| {
        body.extend((4 + value.len() as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    };
    attribute(libc::IFA_LOCAL, &octets);
    attribute(libc::IFA_ADDRESS, &octets);
    if ip.is_ipv6() {
        // Nobody but the stack is at the other end of the device, so the kernel need not look for
        // duplicates: that would take seconds in which its address is of no use.
        attribute(libc::IFA_FLAGS, &libc::IFA_F_NODAD.to_ne_bytes());
    }
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let mut message = ((HEADER_LEN + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(libc::RTM_NEWADDR.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    // Sequence number and sender.
    message.extend([0; 8]);
    message.extend(body);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_address_twice() {
        let v4 = message(7, [10, 9, 0, 1].into(), 24);
        assert_eq!((v4.len(), v4[0]), (16 + 8 + 8 + 8, 40));
        assert_eq!(v4[20..24], 7u32.to_ne_bytes());
        assert_eq!(
            (&v4[28..32], &v4[36..40]),
            (&[10, 9, 0, 1][..], &[10, 9, 0, 1][..])
        );
        let v6 = message(7, std::net::Ipv6Addr::LOCALHOST.into(), 64);
        assert_eq!(v6.len(), 16 + 8 + 20 + 20 + 8);
    }
}
