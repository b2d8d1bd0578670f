//! Urgent data, as Linux delivers it: the marked byte is not in the stream that is read, but
//! received apart (MSG_OOB), unless SO_OOBINLINE is set. Reading stops at the mark once. In the
//! receive ring it is a byte like the others.

use std::sync::atomic::Ordering;

use millrace_context::Status;
use millrace_sockopt::OptName;

use crate::socket::Socket;
use crate::socket::options;

/// Where reading stands with the urgent mark.
#[derive(Clone, Copy, Debug)]
pub struct Urgent {
    /// Offset of the marked byte.
    pub mark: u64,
    /// It is not behind the reader.
    pub is_ahead: bool,
    /// The next byte is the marked one (SIOCATMARK).
    pub here: bool,
    /// It was received out of line.
    pub taken: bool,
    /// It has come and waits to be received (EPOLLPRI).
    pub waits: bool,
    /// The program wants it in line.
    pub inline: bool,
    /// The next byte of the stream is not to be read as one: it is delivered out of line, or was.
    pub hole: bool,
}

/// What there is to know when `received` bytes have come, which were counted before; none, if the
/// peer never had anything urgent.
#[inline]
pub fn look(socket: &Socket, received: u64) -> Option<Urgent> {
    let status = socket.slot.engine.status.load(Ordering::Relaxed);
    if status & Status::URGENT.bits() == 0 {
        return None;
    }
    Some(reckon(socket, received))
}

#[cold]
fn reckon(socket: &Socket, received: u64) -> Urgent {
    let slot = socket.slot;
    let mark = slot.cold.urgent.load(Ordering::Relaxed);
    let consumed = slot.app.consumed.load(Ordering::Acquire);
    let taken_to = slot.app_cold.urgent_taken.load(Ordering::Relaxed);
    let inline = options::kept_in(&slot.app_cold, OptName::OobInline) != 0;
    let taken = taken_to == mark.wrapping_add(1);
    Urgent {
        mark,
        is_ahead: consumed <= mark,
        here: consumed == mark,
        taken,
        waits: consumed <= mark && mark < received && !taken,
        inline,
        // Also the one before the latest, if it was received: it must not come again.
        hole: !inline && consumed < received && (consumed == mark || consumed + 1 == taken_to),
    }
}

/// How far `received` bytes can be read before the mark (`tcp_inq`).
pub fn limit(socket: &Socket, received: u64) -> u64 {
    match look(socket, received) {
        Some(urgent) if urgent.is_ahead && !urgent.inline && urgent.mark < received => urgent.mark,
        _ => received,
    }
}
