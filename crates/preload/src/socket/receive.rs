//! Receiving from a stream: bytes are copied once, out of the receive ring in shared memory.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use libc::{MSG_ERRQUEUE, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};
use millrace_context::slot::unpack_ring;
use millrace_context::{Operation, Status};
use rustix::io::Errno;

use crate::engine::submission::SubmissionHandle;
use crate::readiness::bits;
use crate::readiness::sleep::Call;
use crate::socket::recall::Recalls;
use crate::socket::urgent;
use crate::socket::{Socket, deadline};
use crate::sys::Result;
use crate::sys::robust_lock;
use crate::sys::robust_lock::Rank;
use crate::sys::user_buffers::UserBuffers;

/// How often a ring that changes all the time is read again.
const ATTEMPTS: u32 = 1 << 20;

/// Receives, as `recvmsg` does.
pub fn receive(socket: &Socket, into: &mut UserBuffers, flags: c_int) -> Result<usize> {
    if flags & MSG_ERRQUEUE != 0 {
        return Err(Errno::AGAIN);
    }
    if flags & MSG_OOB != 0 {
        return receive_urgent(socket, into, flags);
    }
    let wanted = into.left();
    let target = if flags & MSG_WAITALL != 0 {
        wanted
    } else {
        let low_water = socket.slot.app_cold.low_water.load(Ordering::Relaxed) as usize;
        wanted.min(low_water)
    }
    .max(1);
    let timeout = socket.slot.app_cold.receive_timeout.load(Ordering::Relaxed);
    let nonblocking = socket.is_nonblocking(flags);
    let mut until = None;
    let call = Call::begin();
    let mut recalls = Recalls::for_bits(bits::IN);
    let mut done = 0;
    loop {
        let sequence = socket.sequence();
        let status = socket.status();
        if status.contains(Status::LISTENING) {
            return Err(Errno::NOTCONN);
        }
        // This order matters: readable data comes before the reason why no more will come.
        let closed = socket.read_closed(status);
        let fresh = socket.is_fresh(status);
        let taken = take(socket, into, flags, &mut done)?;
        let all = wanted == 0 && taken != Taken::Nothing || done > 0 && into.left() == 0;
        if done >= target || all || taken == Taken::ToMark {
            return Ok(done);
        }
        if done > 0 && (closed || nonblocking || socket.error().is_some()) {
            return Ok(done);
        }
        if recalls.recall(socket)? {
            continue;
        }
        if done == 0 {
            // As in Linux: after the peer's FIN, a reset breaks the pipe for a writer, but a reader
            // sees the end of the stream.
            if closed && socket.error() == Some(Errno::PIPE) {
                return Ok(0);
            }
            if let Some(errno) = socket.take_error() {
                return Err(errno);
            }
            if fresh {
                return Err(Errno::NOTCONN);
            }
            if closed {
                return Ok(0);
            }
            if nonblocking {
                return Err(Errno::AGAIN);
            }
        }
        if until.is_none() {
            until = deadline(timeout);
        }
        match socket.wait(call, sequence, until) {
            Ok(()) => {}
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
        }
    }
}

/// The result of looking at the ring once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// There was nothing.
    Nothing,
    /// There was something.
    Some,
    /// There was something, and the urgent mark ends the call.
    ToMark,
}

