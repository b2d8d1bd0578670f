//! The loss state machine of a connection: Open, Disorder, Recovery, Loss.
//!
//! It exists from the first loss or reordering on. Most connections never allocate it.

use std::ops::Range;

use millrace_wire::tcp::Seq;

use super::event::{Ack, Decision, LossCounters, View};
use super::prr::ProportionalRateReduction;
use super::rack::Rack;
use super::scoreboard::{Delivered, Scoreboard};
use super::sent_log::SentLog;
use super::tlp::TailLossProbe;
use super::undo::Undo;
use crate::congestion::{Acked, Congestion, Delivery};
use crate::info::Phase;
use crate::options::Features;
use crate::time::Instant;

/// The repair of one flight.
#[derive(Clone, Debug)]
pub(super) struct Repair {
    pub(super) board: Scoreboard,
    pub(super) prr: ProportionalRateReduction,
}

/// Everything that loss recovery remembers after its first use.
#[derive(Clone, Debug)]
pub(super) struct LossState {
    pub(super) phase: Phase,
    /// RecoveryPoint of RFC 6675: SND.NXT at the last loss; 0 before the first.
    recovery_point: u64,
    /// Segments that the peer must have received, by its duplicate acknowledgements. Only counted
    /// without selective acknowledgement.
    duplicate_acks: u16,
    rack: Rack,
    tlp: TailLossProbe,
    /// Exists while the flight has a mark.
    pub(super) repair: Option<Box<Repair>>,
    /// How to revert the last reduction, while it may prove spurious.
    pub(super) undo: Option<Box<Undo>>,
    pub(super) counters: LossCounters,
}

/// What [`LossState::detect_loss`] found.
struct Detected {
    lost: bool,
    reorder_at: Option<Instant>,
}

impl LossState {
    /// No loss has happened.
    pub(super) const NEW: LossState = LossState {
        phase: Phase::Open,
        recovery_point: 0,
        duplicate_acks: 0,
        rack: Rack::NEW,
        tlp: TailLossProbe::NONE,
        repair: None,
        undo: None,
        counters: LossCounters::ZERO,
    };

    /// Whether lost segments are being sent again.
    pub(super) fn is_repairing(&self) -> bool {
        matches!(self.phase, Phase::Recovery | Phase::Loss)
    }

    /// Whether an acknowledgement of nothing new may still matter.
    pub(super) fn needs_every_ack(&self) -> bool {
        self.tlp.is_open() || self.undo.is_some()
    }

    /// Pipe of RFC 6675: the bytes thought to be in the network.
    pub(super) fn pipe(&self, in_flight: u32, mss: u32) -> u32 {
        if self.phase == Phase::Open {
            return in_flight;
        }
        // Each duplicate acknowledgement says that a segment has left the network; not all have.
        let departed = (u32::from(self.duplicate_acks) * mss).min(in_flight.saturating_sub(mss));
        match &self.repair {
            None => in_flight.saturating_sub(departed),
            Some(repair) => {
                let board = &repair.board;
                (in_flight + board.resent())
                    .saturating_sub(board.sacked() + board.lost() + departed)
            }
        }
    }

    /// The repair in progress; begins one if there is none. Header prediction is off meanwhile.
    pub(super) fn repair(&mut self, view: &View<'_>, log: &SentLog) -> &mut Repair {
        if self.phase == Phase::Open {
            self.phase = Phase::Disorder;
        }
        self.repair.get_or_insert_with(|| {
            let send = view.send;
            let limit = view.config.runs_max(send.in_flight());
            Box::new(Repair {
                board: Scoreboard::new(send.una, send.nxt, log, limit),
                prr: ProportionalRateReduction::default(),
            })
        })
    }

