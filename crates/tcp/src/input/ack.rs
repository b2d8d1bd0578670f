//! What a segment acknowledges (RFC 9293 3.10.7.4, fifth; RFC 5681, RFC 2018, RFC 2883).

use millrace_wire::tcp::{Flags, Segment, Timestamps};

use crate::config::Config;
use crate::connection::Connection;
use crate::events::Events;
use crate::info::Phase;
use crate::options::{Features, timestamp};
use crate::recovery::{Ack, Decision, Delivered};
use crate::state::State;
use crate::time::Instant;
use crate::timers::Transmit;

impl Connection {
    /// An acceptable acknowledgement: its number lies at or before SND.NXT. One before SND.UNA is
    /// old and is ignored.
    #[inline]
    pub(super) fn on_ack(&mut self, config: &Config, segment: &Segment<'_>, now: Instant) {
        let acked = segment.ack - self.send.seq(self.send.una);
        if acked < 0 {
            return;
        }
        let window_changed = self
            .send
            .update_window(segment.seq, segment.ack, segment.window);
        if acked > 0 && self.recovery.is_open() && segment.options.sack.is_empty() {
            self.on_predicted_ack(config, acked as u32, now);
        } else if acked > 0
            || self.send.in_flight() > 0
            || self.recovery.needs_every_ack()
            || self.timers.is_stalled()
        {
            self.on_unusual_ack(config, segment, acked as u32, window_changed, now);
        }
        if self.send.fin_acked() {
            self.after_fin_acked(now);
        }
    }

    /// An acknowledgement of nothing new, or during a repair.
    #[inline(never)]
    fn on_unusual_ack(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        acked: u32,
        window_changed: bool,
        now: Instant,
    ) {
        let outstanding = self.send.in_flight() > 0;
        let sack = self.features.contains(Features::SACK);
        let takes_nothing =
            segment.payload.is_empty() && !segment.flags.intersects(Flags::SYN | Flags::FIN);

        let mut delivered = Delivered::default();
        let mut doubled = None;
        let highest = self.recovery.highest_sacked(self.send.una);
        if sack && !segment.options.sack.is_empty() {
            (delivered, doubled) = self.take_sack(config, segment, highest, now);
        }
        let duplicate = if sack {
            delivered.bytes > 0
        } else {
            // RFC 5681 2, "DUPLICATE ACKNOWLEDGMENT", conditions (a) to (e).
            acked == 0 && outstanding && !window_changed && takes_nothing
        };
        if acked > 0 {
            // RFC 2883: an acknowledgement caused by a duplicate echoes the timestamp of the
            // original, whose own acknowledgement may have been lost long ago. It measures no round
            // trip.
            let echo = segment.options.timestamps.filter(|_| doubled.is_none());
            delivered.join(self.take_acked(config, acked, highest, echo, now));
            self.after_progress(config, now);
        }
        if let Some(range) = doubled {
            self.recovery
                .undo_if_reported(&mut self.congestion, range, self.send.una);
        }
        let silent = acked == 0 && !window_changed && delivered.bytes == 0 && takes_nothing;
        let (recovery, congestion, view) = self.recovery_parts(config, now);
        if recovery.check_tail_loss(&view, congestion, doubled.is_some(), silent) {
            self.on_window_reduced();
        }
        if acked > 0 || duplicate {
            let ack = Ack {
                delivered,
                acked,
                duplicate,
                echo: segment.options.timestamps.map(|timestamps| timestamps.echo),
            };
            let (recovery, congestion, view) = self.recovery_parts(config, now);
            let decision = recovery.on_delivered(&view, congestion, &ack);
            self.carry_out(config, &decision, Some(acked > 0), now);
        }
        // In FIN-WAIT-2 nothing waits for a window; the time counts the wait for the peer's FIN.
        let stalled = self.timers.is_stalled() && self.state != State::FinWait2;
        if stalled && !outstanding && self.send.usable() > 0 {
            // The window has opened again.
            self.timers.on_progress();
            self.timers.stop();
        }
    }

    /// Does what loss recovery decided. `advanced`: whether an acknowledgement caused it, and
    /// whether that moved SND.UNA.
    pub(crate) fn carry_out(
        &mut self,
        config: &Config,
        decision: &Decision,
        advanced: Option<bool>,
        now: Instant,
    ) {
        if let Some(at) = decision.reorder_at {
            self.timers.start(Transmit::Reorder, at);
        }
        if !decision.loss {
            return;
        }
        self.on_loss(config, now);
        if let Some(advanced) = advanced
            && self.recovery.phase() == Phase::Recovery
        {
            let (recovery, congestion, view) = self.recovery_parts(config, now);
            recovery.reduce(&view, congestion, decision.delivered, advanced);
        }
    }

