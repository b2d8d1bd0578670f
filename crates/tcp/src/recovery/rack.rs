//! RACK: detects losses by time (RFC 8985 6).

use millrace_wire::tcp::Seq;

use super::scoreboard::{Delivered, Scoreboard, sent_after};
use crate::rtt::Rtt;
use crate::time::{Duration, Instant};

/// Recoveries for which a widened reordering window lasts (RFC 8985 6.2 step 4).
const WIDENED_RECOVERIES: u8 = 16;
/// The largest [`Rack::widened`], in quarters of the least round trip.
const WIDENED_MAX: u8 = 15;

/// The variables of RFC 8985 5.2: of the delivered segments the one sent last, and how much the
/// path reorders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    /// RACK.xmit_ts, in microseconds modulo 2^32.
    at: u32,
    /// RACK.end_seq, as a stream offset modulo 2^32.
    end: u32,
    /// RACK.rtt in microseconds; 0 before the first.
    rtt_us: u32,
    /// RACK.reordering_seen.
    reordering_seen: bool,
    /// RACK.reo_wnd_mult less 1.
    widened: u8,
    /// RACK.reo_wnd_persist: recoveries after which the window shrinks again.
    persist: u8,
    /// SND.NXT when the window was last widened, modulo 2^32.
    round: u32,
}

impl Rack {
    /// No segment is delivered yet.
    pub(super) const NEW: Rack = Rack {
        at: 0,
        end: 0,
        rtt_us: 0,
        reordering_seen: false,
        widened: 0,
        persist: 0,
        round: 0,
    };

    /// Whether the path has been seen to reorder.
    pub(super) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    /// A spurious loss shows that the path reorders.
    pub(super) fn on_reordering(&mut self) {
        self.reordering_seen = true;
    }

    /// Steps 1 to 3 of RFC 8985 6.2. `echo` is the timestamp that came with the acknowledgement,
    /// and `clock` our timestamp clock now.
    pub(super) fn advance(
        &mut self,
        delivered: &Delivered,
        echo: Option<u32>,
        clock: u32,
        min_rtt_us: u32,
        now: Instant,
    ) {
        self.reordering_seen |= delivered.reordered;
        let Some((at, end, ambiguous)) = delivered.latest else {
            return;
        };
        let rtt = (now.as_micros() as u32).wrapping_sub(at);
        if ambiguous {
            // The acknowledgement came too soon for the retransmission, or echoes an older
            // timestamp: the original has arrived.
            let echoes_older = echo.is_some_and(|echo| clock.wrapping_sub(echo) > rtt / 1_000 + 1);
            if rtt < min_rtt_us || echoes_older {
                return;
            }
        }
        if self.rtt_us == 0 || sent_after(at, end, self.at, self.end) {
            *self = Rack {
                at,
                end,
                rtt_us: rtt.max(1),
                ..*self
            };
        }
    }

    /// Step 5 of RFC 8985 6.2: marks what is lost. Returns the bytes newly lost, and the time when
    /// other bytes will count as lost unless they are delivered before.
    pub(super) fn detect(
        &self,
        board: &mut Scoreboard,
        window_us: u32,
        now: Instant,
    ) -> (u32, Option<Instant>) {
        if self.rtt_us == 0 {
            return (0, None);
        }
        let now_us = now.as_micros() as u32;
        let late = self.rtt_us.saturating_add(window_us);
        let (lost, soon) = board.mark_lost_by_age(self.at, self.end, now_us.wrapping_sub(late));
        let timer = soon.map(|sent| {
            let wait = late.saturating_sub(now_us.wrapping_sub(sent)).max(1);
            now + Duration::from_micros(u64::from(wait))
        });
        (lost, timer)
    }

    /// The latest time of transmission that counts as lost when a time-out comes (RFC 8985 6.3), in
    /// microseconds modulo 2^32; `None` before the first round trip.
    pub(super) fn timeout_deadline(&self, rtt: &Rtt, window_us: u32, now: Instant) -> Option<u32> {
        let rtt_us = match self.rtt_us {
            0 => rtt.srtt_us(),
            rtt_us => rtt_us,
        };
        let wait = rtt_us.saturating_add(window_us);
        (rtt_us > 0).then(|| (now.as_micros() as u32).wrapping_sub(wait))
    }

    /// RACK.reo_wnd of RFC 8985 6.2 step 4, in microseconds. `repairing`: a recovery is in
    /// progress.
    pub(super) fn reordering_window(&self, rtt: &Rtt, repairing: bool) -> u32 {
        // A path that has never reordered gets no window once a recovery has begun.
        if !self.reordering_seen && repairing {
            return 0;
        }
        let quarter = rtt.min_us().min(self.rtt_us) / 4;
        quarter
            .saturating_mul(u32::from(self.widened) + 1)
            .min(rtt.srtt_us())
    }

    /// Step 4: a DSACK shows that the reordering window was too small. It grows once in a round
    /// trip.
    pub(super) fn widen(&mut self, una: u64, nxt: u64) {
        if Seq(una as u32).at_or_after(Seq(self.round)) {
            self.round = nxt as u32;
            self.widened = (self.widened + 1).min(WIDENED_MAX);
            self.persist = WIDENED_RECOVERIES;
        }
    }

    /// Step 4: after [`WIDENED_RECOVERIES`] recoveries without a DSACK the window shrinks back.
    pub(super) fn on_recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.widened = 0;
        }
    }
}