    /// Moves the state machine after an acknowledgement that header prediction did not take.
    pub(super) fn on_delivered(
        &mut self,
        view: &View<'_>,
        log: &SentLog,
        congestion: &mut Congestion,
        ack: &Ack,
    ) -> Decision {
        let delivered = &ack.delivered;
        let echo = ack
            .echo
            .filter(|_| view.features.contains(Features::TIMESTAMPS));
        self.rack
            .advance(delivered, echo, view.clock, view.rtt.min_us(), view.now);
        if congestion.is_paced() {
            self.update_model(view, congestion, delivered);
        }
        let sack = view.has_sack();
        let bytes = if sack {
            delivered.bytes
        } else {
            self.count_duplicates(view, ack.acked, ack.duplicate)
        };
        let advanced = ack.acked > 0;
        if self.is_repairing() {
            // Without selective acknowledgement, one that covers a retransmission says nothing
            // about the bytes that were not sent again.
            let original = delivered.original && (sack || !delivered.ambiguous);
            self.undo_if_disproved(view, congestion, echo, original, advanced);
        }
        match self.phase {
            Phase::Open | Phase::Disorder | Phase::Reduced => {
                self.on_delivered_before_loss(view, log, congestion, ack.acked, bytes)
            }
            Phase::Recovery if view.send.una >= self.recovery_point => {
                congestion.leave_recovery();
                self.on_recovered(view);
                Decision::NONE
            }
            Phase::Recovery => self.on_partial_ack(view, log, congestion, bytes, advanced),
            Phase::Loss if view.send.una >= self.recovery_point => {
                congestion.leave_loss();
                self.on_recovered(view);
                grow(view, congestion, bytes);
                Decision::NONE
            }
            Phase::Loss => {
                let detected = self.detect_loss(view, log, congestion);
                if advanced {
                    // RFC 3465 2.3 bounds slow start after a time-out: much of what is acknowledged
                    // now may have been delivered before. One segment counts.
                    let most = if sack { u32::MAX } else { view.mss() };
                    grow(view, congestion, bytes.min(most));
                }
                Decision::after(&detected)
            }
        }
    }

    /// An acknowledgement in Open or Disorder.
    fn on_delivered_before_loss(
        &mut self,
        view: &View<'_>,
        log: &SentLog,
        congestion: &mut Congestion,
        acked: u32,
        bytes: u32,
    ) -> Decision {
        let detected = self.detect_loss(view, log, congestion);
        let repair = self.repair.as_deref();
        let left = repair.is_some_and(|repair| repair.board.lost() > 0);
        if detected.lost || left {
            return Decision {
                loss: true,
                delivered: bytes,
                ..Decision::after(&detected)
            };
        }
        // RFC 5681 3.2 step 1: duplicates do not open the window. Their segments count once they
        // are acknowledged cumulatively.
        grow(view, congestion, acked);
        self.calm_down();
        Decision::after(&detected)
    }

    /// An acknowledgement in fast recovery below the recovery point.
    fn on_partial_ack(
        &mut self,
        view: &View<'_>,
        log: &SentLog,
        congestion: &mut Congestion,
        bytes: u32,
        advanced: bool,
    ) -> Decision {
        let detected = self.detect_loss(view, log, congestion);
        // RFC 6582 3.2 step 3: "If this ACK does *not* acknowledge all of the data up to and
        // including recover, then this is a partial ACK. In this case, retransmit the first
        // unacknowledged segment."
        if !detected.lost && advanced && !view.has_sack() {
            self.repair(view, log).board.mark_head_lost(view.mss());
        }
        self.reduce(view, congestion, bytes, advanced);
        Decision::after(&detected)
    }

    /// Marks what is lost by now.
    fn detect_loss(
        &mut self,
        view: &View<'_>,
        log: &SentLog,
        congestion: &mut Congestion,
    ) -> Detected {
        let mss = view.mss();
        let threshold = u32::from(view.config.reordering.max(1));
        if !view.has_sack() {
            // RFC 6582 3.2 step 2: duplicates of what a time-out sent again prove nothing. A
            // recovery in progress repairs by partial acknowledgements instead.
            let fresh = view.send.una > self.recovery_point || self.recovery_point == 0;
            let lost = matches!(self.phase, Phase::Open | Phase::Disorder)
                && fresh
                && u32::from(self.duplicate_acks) >= threshold
                && self.repair(view, log).board.mark_head_lost(mss) > 0;
            return Detected {
                lost,
                reorder_at: None,
            };
        }
        let window = self.reordering_window(view);
        let Some(repair) = &mut self.repair else {
            return Detected {
                lost: false,
                reorder_at: None,
            };
        };
        let mut lost = 0;
        // A path that is known to reorder is judged by time alone.
        if !self.rack.reordering_seen() {
            lost += repair.board.mark_lost(threshold, mss);
        }
        let (late, reorder_at) = self.rack.detect(&mut repair.board, window, view.now);
        lost += late;
        if lost > 0 {
            congestion.on_lost(lost, mss);
        }
        Detected {
            lost: lost > 0,
            reorder_at,
        }
    }

