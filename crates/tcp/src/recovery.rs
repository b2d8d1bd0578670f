//! Loss: how it is noticed, and what is done about it (RFC 6675, RFC 6582, RFC 5681 3.2, RFC 6298 5, RFC 4015).

pub(crate) mod loss_state;
pub(crate) mod prr;
pub(crate) mod rack;
pub(crate) mod scoreboard;
pub(crate) mod sent_log;
pub(crate) mod tlp;
pub(crate) mod undo;

use millrace_wire::tcp::Seq;

use crate::config::Config;
use crate::congestion::{Acked, Delivery};
use crate::connection::Connection;
use crate::info::Phase;
use crate::options::Features;
use crate::recovery::prr::ProportionalRateReduction;
use crate::recovery::scoreboard::{Delivered, Scoreboard};
use crate::recovery::tlp::TailLossProbe;
use crate::recovery::undo::Undo;
use crate::time::Instant;
use crate::timers::Transmit;

/// The repair of a flight.
#[derive(Clone, Debug)]
pub(crate) struct Repair {
    pub(crate) board: Scoreboard,
    pub(crate) prr: ProportionalRateReduction,
}

impl Connection {
    /// Bytes thought to be in the network (pipe of RFC 6675).
    #[inline]
    pub(crate) fn pipe(&self) -> u32 {
        let flight = self.send.in_flight();
        if self.phase == Phase::Open {
            return flight;
        }
        let counted_out = self.counted_out(flight);
        match self.loss_state.repair() {
            None => flight.saturating_sub(counted_out),
            Some(repair) => {
                let board = &repair.board;
                (flight + board.resent())
                    .saturating_sub(board.sacked() + board.lost() + counted_out)
            }
        }
    }

    /// Bytes that duplicate acknowledgements say have left the network; never all of the flight.
    fn counted_out(&self, flight: u32) -> u32 {
        let mss = u32::from(self.send.mss);
        (u32::from(self.loss_state.get().duplicates) * mss).min(flight.saturating_sub(mss))
    }

    /// The repair in progress. If there is none it begins: header prediction is off from then on.
    pub(crate) fn repair(&mut self, config: &Config) -> &mut Repair {
        let (send, log) = (&self.send, &self.sent_log);
        let state = self.loss_state.get_or_insert();
        if self.phase == Phase::Open {
            self.phase = Phase::Disorder;
        }
        state.repair.get_or_insert_with(|| {
            let limit = config.runs_max(send.in_flight());
            let board = Scoreboard::new(send.una, send.nxt, log, limit);
            Box::new(Repair {
                board,
                prr: ProportionalRateReduction::default(),
            })
        })
    }

    /// Moves the machine after an acknowledgement that was not plain. `delivered` is what it delivered, `acked` of it
    /// cumulatively; `duplicate` says that it is one (RFC 5681 2). `echo` is the timestamp it echoes.
    pub(crate) fn on_delivered(
        &mut self,
        config: &Config,
        delivered: &Delivered,
        acked: u32,
        duplicate: bool,
        echo: Option<u32>,
        now: Instant,
    ) {
        let echo = echo.filter(|_| self.features.contains(Features::TIMESTAMPS));
        self.rack_advance(delivered, echo, now);
        if self.congestion.is_paced() {
            self.update_model(delivered, now);
        }
        let sack = self.features.contains(Features::SACK);
        let bytes = if sack {
            delivered.bytes
        } else {
            self.count_duplicates(acked, duplicate)
        };
        if matches!(self.phase, Phase::Recovery | Phase::Loss) {
            // Without selective acknowledgement one that covers what was sent again says nothing of what was not.
            let original = delivered.original && (sack || !delivered.ambiguous);
            self.undo_if_disproved(echo, original, acked > 0);
        }
        match self.phase {
            Phase::Open | Phase::Disorder | Phase::Reduced => {
                let left = self
                    .loss_state
                    .repair()
                    .is_some_and(|repair| repair.board.lost() > 0);
                if self.detect_loss(config, now) || left {
                    self.on_loss(config, now);
                    if self.phase == Phase::Recovery {
                        self.reduce(bytes, acked > 0);
                    }
                    return;
                }
                // Duplicates do not open the window (RFC 5681 3.2, step 1); what they stood for counts when it is acknowledged.
                self.grow(config, acked, now);
                self.calm_down();
            }
            Phase::Recovery if self.send.una >= self.loss_state.get().high => {
                self.congestion.leave_recovery();
                self.rack_recovered();
                self.recovered();
            }
            Phase::Recovery => {
                let again = self.detect_loss(config, now);
                // RFC 6582 3.2 step 3: a partial acknowledgement without selective ones means that the next segment is lost too.
                if !again && acked > 0 && !sack {
                    let mss = u32::from(self.send.mss);
                    self.repair(config).board.mark_head_lost(mss);
                }
                self.reduce(bytes, acked > 0);
            }
            Phase::Loss if self.send.una >= self.loss_state.get().high => {
                self.congestion.leave_loss();
                self.rack_recovered();
                self.recovered();
                self.grow(config, bytes, now);
            }
            Phase::Loss => {
                self.detect_loss(config, now);
                if acked > 0 {
                    // RFC 3465 2.3: without selective acknowledgement much of what is acknowledged now may have been delivered before
                    // the time-out; a segment's worth counts.
                    let most = if sack {
                        u32::MAX
                    } else {
                        u32::from(self.send.mss)
                    };
                    self.grow(config, bytes.min(most), now);
                }
            }
        }
    }

