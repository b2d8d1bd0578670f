//! Receiving datagrams: each call copies one record out of the receive ring in shared memory.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use libc::{MSG_ERRQUEUE, MSG_OOB, MSG_PEEK, MSG_TRUNC, msghdr};
use millrace_context::Operation;
use millrace_context::reply::{self, Failure};
use millrace_context::slot::unpack_ring;
use millrace_wire::record::{self, Record};
use rustix::io::Errno;

use super::ancillary::Riders;
use crate::readiness::bits;
use crate::readiness::sleep::Call;
use crate::socket::address;
use crate::socket::recall::Recalls;
use crate::socket::receive::tell_consumed;
use crate::socket::{Socket, deadline};
use crate::sys::Result;
use crate::sys::robust_lock::{self, Rank};
use crate::sys::user_buffers;
use crate::sys::user_buffers::UserBuffers;

/// How often a ring that changes all the time is read again.
const ATTEMPTS: u32 = 1 << 20;

/// The result of a receive.
pub struct Received {
    /// The call's return value.
    pub len: usize,
    /// The datagram; `None` if the socket is shut for reading.
    pub record: Option<Record>,
    /// MSG_TRUNC if the datagram was cut.
    pub flags: c_int,
}

/// Receives one datagram.
pub fn receive(socket: &Socket, into: &mut UserBuffers, flags: c_int) -> Result<Received> {
    if flags & MSG_OOB != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let nonblocking = socket.is_nonblocking(flags);
    let mut until = None;
    let call = Call::begin();
    let mut recalls = Recalls::for_bits(bits::IN);
    loop {
        let sequence = socket.sequence();
        let closed = socket.read_closed(socket.status());
        if let Some(errno) = socket.take_error() {
            return Err(errno);
        }
        if let Some((record, copied)) = take(socket, into, flags & MSG_PEEK != 0)? {
            let whole = record.payload_len as usize;
            return Ok(Received {
                len: if flags & MSG_TRUNC != 0 {
                    whole
                } else {
                    copied
                },
                record: Some(record),
                flags: if copied < whole { MSG_TRUNC } else { 0 },
            });
        }
        if recalls.recall(socket)? {
            continue;
        }
        if closed {
            return Ok(Received {
                len: 0,
                record: None,
                flags: 0,
            });
        }
        if nonblocking {
            return Err(Errno::AGAIN);
        }
        if until.is_none() {
            until = deadline(socket.slot.app_cold.receive_timeout.load(Ordering::Relaxed));
        }
        socket.wait(call, sequence, until)?;
    }
}

/// Takes the oldest record, or peeks at it. Returns its head and how many bytes of payload were
/// copied; `None` if there is no record.
fn take(socket: &Socket, into: &mut UserBuffers, peek: bool) -> Result<Option<(Record, usize)>> {
    let slot = socket.slot;
    if slot.engine.received.load(Ordering::Acquire) <= slot.app.consumed.load(Ordering::Acquire) {
        return Ok(None);
    }
    // `None`: this is a signal handler in the middle of a receive on this socket.
    let guard = robust_lock::take(&slot.app.read_lock, Rank::Socket).ok_or(Errno::AGAIN)?;
    for _ in 0..ATTEMPTS {
        let received = slot.engine.received.load(Ordering::Acquire);
        // This comes after the lock, as in a stream.
        let start = slot.app.consumed.load(Ordering::Relaxed);
        if received <= start {
            return Ok(None);
        }
        let word = slot.engine.ring.load(Ordering::Acquire);
        let Some((at, size)) = unpack_ring(word) else {
            // The ring is published before its contents: it is being replaced, so look again.
            std::hint::spin_loop();
            continue;
        };
        let mut head = [0u8; record::LEN];
        copy(socket, (at, size), start, record::LEN, |from, at, len| {
            // SAFETY: `at + len` is within the head; `from` within the arena.
            unsafe { from.copy_to_nonoverlapping(head.as_mut_ptr().add(at), len) };
        });
        let record = Record::parse(&head);
        let len = record.payload_len as usize;
        let end = start + record::stored_len(len);
        let mut target = *into;
        let copied = len.min(target.left());
        if end <= received {
            let payload = start + record::LEN as u64;
            copy(socket, (at, size), payload, copied, |from, _, len| {
                // SAFETY: inside the arena; the engine does not write these bytes while the ring
                // word stays the same.
                unsafe { target.put(from, len) };
            });
        }
        fence(Ordering::Acquire);
        if slot.engine.ring.load(Ordering::Relaxed) != word {
            // A larger ring has come, and another socket may have the old one already.
            continue;
        }
        if end > received {
            // A program that writes into its shared memory has made the record inconsistent.
            return Err(Errno::IO);
        }
        *into = target;
        if !peek {
            slot.app.consumed.store(end, Ordering::Release);
            drop(guard);
            tell_consumed(socket, end, received);
        }
        return Ok(Some((record, copied)));
    }
    Err(Errno::IO)
}

