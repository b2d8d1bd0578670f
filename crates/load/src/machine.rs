//! What the machine's cores did, from `/proc/stat`.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// What one core did in an interval, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Core {
    /// In programs.
    pub user: f64,
    /// In the kernel for programs.
    pub system: f64,
    /// In interrupts, where most of the kernel's network work is done.
    pub interrupt: f64,
    /// Nothing.
    pub idle: f64,
    /// Not given by the host.
    pub stolen: f64,
}

impl Core {
    /// Seconds of work.
    pub fn busy(&self) -> f64 {
        self.user + self.system + self.interrupt
    }
}

/// The counters of every core at one moment.
#[derive(Debug)]
pub struct Sample {
    cores: Vec<Core>,
    taken: Instant,
}

/// What happened between two samples.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Interval {
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Each core.
    pub cores: Vec<Core>,
}

impl Sample {
    /// The counters now.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read, or is not what the kernel writes.
    pub fn take() -> Result<Sample> {
        let text = fs::read_to_string("/proc/stat")?;
        let tick = rustix::param::clock_ticks_per_second() as f64;
        let is_core = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        let core = |line: &str| -> Option<Core> {
            let ticks: Vec<f64> = line
                .split_whitespace()
                .skip(1)
                .filter_map(|field| field.parse().ok())
                .collect();
            // user nice system idle iowait irq softirq steal
            let [user, nice, system, idle, iowait, irq, softirq, steal] = *ticks.first_chunk()?;
            Some(Core {
                user: (user + nice) / tick,
                system: system / tick,
                interrupt: (irq + softirq) / tick,
                idle: (idle + iowait) / tick,
                stolen: steal / tick,
            })
        };
        let cores = text
            .lines()
            .filter(is_core)
            .map(|line| core(line).ok_or_else(|| Error::new(ErrorKind::InvalidData, "/proc/stat")))
            .collect::<Result<_>>()?;
        Ok(Sample {
            cores,
            taken: Instant::now(),
        })
    }

    /// From here to now.
    ///
    /// # Errors
    /// Those of [`Sample::take`].
    pub fn until_now(&self) -> Result<Interval> {
        let now = Sample::take()?;
        let difference = |before: &Core, after: &Core| Core {
            user: after.user - before.user,
            system: after.system - before.system,
            interrupt: after.interrupt - before.interrupt,
            idle: after.idle - before.idle,
            stolen: after.stolen - before.stolen,
        };
        let cores = self
            .cores
            .iter()
            .zip(&now.cores)
            .map(|(before, after)| difference(before, after))
            .collect();
        Ok(Interval {
            seconds: (now.taken - self.taken).as_secs_f64(),
            cores,
        })
    }
}

impl Interval {
    /// Seconds of work of all cores.
    pub fn busy(&self) -> f64 {
        self.cores.iter().map(Core::busy).sum()
    }

    /// Each core in short: `user/system/interrupt` in percent.
    pub fn describe(&self) -> String {
        let core = |core: &Core| {
            let percent = |part: f64| (100.0 * part / self.seconds).round();
            format!(
                "{}/{}/{}",
                percent(core.user),
                percent(core.system),
                percent(core.interrupt)
            )
        };
        self.cores.iter().map(core).collect::<Vec<_>>().join(" ")
    }
}
