//! The timers of a connection: what runs, until when, and how often it was backed off.

use crate::time::{Duration, Instant};

/// What the transmit timer is for. One runs at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transmit {
    /// Retransmission time-out (RFC 6298).
    Timeout,
    /// Tail loss probe (RFC 8985 7).
    LossProbe,
    /// Bytes that may be merely reordered count as lost then (RFC 8985 6.2).
    Reorder,
    /// The peer's window is shut and nothing is in flight: probe it (RFC 9293 3.8.6.1).
    Persist,
    /// A short segment is held back and nothing is in flight (RFC 9293 3.8.6.2.1).
    Hold,
}

/// The timers; [`Instant::NEVER`] for one that does not run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    transmit: Instant,
    /// Delayed acknowledgement.
    acknowledge: Instant,
    /// Keepalive. In FIN-WAIT-2 without a program: the end of the connection.
    idle: Instant,
    /// When the present lack of progress began: [`Instant::NEVER`] if there is none.
    stalled_since: Instant,
    purpose: Transmit,
    /// Time-outs, or window probes, since there was progress.
    backoff: u8,
    /// How often the time-out has doubled since a round trip was measured. Progress alone does not
    /// take that back (Karn's rule, RFC 6298 5).
    doubled: u8,
    /// Keepalive probes since the peer was last heard.
    keepalive_probes: u8,
    /// The tail was probed since a round trip was measured: the time-out comes next (RFC 8985 7.3).
    probed: bool,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            transmit: Instant::NEVER,
            acknowledge: Instant::NEVER,
            idle: Instant::NEVER,
            stalled_since: Instant::NEVER,
            purpose: Transmit::Timeout,
            backoff: 0,
            doubled: 0,
            keepalive_probes: 0,
            probed: false,
        }
    }
}

impl Timers {
    /// When the earliest timer is due.
    #[inline(always)]
    pub(crate) fn earliest(&self) -> Instant {
        self.transmit.min(self.acknowledge).min(self.idle)
    }

    /// Stops all timers and forgets all counts.
    pub(crate) fn stop_all(&mut self) {
        *self = Timers::default();
    }

    /// Starts the transmit timer for this purpose.
    #[inline(always)]
    pub(crate) fn start(&mut self, purpose: Transmit, at: Instant) {
        self.transmit = at;
        self.purpose = purpose;
    }

    /// Makes the transmit timer due at `at` if it is due later; keeps its purpose.
    pub(crate) fn bound(&mut self, at: Instant) {
        self.transmit = self.transmit.min(at);
    }

    /// Stops the transmit timer.
    #[inline(always)]
    pub(crate) fn stop(&mut self) {
        self.transmit = Instant::NEVER;
    }

    /// Whether the transmit timer runs.
    #[inline(always)]
    pub(crate) fn runs(&self) -> bool {
        self.transmit != Instant::NEVER
    }

    /// Whether the transmit timer runs as the retransmission time-out.
    pub(crate) fn runs_timeout(&self) -> bool {
        self.runs() && self.purpose == Transmit::Timeout
    }

    /// Whether the transmit timer was last started as the retransmission time-out.
    pub(crate) fn is_timeout(&self) -> bool {
        self.purpose == Transmit::Timeout
    }

    /// New data has left: starts the tail loss probe at `probe` if that comes before the timer that
    /// runs. One for reordering, for a shut window or for a short segment stands.
    #[inline(always)]
    pub(crate) fn advance_to_probe(&mut self, probe: Instant) {
        if matches!(self.purpose, Transmit::Timeout | Transmit::LossProbe) && probe < self.transmit
        {
            self.start(Transmit::LossProbe, probe);
        }
    }

    /// The purpose of the transmit timer, if it is due; stops it.
    #[inline]
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Transmit> {
        if self.transmit > now {
            return None;
        }
        self.stop();
        Some(self.purpose)
    }

