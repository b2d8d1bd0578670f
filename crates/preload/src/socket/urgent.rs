//! Urgent data, as Linux delivers it. The marked byte is not part of the stream but is received on
//! its own (MSG_OOB), unless SO_OOBINLINE is set. Reading stops at the mark once. In the receive
//! ring the byte is like any other.

use std::sync::atomic::Ordering;

use millrace_context::Status;
use millrace_sockopt::OptName;

use crate::socket::Socket;
use crate::socket::options;

/// The reader's position relative to the urgent mark.
#[derive(Clone, Copy, Debug)]
pub struct Urgent {
    /// The offset of the marked byte.
    pub mark: u64,
    /// The mark is at or after the reader's position.
    pub is_ahead: bool,
    /// The next byte is the marked one (SIOCATMARK).
    pub here: bool,
    /// The program has received the byte out of line.
    pub taken: bool,
    /// The byte has come and can be received (EPOLLPRI).
    pub waits: bool,
    /// The program wants the byte in line.
    pub inline: bool,
    /// The next byte is not read as part of the stream, because it is or was delivered out of line.
    pub hole: bool,
}

/// The urgent state when `received` bytes have come; the caller has read `received` first. `None`:
/// the peer has never sent urgent data.
#[inline]
pub fn state(socket: &Socket, received: u64) -> Option<Urgent> {
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
        // This includes the urgent byte before the latest one if it was received: it must not be
        // read twice.
        hole: !inline && consumed < received && (consumed == mark || consumed + 1 == taken_to),
    }
}

/// How far a read may go of `received` bytes, given the mark (`tcp_inq`).
pub fn limit(socket: &Socket, received: u64) -> u64 {
    match state(socket, received) {
        Some(urgent) if urgent.is_ahead && !urgent.inline && urgent.mark < received => urgent.mark,
        _ => received,
    }
}
