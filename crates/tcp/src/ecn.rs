//! Explicit congestion notification (RFC 3168), and the receiver's part of DCTCP (RFC 8257).

use millrace_wire::tcp::{Flags, Seq};

/// Segments to acknowledge at once after a mark: the peer's window may be very small.
pub(crate) const MARKED_QUICK: u8 = 2;

/// The state of marks in both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ecn {
    /// SND.NXT at the last reduction for a mark, modulo 2^32: one reduction in a round trip.
    reduced_until: Seq,
    /// ECE while the peer is to hear of a mark, else empty. Every segment carries it.
    echo: Flags,
    /// CWR is due on the next new segment.
    cwr_due: bool,
    /// DCTCP: whether the last segment was marked. A segment that differs leaves the fast path.
    marked: bool,
}

/// DCTCP: an acknowledgement of what came before a change of marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PriorAck {
    /// Low half of the stream offset to acknowledge.
    pub(crate) end: u32,
    /// ECE as it was before the change.
    pub(crate) echo: Flags,
}

/// What a segment with payload asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MarkAction {
    /// An acknowledgement is due at once.
    pub(crate) acknowledge: bool,
    /// The next segments are acknowledged at once.
    pub(crate) quickack: bool,
    /// DCTCP: the echo before a change of marks.
    pub(crate) prior_echo: Option<Flags>,
}

impl Default for Ecn {
    fn default() -> Ecn {
        Ecn {
            reduced_until: Seq(0),
            echo: Flags::empty(),
            cwr_due: false,
            marked: false,
        }
    }
}

/// Whether a SYN with these flags asks for ECN. RFC 3168 6.1.1: an "ECN-setup SYN packet" has both
/// ECE and CWR set.
pub(crate) fn is_asked(flags: Flags) -> bool {
    flags.contains(Flags::ECE | Flags::CWR)
}

/// Whether a SYN-ACK with these flags agrees. RFC 3168 6.1.1: an "ECN-setup SYN-ACK packet" has ECE
/// set and CWR clear. A SYN-ACK that reflects both does not agree.
pub(crate) fn is_agreed(flags: Flags) -> bool {
    flags & (Flags::ECE | Flags::CWR) == Flags::ECE
}

impl Ecn {
    /// ECE if the peer is to hear of a mark: a part of every segment's flags.
    #[inline(always)]
    pub(crate) fn echo(&self) -> Flags {
        self.echo
    }

    /// Whether a segment with or without a mark changes nothing here.
    #[inline(always)]
    pub(crate) fn is_predicted(&self, marked: bool) -> bool {
        marked == self.marked
    }

    /// Whether CWR is due.
    #[inline]
    pub(crate) fn is_cwr_due(&self) -> bool {
        self.cwr_due
    }

    /// Whether CWR is due; it leaves now.
    pub(crate) fn take_cwr(&mut self) -> bool {
        std::mem::take(&mut self.cwr_due)
    }

    /// The window was reduced. RFC 3168 6.1.2: the peer hears of that by CWR, for a loss too.
    pub(crate) fn on_window_reduced(&mut self, agreed: bool) {
        self.cwr_due = agreed;
    }

    /// A segment with payload arrived. `dctcp`: each acknowledgement tells the marks of what it
    /// covers (RFC 8257 3.2). Otherwise all tell of a mark until the peer has reduced its window
    /// (RFC 3168 6.1.3).
    pub(crate) fn on_payload(&mut self, marked: bool, cwr: bool, dctcp: bool) -> MarkAction {
        let mut action = MarkAction::default();
        if dctcp {
            if marked != self.marked {
                action.prior_echo = Some(self.echo);
                action.acknowledge = true;
                self.marked = marked;
                self.echo.set(Flags::ECE, marked);
            }
            return action;
        }
        if cwr {
            self.echo = Flags::empty();
            // The peer's window may be very small now.
            action.acknowledge = true;
        }
        if marked && self.echo.is_empty() {
            self.echo = Flags::ECE;
            action.quickack = true;
        }
        action
    }

    /// Whether the window was reduced for a mark within the last round trip; `una` is SND.UNA.
    pub(crate) fn is_reduced(&self, una: u64) -> bool {
        Seq(una as u32).before(self.reduced_until)
    }

    /// The window is reduced for a mark; `nxt` is SND.NXT.
    pub(crate) fn on_mark_echoed(&mut self, nxt: u64) {
        self.reduced_until = Seq(nxt as u32);
        self.cwr_due = true;
    }
}
