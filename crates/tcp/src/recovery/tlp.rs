//! Whether a probe of the tail has repaired a loss (RFC 8985 7.4.2): then the window comes down as for any other, though nobody else noticed it.

use millrace_wire::tcp::{Flags, Segment, Seq};

use crate::connection::Connection;
use crate::time::Instant;

/// A probe that sent the tail again, until it is known what became of it: TLP.end_seq, SND.NXT when it was sent, modulo 2^32; 0 if there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailLossProbe(u32);

impl TailLossProbe {
    pub(crate) const NONE: TailLossProbe = TailLossProbe(0);

    /// A probe sends the tail again of a flight that ends at `end`.
    pub(crate) fn probed(end: u64) -> TailLossProbe {
        TailLossProbe((end as u32).max(1))
    }

    /// Whether the acknowledgements to come must be looked at.
    pub(crate) fn is_open(self) -> bool {
        self.0 != 0
    }
}

impl Connection {
    /// An acknowledgement has been processed. `reported`: it reports a duplicate; `silent`: it acknowledges nothing new and changes no window.
    pub(crate) fn judge_loss_probe(
        &mut self,
        segment: &Segment<'_>,
        reported: bool,
        silent: bool,
        now: Instant,
    ) {
        let probe = self.loss_state.get().tlp;
        let una = Seq(self.send.una as u32);
        if !probe.is_open() || una.before(Seq(probe.0)) {
            return;
        }
        let bare = segment.payload.is_empty() && !segment.flags.intersects(Flags::SYN | Flags::FIN);
        if reported || (silent && bare) {
            // Both have come, the tail and the probe.
            self.loss_state.get_or_insert().tlp = TailLossProbe::NONE;
        } else if una.after(Seq(probe.0)) {
            self.loss_state.get_or_insert().tlp = TailLossProbe::NONE;
            let mss = u32::from(self.send.mss);
            let flight = self.congestion.recent_flight();
            let threshold = self.congestion.reduced(flight, mss, now);
            let window = self.congestion.window;
            self.congestion.window.ssthresh = threshold;
            self.congestion.window.cwnd = window.cwnd.min(threshold);
            self.announce_reduction();
        }
    }
}