    /// After a retransmission time-out (RFC 5681 3.1, RFC 6675 5.1): only what was sent of late is known to be on its way (RFC 8985 6.3).
    pub(crate) fn lose_flight(&mut self, config: &Config, now: Instant) {
        let mss = u32::from(self.send.mss);
        let before = self.congestion.window;
        let una = self.send.una;
        // The threshold is lowered once for a flight, not again for each time-out of the same segment.
        let phase = self.phase;
        let first = phase != Phase::Loss || self.timers.backoff == 0;
        if first {
            let flight = self.send.in_flight();
            self.congestion.window.ssthresh = self.congestion.reduced(flight, mss, now);
        }
        self.congestion.on_timeout(mss);
        self.announce_reduction();
        self.begin_again();
        let deadline = self.rack_deadline(now);
        let repair = self.repair(config);
        repair.board.mark_timed_out(mss, deadline);
        repair.prr = ProportionalRateReduction::again();
        if first {
            let undo = Undo::new(before, una, repair.board.ambiguous());
            self.loss_state.get_or_insert().undo = Some(Box::new(undo));
        }
        // RFC 5682 2.1, step 1: "If the TCP sender is already in RTO recovery AND "recover" is larger than or equal to SND.UNA, do not enter step 2 of this
        // algorithm." Otherwise each time-out would repair a single segment. As in Linux it may if this is the same segment's again; and not in fast recovery.
        let repairs = phase == Phase::Loss && self.timers.backoff == 0;
        if phase != Phase::Recovery
            && !repairs
            && let Some(undo) = self.loss_state.undo_mut()
        {
            undo.timed_out();
        }
    }

    /// The path carries smaller segments only: what is in flight did not get through, which is no sign of congestion.
    pub(crate) fn lose_oversized(&mut self, config: &Config) {
        if self.send.in_flight() > 0 {
            self.loss_state.get_or_insert().undo = None;
            self.begin_again();
            let mss = u32::from(self.send.mss);
            self.repair(config).board.mark_timed_out(mss, None);
        }
    }

    /// The flight is to be repaired from its start.
    fn begin_again(&mut self) {
        self.phase = Phase::Loss;
        self.loss_state.get_or_insert().tlp = TailLossProbe::NONE;
        self.loss_state.get_or_insert().high = self.send.nxt;
        self.loss_state.get_or_insert().duplicates = 0;
    }

