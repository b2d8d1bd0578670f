//! Datagram sockets (UDP) that millrace serves.

pub mod ancillary;
pub mod kernel_handover;
pub mod multicast;
pub mod receive;
pub mod send;

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;

use millrace_context::{Address, Operation, Status};
use rustix::io::Errno;

use crate::socket::connect::or_loopback;
use crate::socket::device_binding;
use crate::socket::options;
use crate::socket::{Socket, flag};
use crate::sys::Result;

impl Socket {
    /// Makes a new socket a datagram socket.
    pub fn become_datagrams(&self) {
        self.slot.app_cold.options[0].fetch_or(super::DATAGRAMS, Ordering::Relaxed);
        options::begin_datagrams(self);
    }

    pub fn family(&self) -> c_int {
        self.slot.app_cold.family.load(Ordering::Relaxed)
    }
}

/// Sets the peer of a datagram socket.
pub fn connect(socket: &Socket, ip: IpAddr, port: u16) -> Result<()> {
    let ip = or_loopback(ip);
    check_family(socket, ip)?;
    if !is_served(socket, ip) {
        return Err(Errno::NETUNREACH);
    }
    let [a, b, c] = Address::from(SocketAddr::new(ip, port)).to_words();
    let mut submission = socket.submission(Operation::Connect, 0);
    submission.arguments[..3].copy_from_slice(&[a, b, c]);
    socket.ask(&submission, &mut []).map(drop)
}

/// Disconnects a datagram socket (connect with AF_UNSPEC).
pub fn disconnect(socket: &Socket) -> Result<()> {
    let submission = socket.submission(Operation::Disconnect, 0);
    socket.ask(&submission, &mut []).map(drop)
}

/// Shuts down. A socket without a peer is shut down too, but the call fails (Linux's
/// `inet_shutdown`).
pub fn shutdown(socket: &Socket, how: c_int) -> Result<()> {
    let set = match how {
        libc::SHUT_RD => flag::SHUT_READ,
        libc::SHUT_WR => flag::SHUT_WRITE,
        libc::SHUT_RDWR => flag::SHUT_READ | flag::SHUT_WRITE,
        _ => return Err(Errno::INVAL),
    };
    socket.change_flags(set, 0);
    socket.submit(&socket.submission(Operation::Shutdown, how as u32))?;
    millrace_context::futex::wake(&socket.slot.engine.sequence, i32::MAX as u32);
    if socket.status().contains(Status::CONNECTED) {
        Ok(())
    } else {
        Err(Errno::NOTCONN)
    }
}

/// Whether the engine carries datagrams to `ip`.
pub fn is_served(socket: &Socket, ip: IpAddr) -> bool {
    let header = socket.engine.region.header();
    is_several(header, ip) || header.serves(ip) && device_binding::reaches(socket, ip)
}

/// Whether `ip` is a multicast or broadcast address of the engine's link.
pub fn is_several(header: &millrace_context::layout::Header, ip: IpAddr) -> bool {
    header.serves_anything()
        && match ip {
            IpAddr::V4(ip) if ip.is_loopback() => false,
            IpAddr::V4(ip) => ip.is_multicast() || header.is_broadcast(ip),
            IpAddr::V6(ip) => ip.is_multicast(),
        }
}

fn check_family(socket: &Socket, ip: IpAddr) -> Result<()> {
    if ip.is_ipv6() && socket.family() == libc::AF_INET {
        return Err(Errno::AFNOSUPPORT);
    }
    if ip.is_ipv4() && options::is_v6_only(socket) {
        return Err(Errno::NETUNREACH);
    }
    Ok(())
}

/// Binds an unbound socket to any address before its first datagram.
fn bind_anywhere(socket: &Socket) -> Result<()> {
    let any = if socket.family() == libc::AF_INET6 {
        IpAddr::from(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::from(Ipv4Addr::UNSPECIFIED)
    };
    match crate::socket::connect::bind(socket, any, 0) {
        // Another thread has bound it first.
        Err(Errno::INVAL) if socket.status().contains(Status::BOUND) => Ok(()),
        outcome => outcome,
    }
}
