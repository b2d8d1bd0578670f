//! Loss detection and loss recovery of one connection.
//!
//! Losses are detected by duplicate and selective acknowledgements (RFC 6675, RFC 6582) and by time
//! (RFC 8985). The congestion window comes down by RFC 6937, or to one segment after a time-out
//! (RFC 5681 3.1). It returns to what it was when the loss proves spurious (RFC 4015).
//!
//! [`Recovery`] owns that state. It sends nothing and starts no timer: the connection passes a
//! [`View`] of itself with each event, and carries out the [`Decision`].

mod event;
mod loss_state;
mod prr;
mod rack;
mod scoreboard;
mod sent_log;
mod tlp;
mod undo;

use std::ops::Range;

use crate::congestion::Congestion;
use crate::info::Phase;
use crate::time::Instant;
use crate::window::SendSpace;

pub(crate) use event::{Ack, Decision, LossCounters, View};
use loss_state::LossState;
pub(crate) use scoreboard::Delivered;
use scoreboard::Scoreboard;
use sent_log::SentLog;
use tlp::ProbeOutcome;

/// Where and how much recovery may send again now. Offsets are stream offsets, amounts are bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetransmitLimits {
    /// SND.UNA.
    pub(crate) una: u64,
    /// Right edge of the peer's window.
    pub(crate) edge: u64,
    /// Payload of a full segment.
    pub(crate) mss: u64,
    /// The most payload in one piece.
    pub(crate) unit: u64,
    /// What the congestion window leaves.
    pub(crate) room: u64,
}

/// Loss detection and recovery of one connection.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    sent_log: SentLog,
    /// Allocated at the first loss or reordering.
    loss_state: Option<Box<LossState>>,
}

impl Recovery {
    /// The phase of loss recovery.
    #[inline(always)]
    pub(crate) fn phase(&self) -> Phase {
        self.loss_state
            .as_ref()
            .map_or(Phase::Open, |state| state.phase)
    }

