//! Urgent data as Linux has it (RFC 9293 3.8.5, RFC 6093): a mark in the stream, on the last byte before where the urgent pointer points.
//!
//! The bytes stay where they are in the stream; whether the marked one is delivered out of line is for those who read it.

use millrace_wire::tcp::{Segment, Seq};

use crate::connection::Connection;
use crate::events::Events;

/// Marks in both directions, for as long as a connection has had any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Urgent {
    /// SND.UP: end of what we have announced as urgent.
    sent: u64,
    /// Offset of the latest urgent byte that the peer has announced.
    received: Option<u64>,
}

impl Connection {
    /// The last byte queued is urgent (`MSG_OOB`): segments say so until it is acknowledged, and it is not held back.
    pub fn send_urgent(&mut self) {
        if self.send.end > self.send.una && !self.send.fin {
            self.cold_state.get_or_insert_default().urgent.sent = self.send.end;
        }
    }

    /// Stream offset of the latest byte that the peer has announced as urgent; it need not have come yet.
    #[inline]
    pub fn urgent(&self) -> Option<u64> {
        self.cold_state
            .as_ref()
            .and_then(|cold| cold.urgent.received)
    }

    /// Whether something urgent is queued or in flight.
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        self.cold_state
            .as_ref()
            .is_some_and(|cold| cold.urgent.sent > self.send.una)
    }

    /// The urgent pointer of a segment that begins at `seq`; `None` if the segment has no part in what is urgent. What is further off than the field
    /// can say is announced as beyond all that was sent, once that is in reach.
    #[cold]
    pub(crate) fn urgent_pointer(&self, seq: Seq) -> Option<u16> {
        let end = self.cold_state.as_ref()?.urgent.sent as i64;
        let start = self.send.offset(seq);
        if start >= end {
            return None;
        }
        let within = u16::try_from(end - start).ok();
        within.or((start + 0xffff > self.send.nxt as i64).then_some(0xffff))
    }

    /// RFC 9293 3.10.7.4, sixth. A pointer to what has been received, or no further than an earlier one, is no news (RFC 6093 2.2: only the latest
    /// counts). The pointer is the sequence number after the urgent byte (RFC 6093 3.1; Linux with `tcp_stdurg` off).
    pub(crate) fn take_urgent_pointer(&mut self, segment: &Segment<'_>) {
        let ahead = i64::from(segment.urgent.saturating_sub(1));
        let mark = self.receive.offset(segment.seq) + ahead;
        let news = mark >= self.receive.nxt as i64
            && self.urgent().is_none_or(|known| mark > known as i64);
        if news {
            self.cold_state.get_or_insert_default().urgent.received = Some(mark as u64);
            self.events |= Events::URGENT;
        }
    }
}