    /// Marks what must be lost by now; returns whether anything new is.
    pub(crate) fn detect_loss(&mut self, config: &Config, now: Instant) -> bool {
        let mss = u32::from(self.send.mss);
        let reordering = u32::from(config.reordering.max(1));
        if !self.features.contains(Features::SACK) {
            // RFC 6582 3.2 step 2: duplicates of what a time-out sent again say nothing. In recovery one is enough work.
            let fresh =
                self.send.una > self.loss_state.get().high || self.loss_state.get().high == 0;
            let calm = matches!(self.phase, Phase::Open | Phase::Disorder);
            return calm
                && fresh
                && u32::from(self.loss_state.get().duplicates) >= reordering
                && self.repair(config).board.mark_head_lost(mss) > 0;
        }
        let reordering_seen = self.loss_state.get().rack.reordering_seen;
        let Some(repair) = self.loss_state.repair_mut() else {
            return false;
        };
        let mut lost = 0;
        // A path that is known to reorder is judged by time alone.
        if !reordering_seen {
            lost += repair.board.mark_lost(reordering, mss);
        }
        lost += self.rack_detect(now);
        if lost > 0 {
            self.congestion.on_lost(lost, mss);
        }
        lost > 0
    }

    /// Something is lost: fast recovery begins, unless it has already (RFC 6675 5, step 4).
    pub(crate) fn on_loss(&mut self, config: &Config, now: Instant) {
        if matches!(self.phase, Phase::Recovery | Phase::Loss) {
            return;
        }
        if self.cold_state.is_some() && self.on_mtu_probe_lost(now) {
            // What else is in flight has its acknowledgements to come; the window stays.
            self.phase = Phase::Loss;
            self.loss_state.get_or_insert().tlp = TailLossProbe::NONE;
            self.loss_state.get_or_insert().high = self.send.nxt;
            self.loss_state.get_or_insert().undo = None;
            return self.arm_timeout(config, now);
        }
        let mss = u32::from(self.send.mss);
        let flight = self.send.in_flight();
        let window = self.congestion.window;
        self.phase = Phase::Recovery;
        self.loss_state.get_or_insert().tlp = TailLossProbe::NONE;
        self.announce_reduction();
        self.loss_state.get_or_insert().high = self.send.nxt;
        self.congestion.window.ssthresh =
            self.congestion.reduced(flight.min(window.cwnd), mss, now);
        let repair = self.repair(config);
        repair.prr = ProportionalRateReduction::fast(flight);
        let undo = Undo::new(window, repair.board.start(), repair.board.ambiguous());
        self.loss_state.get_or_insert().undo = Some(Box::new(undo));
        let pipe = self.pipe();
        self.congestion.conserve(pipe);
        self.reduce(0, false);
        if self.timers.purpose != Transmit::Timeout || self.timers.transmit == Instant::NEVER {
            self.arm_timeout(config, now);
        }
    }

    /// Sets the window in recovery, after an acknowledgement that delivered this much.
    fn reduce(&mut self, delivered: u32, advanced: bool) {
        let pipe = self.pipe();
        let paced = self.congestion.is_paced();
        let (window, mss) = (&mut self.congestion.window, u32::from(self.send.mss));
        if let Some(repair) = self.loss_state.repair_mut() {
            let more = repair
                .prr
                .quota(delivered, advanced, pipe, window.ssthresh, mss);
            if !paced {
                // With nothing in the network a segment may always leave: else only a time-out would help.
                window.cwnd = (pipe + more).max(mss);
            }
        }
    }

    /// Duplicate acknowledgements stand for segments received out of order (RFC 6582; RFC 3042 follows from them, as they let
    /// that much more be sent). Returns the bytes that this acknowledgement delivered.
    fn count_duplicates(&mut self, acked: u32, duplicate: bool) -> u32 {
        let mss = u32::from(self.send.mss);
        let loss = self.phase == Phase::Loss;
        // The flight is given up: a duplicate answers what is sent twice. But if new data went first (RFC 5682 2.1, step 2b), it says that some of that has left
        // the network, and what is lost can follow (step 3a).
        let answers_new = self.send.nxt > self.loss_state.get().high;
        if duplicate && (!loss || answers_new) {
            let state = self.loss_state.get_or_insert();
            state.duplicates = state.duplicates.saturating_add(1);
            return if loss { 0 } else { mss };
        }
        if acked == 0 || loss && !answers_new {
            return acked;
        }
        // All but the first segment had been counted when their duplicates came.
        let state = self.loss_state.get_or_insert();
        let counted = (acked.div_ceil(mss) - 1).min(u32::from(state.duplicates));
        state.duplicates -= counted as u16;
        if loss {
            return acked;
        }
        if self.phase == Phase::Disorder {
            state.duplicates = 0;
        }
        acked.saturating_sub(counted * mss)
    }

