//! CUBIC (RFC 9438), Linux's default. After a loss the window approaches its former size along a
//! cubic curve of time, stays there for a while, and then probes beyond. It is never smaller than
//! NewReno's would be.

use super::controller::{Acked, Controller, Window};
use super::hystart::HyStart;
use crate::time::Instant;

/// The curve is followed for so many milliseconds at most, which keeps the arithmetic within 64
/// bits.
const SPAN_MAX_MS: i64 = 100_000;

/// The state of the algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    /// W_max: the window before the last reduction. Fast convergence lowers it if it was lower than
    /// the one before. 0 before the first reduction.
    w_max: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    SlowStart(HyStart),
    /// Congestion avoidance, before its first acknowledgement.
    Paused {
        /// cwnd_prior: the window before the last reduction.
        prior: u32,
    },
    Avoidance(Curve),
}

/// The curve of one congestion avoidance stage.
#[derive(Clone, Copy, Debug)]
struct Curve {
    /// When it began, in milliseconds modulo 2^32.
    start_ms: u32,
    /// K: the time until the window reaches W_max again, in milliseconds.
    k_ms: u32,
    /// W_est: the window that NewReno would have.
    w_est: u32,
    /// Bytes acknowledged since `w_est` last grew.
    w_est_acked: u32,
    /// cwnd_prior.
    prior: u32,
}

impl Default for Cubic {
    fn default() -> Cubic {
        Cubic {
            w_max: 0,
            stage: Stage::SlowStart(HyStart::new(0)),
        }
    }
}

impl Cubic {
    fn prior(&self) -> u32 {
        match self.stage {
            Stage::SlowStart(_) => 0,
            Stage::Paused { prior } | Stage::Avoidance(Curve { prior, .. }) => prior,
        }
    }

    /// Begins a curve with the window as it is (RFC 9438 4.2).
    fn curve(&mut self, window: &Window, mss: u32, now_ms: u32) -> Curve {
        let mut k_ms = 0;
        if window.cwnd < self.w_max {
            // RFC 9438 4.2: K is the cubic root of (W_max - cwnd_epoch) / C, in seconds, with C =
            // 0.4 segments per second cubed.
            let missing = u64::from(self.w_max - window.cwnd);
            k_ms = cube_root(missing * 2_500_000_000 / u64::from(mss));
        } else {
            self.w_max = window.cwnd;
        }
        Curve {
            start_ms: now_ms,
            k_ms,
            w_est: window.cwnd,
            w_est_acked: 0,
            prior: self.prior(),
        }
    }

    fn avoid(&mut self, window: &mut Window, acked: &Acked, rest: u32, now: Instant) {
        let now_ms = now.as_millis() as u32;
        let mut curve = match self.stage {
            Stage::Avoidance(curve) => curve,
            _ => self.curve(window, acked.mss, now_ms),
        };
        curve.grow_w_est(window.cwnd, acked.mss, rest);
        let elapsed_ms = i64::from(now_ms.wrapping_sub(curve.start_ms));
        let cwnd = i64::from(window.cwnd);
        let now_at = self.at(&curve, elapsed_ms, acked.mss);
        if now_at < i64::from(curve.w_est) {
            // RFC 9438 4.3, the Reno-friendly region: NewReno's window would be larger.
            window.cwnd = window.cwnd.max(curve.w_est);
        } else {
            // RFC 9438 4.4 and 4.5: towards the curve's value in a round trip, by at most half the
            // window in a round trip.
            let ahead_ms = elapsed_ms + i64::from(acked.rtt_us / 1_000);
            let target = self
                .at(&curve, ahead_ms, acked.mss)
                .clamp(cwnd, cwnd + cwnd / 2);
            let step = (target - cwnd) * i64::from(rest) / cwnd.max(1);
            window.cwnd = window.cwnd.saturating_add(step as u32);
        }
        self.stage = Stage::Avoidance(curve);
    }

    /// W_cubic(t) = C (t - K)^3 + W_max, in bytes, so many milliseconds from the start of the
    /// curve.
    fn at(&self, curve: &Curve, elapsed_ms: i64, mss: u32) -> i64 {
        let distance = (elapsed_ms - i64::from(curve.k_ms)).clamp(-SPAN_MAX_MS, SPAN_MAX_MS);
        let millionths_of_segments = distance.pow(3) / 10 * 4 / 1_000;
        i64::from(self.w_max) + millionths_of_segments * i64::from(mss) / 1_000_000
    }
}

