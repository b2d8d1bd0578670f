//! Handover of a datagram socket to the kernel: it was bound to every address, and then sends to an
//! address that only the kernel serves.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use libc::IPPROTO_IPV6;
use millrace_context::{Bypass, SlotRef};
use millrace_sockopt::{OptName, Sockets};

use crate::engine::bypass;
use crate::fd::table::{self, Entry};
use crate::fd::{operations, refcount};
use crate::socket::address;
use crate::socket::option_rows::VALUE_MAX;
use crate::socket::options;
use crate::socket::{Socket, flag};
use crate::sys;
use crate::sys::original;

/// Makes a millrace socket a kernel socket in the same descriptor, while nobody can notice: it has
/// sent and received nothing, and neither another descriptor nor an epoll set has it. Returns
/// whether it is a kernel socket now.
pub fn give_back(fd: c_int, slot: SlotRef, socket: &Socket) -> bool {
    let app = &socket.slot.app;
    let used = socket.slot.engine.received.load(Ordering::Acquire) != 0
        || app.queued.load(Ordering::Relaxed) != 0;
    // One reference is the descriptor's, the other is this call's.
    let alone = refcount::count(slot.index) == 2 && !socket.has(flag::SHARED);
    let local = SocketAddr::from(socket.slot.cold.local());
    if used || !alone || refcount::in_sets(slot.index) || !local.ip().is_unspecified() {
        return false;
    }
    // SAFETY: plain arguments.
    let kernel =
        unsafe { original::socket(socket.family(), libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if kernel < 0 {
        return false;
    }
    let moved = replace(fd, slot, socket, kernel, local.port());
    sys::close(kernel);
    moved
}

fn replace(fd: c_int, slot: SlotRef, socket: &Socket, kernel: c_int, port: u16) -> bool {
    repeat(socket, kernel);
    if socket.has(flag::NONBLOCK) {
        let flags = sys::fcntl(kernel, libc::F_GETFL, 0).unwrap_or(0);
        let _ = sys::fcntl(kernel, libc::F_SETFL, (flags | libc::O_NONBLOCK).into());
    }
    // The socket keeps its port if the kernel has it free.
    if port != 0 && !bind(socket, kernel, port) && !bind(socket, kernel, 0) {
        return false;
    }
    let close_on_exec =
        sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC != 0);
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    if sys::dup3(kernel, fd, flags).is_err() {
        return false;
    }
    bypass::note(
        Bypass::Address,
        &[
            "a datagram socket that was bound to every address goes to the kernel: the first address it sends to is not the engine's",
        ],
    );
    if table::exchange(fd, Entry::Socket(slot), Entry::Kernel) {
        operations::let_go(fd, Entry::Socket(slot));
    }
    true
}

fn bind(socket: &Socket, kernel: c_int, port: u16) -> bool {
    let any = millrace_context::Address {
        port,
        ..millrace_context::Address::NONE
    };
    let (bytes, len) = address::format(&any, socket.family());
    // SAFETY: so many bytes are an address.
    unsafe { original::bind(kernel, bytes.as_ptr().cast(), len as u32) == 0 }
}

/// Sets the socket's options on the kernel socket. Options that cannot be set stay at their
/// defaults.
fn repeat(socket: &Socket, kernel: c_int) {
    let v6 = socket.family() == libc::AF_INET6;
    for row in millrace_sockopt::settable(Sockets::DATAGRAM) {
        let sized = matches!(row.name, OptName::ReceiveBuffer | OptName::SendBuffer);
        if !row.is_readable() || sized || row.level == IPPROTO_IPV6 && !v6 {
            continue;
        }
        let (level, name, mut value) = (row.level, row.number, [0u8; VALUE_MAX]);
        if let Ok(len) = options::read(socket, level, name, &mut value) {
            // SAFETY: so many bytes are there.
            unsafe {
                original::setsockopt(kernel, level, name, value.as_ptr().cast(), len as u32);
            }
        }
    }
}
