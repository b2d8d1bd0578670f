//! Loads from the kernel's side: one thread, non-blocking sockets, epoll. It asks the kernel
//! directly, so that no library comes between.

mod bulk;
mod idle;
mod pingpong;
mod short;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cpu::{Interval, Sample};

pub use idle::{hold, open};

/// Bytes of a small message.
pub const MESSAGE: usize = 64;
/// Parts of all operations of which is said what they took at most.
const PARTS: [f64; 13] = [
    0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999,
];
/// How long a load runs before measuring begins.
const WARM_UP: Duration = Duration::from_millis(500);

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Connects, writes 64 bytes, reads 64 bytes, and waits for the server to close.
    Short,
    /// Writes 64 bytes and waits for them to come back.
    Pingpong,
    /// Writes as much as the server takes.
    In,
    /// Reads as much as the server writes.
    Out,
}

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

/// Runs a load on `connections` at once for some time after a warm-up.
pub fn run(
    kind: Kind,
    address: SocketAddr,
    connections: usize,
    duration: Duration,
) -> Result<Outcome> {
    match kind {
        Kind::Short => short::run(address, connections, duration),
        Kind::Pingpong => pingpong::run(address, connections, duration),
        Kind::In => bulk::run(address, connections, duration, bulk::Direction::In),
        Kind::Out => bulk::run(address, connections, duration, bulk::Direction::Out),
    }
}

/// Counts what happens between the end of the warm-up and the end of a run.
#[derive(Debug)]
struct Meter {
    start: Instant,
    duration: Duration,
    /// What the machine, and this process, had done when it began to count.
    before: Option<(Sample, f64)>,
    operations: u64,
    bytes: u64,
    latency_ns: Histogram<u64>,
}

impl Meter {
    fn new(duration: Duration) -> Meter {
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
    fn operation(&mut self, begun: Instant, now: Instant) {
        if self.before.is_some() {
            self.operations += 1;
            let nanos = u64::try_from((now - begun).as_nanos()).unwrap_or(u64::MAX);
            self.latency_ns.saturating_record(nanos);
        }
    }

    /// Bytes have been moved.
    fn moved(&mut self, count: usize) {
        if self.before.is_some() {
            self.bytes += count as u64;
        }
    }

    /// To be asked often: what the run came to, once it is over.
    fn over(&mut self, now: Instant) -> Result<Option<Outcome>> {
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

/// A set of descriptors, each with its connection's number.
struct Set {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Set {
    fn create() -> Result<Set> {
        Ok(Set {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(512),
        })
    }

    fn add(&self, socket: &OwnedFd, number: usize, flags: epoll::EventFlags) -> Result<()> {
        Ok(epoll::add(
            &self.epoll,
            socket,
            epoll::EventData::new_u64(number as u64),
            flags,
        )?)
    }

    fn change(&self, socket: &OwnedFd, number: usize, flags: epoll::EventFlags) -> Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            socket,
            epoll::EventData::new_u64(number as u64),
            flags,
        )?)
    }

    /// Waits at most a tenth of a second; the numbers of connections with events.
    fn wait(&mut self) -> Result<impl Iterator<Item = usize> + '_> {
        self.events.clear();
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.events.iter().map(|event| event.data.u64() as usize))
    }
}

/// A socket that is connecting, without blocking.
fn start_connecting(address: SocketAddr) -> Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error).with_context(|| format!("connecting to {address}")),
    }
}

/// A connection, without blocking from here on.
fn connected(address: SocketAddr) -> Result<OwnedFd> {
    let stream = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(10))
        .with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}
