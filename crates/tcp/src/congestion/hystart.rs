//! HyStart++ (RFC 9406): leaves slow start before it overflows the path.

use millrace_wire::tcp::Seq;

use super::controller::{Acked, Window};

/// The constants of RFC 9406 4.3.
const RTT_SAMPLES: u8 = 8;
const RTT_RISE_MIN_US: u32 = 4_000;
const RTT_RISE_MAX_US: u32 = 16_000;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// Observes the least round trip of each round: when it rises, a queue builds up.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// The offset whose acknowledgement ends the round: low half of a stream offset.
    round_end: u32,
    /// Least round trips of the last and of this round, in microseconds; `u32::MAX` without a
    /// sample.
    last_us: u32,
    current_us: u32,
    /// The round trip when conservative slow start began.
    baseline_us: u32,
    samples: u8,
    /// Rounds left of conservative slow start; 0 in ordinary slow start.
    conservative: u8,
}

impl HyStart {
    /// Slow start begins with the data from offset `nxt` on.
    pub(super) fn new(nxt: u64) -> HyStart {
        HyStart {
            round_end: nxt as u32,
            last_us: u32::MAX,
            current_us: u32::MAX,
            baseline_us: u32::MAX,
            samples: 0,
            conservative: 0,
        }
    }

    /// RFC 9406 4.2: grows the window. Ends slow start by lowering the threshold to it.
    pub(super) fn on_ack(&mut self, window: &mut Window, acked: &Acked) {
        if Seq(acked.una as u32).at_or_after(Seq(self.round_end)) && self.end_round(acked.nxt) {
            window.ssthresh = window.cwnd;
            return;
        }
        if acked.rtt_us > 0 {
            self.current_us = self.current_us.min(acked.rtt_us);
            self.samples = self.samples.saturating_add(1);
        }
        if self.conservative > 0 {
            if self.samples >= RTT_SAMPLES && self.current_us < self.baseline_us {
                // The round trip has come down again: the rise was no queue.
                self.conservative = 0;
            }
        } else if self.samples >= RTT_SAMPLES && self.last_us != u32::MAX {
            let rise = (self.last_us / 8).clamp(RTT_RISE_MIN_US, RTT_RISE_MAX_US);
            if self.current_us >= self.last_us.saturating_add(rise) {
                self.conservative = CSS_ROUNDS;
                self.baseline_us = self.current_us;
            }
        }
        window.slow_start(if self.conservative > 0 {
            acked.bytes / CSS_GROWTH_DIVISOR
        } else {
            acked.bytes
        });
    }

    /// Begins another round, up to offset `nxt`. Returns whether slow start is over.
    fn end_round(&mut self, nxt: u64) -> bool {
        self.round_end = nxt as u32;
        self.last_us = self.current_us;
        self.current_us = u32::MAX;
        self.samples = 0;
        if self.conservative == 0 {
            return false;
        }
        self.conservative -= 1;
        self.conservative == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of ten acknowledgements with this round trip.
    fn round(hystart: &mut HyStart, window: &mut Window, at: &mut u64, rtt_us: u32) {
        let end = *at + 10_000;
        while *at < end {
            *at += 1_000;
            let acked = Acked {
                bytes: 1_000,
                mss: 1_000,
                rtt_us,
                rto_us: 200_000,
                una: *at,
                nxt: end + 10_000,
            };
            if window.in_slow_start() {
                hystart.on_ack(window, &acked);
            }
        }
    }

    #[test]
    fn rfc9406_4_2_rise_of_the_round_trip_slows_and_then_ends_slow_start() {
        let mut window = Window {
            cwnd: 10_000,
            ssthresh: u32::MAX,
        };
        let mut hystart = HyStart::new(10_000);
        let mut at = 0;
        for _ in 0..3 {
            round(&mut hystart, &mut window, &mut at, 20_000);
        }
        assert_eq!(window.cwnd, 40_000);
        // The acknowledgement that ends a round counts for the next one, so that a rise shows in
        // the second round that has it.
        round(&mut hystart, &mut window, &mut at, 30_000);
        assert_eq!(window.cwnd, 50_000);
        round(&mut hystart, &mut window, &mut at, 30_000);
        assert!(window.cwnd < 60_000, "{}", window.cwnd);
        for _ in 0..6 {
            round(&mut hystart, &mut window, &mut at, 30_000);
        }
        assert!(!window.in_slow_start());
        assert!(window.ssthresh < 75_000, "{}", window.ssthresh);
    }

    #[test]
    fn rfc9406_4_2_mistaken_rise_is_taken_back() {
        let mut window = Window {
            cwnd: 10_000,
            ssthresh: u32::MAX,
        };
        let mut hystart = HyStart::new(10_000);
        let mut at = 0;
        for rtt_us in [
            20_000, 20_000, 30_000, 20_000, 20_000, 20_000, 20_000, 20_000,
        ] {
            round(&mut hystart, &mut window, &mut at, rtt_us);
        }
        assert!(window.in_slow_start());
        assert!(window.cwnd > 70_000, "{}", window.cwnd);
    }

    #[test]
    fn steady_round_trips_never_end_slow_start() {
        let mut window = Window {
            cwnd: 10_000,
            ssthresh: u32::MAX,
        };
        let mut hystart = HyStart::new(10_000);
        let mut at = 0;
        for i in 0..50 {
            round(&mut hystart, &mut window, &mut at, 20_000 + i * 50);
        }
        assert_eq!(window.cwnd, 510_000);
    }
}