    fn reordering_window(&self, view: &View<'_>) -> u32 {
        self.rack.reordering_window(view.rtt, self.is_repairing())
    }

    /// The reordering window is over for some bytes.
    pub(super) fn on_reorder_timer(
        &mut self,
        view: &View<'_>,
        log: &SentLog,
        congestion: &mut Congestion,
    ) -> Decision {
        let detected = self.detect_loss(view, log, congestion);
        Decision {
            loss: detected.lost,
            ..Decision::after(&detected)
        }
    }

    /// Fast recovery begins (RFC 6675 5 step 4, RFC 5681 3.2).
    pub(super) fn enter_fast_recovery(
        &mut self,
        view: &View<'_>,
        log: &SentLog,
        congestion: &mut Congestion,
    ) {
        let flight = view.send.in_flight();
        let window = congestion.window;
        self.phase = Phase::Recovery;
        self.tlp = TailLossProbe::NONE;
        self.recovery_point = view.send.nxt;
        congestion.window.ssthresh =
            congestion.reduced(flight.min(window.cwnd), view.mss(), view.now);
        let repair = self.repair(view, log);
        repair.prr = ProportionalRateReduction::fast_recovery(flight);
        let undo = Undo::new(window, repair.board.start(), repair.board.ambiguous());
        self.undo = Some(Box::new(undo));
        congestion.conserve(self.pipe(flight, view.mss()));
        self.reduce(view, congestion, 0, false);
    }

    /// Only an MTU probe is lost. It is sent again without a reduction (RFC 4821 7.7); the rest of
    /// the flight has its acknowledgements to come.
    pub(super) fn repair_mtu_probe(&mut self, nxt: u64) {
        self.phase = Phase::Loss;
        self.tlp = TailLossProbe::NONE;
        self.recovery_point = nxt;
        self.undo = None;
    }

    /// A retransmission time-out. `backoff` counts those before it without progress.
    pub(super) fn on_timeout(
        &mut self,
        view: &View<'_>,
        log: &SentLog,
        congestion: &mut Congestion,
        backoff: u8,
    ) {
        let (mss, una) = (view.mss(), view.send.una);
        let before = congestion.window;
        // RFC 5681 3.1 holds ssthresh constant "when a TCP sender detects segment loss using the
        // retransmission timer and the given segment has already been retransmitted by way of the
        // retransmission timer at least once".
        let phase = self.phase;
        let first = phase != Phase::Loss || backoff == 0;
        if first {
            congestion.window.ssthresh = congestion.reduced(view.send.in_flight(), mss, view.now);
        }
        congestion.on_timeout(mss);
        self.restart_flight(view.send.nxt);
        let deadline = self.timeout_deadline(view, congestion);
        let repair = self.repair(view, log);
        repair.board.mark_timed_out(mss, deadline);
        repair.prr = ProportionalRateReduction::after_timeout();
        if first {
            let undo = Undo::new(before, una, repair.board.ambiguous());
            self.undo = Some(Box::new(undo));
        }
        // RFC 5682 2.1 step 1: "If the TCP sender is already in RTO recovery AND "recover" is
        // larger than or equal to SND.UNA, do not enter step 2 of this algorithm." Otherwise each
        // time-out would repair a single segment. As in Linux, another time-out of the same segment
        // may enter step 2; one in fast recovery may not.
        let repairs = phase == Phase::Loss && backoff == 0;
        if phase != Phase::Recovery
            && !repairs
            && let Some(undo) = &mut self.undo
        {
            undo.timed_out();
        }
    }

    /// The latest time of transmission that a time-out counts as lost. `None`: the whole flight is
    /// lost. A model of the path must restart with nothing on it: connections of BBR that share a
    /// long queue would otherwise not share it fairly.
    fn timeout_deadline(&self, view: &View<'_>, congestion: &Congestion) -> Option<u32> {
        if !view.has_sack() || congestion.is_paced() {
            return None;
        }
        let window = self.reordering_window(view);
        self.rack.timeout_deadline(view.rtt, window, view.now)
    }

