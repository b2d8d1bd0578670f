//! The choice between the kernel's stack and millrace. `socket()` makes a kernel socket; the first
//! address that the program names decides whether it stays one or becomes a millrace socket.

use std::ffi::c_int;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use millrace_context::Bypass;
use millrace_sockopt::OptName;
use rustix::io::Errno;

use crate::engine;
use crate::engine::bypass;
use crate::fd::placeholder;
use crate::fd::table::{self, Entry, Undecided};
use crate::process::environment;
use crate::readiness::{epoll, epoll_sets};
use crate::socket::address::Given;
use crate::socket::{Socket, flag};
use crate::socket::{connect, datagram, device_binding, option_rows, options};
use crate::sys::{self, Result};

/// The call that makes the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// bind, or listen without a bind.
    Bind,
    /// connect.
    Connect,
    /// Sending a datagram.
    Send,
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Purpose::Bind => "bind to",
            Purpose::Connect => "connect to",
            Purpose::Send => "send to",
        }
    }
}

/// The stack that was chosen.
pub enum Decision {
    /// The kernel.
    Kernel,
    /// Millrace, for this address and port.
    Ours(Socket, IpAddr, u16),
}

/// Chooses the stack. `NETDOWN`: the engine may serve the address but cannot be reached. The socket
/// never falls back to the kernel.
pub fn decide(fd: c_int, entry: Entry, given: Given, purpose: Purpose) -> Result<Decision> {
    if environment::get().is_none() {
        return Ok(Decision::Kernel);
    }
    let undecided = match entry {
        Entry::Undecided(undecided) => undecided,
        _ => match examine(fd) {
            Some(undecided) => undecided,
            None => return Ok(Decision::Kernel),
        },
    };
    // Linux takes a bind to AF_UNSPEC with an all-zero address for 0.0.0.0.
    let Given::Ip(ip, port) = given else {
        if undecided.v6 && given == Given::Other {
            bypass::note(
                Bypass::Address,
                &[
                    purpose.name(),
                    " a link-local address goes to the kernel: the engine serves none",
                ],
            );
        }
        return Ok(stay_kernel(fd, entry, given));
    };
    if ip.is_ipv6() && !undecided.v6 {
        return Ok(stay_kernel(fd, entry, given));
    }
    let header = engine::get()?.region.header();
    let ours = match purpose {
        Purpose::Bind => {
            // `::` includes IPv4 unless IPV6_V6ONLY is set.
            let v6_only = undecided.v6
                && sys::getsockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).unwrap_or(1) != 0;
            header.owns(ip, v6_only) || undecided.datagrams && datagram::is_several(header, ip)
        }
        Purpose::Connect | Purpose::Send => {
            header.serves(connect::or_loopback(ip))
                || undecided.datagrams && datagram::is_several(header, ip)
        }
    };
    if !ours {
        note_address(purpose, ip, port);
        return Ok(stay_kernel(fd, entry, given));
    }
    convert(fd, undecided).map(|socket| Decision::Ours(socket, ip, port))
}

fn note_address(purpose: Purpose, ip: IpAddr, port: u16) {
    bypass::note_with(Bypass::Address, |line| {
        let hint = if ip.is_loopback() {
            "without --loopback"
        } else {
            "by its --addr, --route and --gateway"
        };
        let address = SocketAddr::new(ip, port);
        let _ = write!(
            line,
            "{} {address} goes to the kernel: {hint} the engine does not serve it",
            purpose.name()
        );
    });
}

fn stay_kernel(fd: c_int, entry: Entry, given: Given) -> Decision {
    // An address that the kernel will refuse makes no choice.
    if matches!(entry, Entry::Undecided(_)) && !matches!(given, Given::Unspecified) {
        table::exchange(fd, entry, Entry::Kernel);
        epoll_sets::forget_undecided(fd);
    }
    Decision::Kernel
}

/// Makes it a millrace socket, whatever address follows, because it uses a feature that only the
/// engine has.
pub fn make_ours(fd: c_int, undecided: Undecided) -> Result<Socket> {
    convert(fd, undecided)
}

/// An unknown descriptor (inherited or received) may still be a fresh TCP or UDP socket.
fn examine(fd: c_int) -> Option<Undecided> {
    let option = |name| sys::getsockopt(fd, libc::SOL_SOCKET, name).ok();
    let domain = option(libc::SO_DOMAIN)?;
    let v6 = domain == libc::AF_INET6;
    let datagrams = match (option(libc::SO_TYPE)?, option(libc::SO_PROTOCOL)?) {
        (libc::SOCK_STREAM, libc::IPPROTO_TCP) => false,
        (libc::SOCK_DGRAM, libc::IPPROTO_UDP) => true,
        _ => return None,
    };
    if !v6 && domain != libc::AF_INET {
        return None;
    }
    let mut address = [0u8; 28];
    sys::getsockname(fd, &mut address).ok()?;
    let unbound = address[2..4] == [0, 0];
    let device = device_binding::of_kernels(fd);
    if device != 0 && !engine::get().is_ok_and(|engine| device_binding::is_served(engine, device)) {
        device_binding::note_foreign();
        return None;
    }
    // All options that a kernel socket shows, except its buffer sizes, which the kernel tunes
    // itself.
    let set = millrace_sockopt::settable(option_rows::kind(datagrams))
        .enumerate()
        .filter(|(_, row)| {
            row.level == libc::SOL_SOCKET
                && !matches!(row.name, OptName::ReceiveBuffer | OptName::SendBuffer)
                || row.name == OptName::NoDelay
        })
        .fold(0, |set, (at, _)| set | 1 << at);
    unbound.then_some(Undecided {
        v6,
        shared: true,
        datagrams,
        options: set,
    })
}

/// Replaces a kernel socket with a millrace socket, in this descriptor and in every other one that
/// means the same kernel socket.
fn convert(fd: c_int, undecided: Undecided) -> Result<Socket> {
    let family = if undecided.v6 {
        libc::AF_INET6
    } else {
        libc::AF_INET
    };
    // The entry may be of a descriptor that the program closed without the shim.
    let kind = if undecided.datagrams {
        libc::SOCK_DGRAM
    } else {
        libc::SOCK_STREAM
    };
    if sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE)? != kind {
        return Err(Errno::OPNOTSUPP);
    }
    let socket = connect::open(engine::get()?, family, undecided.datagrams)?;
    let file_flags = sys::fcntl(fd, libc::F_GETFL, 0)?;
    if file_flags & libc::O_NONBLOCK != 0 {
        socket.change_flags(flag::NONBLOCK, 0);
    }
    options::repeat(fd, &socket, undecided.options)?;
    let inode = inode(fd)?;
    take_over(fd, &socket)?;
    if undecided.shared {
        for (other, entry) in table::all() {
            if matches!(entry, Entry::Undecided(_)) && self::inode(other) == Ok(inode) {
                take_over(other, &socket)?;
            }
        }
    }
    Ok(socket)
}

fn take_over(fd: c_int, socket: &Socket) -> Result<()> {
    let close_on_exec = sys::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    let registrations = epoll::Migration::begin(fd);
    placeholder::put_over(fd, close_on_exec)?;
    socket.count_descriptor();
    table::set(fd, Entry::Socket(socket.reference));
    registrations.finish(socket);
    Ok(())
}

fn inode(fd: c_int) -> Result<u64> {
    // SAFETY: only for the call; a descriptor that is not open is an error.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    rustix::fs::fstat(borrowed)
        .map(|stat| stat.st_ino)
        .map_err(|_| Errno::BADF)
}
