//! Hooks that make, name, connect and shut down sockets.

use std::ffi::c_int;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;

use libc::{sockaddr, socklen_t};
use millrace_context::{Bypass, SlotRef, Status};
use rustix::io::Errno;

use super::{fail, hooks, nothing, number};
use crate::engine::bypass;
use crate::fd::table::{self, Asked, Entry, Undecided};
use crate::interfaces;
use crate::process::environment;
use crate::socket::Socket;
use crate::socket::address::{self, Given};
use crate::socket::stack_choice::{self, Decision, Purpose};
use crate::socket::{connect, datagram};
use crate::sys::Result;
use crate::sys::original;

hooks! {
    /// Makes a kernel socket. A TCP or UDP socket may become a millrace socket when the program
    /// names an address.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = original::socket(domain, kind, protocol);
        let plain = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let tcp = plain == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
        let datagrams = plain == libc::SOCK_DGRAM && matches!(protocol, 0 | libc::IPPROTO_UDP);
        let v6 = domain == libc::AF_INET6;
        if fd >= 0 && (v6 || domain == libc::AF_INET) && environment::get().is_some() {
            if tcp || datagrams {
                table::set(fd, Entry::Undecided(Undecided { v6, datagrams, ..Undecided::default() }));
            } else {
                note_protocol(plain, protocol);
            }
        } else if fd >= 0 && interfaces::is_netlink(domain, protocol) {
            table::set(fd, Entry::Netlink(Asked::default()));
        }
        fd
    }

    /// Binds.
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => nothing((|| {
                let socket = Socket::get(fd, slot)?;
                match address::read(address, len)? {
                    Given::Ip(ip, port) => connect::bind(&socket, ip, port),
                    Given::Unspecified => Err(Errno::AFNOSUPPORT),
                    Given::Other => Err(Errno::ADDRNOTAVAIL),
                }
            })()),
            Entry::Internal => fail(Errno::BADF),
            entry => match decide_for(fd, entry, address, len, Purpose::Bind) {
                Ok(Decision::Kernel) => original::bind(fd, address, len),
                Ok(Decision::Ours(socket, ip, port)) => nothing(connect::bind(&socket, ip, port)),
                Err(errno) => fail(errno),
            },
        }
    }

    /// Listens.
    fn listen(fd: c_int, backlog: c_int) -> c_int where settled(fd) {
        let listen = |socket: Result<Socket>| {
            nothing(socket.and_then(|socket| match socket.is_datagrams() {
                true => Err(Errno::OPNOTSUPP),
                false => connect::listen(&socket, backlog),
            }))
        };
        match table::get(fd) {
            Entry::Socket(slot) => listen(Socket::get(fd, slot)),
            Entry::Undecided(undecided) if !undecided.datagrams => {
                // A listener without an address listens on all addresses.
                let any = if undecided.v6 {
                    Given::Ip(Ipv6Addr::UNSPECIFIED.into(), 0)
                } else {
                    Given::Ip(Ipv4Addr::UNSPECIFIED.into(), 0)
                };
                match stack_choice::decide(fd, Entry::Undecided(undecided), any, Purpose::Bind) {
                    Ok(Decision::Kernel) => original::listen(fd, backlog),
                    Ok(Decision::Ours(socket, ..)) => listen(Ok(socket)),
                    Err(errno) => fail(errno),
                }
            }
            Entry::Internal => fail(Errno::BADF),
            _ => original::listen(fd, backlog),
        }
    }

    /// Connects.
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) if is_kernels(fd, slot, address, len) => {
                original::connect(fd, address, len)
            }
            Entry::Socket(slot) => nothing((|| {
                let socket = Socket::get(fd, slot)?;
                match address::read(address, len)? {
                    Given::Ip(ip, port) if socket.is_datagrams() => {
                        datagram::connect(&socket, ip, port)
                    }
                    Given::Unspecified if socket.is_datagrams() => datagram::disconnect(&socket),
                    Given::Ip(ip, port) => connect::connect(&socket, ip, port),
                    Given::Unspecified => connect::disconnect(&socket),
                    Given::Other => Err(Errno::NETUNREACH),
                }
            })()),
            Entry::Internal => fail(Errno::BADF),
            entry => match decide_for(fd, entry, address, len, Purpose::Connect) {
                Ok(Decision::Kernel) => original::connect(fd, address, len),
                Ok(Decision::Ours(socket, ip, port)) if socket.is_datagrams() => {
                    nothing(datagram::connect(&socket, ip, port))
                }
                Ok(Decision::Ours(socket, ip, port)) => {
                    nothing(connect::connect(&socket, ip, port))
                }
                Err(errno) => fail(errno),
            },
        }
    }

    /// Accepts.
    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int where settled(fd) {
        if table::is_kernel(fd) {
            return original::accept(fd, address, len);
        }
        accept4(fd, address, len, 0)
    }

    /// Accepts.
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => number((|| {
                let listener = Socket::get(fd, slot)?;
                if listener.is_datagrams() {
                    return Err(Errno::OPNOTSUPP);
                }
                let (fd, accepted) = connect::accept(&listener, flags)?;
                let family = accepted.slot.app_cold.family.load(Ordering::Relaxed);
                // An address that cannot be stored does not undo the connection.
                let _ = address::write(&accepted.slot.cold.remote(), family, address, len);
                Ok(fd)
            })()),
            Entry::Internal => fail(Errno::BADF),
            _ => original::accept4(fd, address, len, flags),
        }
    }

    /// Returns the socket's own address.
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => nothing(Socket::get(fd, slot).and_then(|socket| {
                let family = socket.slot.app_cold.family.load(Ordering::Relaxed);
                required(address)?;
                address::write(&socket.slot.cold.local(), family, address, len)
            })),
            Entry::Internal => fail(Errno::BADF),
            _ => original::getsockname(fd, address, len),
        }
    }

    /// Returns the peer's address.
    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => nothing(Socket::get(fd, slot).and_then(|socket| {
                let status = socket.status();
                if !status.contains(Status::CONNECTED) || status.contains(Status::DEAD) {
                    return Err(Errno::NOTCONN);
                }
                let family = socket.slot.app_cold.family.load(Ordering::Relaxed);
                required(address)?;
                address::write(&socket.slot.cold.remote(), family, address, len)
            })),
            Entry::Internal => fail(Errno::BADF),
            _ => original::getpeername(fd, address, len),
        }
    }

    /// Shuts down.
    fn shutdown(fd: c_int, how: c_int) -> c_int where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => {
                nothing(Socket::get(fd, slot).and_then(|socket| match socket.is_datagrams() {
                    true => datagram::shutdown(&socket, how),
                    false => connect::shutdown(&socket, how),
                }))
            }
            Entry::Internal => fail(Errno::BADF),
            _ => original::shutdown(fd, how),
        }
    }
}

