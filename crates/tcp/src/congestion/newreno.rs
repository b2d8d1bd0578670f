//! NewReno: the congestion window of RFC 5681, counted in bytes (RFC 3465).

use super::controller::{Acked, Controller, Window};
use crate::time::Instant;

/// Adds a segment in each round trip, and halves on a loss.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged since the window last grew in congestion avoidance.
    acked: u32,
}

impl Controller for NewReno {
    fn on_ack(&mut self, window: &mut Window, acked: &Acked, _now: Instant) {
        let rest = if window.in_slow_start() {
            window.slow_start(acked.bytes)
        } else {
            acked.bytes
        };
        // RFC 3465 2.1: one more segment for each window's worth of acknowledged bytes.
        self.acked = self.acked.saturating_add(rest);
        if self.acked >= window.cwnd {
            self.acked -= window.cwnd;
            window.cwnd = window.cwnd.saturating_add(acked.mss);
        }
    }

    fn reduced(&mut self, _window: &Window, flight: u32, mss: u32, _now: Instant) -> u32 {
        self.acked = 0;
        // RFC 5681 3.1, equation (4): ssthresh = max (FlightSize / 2, 2*SMSS).
        (flight / 2).max(2 * mss)
    }

    fn on_timeout(&mut self) {
        self.acked = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc5681_3_1_a_segment_per_window_in_congestion_avoidance() {
        let mut reno = NewReno::default();
        let mut window = Window {
            cwnd: 10_000,
            ssthresh: 10_000,
        };
        for _ in 0..9 {
            reno.on_ack(&mut window, &Acked::of(1_000, 1_000), Instant::default());
        }
        assert_eq!(window.cwnd, 10_000);
        reno.on_ack(&mut window, &Acked::of(1_000, 1_000), Instant::default());
        assert_eq!(window.cwnd, 11_000);
    }

    #[test]
    fn e8_many_small_acknowledgements_are_worth_their_bytes() {
        let mut reno = NewReno::default();
        let mut window = Window {
            cwnd: 10_000,
            ssthresh: u32::MAX,
        };
        for _ in 0..1_000 {
            reno.on_ack(&mut window, &Acked::of(1, 1_000), Instant::default());
        }
        assert_eq!(window.cwnd, 11_000);
    }

    #[test]
    fn rfc5681_3_1_threshold_is_half_the_flight_and_two_segments_at_least() {
        let window = Window {
            cwnd: 10_000,
            ssthresh: u32::MAX,
        };
        let mut reno = NewReno::default();
        assert_eq!(
            reno.reduced(&window, 10_000, 1_000, Instant::default()),
            5_000
        );
        assert_eq!(
            reno.reduced(&window, 1_000, 1_000, Instant::default()),
            2_000
        );
    }
}