    /// Starts the timer of delayed acknowledgement, unless it runs.
    #[inline(always)]
    pub(crate) fn delay_ack(&mut self, at: Instant) {
        if self.acknowledge == Instant::NEVER {
            self.acknowledge = at;
        }
    }

    /// Stops the timer of delayed acknowledgement. Returns whether it ran.
    #[inline(always)]
    pub(crate) fn stop_ack(&mut self) -> bool {
        std::mem::replace(&mut self.acknowledge, Instant::NEVER) != Instant::NEVER
    }

    /// Whether a delayed acknowledgement is due; stops its timer.
    #[inline]
    pub(crate) fn take_ack_due(&mut self, now: Instant) -> bool {
        self.acknowledge <= now && self.stop_ack()
    }

    /// Starts the idle timer.
    pub(crate) fn start_idle(&mut self, at: Instant) {
        self.idle = at;
    }

    /// Stops the idle timer.
    pub(crate) fn stop_idle(&mut self) {
        self.idle = Instant::NEVER;
    }

    /// Whether the idle timer is due; stops it.
    #[inline]
    pub(crate) fn take_idle_due(&mut self, now: Instant) -> bool {
        self.idle <= now && {
            self.stop_idle();
            true
        }
    }

    /// Something was acknowledged.
    #[inline(always)]
    pub(crate) fn on_progress(&mut self) {
        self.backoff = 0;
        self.stalled_since = Instant::NEVER;
    }

    /// A round trip was measured.
    #[inline(always)]
    pub(crate) fn on_measured(&mut self) {
        self.doubled = 0;
        self.probed = false;
    }

    /// The peer was heard.
    #[inline(always)]
    pub(crate) fn on_heard(&mut self) {
        self.keepalive_probes = 0;
    }

    /// Time-outs, or window probes, since there was progress.
    #[inline(always)]
    pub(crate) fn backoff(&self) -> u8 {
        self.backoff
    }

    /// A passive open repeated its SYN-ACK so often.
    pub(crate) fn set_backoff(&mut self, times: u8) {
        self.backoff = times;
    }

    /// A retransmission time-out passed.
    pub(crate) fn on_timeout(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
        self.doubled = self.doubled.saturating_add(1);
    }

    /// A time-out of the handshake passed.
    pub(crate) fn on_syn_timeout(&mut self) {
        self.backoff += 1;
        self.doubled = self.backoff;
    }

    /// A window probe leaves.
    pub(crate) fn on_window_probe(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// How often the time-out has doubled.
    #[inline(always)]
    pub(crate) fn doubled(&self) -> u8 {
        self.doubled
    }

    /// A tail loss probe leaves.
    pub(crate) fn on_loss_probe(&mut self) {
        self.probed = true;
    }

    /// Whether a tail loss probe may be scheduled: none since a round trip was measured, no
    /// back-off.
    #[inline(always)]
    pub(crate) fn may_probe(&self) -> bool {
        !self.probed && self.backoff == 0
    }

    /// Keepalive probes since the peer was last heard.
    pub(crate) fn keepalive_probes(&self) -> u8 {
        self.keepalive_probes
    }

    /// A keepalive probe leaves.
    pub(crate) fn on_keepalive_probe(&mut self) {
        self.keepalive_probes = self.keepalive_probes.saturating_add(1);
    }

    /// When the lack of progress began; [`Instant::NEVER`] if there is progress.
    pub(crate) fn stalled_since(&self) -> Instant {
        self.stalled_since
    }

    /// Whether there is a lack of progress.
    #[inline(always)]
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled_since != Instant::NEVER
    }

    /// There is no progress since `ago` before now, unless an earlier lack of it lasts.
    pub(crate) fn note_stall(&mut self, now: Instant, ago: Duration) {
        if !self.is_stalled() {
            let since = now.as_micros().saturating_sub(ago.as_micros());
            self.stalled_since = Instant::from_micros(since);
        }
    }

    /// A wait of another kind begins now: for a FIN in FIN-WAIT-2.
    pub(crate) fn restart_stall(&mut self, now: Instant) {
        self.stalled_since = now;
    }
}
