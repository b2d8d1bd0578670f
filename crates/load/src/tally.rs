//! What came of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::machine::Interval;
use crate::plan::Plan;

/// Parts of all operations of which the report for programs says what they took at most.
const PARTS: [f64; 13] = [
    0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999,
];

/// Latencies are told from 100 ns to an hour, to three digits.
const LEAST_NS: u64 = 100;
const MOST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// What one shard has counted.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    pub(crate) operations: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// Answers of HTTP that were no success.
    pub(crate) unsuccessful: u64,
    pub(crate) latency_ns: Histogram<u64>,
    /// What failed, and how often.
    pub(crate) failures: BTreeMap<String, u64>,
    /// Frames that the link dropped, coming and going, since it was opened.
    pub(crate) dropped: [u64; 2],
}

impl Tally {
    pub(crate) fn new() -> Tally {
        let latency_ns = Histogram::new_with_bounds(LEAST_NS, MOST_NS, DIGITS);
        Tally {
            operations: 0,
            bytes_in: 0,
            bytes_out: 0,
            unsuccessful: 0,
            latency_ns: latency_ns.expect("bounds in order"),
            failures: BTreeMap::new(),
            dropped: [0; 2],
        }
    }

    /// One operation took so long.
    pub(crate) fn operation(&mut self, took: Duration) {
        self.operations += 1;
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.saturating_record(ns);
    }

    pub(crate) fn failed(&mut self, why: String) {
        *self.failures.entry(why).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.operations += other.operations;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.unsuccessful += other.unsuccessful;
        for (sum, count) in self.dropped.iter_mut().zip(other.dropped) {
            *sum += count;
        }
        // Both have the same bounds.
        let _ = self.latency_ns.add(&other.latency_ns);
        for (why, count) in &other.failures {
            *self.failures.entry(why.clone()).or_default() += count;
        }
    }

    /// Whether anything has come back, or gone through.
    pub(crate) fn is_silent(&self) -> bool {
        self.operations == 0 && self.bytes_in == 0 && self.bytes_out == 0
    }

    /// What failed most often.
    pub(crate) fn worst(&self) -> Option<(&str, u64)> {
        let worst = self.failures.iter().max_by_key(|(_, count)| **count);
        worst.map(|(why, count)| (&**why, *count))
    }
}

/// How it goes, told once a second.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Seconds that count so far; none during the warm-up.
    pub seconds: Option<f64>,
    /// Operations in the last second.
    pub operations: u64,
    /// Bytes in either direction in the last second.
    pub bytes: u64,
    /// Median and 99th percent of the operations' latency in the last second, in microseconds.
    pub latency_us: [f64; 2],
    /// Failures in the last second.
    pub failures: u64,
}

impl Progress {
    pub(crate) fn of(second: &Tally, seconds: Option<f64>) -> Progress {
        Progress {
            seconds,
            operations: second.operations,
            bytes: second.bytes_in + second.bytes_out,
            latency_us: [0.5, 0.99].map(|part| us(second.latency_ns.value_at_quantile(part))),
            failures: second.failures.values().sum(),
        }
    }
}

/// What a run took.
pub(crate) struct Took {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) machine: Option<Interval>,
}

/// What a whole run came to.
#[derive(Debug, Clone)]
pub struct Report {
    /// Seconds that counted.
    pub seconds: f64,
    /// Operations that were over in that time.
    pub operations: u64,
    /// Bytes received and sent, payload alone.
    pub bytes: [u64; 2],
    /// Answers of HTTP that were no success (2xx).
    pub unsuccessful: u64,
    /// What failed, and how often.
    pub failures: BTreeMap<String, u64>,
    /// CPU seconds of this process meanwhile, the kernel's for it included.
    pub cpu_seconds: f64,
    /// What all of the machine's cores did meanwhile; none where the kernel does not tell.
    pub machine: Option<Interval>,
    /// Operations that were meant to begin and had not when it was over; of an open loop.
    pub overdue: u64,
    /// Frames that were lost at this end since the link was opened, where it tells (AF_XDP): those
    /// that came and were not taken in time, and those that the device took and dropped.
    pub dropped: [u64; 2],
    latency_ns: Histogram<u64>,
    plan: Plan,
}

impl Report {
    pub(crate) fn new(plan: &Plan, tally: Tally, took: Took, overdue: u64) -> Report {
        Report {
            seconds: took.seconds,
            operations: tally.operations,
            bytes: [tally.bytes_in, tally.bytes_out],
            unsuccessful: tally.unsuccessful,
            failures: tally.failures,
            cpu_seconds: took.cpu_seconds,
            machine: took.machine,
            overdue,
            dropped: tally.dropped,
            latency_ns: tally.latency_ns,
            plan: plan.clone(),
        }
    }

    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// Gbit/s of payload, received and sent.
    pub fn gigabits(&self) -> [f64; 2] {
        self.bytes.map(|bytes| bytes as f64 * 8e-9 / self.seconds)
    }

