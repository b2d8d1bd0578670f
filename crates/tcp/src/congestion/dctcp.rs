//! DCTCP (RFC 8257): the window comes down in proportion to the share of bytes that were marked.

use millrace_wire::tcp::Seq;

use super::controller::{Acked, Controller, Window};
use super::newreno::NewReno;
use crate::time::Instant;

/// The unit of fractions.
const ONE: u32 = 1 << 10;
/// g of RFC 8257 4.2: 1/16.
const GAIN_SHIFT: u32 = 4;

/// NewReno, with an estimate of the share of marked bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dctcp {
    /// DCTCP.Alpha, in units of [`ONE`].
    alpha: u32,
    /// DCTCP.BytesMarked, in this round.
    marked: u32,
    /// The round: SND.UNA when it began, and the offset whose acknowledgement ends it; low halves
    /// of stream offsets.
    start: u32,
    end: u32,
    newreno: NewReno,
}

impl Dctcp {
    pub(super) fn new() -> Dctcp {
        Dctcp {
            // RFC 8257 3.3: DCTCP.Alpha starts at 1, as if everything had been marked.
            alpha: ONE,
            marked: 0,
            start: 0,
            end: 0,
            newreno: NewReno::default(),
        }
    }

    /// Everything before `una` is acknowledged, and SND.NXT is `nxt` (RFC 8257 3.3, steps 1 to 8).
    pub(super) fn progress(&mut self, una: u64, nxt: u64) {
        if Seq(una as u32).before(Seq(self.end)) {
            return;
        }
        let all = (una as u32).wrapping_sub(self.start);
        if all > 0 {
            let share = u64::from(self.marked.min(all)) * u64::from(ONE) / u64::from(all);
            // Rounded up, so that it reaches 0 at last.
            self.alpha -= self.alpha.div_ceil(1 << GAIN_SHIFT);
            self.alpha = (self.alpha + (share as u32 >> GAIN_SHIFT)).min(ONE);
        }
        (self.marked, self.start, self.end) = (0, una as u32, nxt as u32);
    }
}

impl Controller for Dctcp {
    fn on_ack(&mut self, window: &mut Window, acked: &Acked, now: Instant) {
        self.newreno.on_ack(window, acked, now);
    }

    /// RFC 8257 3.5: the reaction to a loss is NewReno's.
    fn reduced(&mut self, window: &Window, flight: u32, mss: u32, now: Instant) -> u32 {
        self.newreno.reduced(window, flight, mss, now)
    }

    fn on_timeout(&mut self) {
        self.newreno.on_timeout();
    }

    fn on_echo(&mut self, bytes: u32) {
        self.marked = self.marked.saturating_add(bytes);
    }

    /// RFC 8257 3.3, step 9.
    fn marked(&mut self, window: &Window, _flight: u32, mss: u32, _now: Instant) -> u32 {
        let less = u64::from(window.cwnd) * u64::from(self.alpha) / u64::from(2 * ONE);
        (window.cwnd - less as u32).max(2 * mss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of ten segments, so many of which are marked.
    fn rounds(dctcp: &mut Dctcp, from: u64, count: u64, marked: u64) -> u64 {
        for round in 0..count {
            let start = from + 10_000 * round;
            for segment in 1..=10 {
                if segment <= marked {
                    dctcp.on_echo(1_000);
                }
                dctcp.progress(start + 1_000 * segment, start + 1_000 * segment + 10_000);
            }
        }
        from + 10_000 * count
    }

    #[test]
    fn rfc8257_3_3_estimate_follows_the_share_of_marks() {
        let mut dctcp = Dctcp::new();
        let at = rounds(&mut dctcp, 0, 100, 3);
        assert!((280..=330).contains(&dctcp.alpha), "{}", dctcp.alpha);
        rounds(&mut dctcp, at, 200, 0);
        assert_eq!(dctcp.alpha, 0);
    }

    #[test]
    fn rfc8257_3_3_reduction_is_in_proportion() {
        let window = Window {
            cwnd: 100_000,
            ssthresh: u32::MAX,
        };
        let mut dctcp = Dctcp::new();
        assert_eq!(
            dctcp.marked(&window, 100_000, 1_000, Instant::default()),
            50_000
        );
        dctcp.alpha = ONE / 8;
        assert_eq!(
            dctcp.marked(&window, 100_000, 1_000, Instant::default()),
            93_750
        );
        assert_eq!(
            dctcp.reduced(&window, 100_000, 1_000, Instant::default()),
            50_000
        );
    }
}
