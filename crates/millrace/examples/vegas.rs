//! A congestion control from outside of the stack: TCP Vegas (Brakmo and Peterson, 1995), which
//! goes by the round trip and not by loss. It keeps two to four segments waiting in the queue of
//! the narrowest link, where CUBIC fills it.
//!
//! ```text
//! vegas      # simulates a path of 20 Mbit/s and 40 ms, with room for four times what it holds
//! ```
//!
//! A real stack takes it by `Builder::add_congestion`, and then for all connections
//! (`Builder::congestion`) or for some (`TcpOptions::congestion`).

use millrace::congestion::{Acked, Controller, Custom, Window};
use millrace::{Algorithm, Instant};
use millrace_sim::goodput::{Scenario, run, trace};

/// What the stack is given: a name, and how a connection's state begins.
const VEGAS: Custom = Custom::new("vegas", || Box::new(Vegas::new()));

/// Fewer segments than this that wait in the queue: there is room for another in flight.
const LEAST: u64 = 2;
/// More than this: one too many.
const MOST: u64 = 4;

/// What Vegas knows of one connection.
#[derive(Debug)]
struct Vegas {
    /// The least round trip ever: that of an empty path.
    base_us: u32,
    /// The least of this round.
    least_us: u32,
    /// The round ends when this is acknowledged, a stream offset.
    end: u64,
    /// In slow start the window grows in every other round only, so that what it did is seen before
    /// it grows again.
    grows: bool,
}

impl Vegas {
    fn new() -> Vegas {
        Vegas {
            base_us: u32::MAX,
            least_us: u32::MAX,
            end: 0,
            grows: true,
        }
    }

    /// Once a round trip: what of the window waits somewhere, in segments, and what follows from
    /// it.
    fn judge(&mut self, window: &mut Window, mss: u32) {
        let extra_us = u64::from(self.least_us - self.base_us);
        let waits = u64::from(window.cwnd) * extra_us / (u64::from(self.least_us) * u64::from(mss));
        if window.in_slow_start() {
            self.grows = !self.grows;
            if waits >= LEAST {
                // The queue begins to fill: out of slow start, with what the path holds.
                let wanted = u64::from(window.cwnd) * u64::from(self.base_us);
                window.cwnd = (wanted / u64::from(self.least_us)) as u32 + mss;
                window.ssthresh = window.cwnd;
            }
        } else if waits < LEAST {
            window.cwnd = window.cwnd.saturating_add(mss);
        } else if waits > MOST {
            window.cwnd = window.cwnd.saturating_sub(mss).max(2 * mss);
        }
    }
}

impl Controller for Vegas {
    fn on_ack(&mut self, window: &mut Window, acked: &Acked, _now: Instant) {
        // 0: this one was not measured.
        if acked.rtt_us > 0 {
            self.base_us = self.base_us.min(acked.rtt_us);
            self.least_us = self.least_us.min(acked.rtt_us);
        }
        if acked.una >= self.end {
            if self.least_us != u32::MAX {
                self.judge(window, acked.mss);
            }
            self.end = acked.nxt;
            self.least_us = u32::MAX;
        }
        if window.in_slow_start() && self.grows {
            window.slow_start(acked.bytes);
        }
    }

    /// A loss is one all the same: three quarters of what is in flight.
    fn reduced(&mut self, _: &Window, flight: u32, mss: u32, _now: Instant) -> u32 {
        (flight / 4 * 3).max(2 * mss)
    }

    fn on_timeout(&mut self) {
        self.least_us = u32::MAX;
    }
}

/// Goodput in thousandths of what the path carries, and the round trip in its last seconds, in
/// milliseconds.
fn measure(algorithm: Algorithm) -> (u64, u32) {
    let scenario = Scenario {
        algorithm,
        custom: Some(VEGAS),
        rate: 20_000_000,
        round_trip_us: 40_000,
        queue: 16,
        warm_up_s: 5,
        measured_s: 20,
        ..Scenario::default()
    };
    let samples = trace(&scenario, 100);
    let late: Vec<_> = samples.iter().skip(samples.len() / 2).collect();
    let sum: u64 = late.iter().map(|sample| u64::from(sample.srtt_us)).sum();
    let average_us = sum / late.len().max(1) as u64;
    (run(&scenario).goodput, (average_us / 1_000) as u32)
}

fn main() {
    for (name, algorithm) in [
        ("cubic", Algorithm::Cubic),
        (VEGAS.name(), Algorithm::Custom(0)),
    ] {
        let (goodput, round_trip_ms) = measure(algorithm);
        println!(
            "{name:6} {}.{} % of what the path carries, round trip {round_trip_ms} ms",
            goodput / 10,
            goodput % 10,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vegas_fills_the_path_and_not_the_queue() {
        let (goodput, round_trip_ms) = measure(Algorithm::Custom(0));
        assert!(goodput > 950, "{goodput}");
        assert!((40..=45).contains(&round_trip_ms), "{round_trip_ms}");
    }

    #[test]
    fn cubic_fills_both() {
        let (goodput, round_trip_ms) = measure(Algorithm::Cubic);
        assert!(goodput > 950, "{goodput}");
        assert!(round_trip_ms > 80, "{round_trip_ms}");
    }
}
