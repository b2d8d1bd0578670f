//! The events that a socket is ready for, from its slot: Linux's `tcp_poll` and `udp_poll`.

use std::sync::atomic::{Ordering, fence};

use millrace_context::Status;

use crate::readiness::bits;
use crate::readiness::interest_list::Edge;
use crate::socket::urgent;
use crate::socket::{Socket, flag};

/// How many bytes can be queued now: 0 while TCP_NOTSENT_LOWAT is reached (Linux's
/// `sk_stream_memory_free`).
pub fn room(socket: &Socket) -> u64 {
    let slot = socket.slot;
    let limit = u64::from(slot.engine.send_limit.load(Ordering::Acquire));
    let acked = slot.engine.acked.load(Ordering::Acquire);
    let queued = slot.app.queued.load(Ordering::Relaxed);
    let room = limit.saturating_sub(queued.saturating_sub(acked));
    match low_water(socket) {
        Some((low, unsent)) if unsent >= low => 0,
        _ => room,
    }
}

/// Whether the room is worth a report: a third of the buffer is free, and less than half of
/// TCP_NOTSENT_LOWAT is unsent (Linux's `sk_stream_is_writeable`).
pub fn is_writable(socket: &Socket) -> bool {
    let limit = u64::from(socket.slot.engine.send_limit.load(Ordering::Relaxed));
    let held = low_water(socket).is_some_and(|(low, unsent)| unsent.saturating_mul(2) >= low);
    room(socket) >= limit / 3 && limit > 0 && !held
}

/// TCP_NOTSENT_LOWAT, if it is set, and the number of unsent bytes.
pub fn low_water(socket: &Socket) -> Option<(u64, u64)> {
    let slot = socket.slot;
    let low = u64::from(slot.cold.notsent_low.load(Ordering::Relaxed));
    let queued = slot.app.queued.load(Ordering::Relaxed);
    let sent = || slot.engine.sent.load(Ordering::Relaxed);
    (low != 0).then(|| (low, queued.saturating_sub(sent())))
}

/// Notes that the program misses room to send. The caller looks once more after this, since the
/// engine may have made room before it could see the note.
pub fn want_room(socket: &Socket) {
    socket.slot.app.send_wanted.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// The events that the socket is ready for. `interest` says whether missing room is noted.
pub fn of(socket: &Socket, interest: u32) -> (u32, Edge) {
    let slot = socket.slot;
    let status = socket.status();
    if status.contains(Status::ELSEWHERE) {
        return elsewhere(socket);
    }
    let flags = socket.flags();
    let mut edge = Edge {
        received: slot.engine.received.load(Ordering::Acquire),
        status: status.bits() | (flags & (flag::SHUT_READ | flag::SHUT_WRITE)) << 16,
        error: slot.engine.error.load(Ordering::Acquire),
        wanted: slot.app.send_wanted.load(Ordering::Relaxed),
    };
    let waiting = edge
        .received
        .saturating_sub(slot.app.consumed.load(Ordering::Acquire));
    if status.contains(Status::DATAGRAM) {
        return of_datagrams(socket, interest, status, edge);
    }
    if status.contains(Status::LISTENING) {
        let ready = if waiting > 0 { bits::IN } else { 0 };
        return (ready, edge);
    }
    let mut ready = 0;
    let fresh = socket.is_fresh(status);
    let read_closed = !fresh && socket.read_closed(status);
    let write_closed = !fresh && socket.write_closed(status);
    if fresh || read_closed && write_closed {
        ready |= bits::HUP;
    }
    if read_closed {
        ready |= bits::IN | bits::RDHUP;
    }
    let mut waiting = waiting;
    if let Some(urgent) = urgent::state(socket, edge.received) {
        if urgent.waits {
            ready |= bits::PRI;
        }
        waiting = waiting.saturating_sub(u64::from(urgent.hole));
    }
    if !status.contains(Status::CONNECTING) {
        let low_water = u64::from(slot.app_cold.low_water.load(Ordering::Relaxed));
        if waiting >= low_water.max(1) {
            ready |= bits::IN;
        }
        if fresh || write_closed || is_writable(socket) {
            ready |= bits::OUT;
        } else if interest & bits::OUT != 0 {
            want_room(socket);
            edge.wanted = slot.app.send_wanted.load(Ordering::Relaxed);
            if is_writable(socket) {
                ready |= bits::OUT;
            }
        }
    }
    if socket.has(flag::DEFERRED) && status.contains(Status::CONNECTING) {
        ready |= bits::OUT;
    }
    // The engine writes an error before the status that goes with it. While the status is still
    // that of a living connection, the error is not reported: both are reported together.
    let ended = fresh || status.contains(Status::DEAD);
    if ended && socket.error().is_some() {
        ready |= bits::ERR;
    }
    (ready, edge)
}

/// The events of a socket that another program has in its memory, as the engine tells them.
#[cold]
fn elsewhere(socket: &Socket) -> (u32, Edge) {
    let (received, ready) = socket.slot.engine.elsewhere();
    let edge = Edge {
        received,
        status: ready,
        ..Edge::default()
    };
    (ready, edge)
}

/// The events of a datagram socket: Linux's `udp_poll`.
fn of_datagrams(socket: &Socket, interest: u32, status: Status, mut edge: Edge) -> (u32, Edge) {
    let slot = socket.slot;
    let mut ready = 0;
    let (read_closed, write_closed) = (socket.read_closed(status), socket.write_closed(status));
    if read_closed && write_closed {
        ready |= bits::HUP;
    }
    if read_closed {
        ready |= bits::IN | bits::RDHUP;
    }
    if edge.received > slot.app.consumed.load(Ordering::Acquire) {
        ready |= bits::IN;
    }
    if is_writable(socket) {
        ready |= bits::OUT;
    } else if interest & bits::OUT != 0 {
        want_room(socket);
        edge.wanted = slot.app.send_wanted.load(Ordering::Relaxed);
        if is_writable(socket) {
            ready |= bits::OUT;
        }
    }
    if status.contains(Status::FAILURES) || socket.error().is_some() {
        ready |= bits::ERR;
    }
    (ready, edge)
}