    /// An acknowledgement in the midst of a repair: goes back if it shows that nothing was lost.
    fn undo_if_disproved(&mut self, echo: Option<u32>, original: bool, advanced: bool) {
        let can_send = self.send.nxt < self.send.end && self.send.usable() > 0;
        let Some(undo) = self.loss_state.undo_mut() else {
            return;
        };
        let by_echo = advanced && undo.disproved_by_echo(echo);
        let by_progress =
            self.phase == Phase::Loss && undo.disproved_by_progress(original, advanced, can_send);
        if by_echo || by_progress {
            self.undo();
        }
    }

    /// The peer reports that it has received a range twice; all that was sent again may have been for nothing (RFC 3708 2).
    pub(crate) fn undo_if_reported(&mut self, start: i64, end: i64) {
        let una = self.send.una;
        if let Some(undo) = self.loss_state.undo_mut()
            && undo.reported(start, end, una)
        {
            self.undo();
        }
    }

    /// RFC 4015 3.2: what was taken for lost has arrived after all, so the window goes back to what it was.
    fn undo(&mut self) {
        let Some(undo) = self
            .loss_state
            .get_mut()
            .and_then(|state| state.undo.take())
        else {
            return;
        };
        self.congestion.undo(undo.before());
        self.loss_state.get_or_insert().rack.reordering_seen = true;
        if matches!(self.phase, Phase::Recovery | Phase::Loss) {
            if let Some(repair) = self.loss_state.repair_mut() {
                repair.board.forgive();
            }
            self.loss_state.get_or_insert().duplicates = 0;
            self.phase = Phase::Disorder;
        }
    }

    fn grow(&mut self, config: &Config, bytes: u32, now: Instant) {
        if bytes > 0 && !self.congestion.is_paced() {
            let acked = Acked {
                bytes,
                mss: u32::from(self.send.mss),
                rtt_us: self.rtt.srtt_us(),
                rto_us: self.rtt.rto_us(),
                una: self.send.una,
                nxt: self.send.nxt,
            };
            self.congestion.on_ack(config, &acked, now);
        }
    }

    /// What an acknowledgement that is not plain tells a model of the path.
    fn update_model(&mut self, delivered: &Delivered, now: Instant) {
        let una = self.send.una;
        let mut delivery = Delivery {
            bytes: delivered.bytes,
            end: None,
            una,
            pipe: self.pipe(),
            mss: u32::from(self.send.mss),
            repairing: self.phase == Phase::Recovery,
        };
        // What was sent twice tells no rate.
        if let Some((_, end, false)) = delivered.latest {
            delivery.end = Some(una.wrapping_add_signed(i64::from(Seq(end) - Seq(una as u32))));
        }
        self.congestion.on_delivered(&delivery, now);
    }

    /// Recovery is over; the flight may still have marks, of bytes sent since it began.
    fn recovered(&mut self) {
        if let Some(undo) = self.loss_state.undo_mut() {
            undo.ended(self.send.nxt);
        }
        self.loss_state.get_or_insert().duplicates = 0;
        self.phase = Phase::Disorder;
        self.calm_down();
    }

    /// To Open if nothing in flight is out of the ordinary, else to Disorder.
    fn calm_down(&mut self) {
        let state = self.loss_state.get_or_insert();
        let clean = state
            .repair
            .as_ref()
            .is_none_or(|it| it.board.is_clean() && it.board.ambiguous() == 0);
        self.phase = if clean && state.duplicates == 0 {
            state.repair = None;
            // What tells whether a probe has repaired something is no plain acknowledgement.
            if state.tlp.is_open() {
                Phase::Disorder
            } else {
                Phase::Open
            }
        } else {
            Phase::Disorder
        };
    }
}