    /// The latency in microseconds that this part (0 to 1) of all operations did not exceed; 0 if
    /// there were none.
    pub fn latency_us(&self, part: f64) -> f64 {
        us(self.latency_ns.value_at_quantile(part))
    }

    /// CPU of this process in microseconds for an operation, or in bulk for a megabyte.
    pub fn cpu_us(&self) -> f64 {
        self.us_each(self.cpu_seconds)
    }

    /// Of so many seconds, the microseconds for an operation, or in bulk for a megabyte.
    fn us_each(&self, seconds: f64) -> f64 {
        let each = match self.plan.workload.is_bulk() {
            true => (self.bytes[0] + self.bytes[1]) as f64 / 1e6,
            false => self.operations as f64,
        };
        if each > 0.0 {
            seconds * 1e6 / each
        } else {
            0.0
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let plan = &self.plan;
        let mut text = format!(
            "{} {}: {} connections from {} addresses, {} shards, {:.1} s\n",
            plan.workload.name(),
            plan.target,
            plan.connections,
            plan.addresses.len(),
            plan.shards,
            self.seconds
        );
        let [received, sent] = self.gigabits();
        // Writing to a string does not fail.
        let _ = match plan.workload.is_bulk() {
            true => writeln!(
                text,
                "  {:.2} Gbit/s, {:.0} us of CPU here for a MB",
                received + sent,
                self.cpu_us()
            ),
            false => writeln!(
                text,
                "  {:.0} per second, {:.2} us of CPU here each; {received:.3} Gbit/s in, {sent:.3} out",
                self.rate(),
                self.cpu_us()
            ),
        };
        if !plan.workload.is_bulk() {
            let _ = writeln!(
                text,
                "  latency in us: mean {:.1}, 50 % {:.1}, 90 % {:.1}, 99 % {:.1}, 99.9 % {:.1}, largest {:.1}",
                self.latency_ns.mean() / 1e3,
                self.latency_us(0.5),
                self.latency_us(0.9),
                self.latency_us(0.99),
                self.latency_us(0.999),
                us(self.latency_ns.max()),
            );
        }
        if let Some(machine) = &self.machine {
            let _ = writeln!(
                text,
                "  {:.2} us of CPU of the whole machine each; cores, user/system/interrupt in %: {}",
                self.us_each(machine.busy()),
                machine.describe()
            );
        }
        if let Some(rate) = plan.rate {
            let _ = writeln!(
                text,
                "  offered {rate:.0} per second, latency from when each was meant to begin; {} had not begun at the end",
                self.overdue
            );
        }
        if self.unsuccessful > 0 {
            let _ = writeln!(text, "  {} answers were no success", self.unsuccessful);
        }
        let [received, sent] = self.dropped;
        if received + sent > 0 {
            let _ = writeln!(
                text,
                "  lost at this end: {received} frames that came, {sent} that were sent"
            );
        }
        for (why, count) in &self.failures {
            let _ = writeln!(text, "  {count} failed: {why}");
        }
        text
    }

    /// For programs; times in microseconds.
    pub fn json(&self) -> Value {
        let plan = &self.plan;
        let quantile = |part| self.latency_us(part);
        json!({
            "workload": plan.workload.name(),
            "target": plan.target.to_string(),
            "connections": plan.connections,
            "sources": plan.addresses.len(),
            "shards": plan.shards,
            "offered_per_second": plan.rate,
            "seconds": self.seconds,
            "operations": self.operations,
            "per_second": self.rate(),
            "bytes_in": self.bytes[0],
            "bytes_out": self.bytes[1],
            "gigabits_in": self.gigabits()[0],
            "gigabits_out": self.gigabits()[1],
            "latency_us": {
                "least": us(self.latency_ns.min()),
                "mean": self.latency_ns.mean() / 1e3,
                "p50": quantile(0.5),
                "p90": quantile(0.9),
                "p99": quantile(0.99),
                "p99.9": quantile(0.999),
                "p99.99": quantile(0.9999),
                "largest": us(self.latency_ns.max()),
                "distribution": PARTS.map(|part| (part, quantile(part))),
            },
            "overdue": self.overdue,
            "unsuccessful": self.unsuccessful,
            "failures": self.failures,
            "frames_dropped": self.dropped[0],
            "send_dropped": self.dropped[1],
            "cpu_seconds": self.cpu_seconds,
            "machine": self.machine,
        })
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}
