//! The events that recovery is told, and the decisions that come back.

use super::scoreboard::Delivered;
use crate::config::Config;
use crate::options::Features;
use crate::rtt::Rtt;
use crate::time::Instant;
use crate::window::SendSpace;

/// What recovery reads of its connection.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) config: &'a Config,
    pub(crate) send: &'a SendSpace,
    pub(crate) rtt: &'a Rtt,
    pub(crate) features: Features,
    /// Our timestamp clock, in milliseconds.
    pub(crate) clock: u32,
    pub(crate) now: Instant,
}

impl View<'_> {
    pub(super) fn mss(&self) -> u32 {
        u32::from(self.send.mss)
    }

    pub(super) fn has_sack(&self) -> bool {
        self.features.contains(Features::SACK)
    }
}

/// An acknowledgement that header prediction did not take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    /// What it delivered, cumulatively and selectively.
    pub(crate) delivered: Delivered,
    /// Bytes that it acknowledges cumulatively.
    pub(crate) acked: u32,
    /// Whether it is a duplicate acknowledgement (RFC 5681 2).
    pub(crate) duplicate: bool,
    /// The timestamp that it echoes.
    pub(crate) echo: Option<u32>,
}

/// What the connection has to do after an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decision {
    /// Something is newly lost: a recovery has to begin, unless one is in progress.
    pub(crate) loss: bool,
    /// Bytes that the acknowledgement delivered, for [`super::Recovery::reduce`] once the recovery
    /// has begun.
    pub(crate) delivered: u32,
    /// When the reorder timer has to run.
    pub(crate) reorder_at: Option<Instant>,
}

impl Decision {
    /// There is nothing to do.
    pub(crate) const NONE: Decision = Decision {
        loss: false,
        delivered: 0,
        reorder_at: None,
    };
}

/// Counters for [`crate::Info`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossCounters {
    /// Payload bytes sent again.
    pub(crate) bytes_retransmitted: u64,
    /// Segments sent again, SYNs among them.
    pub(crate) segments_retransmitted: u32,
    /// DSACK reports received.
    pub(crate) dsacks: u32,
    /// Retransmission time-outs.
    pub(crate) timeouts: u32,
}

impl LossCounters {
    pub(super) const ZERO: LossCounters = LossCounters {
        bytes_retransmitted: 0,
        segments_retransmitted: 0,
        dsacks: 0,
        timeouts: 0,
    };
}
