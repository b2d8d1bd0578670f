//! Tail loss probe: whether a probe has repaired a loss (RFC 8985 7.4).

use millrace_wire::tcp::Seq;

/// TLP.end_seq: SND.NXT when a probe sent the tail again, modulo 2^32; 0 without an open probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailLossProbe(u32);

/// What an acknowledgement says about an open probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProbeOutcome {
    /// No probe is open, or its end is not acknowledged yet.
    Pending,
    /// Both the tail and the probe arrived: nothing was lost.
    NothingLost,
    /// The probe alone arrived: the tail was lost, and the probe repaired it.
    Repaired,
}

impl TailLossProbe {
    /// No probe is open.
    pub(super) const NONE: TailLossProbe = TailLossProbe(0);

    /// A probe sends the tail of a flight again that ends at `nxt`.
    pub(super) fn sent(nxt: u64) -> TailLossProbe {
        TailLossProbe((nxt as u32).max(1))
    }

    /// Whether the outcome of a probe is still unknown.
    pub(super) fn is_open(self) -> bool {
        self.0 != 0
    }

    /// RFC 8985 7.4.2, after an acknowledgement moved SND.UNA to `una`. `dsack`: it reports a
    /// duplicate. `silent`: it carries nothing, acknowledges nothing new and changes no window.
    pub(super) fn on_ack(&mut self, una: u64, dsack: bool, silent: bool) -> ProbeOutcome {
        let (una, end) = (Seq(una as u32), Seq(self.0));
        if !self.is_open() || una.before(end) {
            return ProbeOutcome::Pending;
        }
        if dsack || silent {
            *self = TailLossProbe::NONE;
            return ProbeOutcome::NothingLost;
        }
        if una.after(end) {
            *self = TailLossProbe::NONE;
            return ProbeOutcome::Repaired;
        }
        ProbeOutcome::Pending
    }
}