/// Copies the readable bytes up to the urgent mark. Skips a byte that is delivered out of line.
fn take(socket: &Socket, into: &mut UserBuffers, flags: c_int, done: &mut usize) -> Result<Taken> {
    let slot = socket.slot;
    let peek = flags & MSG_PEEK != 0;
    // `None`: this is a signal handler in the middle of a receive on this socket.
    let guard = robust_lock::take(&slot.app.read_lock, Rank::Socket).ok_or(Errno::AGAIN)?;
    for _ in 0..ATTEMPTS {
        let received = slot.engine.received.load(Ordering::Acquire);
        // This comes after the lock: when a socket comes back from another program, the engine
        // first says how far that program has read.
        let consumed = slot.app.consumed.load(Ordering::Relaxed);
        let mut start = if peek {
            consumed + *done as u64
        } else {
            consumed
        };
        let mut end = received;
        let mut to_mark = false;
        if let Some(urgent) = urgent::state(socket, received) {
            if start == urgent.mark && *done > 0 {
                return Ok(Taken::ToMark);
            }
            if into.left() > 0 && start < received {
                start += u64::from(urgent.hole);
            }
            if start < urgent.mark && urgent.mark < received {
                end = urgent.mark;
                to_mark = true;
            }
        }
        if end <= start {
            if !peek && start > consumed {
                slot.app.consumed.store(start, Ordering::Release);
                drop(guard);
                tell_consumed(socket, start, received);
            }
            return Ok(Taken::Nothing);
        }
        let available = end - start;
        let len = into
            .left()
            .min(usize::try_from(available).unwrap_or(usize::MAX));
        to_mark &= len as u64 == available;
        let word = slot.engine.ring.load(Ordering::Acquire);
        let Some((at, size)) = unpack_ring(word) else {
            // The ring is published before the bytes in it: it is being replaced, so look again.
            std::hint::spin_loop();
            continue;
        };
        let mut target = *into;
        if flags & MSG_TRUNC != 0 {
            target.skip(len);
        } else {
            let offset = start & (size - 1);
            let first = len.min((size - offset) as usize);
            for (at, len) in [(at + offset, first), (at, len - first)] {
                if let Some(from) = socket.engine.region.arena(at, len) {
                    // SAFETY: inside the arena; the engine does not write these bytes while the
                    // ring word stays the same.
                    unsafe { target.put(from, len) };
                }
            }
        }
        fence(Ordering::Acquire);
        if slot.engine.ring.load(Ordering::Relaxed) != word {
            // A larger ring has come, and another socket may have the old one already.
            continue;
        }
        *into = target;
        *done += len;
        if !peek && len > 0 {
            let consumed = start + len as u64;
            slot.app.consumed.store(consumed, Ordering::Release);
            drop(guard);
            tell_consumed(socket, consumed, received);
        }
        return Ok(if to_mark { Taken::ToMark } else { Taken::Some });
    }
    // A program that writes into its shared memory has made the ring inconsistent.
    Err(Errno::IO)
}

/// Receives the urgent byte. It never blocks (`tcp_recv_urg`).
fn receive_urgent(socket: &Socket, into: &mut UserBuffers, flags: c_int) -> Result<usize> {
    Recalls::for_bits(bits::IN).recall(socket)?;
    let status = socket.status();
    if status.contains(Status::LISTENING) {
        return Err(Errno::NOTCONN);
    }
    let slot = socket.slot;
    let _guard = robust_lock::take(&slot.app.read_lock, Rank::Socket).ok_or(Errno::AGAIN)?;
    for _ in 0..ATTEMPTS {
        let received = slot.engine.received.load(Ordering::Acquire);
        let urgent = urgent::state(socket, received)
            .filter(|urgent| urgent.is_ahead && !urgent.inline && !urgent.taken)
            .ok_or(Errno::INVAL)?;
        if !urgent.waits {
            return if socket.read_closed(status) {
                Ok(0)
            } else {
                Err(Errno::AGAIN)
            };
        }
        let word = slot.engine.ring.load(Ordering::Acquire);
        let Some((at, size)) = unpack_ring(word) else {
            std::hint::spin_loop();
            continue;
        };
        let mut target = *into;
        let len = target.left().min(1);
        if flags & MSG_TRUNC == 0
            && let Some(from) = socket
                .engine
                .region
                .arena(at + (urgent.mark & (size - 1)), len)
        {
            // SAFETY: inside the arena; the engine does not write this byte while the ring word
            // stays the same.
            unsafe { target.put(from, len) };
        }
        fence(Ordering::Acquire);
        if slot.engine.ring.load(Ordering::Relaxed) != word {
            continue;
        }
        *into = target;
        if flags & MSG_PEEK == 0 {
            if urgent.hole && !urgent.here {
                // The reader stands at the urgent byte before this one, which is no longer
                // remembered.
                slot.app.consumed.fetch_add(1, Ordering::Release);
            }
            slot.app_cold
                .urgent_taken
                .store(urgent.mark + 1, Ordering::Relaxed);
        }
        return Ok(len);
    }
    Err(Errno::IO)
}

/// Tells the shard how far the program has read, when the ring can be reused or the window opened.
pub fn tell_consumed(socket: &Socket, consumed: u64, received: u64) {
    let wake = consumed >= socket.slot.engine.consume_wake.load(Ordering::Relaxed);
    if consumed != received && !wake {
        return;
    }
    let submission = socket.submission(Operation::Consumed, 0);
    // Without a free context, the next read tells it.
    if let Ok(handle) = SubmissionHandle::take(socket.engine, socket.shard()) {
        let _ = if wake {
            handle.submit(&submission)
        } else {
            handle.leave(&submission)
        };
    }
}