/// Copies `len` bytes from stream offset `start` on by `put`, in up to two pieces, each with its
/// position in the whole.
fn copy(
    socket: &Socket,
    (at, size): (u64, u64),
    start: u64,
    len: usize,
    mut piece: impl FnMut(*const u8, usize, usize),
) {
    let offset = start & (size - 1);
    let first = len.min((size - offset) as usize);
    for (at, place, len) in [(at + offset, 0, first), (at, first, len - first)] {
        if len > 0
            && let Some(from) = socket.engine.region.arena(at, len)
        {
            piece(from, place, len);
        }
    }
}

/// The length of the oldest datagram; 0 if there is none.
pub fn next_len(socket: &Socket) -> Result<c_int> {
    // SAFETY: no bytes are wanted.
    let mut nothing = unsafe { UserBuffers::buffer(std::ptr::null(), 0) }?;
    let next = take(socket, &mut nothing, true)?;
    Ok(next.map_or(0, |(record, _)| record.payload_len as c_int))
}

/// Receives a message with its control messages.
///
/// # Safety
/// The message is valid.
pub unsafe fn receive_message(
    socket: &Socket,
    message: &mut msghdr,
    flags: c_int,
) -> Result<usize> {
    // SAFETY: the caller's promise.
    let mut pieces =
        unsafe { UserBuffers::vector(message.msg_iov, message.msg_iovlen, Errno::MSGSIZE) }?;
    // SAFETY: likewise.
    let mut riders = unsafe { Riders::of(message) }?;
    let (len, from, mut told) = if flags & MSG_ERRQUEUE != 0 {
        let (failure, copied, cut) = take_failure(socket, &mut pieces)?;
        riders.tell_failure(socket, &failure);
        (copied, Some(failure.to), cut | MSG_ERRQUEUE)
    } else {
        let received = receive(socket, &mut pieces, flags)?;
        if let Some(record) = &received.record {
            riders.tell(socket, record);
        }
        let from = received.record.map(|record| record.from.into());
        (received.len, from, received.flags)
    };
    if riders.cut {
        told |= libc::MSG_CTRUNC;
    }
    message.msg_controllen = riders.used();
    message.msg_flags = told;
    match from {
        Some(from) if !message.msg_name.is_null() => {
            // SAFETY: the caller's promise.
            unsafe {
                address::write(
                    &from,
                    socket.family(),
                    message.msg_name.cast(),
                    &raw mut message.msg_namelen,
                )?;
            }
        }
        _ => message.msg_namelen = 0,
    }
    Ok(len)
}

/// Takes the oldest error, without its description: the payload of the datagram that caused it.
pub fn receive_failure(socket: &Socket, into: &mut UserBuffers) -> Result<usize> {
    take_failure(socket, into).map(|(_, copied, _)| copied)
}

/// Takes the oldest error. Returns it, how many bytes of the datagram's payload were copied, and
/// MSG_TRUNC if that is not all.
fn take_failure(socket: &Socket, into: &mut UserBuffers) -> Result<(Failure, usize, c_int)> {
    let mut data = [0u8; reply::DATA];
    let submission = socket.submission(Operation::TakeFailure, 0);
    let (_, len) = socket.ask(&submission, &mut data)?;
    let failure = data.first_chunk().map(Failure::parse).ok_or(Errno::PROTO)?;
    let payload = data.get(Failure::LEN..len).ok_or(Errno::PROTO)?;
    let copied = payload.len().min(into.left());
    // SAFETY: so many bytes are there.
    unsafe { into.put(payload.as_ptr(), copied) };
    // The error that came with it is reported by this; the shard says if there are more.
    let seen = socket.slot.engine.error.load(Ordering::Acquire);
    if seen & 0xffff == failure.errno {
        socket.slot.app.error_seen.store(seen, Ordering::Relaxed);
    }
    let cut = if copied < payload.len() { MSG_TRUNC } else { 0 };
    Ok((failure, copied, cut))
}

/// Writes the sender's address for `recvfrom`.
///
/// # Safety
/// The pointers are valid for recvfrom, or null.
pub unsafe fn write_sender(
    socket: &Socket,
    received: &Received,
    from: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<()> {
    if from.is_null() {
        return Ok(());
    }
    match &received.record {
        // SAFETY: the caller's promise.
        Some(record) => unsafe { address::write(&record.from.into(), socket.family(), from, len) },
        None => {
            user_buffers::check(len.cast(), size_of::<libc::socklen_t>())?;
            // SAFETY: likewise.
            unsafe { *len = 0 };
            Ok(())
        }
    }
}
