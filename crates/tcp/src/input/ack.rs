//! What a segment acknowledges (RFC 9293 3.10.7.4, fifth; RFC 5681, RFC 2018, RFC 2883).

use millrace_wire::tcp::{Flags, Segment, Timestamps};

use crate::config::Config;
use crate::connection::Connection;
use crate::events::Events;
use crate::info::Phase;
use crate::options::{Features, timestamp};
use crate::recovery::scoreboard::Delivered;
use crate::state::State;
use crate::time::Instant;

impl Connection {
    /// Any acceptable acknowledgement: its number lies at or before SND.NXT. One before SND.UNA is old and says nothing.
    #[inline]
    pub(super) fn on_ack(&mut self, config: &Config, segment: &Segment<'_>, now: Instant) {
        let acked = segment.ack - self.send.seq(self.send.una);
        if acked < 0 {
            return;
        }
        let window_changed = self
            .send
            .update_window(segment.seq, segment.ack, segment.window);
        if acked > 0 && self.phase == Phase::Open && segment.options.sack.is_empty() {
            self.on_predicted_ack(config, acked as u32, now);
        } else if acked > 0
            || self.send.in_flight() > 0
            || self.loss_state.get().tlp.is_open()
            || self.loss_state.get().undo.is_some()
            || self.timers.stalled_since != Instant::NEVER
        {
            self.on_unusual_ack(config, segment, acked as u32, window_changed, now);
        }
        if self.send.fin_acked() {
            self.after_fin_acked(now);
        }
    }

    /// An acknowledgement of nothing new, or in the midst of a repair.
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

        let mut delivered = Delivered::default();
        let mut doubled = None;
        let highest = self
            .loss_state
            .repair()
            .map_or(self.send.una, |repair| repair.board.highest_sacked());
        if self.features.contains(Features::SACK) && !segment.options.sack.is_empty() {
            (delivered, doubled) = self.take_sack(config, segment, highest);
        }
        let duplicate = if self.features.contains(Features::SACK) {
            delivered.bytes > 0
        } else {
            // RFC 5681 2.
            acked == 0
                && outstanding
                && !window_changed
                && segment.payload.is_empty()
                && !segment.flags.intersects(Flags::SYN | Flags::FIN)
        };
        if acked > 0 {
            // RFC 2883: an acknowledgement caused by a duplicate echoes the time of what came first, however long ago its own acknowledgement was lost.
            let echo = segment.options.timestamps.filter(|_| doubled.is_none());
            delivered.join(self.take_acked(config, acked, highest, echo, now));
            self.after_progress(config, now);
        }
        if let Some((start, end)) = doubled {
            self.undo_if_reported(start, end);
        }
        self.judge_loss_probe(
            segment,
            doubled.is_some(),
            acked == 0 && !window_changed && delivered.bytes == 0,
            now,
        );
        if acked > 0 || duplicate {
            let echo = segment.options.timestamps.map(|timestamps| timestamps.echo);
            self.on_delivered(config, &delivered, acked, duplicate, echo, now);
        }
        // In FIN-WAIT-2 nothing waits for a window, and what runs since is the wait for the peer.
        let stalled = self.timers.stalled_since != Instant::NEVER && self.state != State::FinWait2;
        if stalled && !outstanding && self.send.usable() > 0 {
            // The window has opened again.
            self.timers.progress();
            self.timers.transmit = Instant::NEVER;
        }
    }

    /// Moves SND.UNA, and samples the round trip (RFC 6298 3, RFC 7323 4.1). `echo` comes with an acknowledgement that can be measured by it.
    fn take_acked(
        &mut self,
        config: &Config,
        acked: u32,
        highest: u64,
        echo: Option<Timestamps>,
        now: Instant,
    ) -> Delivered {
        self.send.una += u64::from(acked);
        let una = self.send.una;
        let sent = self.sent_log.acked(una);
        let delivered = match self.loss_state.repair_mut() {
            Some(repair) => repair.board.acked(una, highest),
            None => Delivered {
                bytes: acked,
                latest: sent.map(|at| (at, una as u32, false)),
                ..Delivered::default()
            },
        };
        match delivered.latest {
            // Karn's rule: what was sent twice tells nothing, unless the timestamp says which was received.
            Some((sent, _, _)) if !delivered.ambiguous => {
                self.rtt
                    .sample(config, (now.as_micros() as u32).wrapping_sub(sent), now);
                self.timers.measured();
            }
            Some(_) if self.features.contains(Features::TIMESTAMPS) => {
                let echo = echo.map_or(0, |timestamps| timestamps.echo);
                let sample_ms = timestamp(now, self.recent.offset).wrapping_sub(echo);
                // An echo from long before the time-out shows that an acknowledgement was lost, not how long the way is.
                if echo != 0 && u64::from(sample_ms) <= 2 * self.rtt.rto().as_millis() {
                    self.rtt.sample(config, sample_ms.max(1) * 1_000, now);
                    self.timers.measured();
                }
            }
            _ => {}
        }
        delivered
    }

    /// Marks what the SACK option reports. Blocks that cannot be are ignored (RFC 2018 4: start before end, within the flight),
    /// among them the first if it reports a duplicate (RFC 2883 4: below the acknowledgement, or within the second). Returns what was delivered, and
    /// the duplicate that was reported.
    fn take_sack(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        highest: u64,
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
        let rest = blocks.next();
        let last = blocks.next();
        let is_duplicate = first.is_some_and(|(start, end)| {
            let below = start < end && end <= ack;
            let within = second.is_some_and(|(s, e)| s <= start && start < end && end <= e);
            below || within
        });
        if is_duplicate {
            self.loss_state.get_or_insert().dsacks += 1;
            self.rack_widen();
        }
        let floor = ack.max(self.send.una as i64);
        let nxt = self.send.nxt as i64;
        let kept = if is_duplicate { None } else { first };
        for (start, end) in [kept, second, rest, last].into_iter().flatten() {
            if start < end && start > floor && end <= nxt {
                let block = start as u64..end as u64;
                delivered.join(self.repair(config).board.sack(block, highest));
            }
        }
        (delivered, first.filter(|_| is_duplicate))
    }

    /// Something new was acknowledged.
    #[inline(always)]
    pub(crate) fn after_progress(&mut self, config: &Config, now: Instant) {
        self.events |= Events::WRITABLE;
        self.timers.progress();
        if self.send.una == self.send.nxt {
            self.timers.transmit = Instant::NEVER;
        } else {
            self.arm_transmit(config, now);
        }
    }

    /// RFC 9293 3.10.7.4, fifth, FIN-WAIT-1, CLOSING and LAST-ACK: our FIN is acknowledged.
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