impl Curve {
    /// RFC 9438 4.3: with the same reduction NewReno adds 3 (1 - 0.7) / (1 + 0.7) = 9/17 segments
    /// in a round trip, and a whole one once W_est has reached cwnd_prior.
    fn grow_w_est(&mut self, cwnd: u32, mss: u32, acked: u32) {
        self.w_est_acked = self.w_est_acked.saturating_add(acked);
        let needed = if self.w_est >= self.prior {
            u64::from(cwnd)
        } else {
            u64::from(cwnd) * 17 / 9
        };
        if u64::from(self.w_est_acked) >= needed {
            self.w_est_acked -= needed as u32;
            self.w_est = self.w_est.saturating_add(mss);
        }
    }
}

impl Controller for Cubic {
    fn on_ack(&mut self, window: &mut Window, acked: &Acked, now: Instant) {
        if !window.in_slow_start() {
            return self.avoid(window, acked, acked.bytes, now);
        }
        match &mut self.stage {
            Stage::SlowStart(hystart) => hystart.on_ack(window, acked),
            // Slow start up to a known threshold, as after a time-out.
            _ => {
                let rest = window.slow_start(acked.bytes);
                if rest > 0 {
                    self.avoid(window, acked, rest, now);
                }
            }
        }
    }

    /// While the program does not use the window, the curve stops (RFC 9438 4.2). A new one begins
    /// later.
    fn on_unused(&mut self) {
        if let Stage::Avoidance(Curve { prior, .. }) = self.stage {
            self.stage = Stage::Paused { prior };
        }
    }

    /// Multiplicative decrease and fast convergence (RFC 9438 4.6 and 4.7).
    fn reduced(&mut self, window: &Window, flight: u32, mss: u32, _now: Instant) -> u32 {
        let cwnd = window.cwnd;
        self.w_max = if cwnd < self.w_max {
            (u64::from(cwnd) * 17 / 20) as u32
        } else {
            cwnd
        };
        self.stage = Stage::Paused { prior: cwnd };
        ((u64::from(flight) * 7 / 10) as u32).max(2 * mss)
    }

    /// After a time-out the next curve begins at its plateau, wherever slow start ends (RFC 9438
    /// 4.8).
    fn on_timeout(&mut self) {
        self.w_max = 0;
    }

    /// A spurious loss: the window is back at its former size, and so is W_max (RFC 9438 4.9.2).
    fn on_undone(&mut self, window: &Window) {
        self.w_max = self.w_max.max(window.cwnd);
        self.on_unused();
    }
}