    /// Whether the phase is Open.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.loss_state
            .as_ref()
            .is_none_or(|state| state.phase == Phase::Open)
    }

    /// Whether the phase is Open and the flight has no mark: the fast path is allowed.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.loss_state
            .as_ref()
            .is_none_or(|state| state.phase == Phase::Open && state.repair.is_none())
    }

    /// Whether lost segments are being sent again: Recovery or Loss.
    pub(crate) fn is_repairing(&self) -> bool {
        matches!(self.phase(), Phase::Recovery | Phase::Loss)
    }

    /// Whether the flight has marks: segments may have to be sent again.
    #[inline]
    pub(crate) fn has_repair(&self) -> bool {
        self.loss_state
            .as_ref()
            .is_some_and(|state| state.repair.is_some())
    }

    /// Whether lost bytes wait to be sent again.
    pub(crate) fn has_lost(&self) -> bool {
        self.loss_state.as_ref().is_some_and(|it| it.has_lost())
    }

    /// Whether an acknowledgement of nothing new may still matter, with nothing in flight.
    pub(crate) fn needs_every_ack(&self) -> bool {
        self.loss_state
            .as_ref()
            .is_some_and(|it| it.needs_every_ack())
    }

    /// Whether no loss state was ever allocated.
    #[cfg(test)]
    pub(crate) fn is_new(&self) -> bool {
        self.loss_state.is_none()
    }

    /// Pipe of RFC 6675: the bytes thought to be in the network.
    #[inline]
    pub(crate) fn pipe(&self, send: &SendSpace) -> u32 {
        let in_flight = send.in_flight();
        match &self.loss_state {
            Some(state) => state.pipe(in_flight, u32::from(send.mss)),
            None => in_flight,
        }
    }

    /// The counters.
    pub(crate) fn counters(&self) -> LossCounters {
        self.loss_state
            .as_ref()
            .map_or(LossCounters::ZERO, |state| state.counters)
    }

    /// Bytes in flight by mark: selectively acknowledged, lost, and sent again since.
    pub(crate) fn marked_bytes(&self) -> (u32, u32, u32) {
        self.board().map_or((0, 0, 0), |board| {
            (board.sacked(), board.lost(), board.resent())
        })
    }

    /// The highest byte selectively acknowledged; `una` if there is none.
    pub(crate) fn highest_sacked(&self, una: u64) -> u64 {
        self.board().map_or(una, Scoreboard::highest_sacked)
    }

    fn board(&self) -> Option<&Scoreboard> {
        let repair = self.loss_state.as_ref()?.repair.as_deref()?;
        Some(&repair.board)
    }

    fn state_mut(&mut self) -> &mut LossState {
        self.loss_state
            .get_or_insert_with(|| Box::new(LossState::NEW))
    }

    /// The loss state, allocated if need be, and the log.
    fn parts(&mut self) -> (&mut LossState, &SentLog) {
        let state = self
            .loss_state
            .get_or_insert_with(|| Box::new(LossState::NEW));
        (state, &self.sent_log)
    }

    /// The fast path sends new data, or a SYN, up to offset `end`.
    #[inline(always)]
    pub(crate) fn on_sent(&mut self, end: u64, now: Instant) {
        self.sent_log.sent(end, now);
    }

    /// New data up to offset `end` is sent, `len` bytes of payload, while the flight may have
    /// marks.
    #[inline(always)]
    pub(crate) fn on_sent_marked(&mut self, end: u64, len: u32, now: Instant) {
        self.sent_log.sent(end, now);
        if let Some(state) = &mut self.loss_state
            && let Some(repair) = &mut state.repair
        {
            repair.board.sent(end, now.as_micros() as u32);
            repair.prr.on_sent(len);
        }
    }

    /// Everything before `una` is acknowledged and the flight has no mark. Returns when the byte
    /// before `una` was sent, in microseconds modulo 2^32, if the log knows.
    #[inline(always)]
    pub(crate) fn on_acked(&mut self, una: u64) -> Option<u32> {
        self.sent_log.acked(una)
    }

    /// Everything before `una` is acknowledged, `acked` bytes of it now. `highest` is what
    /// [`Recovery::highest_sacked`] returned before this segment.
    pub(crate) fn on_acked_marked(&mut self, una: u64, acked: u32, highest: u64) -> Delivered {
        let sent = self.sent_log.acked(una);
        let repair = self
            .loss_state
            .as_mut()
            .and_then(|state| state.repair.as_mut());
        match repair {
            Some(repair) => repair.board.acked(una, highest),
            None => Delivered {
                bytes: acked,
                latest: sent.map(|at| (at, una as u32, false)),
                ..Delivered::default()
            },
        }
    }

    /// The peer selectively acknowledges `range`, which lies in the flight. `highest` is as above.
    pub(crate) fn on_sacked(
        &mut self,
        view: &View<'_>,
        range: Range<u64>,
        highest: u64,
    ) -> Delivered {
        let (state, log) = self.parts();
        state.repair(view, log).board.sack(range, highest)
    }

    /// A DSACK came: some bytes were sent again for nothing.
    pub(crate) fn on_dsack(&mut self, una: u64, nxt: u64) {
        self.state_mut().on_dsack(una, nxt);
    }

    /// Reverts the reduction if a DSACK of `start..end` shows that all retransmissions were
    /// spurious.
    pub(crate) fn undo_if_reported(
        &mut self,
        congestion: &mut Congestion,
        (start, end): (i64, i64),
        una: u64,
    ) {
        if let Some(state) = &mut self.loss_state {
            state.undo_if_reported(congestion, start, end, una);
        }
    }

    /// An acknowledgement came that header prediction did not take.
    pub(crate) fn on_delivered(
        &mut self,
        view: &View<'_>,
        congestion: &mut Congestion,
        ack: &Ack,
    ) -> Decision {
        let (state, log) = self.parts();
        state.on_delivered(view, log, congestion, ack)
    }

    /// The reorder timer expired.
    pub(crate) fn on_reorder_timer(
        &mut self,
        view: &View<'_>,
        congestion: &mut Congestion,
    ) -> Decision {
        let (state, log) = self.parts();
        state.on_reorder_timer(view, log, congestion)
    }

    /// A retransmission time-out. `backoff` counts those before it without progress.
    pub(crate) fn on_timeout(&mut self, view: &View<'_>, congestion: &mut Congestion, backoff: u8) {
        let (state, log) = self.parts();
        state.counters.timeouts += 1;
        state.on_timeout(view, log, congestion, backoff);
    }

    /// Fast recovery begins.
    pub(crate) fn enter_fast_recovery(&mut self, view: &View<'_>, congestion: &mut Congestion) {
        let (state, log) = self.parts();
        state.enter_fast_recovery(view, log, congestion);
    }

    /// An MTU probe is lost, and nothing else: no reduction.
    pub(crate) fn repair_mtu_probe(&mut self, nxt: u64) {
        self.state_mut().repair_mtu_probe(nxt);
    }

    /// The segments in flight are larger than the path carries.
    pub(crate) fn lose_oversized(&mut self, view: &View<'_>) {
        let (state, log) = self.parts();
        state.lose_oversized(view, log);
    }

    /// Sets the congestion window in recovery, after an acknowledgement that delivered so many
    /// bytes.
    pub(crate) fn reduce(
        &mut self,
        view: &View<'_>,
        congestion: &mut Congestion,
        delivered: u32,
        advanced: bool,
    ) {
        if let Some(state) = &mut self.loss_state {
            state.reduce(view, congestion, delivered, advanced);
        }
    }

    /// The lost bytes to send again now, if the limits allow any.
    pub(crate) fn next_lost(&mut self, limits: &RetransmitLimits) -> Option<Range<u64>> {
        let repair = self.loss_state.as_mut()?.repair.as_mut()?;
        let lost = repair.board.next_lost()?;
        // RFC 9293 3.8.6 (SHLD-14): what the peer has taken out of its window is not sent again.
        // Only the first byte is, which probes the window.
        if lost.start >= limits.edge && lost.start > limits.una {
            return None;
        }
        let mut len = (lost.end - lost.start).min(limits.unit.max(limits.mss));
        if len > limits.room {
            len = limits.room / limits.mss * limits.mss;
            if len == 0 {
                if !repair.prr.take_forced() {
                    return None;
                }
                len = limits.mss.min(lost.end - lost.start);
            }
        }
        Some(lost.start..lost.start + len)
    }

    /// `range` was sent again, in `segments` segments with `payload` bytes.
    pub(crate) fn on_retransmitted(
        &mut self,
        view: &View<'_>,
        range: &Range<u64>,
        payload: u64,
        segments: u32,
    ) {
        let (state, log) = self.parts();
        state.on_retransmitted(view, log, range, payload, segments);
    }

    /// A SYN, or a SYN-ACK, has to be sent again.
    pub(crate) fn on_syn_retransmitted(&mut self) {
        self.state_mut().counters.segments_retransmitted += 1;
    }

    /// The highest `len` bytes in flight that are not selectively acknowledged: a tail loss probe.
    pub(crate) fn highest_unsacked(&mut self, view: &View<'_>, len: u64) -> Option<Range<u64>> {
        let (state, log) = self.parts();
        state.repair(view, log).board.highest_unsacked(len)
    }

    /// A probe sends the tail of the flight again; SND.NXT is `nxt`.
    pub(crate) fn on_tail_sent(&mut self, nxt: u64) {
        self.state_mut().on_tail_sent(nxt);
    }

    /// Reduces the window if the tail loss probe has repaired a loss, and returns whether it has.
    /// RFC 8985 7.4.2: congestion control reacts as to any other loss, though nothing else detected
    /// it.
    pub(crate) fn check_tail_loss(
        &mut self,
        view: &View<'_>,
        congestion: &mut Congestion,
        dsack: bool,
        silent: bool,
    ) -> bool {
        let Some(state) = &mut self.loss_state else {
            return false;
        };
        let outcome = state.tlp_mut().on_ack(view.send.una, dsack, silent);
        if outcome != ProbeOutcome::Repaired {
            return false;
        }
        let flight = congestion.recent_flight();
        let threshold = congestion.reduced(flight, view.mss(), view.now);
        let window = &mut congestion.window;
        window.ssthresh = threshold;
        window.cwnd = window.cwnd.min(threshold);
        true
    }

    /// Whether new data goes before lost data, to test a time-out (RFC 5682 2.1 step 2b).
    pub(crate) fn prefers_fresh(&self) -> bool {
        self.loss_state
            .as_ref()
            .is_some_and(|state| state.prefers_fresh())
    }

    /// Whether new data was sent since the last loss; SND.NXT is `nxt`.
    pub(crate) fn has_sent_fresh(&self, nxt: u64) -> bool {
        self.loss_state
            .as_ref()
            .is_some_and(|state| state.has_sent_fresh(nxt))
    }

    /// No new data can be sent: the time-out cannot be tested.
    pub(crate) fn stop_f_rto(&mut self) {
        if let Some(state) = &mut self.loss_state
            && let Some(undo) = &mut state.undo
        {
            undo.stop_probe();
        }
    }

    /// The connection is over: nothing is sent again.
    pub(crate) fn end(&mut self) {
        if let Some(state) = &mut self.loss_state {
            state.repair = None;
        }
    }
}
