//! Sending datagrams: each is copied into the context's staging ring, and one submission hands it
//! over.

use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use libc::{MSG_MORE, MSG_OOB, msghdr, sockaddr, socklen_t};
use millrace_context::submission::{Ask, SendTo};
use millrace_context::{Address, Operation, Status, layout};
use millrace_sockopt::OptName;
use millrace_wire::record::SEND_OVERHEAD;
use rustix::io::Errno;

use super::ancillary::{self, Asked};
use super::{bind_anywhere, check_family, is_served};
use crate::engine::submission::SubmissionHandle;
use crate::readiness::sleep::Call;
use crate::readiness::{bits, poll_mask};
use crate::socket::address::{self, Given};
use crate::socket::connect::or_loopback;
use crate::socket::options;
use crate::socket::recall::Recalls;
use crate::socket::{Socket, deadline};
use crate::sys::Result;
use crate::sys::robust_lock::{self, Rank};
use crate::sys::user_buffers::UserBuffers;

/// The largest payload of a datagram, by address family.
const MOST_V4: usize = 65_507;
const MOST_V6: usize = 65_527;
/// The bytes of the IP and UDP headers.
const HEADERS_V4: usize = 28;
const HEADERS_V6: usize = 48;
/// The most datagrams that one call can be cut into (Linux's `UDP_MAX_SEGMENTS`).
const PIECES_MAX: usize = 128;

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The socket's peer.
    Peer,
    /// This address and port.
    Address(IpAddr, u16),
}

/// The destination that a program names. `AFNOSUPPORT` and `INVAL` as in Linux.
///
/// # Safety
/// The address is valid for its length, or null.
pub unsafe fn destination(address: *const sockaddr, len: socklen_t) -> Result<To> {
    if address.is_null() || len == 0 {
        return Ok(To::Peer);
    }
    // SAFETY: the caller's promise.
    match unsafe { address::read(address, len) }? {
        Given::Ip(ip, port) => Ok(To::Address(ip, port)),
        Given::Unspecified => Ok(To::Peer),
        Given::Other => Err(Errno::AFNOSUPPORT),
    }
}

/// Sends a message.
///
/// # Safety
/// The message is valid.
pub unsafe fn send_message(socket: &Socket, message: &msghdr, flags: c_int) -> Result<usize> {
    // SAFETY: the caller's promise, for all three.
    let (mut pieces, to, asked) = unsafe {
        (
            UserBuffers::vector(message.msg_iov, message.msg_iovlen, Errno::MSGSIZE)?,
            destination(message.msg_name.cast(), message.msg_namelen)?,
            ancillary::read(message)?,
        )
    };
    send(socket, &mut pieces, to, &asked, flags)
}

/// Sends one datagram, or a part of a corked one.
pub fn send(
    socket: &Socket,
    pieces: &mut UserBuffers,
    to: To,
    asked: &Asked,
    flags: c_int,
) -> Result<usize> {
    let len = pieces.left();
    if len > usize::from(u16::MAX) {
        return Err(Errno::MSGSIZE);
    }
    if flags & MSG_OOB != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let status = socket.status();
    let target = target(socket, status, to)?;
    let segment = check(socket, target, len, asked)?;
    if let Some(errno) = socket.take_error() {
        return Err(errno);
    }
    if socket.write_closed(status) {
        return Err(Errno::PIPE);
    }
    if !status.contains(Status::BOUND) {
        bind_anywhere(socket)?;
    }
    let what = SendTo {
        to: match to {
            To::Peer => None,
            To::Address(..) => Some(Address::from(std::net::SocketAddr::from(target))),
        },
        from: asked
            .from
            .or_else(|| options::group_source(socket, target.0))
            .map_or([0; 16], |ip| layout::mapped(ip).octets()),
        hops: asked.hops,
        class: asked.class,
        segment,
    };
    let more = flags & MSG_MORE != 0 || options::is_on(socket, OptName::UdpCork);
    let nonblocking = socket.is_nonblocking(flags);
    let mut until = None;
    let call = Call::begin();
    let mut recalls = Recalls::for_bits(bits::OUT);
    loop {
        let Some(sequence) = hand_over(socket, pieces, &what, more)? else {
            return Ok(len);
        };
        if recalls.recall(socket)? {
            continue;
        }
        if nonblocking {
            return Err(Errno::AGAIN);
        }
        if until.is_none() {
            until = deadline(socket.slot.app_cold.send_timeout.load(Ordering::Relaxed));
        }
        socket.wait(call, sequence, until)?;
        if let Some(errno) = socket.take_error() {
            return Err(errno);
        }
        if socket.write_closed(socket.status()) {
            return Err(Errno::PIPE);
        }
    }
}