    /// The path carries only smaller segments. The flight is lost, without a sign of congestion.
    pub(super) fn lose_oversized(&mut self, view: &View<'_>, log: &SentLog) {
        self.undo = None;
        self.restart_flight(view.send.nxt);
        let mss = view.mss();
        self.repair(view, log).board.mark_timed_out(mss, None);
    }

    /// The flight is repaired from its start.
    fn restart_flight(&mut self, nxt: u64) {
        self.phase = Phase::Loss;
        self.tlp = TailLossProbe::NONE;
        self.recovery_point = nxt;
        self.duplicate_acks = 0;
    }

    /// Sets the congestion window in recovery, after an acknowledgement that delivered so many
    /// bytes. `advanced`: it moved SND.UNA.
    pub(super) fn reduce(
        &mut self,
        view: &View<'_>,
        congestion: &mut Congestion,
        delivered: u32,
        advanced: bool,
    ) {
        let mss = view.mss();
        let pipe = self.pipe(view.send.in_flight(), mss);
        let paced = congestion.is_paced();
        let window = &mut congestion.window;
        if let Some(repair) = &mut self.repair {
            let prr_quota = repair
                .prr
                .quota(delivered, advanced, pipe, window.ssthresh, mss);
            if !paced {
                // One segment may leave into an empty network; otherwise only a time-out would
                // help.
                window.cwnd = (pipe + prr_quota).max(mss);
            }
        }
    }

    /// Counts duplicate acknowledgements without SACK: each stands for a segment that arrived out
    /// of order (RFC 6582; RFC 3042 follows, as each lets that much more be sent). Returns the
    /// bytes that this acknowledgement delivered.
    fn count_duplicates(&mut self, view: &View<'_>, acked: u32, duplicate: bool) -> u32 {
        let mss = view.mss();
        let loss = self.phase == Phase::Loss;
        // After a time-out a duplicate answers a retransmission, unless new data went first (RFC
        // 5682 2.1 step 2b). Then it says that new data left the network, and lost data may follow
        // (3a).
        let answers_new = view.send.nxt > self.recovery_point;
        if duplicate && (!loss || answers_new) {
            self.duplicate_acks = self.duplicate_acks.saturating_add(1);
            return if loss { 0 } else { mss };
        }
        if acked == 0 || loss && !answers_new {
            return acked;
        }
        // All but the first segment were counted by their duplicates.
        let counted = (acked.div_ceil(mss) - 1).min(u32::from(self.duplicate_acks));
        self.duplicate_acks -= counted as u16;
        if loss {
            return acked;
        }
        if self.phase == Phase::Disorder {
            self.duplicate_acks = 0;
        }
        acked.saturating_sub(counted * mss)
    }

    /// Reverts the reduction if an acknowledgement during the repair shows that nothing was lost.
    fn undo_if_disproved(
        &mut self,
        view: &View<'_>,
        congestion: &mut Congestion,
        echo: Option<u32>,
        original: bool,
        advanced: bool,
    ) {
        let can_send = view.send.nxt < view.send.end && view.send.usable() > 0;
        let Some(undo) = &mut self.undo else {
            return;
        };
        let by_echo = advanced && undo.disproved_by_echo(echo);
        let by_progress =
            self.phase == Phase::Loss && undo.disproved_by_progress(original, advanced, can_send);
        if by_echo || by_progress {
            self.undo(congestion);
        }
    }

    /// A DSACK reports `start..end`. All retransmissions may have been spurious (RFC 3708 2).
    pub(super) fn undo_if_reported(
        &mut self,
        congestion: &mut Congestion,
        start: i64,
        end: i64,
        una: u64,
    ) {
        if let Some(undo) = &mut self.undo
            && undo.reported(start, end, una)
        {
            self.undo(congestion);
        }
    }

    /// RFC 4015 3.2: the loss was spurious, so the window returns to what it was.
    fn undo(&mut self, congestion: &mut Congestion) {
        let Some(undo) = self.undo.take() else {
            return;
        };
        congestion.undo(undo.before());
        self.rack.on_reordering();
        if self.is_repairing() {
            if let Some(repair) = &mut self.repair {
                repair.board.forgive();
            }
            self.duplicate_acks = 0;
            self.phase = Phase::Disorder;
        }
    }

