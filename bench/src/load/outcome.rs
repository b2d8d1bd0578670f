//! What a load came to, and the figures that follow from it.

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cpu::Interval;

/// What a load came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Transactions or messages.
    pub operations: u64,
    /// Payload moved, in bulk loads.
    pub bytes: u64,
    /// Latency of an operation in microseconds: median, 90, 99, 99.9 percent, largest; all 0 where
    /// it is not known.
    pub latency_us: [f64; 5],
    /// Parts of all operations (0 to 1) and what those took at most, in microseconds, as finely as
    /// it is known; empty where it is not.
    #[serde(default)]
    pub distribution_us: Vec<(f64, f64)>,
    /// What the machine did meanwhile.
    pub machine: Interval,
    /// CPU seconds of the client's process, what the kernel did for it included.
    pub own_seconds: f64,
    /// Operations that were due at the end and had not begun; 0 where no rate was asked for.
    #[serde(default)]
    pub overdue: u64,
    /// Operations that have failed, beside those.
    #[serde(default)]
    pub failed: u64,
    /// How most of them have; empty where none has.
    #[serde(default)]
    pub failure: String,
}

impl Outcome {
    /// What `millrace load --json` has said.
    ///
    /// # Errors
    /// When it said something else, or when answers were no success.
    pub fn of_report(report: &Value) -> Result<Outcome> {
        let number = |value: &Value, name: &str| -> Result<f64> {
            value[name].as_f64().with_context(|| name.to_owned())
        };
        let operations = number(report, "operations")?;
        let failures = report["failures"].as_object().context("failures")?;
        let failures = || {
            let counts = failures.iter();
            counts.filter_map(|(why, count)| Some((why, count.as_u64()?)))
        };
        let failed = failures().map(|(_, count)| count).sum();
        let worst = failures().max_by_key(|(_, count)| *count);
        let unsuccessful = number(report, "unsuccessful")?;
        ensure!(
            unsuccessful == 0.0,
            "{unsuccessful} answers were no success"
        );
        let latency = &report["latency_us"];
        let mut latency_us = [0.0; 5];
        for (value, name) in latency_us
            .iter_mut()
            .zip(["p50", "p90", "p99", "p99.9", "largest"])
        {
            *value = number(latency, name)?;
        }
        let distribution_us = serde_json::from_value(report["latency_us"]["distribution"].clone())
            .context("distribution")?;
        let bytes = number(report, "bytes_in")?.max(number(report, "bytes_out")?);
        Ok(Outcome {
            operations: operations as u64,
            bytes: bytes as u64,
            latency_us,
            distribution_us,
            machine: serde_json::from_value(report["machine"].clone()).context("machine")?,
            own_seconds: number(report, "cpu_seconds")?,
            overdue: number(report, "overdue")? as u64,
            failed,
            failure: worst.map_or_else(String::new, |(why, _)| why.clone()),
        })
    }

    /// The part (0 to 1) of what was to be done that was done; 1 where no rate was asked for.
    pub fn carried(&self) -> f64 {
        let due = self.operations + self.overdue + self.failed;
        self.operations as f64 / due.max(1) as f64
    }

    /// Whether more than one in a thousand operations failed.
    pub fn is_flawed(&self) -> bool {
        self.failed * 1000 > self.operations.max(1)
    }

    /// The same.
    ///
    /// # Errors
    /// When it is flawed.
    pub fn flawless(self) -> Result<Outcome> {
        ensure!(
            !self.is_flawed(),
            "too much failed: {} beside {} operations, most of them: {}",
            self.failed,
            self.operations,
            self.failure
        );
        Ok(self)
    }

    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.machine.seconds
    }

    /// Whether it is known how long operations took.
    pub fn has_latency(&self) -> bool {
        self.latency_us[0] > 0.0
    }

    /// Gbit/s of payload.
    pub fn gigabits(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e9 / self.machine.seconds
    }

    /// Microseconds of CPU of the whole machine for one operation.
    pub fn cpu_us(&self) -> f64 {
        self.machine.busy() * 1e6 / self.operations as f64
    }

    /// Microseconds of CPU of the client's process for one operation.
    pub fn own_cpu_us(&self) -> f64 {
        self.own_seconds * 1e6 / self.operations as f64
    }

    /// Microseconds of CPU of the whole machine for one MB.
    pub fn cpu_us_per_megabyte(&self) -> f64 {
        self.machine.busy() * 1e12 / self.bytes as f64
    }
}