fn note_protocol(kind: c_int, protocol: c_int) {
    bypass::note_with(Bypass::Protocol, |line| {
        let name = match kind {
            libc::SOCK_STREAM => "SOCK_STREAM",
            libc::SOCK_DGRAM => "SOCK_DGRAM",
            libc::SOCK_RAW => "SOCK_RAW",
            libc::SOCK_SEQPACKET => "SOCK_SEQPACKET",
            _ => "another type",
        };
        let _ = write!(
            line,
            "a socket of {name} and protocol {protocol} goes to the kernel: the engine serves TCP and UDP"
        );
    });
}

/// Whether a send has to connect first (MSG_FASTOPEN) on a stream that may be a millrace socket.
pub(super) fn opens_fast(fd: c_int, entry: Entry, flags: c_int) -> bool {
    flags & libc::MSG_FASTOPEN != 0
        && match entry {
            Entry::Socket(slot) => Socket::get(fd, slot).is_ok_and(|socket| !socket.is_datagrams()),
            Entry::Undecided(undecided) => !undecided.datagrams,
            _ => false,
        }
}

/// The socket that is to connect to an address and send at once; none if it is the kernel's.
///
/// # Safety
/// The address is good as sendto wants it.
pub(super) unsafe fn to_open_fast(
    fd: c_int,
    entry: Entry,
    address: *const sockaddr,
    len: socklen_t,
) -> Result<Option<(Socket, IpAddr, u16)>> {
    if let Entry::Socket(slot) = entry {
        let socket = Socket::get(fd, slot)?;
        if address.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller's promise.
        return match unsafe { address::read(address, len) }? {
            Given::Ip(ip, port) => Ok(Some((socket, ip, port))),
            Given::Unspecified => Err(Errno::OPNOTSUPP),
            Given::Other => Err(Errno::NETUNREACH),
        };
    }
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    Ok(
        match unsafe { decide_for(fd, entry, address, len, Purpose::Connect) }? {
            Decision::Kernel => None,
            Decision::Ours(socket, ip, port) => Some((socket, ip, port)),
        },
    )
}

fn required(address: *mut sockaddr) -> Result<()> {
    (!address.is_null()).then_some(()).ok_or(Errno::FAULT)
}

/// # Safety
/// The address is good as bind wants it.
pub(super) unsafe fn decide_for(
    fd: c_int,
    entry: Entry,
    address: *const sockaddr,
    len: socklen_t,
    purpose: Purpose,
) -> Result<Decision> {
    if matches!(entry, Entry::Epoll(_)) || environment::get().is_none() {
        return Ok(Decision::Kernel);
    }
    // SAFETY: the caller's promise.
    match unsafe { address::read(address, len) } {
        // Linux takes bind to AF_UNSPEC with an address of zeros for AF_INET; what is not that the
        // kernel refuses.
        Ok(given) => stack_choice::decide(fd, entry, given, purpose),
        // The kernel reports the error.
        Err(_) => Ok(Decision::Kernel),
    }
}

/// Whether a millrace datagram socket has been handed over to the kernel, because the address is
/// only the kernel's.
///
/// # Safety
/// The address is valid for its length, or null.
pub(super) unsafe fn is_kernels(
    fd: c_int,
    slot: SlotRef,
    address: *const sockaddr,
    len: socklen_t,
) -> bool {
    let Ok(socket) = Socket::get(fd, slot) else {
        return false;
    };
    if address.is_null() || !socket.is_datagrams() {
        return false;
    }
    // SAFETY: the caller's promise.
    let Ok(Given::Ip(ip, _)) = (unsafe { address::read(address, len) }) else {
        return false;
    };
    !datagram::is_served(&socket, connect::or_loopback(ip))
        && datagram::kernel_handover::give_back(fd, slot, &socket)
}
