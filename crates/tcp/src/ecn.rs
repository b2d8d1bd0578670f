//! Explicit congestion notification (RFC 3168): marks of the network instead of losses; and what DCTCP (RFC 8257) makes of it.

use millrace_wire::tcp::{Flags, Segment, Seq};

use crate::connection::{Connection, Pending};
use crate::delayed_ack::MARKED_QUICK;
use crate::info::Phase;
use crate::options::Features;
use crate::time::Instant;

/// The state of both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ecn {
    /// ECE while the peer is to hear of a mark, else nothing: on everything that leaves.
    pub(crate) echo: Flags,
    /// The next new segment says that the window has been reduced.
    pub(crate) reduced: bool,
    /// Whether a mark on the next segment would be nothing new: with DCTCP, that the last had one.
    pub(crate) marked: bool,
}

impl Default for Ecn {
    fn default() -> Ecn {
        Ecn {
            echo: Flags::empty(),
            reduced: false,
            marked: false,
        }
    }
}

/// What a SYN with these flags asks for (RFC 3168 6.1.1).
pub(crate) fn is_asked(flags: Flags) -> bool {
    flags.contains(Flags::ECE | Flags::CWR)
}

/// Whether a SYN-ACK with these flags agrees (RFC 3168 6.1.1: one that reflects everything does not).
pub(crate) fn is_agreed(flags: Flags) -> bool {
    flags & (Flags::ECE | Flags::CWR) == Flags::ECE
}

impl Connection {
    /// What a segment of an ECN connection says of marks: those it suffered itself, and those that it echoes. Before its acknowledgement is processed.
    pub(crate) fn take_marks(&mut self, segment: &Segment<'_>, now: Instant) {
        if !segment.payload.is_empty() {
            self.take_mark(segment);
        }
        if segment.flags.contains(Flags::ECE) {
            self.take_echo(segment, now);
        }
    }

    /// RFC 3168 6.1.3: after a mark everything says so until the peer has reduced its window. RFC 8257 3.2: each acknowledgement says how it was with what it
    /// acknowledges.
    fn take_mark(&mut self, segment: &Segment<'_>) {
        if self.congestion.counts_marks() {
            if segment.marked != self.ecn.marked {
                if self.receive.unacked() > 0 {
                    self.loss_state.get_or_insert().former =
                        Some((self.receive.nxt as u32, self.ecn.echo));
                }
                self.ecn.marked = segment.marked;
                self.ecn.echo.set(Flags::ECE, segment.marked);
                self.pending |= Pending::ACK;
            }
            return;
        }
        if segment.flags.contains(Flags::CWR) {
            // The peer's window may be very small now.
            self.ecn.echo = Flags::empty();
            self.pending |= Pending::ACK;
        }
        if segment.marked && self.ecn.echo.is_empty() {
            self.ecn.echo = Flags::ECE;
            self.delayed_ack.enter_quickack(MARKED_QUICK);
        }
    }

    /// RFC 3168 6.1.2: the window comes down as for a loss, once in a round trip, and nothing is sent again.
    fn take_echo(&mut self, segment: &Segment<'_>, now: Instant) {
        let acked = segment.ack - self.send.seq(self.send.una);
        if acked < 0 || acked as u32 > self.send.in_flight() {
            return;
        }
        self.congestion.on_echo(acked as u32);
        let una = Seq(self.send.una as u32);
        let repairing = matches!(self.phase, Phase::Recovery | Phase::Loss);
        if repairing
            || una.before(self.loss_state.get().reduced_until)
            || self.send.in_flight() == 0
        {
            return;
        }
        let (flight, mss) = (self.send.in_flight(), u32::from(self.send.mss));
        let threshold = self.congestion.marked(flight, mss, now);
        let window = &mut self.congestion.window;
        window.ssthresh = threshold;
        window.cwnd = window.cwnd.min(threshold);
        self.loss_state.get_or_insert().reduced_until = Seq(self.send.nxt as u32);
        self.ecn.reduced = true;
    }

    /// The window was reduced for a loss: that is said too (RFC 3168 6.1.2).
    pub(crate) fn announce_reduction(&mut self) {
        self.ecn.reduced = self.features.contains(Features::ECN);
    }

    /// Whether the window came down for a mark within the last round trip.
    pub(crate) fn is_reduced(&self) -> bool {
        Seq(self.send.una as u32).before(self.loss_state.get().reduced_until)
            && self.send.in_flight() > 0
    }
}