    /// Something is lost: fast recovery begins, unless a recovery is in progress (RFC 6675 5 step
    /// 4).
    fn on_loss(&mut self, config: &Config, now: Instant) {
        if self.recovery.is_repairing() {
            return;
        }
        let (una, options) = (self.send.una, self.features.option_len());
        let probe_lost = self
            .pmtud_mut()
            .is_some_and(|pmtud| pmtud.on_loss(una, options, now));
        if probe_lost {
            self.recovery.repair_mtu_probe(self.send.nxt);
            return self.arm_timeout(config, now);
        }
        let (recovery, congestion, view) = self.recovery_parts(config, now);
        recovery.enter_fast_recovery(&view, congestion);
        self.on_window_reduced();
        if !self.timers.runs_timeout() {
            self.arm_timeout(config, now);
        }
    }

    /// Moves SND.UNA and samples the round trip (RFC 6298 3, RFC 7323 4.1). `echo` is the timestamp
    /// of an acknowledgement that can be measured by it.
    fn take_acked(
        &mut self,
        config: &Config,
        acked: u32,
        highest: u64,
        echo: Option<Timestamps>,
        now: Instant,
    ) -> Delivered {
        self.send.una += u64::from(acked);
        let delivered = self.recovery.on_acked_marked(self.send.una, acked, highest);
        match delivered.latest {
            // Karn's rule (RFC 6298 3): "RTT samples MUST NOT be made using segments that were
            // retransmitted", except by timestamps.
            Some((sent, _, _)) if !delivered.ambiguous => {
                self.rtt
                    .sample(config, (now.as_micros() as u32).wrapping_sub(sent), now);
                self.timers.on_measured();
            }
            Some(_) if self.features.contains(Features::TIMESTAMPS) => {
                let echo = echo.map_or(0, |timestamps| timestamps.echo);
                let sample_ms = timestamp(now, self.recent.offset).wrapping_sub(echo);
                // An echo from long before the time-out shows that an acknowledgement was lost, not
                // how long the round trip is.
                if echo != 0 && u64::from(sample_ms) <= 2 * self.rtt.rto().as_millis() {
                    self.rtt.sample(config, sample_ms.max(1) * 1_000, now);
                    self.timers.on_measured();
                }
            }
            _ => {}
        }
        delivered
    }

    /// Marks what the SACK option reports. Blocks that are impossible are ignored (RFC 2018 4:
    /// start before end, within the flight). So is a first block that reports a duplicate (RFC 2883
    /// 4: below the acknowledgement, or within the second block). Returns what was delivered, and
    /// that duplicate.
    fn take_sack(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        highest: u64,
        now: Instant,
    ) -> (Delivered, Option<(i64, i64)>) {
        let mut delivered = Delivered::default();
        let ack = self.send.offset(segment.ack);
        let mut blocks = segment
            .options
            .sack
            .iter()
            .map(|(start, end)| (self.send.offset(start), self.send.offset(end)));
        let first = blocks.next();
        let second = blocks.next();
        let rest = [blocks.next(), blocks.next()];
        let is_duplicate = first.is_some_and(|(start, end)| {
            let below = start < end && end <= ack;
            let within = second.is_some_and(|(s, e)| s <= start && start < end && end <= e);
            below || within
        });
        let (una, nxt) = (self.send.una, self.send.nxt);
        if is_duplicate {
            self.recovery.on_dsack(una, nxt);
        }
        let floor = ack.max(una as i64);
        let kept = if is_duplicate { None } else { first };
        let (recovery, _, view) = self.recovery_parts(config, now);
        for (start, end) in [kept, second, rest[0], rest[1]].into_iter().flatten() {
            if start < end && start > floor && end <= nxt as i64 {
                let block = start as u64..end as u64;
                delivered.join(recovery.on_sacked(&view, block, highest));
            }
        }
        (delivered, first.filter(|_| is_duplicate))
    }

    /// Something new was acknowledged.
    #[inline(always)]
    pub(crate) fn after_progress(&mut self, config: &Config, now: Instant) {
        self.events |= Events::WRITABLE;
        self.timers.on_progress();
        if self.send.una == self.send.nxt {
            self.timers.stop();
        } else {
            self.arm_transmit(config, now);
        }
    }

    /// Our FIN is acknowledged: RFC 9293 3.10.7.4, fifth, FIN-WAIT-1, CLOSING and LAST-ACK.
    pub(crate) fn after_fin_acked(&mut self, now: Instant) {
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                self.wait_for_orphan(now);
            }
            State::Closing => self.enter_time_wait(),
            State::LastAck => self.finish(None, now),
            _ => {}
        }
    }
}