/// The address and port to send to.
fn target(socket: &Socket, status: Status, to: To) -> Result<(IpAddr, u16)> {
    let (ip, port) = match to {
        To::Peer => {
            if !status.contains(Status::CONNECTED) {
                return Err(Errno::DESTADDRREQ);
            }
            let peer = std::net::SocketAddr::from(socket.slot.cold.remote());
            return Ok((peer.ip(), peer.port()));
        }
        To::Address(ip, port) => (or_loopback(ip), port),
    };
    check_family(socket, ip)?;
    if port == 0 {
        return Err(Errno::INVAL);
    }
    Ok((ip, port))
}

/// Refuses a datagram that cannot be sent. Returns the size that it is cut into; 0 if it is not
/// cut.
fn check(socket: &Socket, (ip, _): (IpAddr, u16), len: usize, asked: &Asked) -> Result<u16> {
    let header = socket.engine.region.header();
    if !is_served(socket, ip) {
        return Err(Errno::NETUNREACH);
    }
    if let IpAddr::V4(ip) = ip
        && header.is_broadcast(ip)
        && !options::is_on(socket, OptName::Broadcast)
    {
        return Err(Errno::ACCESS);
    }
    if let Some(from) = asked.from
        && !(header.is_own(from) || from.is_loopback() && header.loopback == 1)
    {
        return Err(Errno::INVAL);
    }
    let (most, headers) = match ip {
        IpAddr::V4(_) => (MOST_V4, HEADERS_V4),
        IpAddr::V6(_) => (MOST_V6, HEADERS_V6),
    };
    if len > most {
        return Err(Errno::MSGSIZE);
    }
    let here = ip.is_loopback() || header.is_own(ip);
    // The path MTU is known only for a peer; the shard uses it for all destinations.
    let known = socket.slot.cold.mtu.load(Ordering::Relaxed);
    let mtu = match known {
        _ if here => u32::from(u16::MAX),
        0 => header.mtu,
        known => known.min(header.mtu),
    };
    let fits = mtu as usize - headers;
    let segment = asked
        .segment
        .unwrap_or_else(|| options::kept(socket, OptName::UdpSegment) as u16);
    let size = usize::from(segment);
    if size == 0 || len <= size {
        if options::refuses_to_cut(socket, ip.is_ipv4()) && len > fits {
            return Err(Errno::MSGSIZE);
        }
        return Ok(0);
    }
    if size > fits || len > size * PIECES_MAX {
        return Err(Errno::INVAL);
    }
    Ok(segment)
}

/// Submits a datagram if there is room. Without room, returns the sequence from before that was
/// seen.
fn hand_over(
    socket: &Socket,
    pieces: &mut UserBuffers,
    what: &SendTo,
    more: bool,
) -> Result<Option<u32>> {
    let sequence = socket.sequence();
    let len = pieces.left();
    // `None`: this is a signal handler in the middle of a send on this socket.
    let _guard =
        robust_lock::take(&socket.slot.app.write_lock, Rank::Socket).ok_or(Errno::AGAIN)?;
    if poll_mask::room(socket) == 0 {
        poll_mask::want_room(socket);
        if poll_mask::room(socket) == 0 {
            return Ok(Some(sequence));
        }
    }
    let handle = SubmissionHandle::take(socket.engine, socket.shard())?;
    handle.follow(socket.slot)?;
    if handle.staging_room() < len as u64 {
        handle.drain(socket.reference)?;
    }
    for (to, len) in handle.staging(len) {
        if len > 0 && !to.is_null() {
            // SAFETY: `staging` gives pieces of the ring that are ours until submitted.
            unsafe { pieces.take(to, len) };
        }
    }
    let mut submission = socket.submission(Operation::SendTo, len as u32);
    submission.arguments = what.to_words();
    if more {
        submission.ask |= Ask::MORE;
    }
    let queued = &socket.slot.app.queued;
    queued.store(
        queued.load(Ordering::Relaxed) + len as u64 + SEND_OVERHEAD,
        Ordering::Release,
    );
    handle.submit(&submission)?;
    Ok(None)
}