/// The greatest number whose cube is not above `value`.
fn cube_root(mut value: u64) -> u32 {
    let mut root = 0u64;
    for shift in (0..64u32).step_by(3).rev() {
        root *= 2;
        let next = 3 * root * (root + 1) + 1;
        if value >> shift >= next {
            value -= next << shift;
            root += 1;
        }
    }
    root as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_000;

    /// Round trips of 100 ms, each acknowledging a window; returns the windows.
    fn run(cubic: &mut Cubic, window: &mut Window, from_ms: u64, rounds: u64) -> Vec<u32> {
        (0..rounds)
            .map(|i| {
                let now = Instant::from_millis(from_ms + 100 * i);
                let acked = Acked {
                    bytes: window.cwnd,
                    mss: MSS,
                    rtt_us: 100_000,
                    rto_us: 200_000,
                    una: 0,
                    nxt: 0,
                };
                cubic.on_ack(window, &acked, now);
                window.cwnd
            })
            .collect()
    }

    fn reduced(cwnd: u32) -> (Cubic, Window) {
        let mut cubic = Cubic::default();
        let mut window = Window {
            cwnd,
            ssthresh: u32::MAX,
        };
        window.ssthresh = cubic.reduced(&window, cwnd, MSS, Instant::default());
        window.cwnd = window.ssthresh;
        (cubic, window)
    }

    #[test]
    fn cube_roots() {
        for root in [0u64, 1, 2, 3, 10, 999, 1_000_000, 2_642_245] {
            assert_eq!(u64::from(cube_root(root.pow(3))), root);
            if root > 0 {
                assert_eq!(u64::from(cube_root(root.pow(3) - 1)), root - 1);
            }
        }
    }

    #[test]
    fn rfc9438_4_6_reduction_is_to_seven_tenths() {
        let (_, window) = reduced(1_000_000);
        assert_eq!(window.cwnd, 700_000);
        let mut cubic = Cubic::default();
        assert_eq!(
            cubic.reduced(&window, 1_000, MSS, Instant::default()),
            2_000
        );
    }

    #[test]
    fn rfc9438_4_2_no_round_trip_adds_more_than_half() {
        // The curve is so old that it is far above the window.
        let (mut cubic, mut window) = reduced(20_000);
        run(&mut cubic, &mut window, 0, 1);
        let mut last = window.cwnd;
        for next in run(&mut cubic, &mut window, 90_000, 12) {
            assert!(last < next && next <= last + last / 2, "{last} to {next}");
            last = next;
        }
    }

    #[test]
    fn rfc9438_4_2_window_returns_to_its_peak_after_k() {
        let (mut cubic, mut window) = reduced(1_000_000);
        // K = cubic root of 300 / 0.4 = 9.086 s.
        let windows = run(&mut cubic, &mut window, 0, 91);
        assert!(windows.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(
            (985_000..1_001_000).contains(&windows[88]),
            "{}",
            windows[88]
        );
        // Concave: most of the way in half the time, then a plateau, then convex growth.
        assert!(windows[45] > 950_000, "{}", windows[45]);
        let after = run(&mut cubic, &mut window, 9_100, 91);
        assert!(after[20] < 1_010_000, "{}", after[20]);
        assert!(after[90] > 1_250_000, "{}", after[90]);
    }

    #[test]
    fn rfc9438_4_8_after_a_time_out_the_curve_begins_at_its_top() {
        let (mut cubic, mut window) = reduced(1_000_000);
        cubic.on_timeout();
        // Slow start has led back to the threshold. K is 0: nothing draws the window towards its
        // former size.
        let windows = run(&mut cubic, &mut window, 0, 31);
        assert_eq!(windows[0], 700_000);
        assert!(windows[30] < 720_000, "{}", windows[30]);
        // Without a time-out the curve does.
        let (mut cubic, mut window) = reduced(1_000_000);
        assert!(run(&mut cubic, &mut window, 0, 31)[30] > 880_000);
    }

    #[test]
    fn rfc9438_4_7_fast_convergence() {
        let (mut cubic, window) = reduced(1_000_000);
        cubic.reduced(&window, window.cwnd, MSS, Instant::default());
        assert_eq!(cubic.w_max, 595_000);
    }

    #[test]
    fn rfc9438_4_3_small_windows_grow_as_newreno_would() {
        let (mut cubic, mut window) = reduced(10_000);
        // 9/17 of a segment in each round trip until W_est is back, then a whole one.
        let windows = run(&mut cubic, &mut window, 0, 60);
        assert_eq!((windows[5], windows[59]), (10_000, 64_000), "{windows:?}");
    }

    #[test]
    fn rfc9438_4_2_pause_of_the_program_does_not_make_the_window_jump() {
        let (mut cubic, mut window) = reduced(1_000_000);
        run(&mut cubic, &mut window, 0, 50);
        let before = window.cwnd;
        cubic.on_unused();
        let windows = run(&mut cubic, &mut window, 1_000_000, 1);
        assert!(
            windows[0] < before + before / 50,
            "{} after {before}",
            windows[0]
        );
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut cubic = Cubic::default();
        let mut window = Window {
            cwnd: u32::MAX / 2,
            ssthresh: 0,
        };
        window.ssthresh = cubic.reduced(
            &window,
            u32::MAX / 2,
            u32::from(u16::MAX),
            Instant::default(),
        );
        window.cwnd = 88;
        for i in 0..1_000u64 {
            let acked = Acked {
                bytes: u32::MAX,
                mss: 88,
                rtt_us: 120_000_000,
                rto_us: 200_000,
                una: 0,
                nxt: 0,
            };
            cubic.on_ack(&mut window, &acked, Instant::from_millis(i * 100_000));
        }
        assert!(window.cwnd > 0);
    }
}
