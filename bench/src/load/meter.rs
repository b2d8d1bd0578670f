//! Counts the operations of a load, and measures how long each takes.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use super::outcome::Outcome;
use crate::cpu::Sample;

/// Parts of all operations of which is said what they took at most.
const PARTS: [f64; 13] = [
    0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999,
];
/// How long a load runs before measuring begins.
const WARM_UP: Duration = Duration::from_millis(500);

/// Counts what happens between the end of the warm-up and the end of a run.
#[derive(Debug)]
pub struct Meter {
    start: Instant,
    duration: Duration,
    /// What the machine, and this process, had done when it began to count.
    before: Option<(Sample, f64)>,
    operations: u64,
    bytes: u64,
    latency_ns: Histogram<u64>,
}

impl Meter {
    pub fn new(duration: Duration) -> Meter {
        Meter {
            start: Instant::now(),
            duration,
            before: None,
            operations: 0,
            bytes: 0,
            latency_ns: Histogram::new(3).expect("three digits are allowed"),
        }
    }

    /// One operation has ended that began at `begun`.
    pub fn operation(&mut self, begun: Instant, now: Instant) {
        if self.before.is_some() {
            self.operations += 1;
            let nanos = u64::try_from((now - begun).as_nanos()).unwrap_or(u64::MAX);
            self.latency_ns.saturating_record(nanos);
        }
    }

    /// Bytes have been moved.
    pub fn moved(&mut self, count: usize) {
        if self.before.is_some() {
            self.bytes += count as u64;
        }
    }

    /// To be asked often: what the run came to, once it is over.
    pub fn over(&mut self, now: Instant) -> Result<Option<Outcome>> {
        let elapsed = now - self.start;
        match &self.before {
            None if elapsed >= WARM_UP => self.before = Some((Sample::take()?, own_seconds())),
            Some((before, own)) if elapsed >= WARM_UP + self.duration => {
                let machine = before.until_now()?;
                let own_seconds = own_seconds() - own;
                let quantile =
                    |fraction| self.latency_ns.value_at_quantile(fraction) as f64 / 1000.0;
                let latency_us = [
                    quantile(0.5),
                    quantile(0.9),
                    quantile(0.99),
                    quantile(0.999),
                    self.latency_ns.max() as f64 / 1000.0,
                ];
                let distribution_us = match self.operations {
                    0 => Vec::new(),
                    _ => PARTS.map(|part| (part, quantile(part))).to_vec(),
                };
                return Ok(Some(Outcome {
                    operations: self.operations,
                    bytes: self.bytes,
                    latency_us,
                    distribution_us,
                    machine,
                    own_seconds,
                    overdue: 0,
                    failed: 0,
                    failure: String::new(),
                }));
            }
            _ => {}
        }
        Ok(None)
    }
}

/// CPU seconds that this process has used.
fn own_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
