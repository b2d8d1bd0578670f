//! Losses by time: what was sent well before something that has been delivered (RFC 8985).

use millrace_wire::tcp::Seq;

use crate::config::Config;
use crate::connection::Connection;
use crate::info::Phase;
use crate::options::{Features, timestamp};
use crate::recovery::scoreboard::{Delivered, sent_after};
use crate::time::{Duration, Instant};
use crate::timers::Transmit;

/// RFC 8985 6.2 step 4: a widened window lasts for this many recoveries.
const WIDENED_RECOVERIES: u8 = 16;
/// The most quarters of the least round trip, less one, that the reordering window grows to.
const WIDENED_MAX: u8 = 15;

/// RFC 8985 5.2: of the segments delivered the one that was sent last, and how much the path reorders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    /// When it was sent, in microseconds modulo 2^32, and where it ends, modulo 2^32.
    at: u32,
    end: u32,
    /// Its round trip in microseconds; 0 before there is one.
    rtt_us: u32,
    /// The path has been seen to reorder.
    pub(crate) reordering_seen: bool,
    /// RACK.reo_wnd_mult less 1: the reordering window is this and 1 quarters of the least round trip.
    widened: u8,
    /// Recoveries after which the window shrinks again.
    persist: u8,
    /// SND.NXT when it was last widened, modulo 2^32.
    round: u32,
}

impl Rack {
    /// Nothing was delivered yet.
    pub(crate) const NEW: Rack = Rack {
        at: 0,
        end: 0,
        rtt_us: 0,
        reordering_seen: false,
        widened: 0,
        persist: 0,
        round: 0,
    };
}

impl Connection {
    /// RFC 8985 6.2, steps 1 to 3. `echo` is the timestamp that came with the acknowledgement.
    pub(crate) fn rack_advance(&mut self, delivered: &Delivered, echo: Option<u32>, now: Instant) {
        let clock = timestamp(now, self.recent.offset);
        let rack = &mut self.loss_state.get_or_insert().rack;
        rack.reordering_seen |= delivered.reordered;
        let Some((at, end, ambiguous)) = delivered.latest else {
            return;
        };
        let rtt = (now.as_micros() as u32).wrapping_sub(at);
        if ambiguous {
            // Acknowledged too soon to be the retransmission's, or echoing what is older: it was the original that arrived.
            let echoes_older = echo.is_some_and(|echo| clock.wrapping_sub(echo) > rtt / 1_000 + 1);
            if rtt < self.rtt.min_us() || echoes_older {
                return;
            }
        }
        if rack.rtt_us == 0 || sent_after(at, end, rack.at, rack.end) {
            *rack = Rack {
                at,
                end,
                rtt_us: rtt.max(1),
                ..*rack
            };
        }
    }

    /// RFC 8985 6.2, step 5; returns the bytes newly lost. What may be lost soon is left to a timer.
    pub(crate) fn rack_detect(&mut self, now: Instant) -> u32 {
        let rack = self.loss_state.get().rack;
        let window = self.reordering_window();
        let Some(repair) = self.loss_state.repair_mut() else {
            return 0;
        };
        if rack.rtt_us == 0 {
            return 0;
        }
        let now_us = now.as_micros() as u32;
        let late = rack.rtt_us.saturating_add(window);
        let (lost, soon) =
            repair
                .board
                .mark_lost_by_age(rack.at, rack.end, now_us.wrapping_sub(late));
        if let Some(sent) = soon {
            let wait = late.saturating_sub(now_us.wrapping_sub(sent)).max(1);
            self.timers.transmit = now + Duration::from_micros(u64::from(wait));
            self.timers.purpose = Transmit::Reorder;
        }
        lost
    }

    /// RFC 8985 6.3: what was sent no later than this, modulo 2^32 microseconds, is lost when there is a time-out. `None`: all is, as nothing tells; or as the
    /// algorithm has a model of the path, which is to begin with nothing on it: many connections of BBR that share a long queue would not share it fairly.
    pub(crate) fn rack_deadline(&self, now: Instant) -> Option<u32> {
        let rtt_us = match self.loss_state.get().rack.rtt_us {
            0 => self.rtt.srtt_us(),
            rtt_us => rtt_us,
        };
        let wait = rtt_us.saturating_add(self.reordering_window());
        let known =
            self.features.contains(Features::SACK) && rtt_us > 0 && !self.congestion.is_paced();
        known.then(|| (now.as_micros() as u32).wrapping_sub(wait))
    }

    /// Step 4, in microseconds: a quarter of the least round trip, or more where duplicates have shown that it does not do; a path that has never
    /// reordered gets none once recovery has begun.
    fn reordering_window(&self) -> u32 {
        let rack = &self.loss_state.get().rack;
        if !rack.reordering_seen && matches!(self.phase, Phase::Recovery | Phase::Loss) {
            return 0;
        }
        let quarter = self.rtt.min_us().min(rack.rtt_us) / 4;
        quarter
            .saturating_mul(u32::from(rack.widened) + 1)
            .min(self.rtt.srtt_us())
    }

    /// A duplicate-SACK report: something was sent twice for nothing, so the path reorders by more than was allowed for (step 4).
    /// Once for a round trip.
    pub(crate) fn rack_widen(&mut self) {
        let rack = &mut self.loss_state.get_or_insert().rack;
        if Seq(self.send.una as u32).at_or_after(Seq(rack.round)) {
            rack.round = self.send.nxt as u32;
            rack.widened = (rack.widened + 1).min(WIDENED_MAX);
            rack.persist = WIDENED_RECOVERIES;
        }
    }

    /// Step 4: without further reports the reordering window shrinks back.
    pub(crate) fn rack_recovered(&mut self) {
        let rack = &mut self.loss_state.get_or_insert().rack;
        rack.persist = rack.persist.saturating_sub(1);
        if rack.persist == 0 {
            rack.widened = 0;
        }
    }

    /// What may have been reordered has not come: it is lost.
    pub(crate) fn on_reorder_timer(&mut self, config: &Config, now: Instant) {
        if self.detect_loss(config, now) {
            self.on_loss(config, now);
        }
        if self.timers.transmit == Instant::NEVER && self.send.in_flight() > 0 {
            self.arm_timeout(config, now);
        }
    }
}