    /// Recovery is over. Bytes sent since it began may still have marks.
    fn on_recovered(&mut self, view: &View<'_>) {
        self.rack.on_recovered();
        if let Some(undo) = &mut self.undo {
            undo.ended(view.send.nxt);
        }
        self.duplicate_acks = 0;
        self.phase = Phase::Disorder;
        self.calm_down();
    }

    /// Returns to Open if the flight has no mark, else to Disorder.
    fn calm_down(&mut self) {
        let clean = self
            .repair
            .as_ref()
            .is_none_or(|it| it.board.is_clean() && it.board.ambiguous() == 0);
        self.phase = Phase::Disorder;
        if clean && self.duplicate_acks == 0 {
            self.repair = None;
            // Header prediction would miss the acknowledgement that decides about an open probe.
            if !self.tlp.is_open() {
                self.phase = Phase::Open;
            }
        }
    }

    /// Tells a model of the path what an acknowledgement delivered.
    fn update_model(&self, view: &View<'_>, congestion: &mut Congestion, delivered: &Delivered) {
        let una = view.send.una;
        let mut delivery = Delivery {
            bytes: delivered.bytes,
            end: None,
            una,
            pipe: self.pipe(view.send.in_flight(), view.mss()),
            mss: view.mss(),
            repairing: self.phase == Phase::Recovery,
        };
        // A segment that was sent twice yields no rate.
        if let Some((_, end, false)) = delivered.latest {
            delivery.end = Some(una.wrapping_add_signed(i64::from(Seq(end) - Seq(una as u32))));
        }
        congestion.on_delivered(&delivery, view.now);
    }

    /// Whether a segment that was sent before, or new data, is lost and waits to be sent again.
    pub(super) fn has_lost(&self) -> bool {
        let repair = self.repair.as_deref();
        repair.is_some_and(|repair| repair.board.next_lost().is_some())
    }

    /// `range` was sent again, in `segments` segments with `payload` bytes.
    pub(super) fn on_retransmitted(
        &mut self,
        view: &View<'_>,
        log: &SentLog,
        range: &Range<u64>,
        payload: u64,
        segments: u32,
    ) {
        let len = (range.end - range.start) as u32;
        self.counters.bytes_retransmitted += payload;
        self.counters.segments_retransmitted += segments;
        let repair = self.repair(view, log);
        repair
            .board
            .resend(range.clone(), view.now.as_micros() as u32);
        repair.prr.on_sent(len);
        repair.prr.on_sent_again();
        if let Some(undo) = &mut self.undo {
            undo.on_sent_again(len, view.clock);
        }
    }

    /// A probe sent the tail of the flight again.
    pub(super) fn on_tail_sent(&mut self, nxt: u64) {
        self.tlp = TailLossProbe::sent(nxt);
    }

    /// See [`TailLossProbe::on_ack`].
    pub(super) fn tlp_mut(&mut self) -> &mut TailLossProbe {
        &mut self.tlp
    }

    /// A DSACK came.
    pub(super) fn on_dsack(&mut self, una: u64, nxt: u64) {
        self.counters.dsacks += 1;
        self.rack.widen(una, nxt);
    }

    /// Whether new data is sent before lost data, to test a time-out (RFC 5682 2.1 step 2b).
    pub(super) fn prefers_fresh(&self) -> bool {
        self.undo.as_deref().is_some_and(Undo::prefers_fresh)
    }

    /// Whether new data was sent since the last loss.
    pub(super) fn has_sent_fresh(&self, nxt: u64) -> bool {
        nxt > self.recovery_point
    }
}

/// Grows the congestion window for so many acknowledged bytes. A model sets its window itself.
fn grow(view: &View<'_>, congestion: &mut Congestion, bytes: u32) {
    if bytes > 0 && !congestion.is_paced() {
        let acked = Acked {
            bytes,
            mss: view.mss(),
            rtt_us: view.rtt.srtt_us(),
            rto_us: view.rtt.rto_us(),
            una: view.send.una,
            nxt: view.send.nxt,
        };
        congestion.on_ack(view.config.initial_window, &acked, view.now);
    }
}

impl Decision {
    fn after(detected: &Detected) -> Decision {
        Decision {
            reorder_at: detected.reorder_at,
            ..Decision::NONE
        }
    }
}
