//! The schemes on real cores, in turns.

use std::sync::Barrier;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context as _, Result};
use millrace_bench::report::{Curve, Curves};
use millrace_tcp::Instant;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::schemes::{self, Core, Plan, Scheme};

/// What does not count at the start of each measurement.
const WARM_UP: Duration = Duration::from_millis(500);
/// Turns without work after which another thread is let have the core.
const IDLE_TURNS: u32 = 64;

/// One row: a plan and what it is called.
struct Row {
    name: &'static str,
    plan: Plan,
    /// Cores that it has.
    cores: usize,
    /// Messages answered each second, of each round.
    rates: Vec<f64>,
}

/// Times every layout of the cores there are, and prints them as a table.
pub fn run(connections: usize, message: usize, rounds: usize, seconds: f64) -> Result<Curves> {
    let usable = usable();
    let mut rows = Vec::new();
    for cores in 1..=usable.len().min(schemes::CORES_MAX) {
        add_layouts(&mut rows, cores, connections, message);
    }
    for _ in 0..rounds {
        for row in &mut rows {
            row.rates
                .push(rate(&row.plan, &usable, Duration::from_secs_f64(seconds)));
        }
    }
    let hertz = hertz()?;
    println!(
        "## A message of {message} bytes and its answer, timed: {rounds} rounds of {seconds} s, in turns; median (least to most)\n"
    );
    print_table(&rows, message, hertz);
    Ok(Curves {
        name: format!("scaling-rate-{message}"),
        what: format!(
            "A message of {message} bytes and its answer, timed on the cores there are, in turns: thousand a second. The port of the decoupled scheme is on each core beside a shard, or one for all."
        ),
        unit: "thousand a second".to_owned(),
        lines: lines(rows),
    })
}

/// Adds a row for each way to use so many cores.
fn add_layouts(rows: &mut Vec<Row>, cores: usize, connections: usize, message: usize) {
    let mut row = |name, scheme, shards, ports, apart| {
        // As many connections for each core, whatever it does.
        let connections = connections * cores / shards;
        let plan = Plan {
            scheme,
            shards,
            ports,
            apart,
            connections,
            message,
        };
        rows.push(Row {
            name,
            plan,
            cores,
            rates: Vec::new(),
        });
    };
    row("concurrent", Scheme::Concurrent, cores, 1, false);
    let on_each = "decoupled, a port and a shard on each core";
    row(on_each, Scheme::Decoupled, cores, cores, false);
    if cores > 1 {
        let on_first = "decoupled, one port for all shards, on the first core";
        row(on_first, Scheme::Decoupled, cores, 1, false);
        let on_its_own = "decoupled, a port on a core of its own";
        row(on_its_own, Scheme::Decoupled, cores - 1, 1, true);
    }
}

/// Prints each row beside one core of its scheme, and beside the concurrent scheme on as many.
fn print_table(rows: &[Row], message: usize, hertz: f64) {
    println!(
        "| scheme | cores | thousand a second | beside one core | bit/Hz per core | beside concurrent |"
    );
    println!("|---|--:|--:|--:|--:|--:|");
    for row in rows {
        let ratios = |to: &Row| {
            let each = row.rates.iter().zip(&to.rates);
            spread(&each.map(|(one, other)| one / other).collect::<Vec<_>>())
        };
        let of = |name, cores| {
            rows.iter()
                .find(|row: &&Row| row.name == name && row.cores == cores)
        };
        let single = of(row.name, 1).or(rows.iter().find(|at| at.plan.scheme == row.plan.scheme));
        let other = of("concurrent", row.cores);
        let bits = median(&row.rates) * (message * 2 * 8) as f64;
        println!(
            "| {} | {} | {} | {} | {:.3} | {} |",
            row.name,
            row.cores,
            spread(&thousands(row)),
            single.map_or(String::new(), ratios),
            bits / hertz / row.cores as f64,
            other.map_or(String::new(), ratios),
        );
    }
    println!();
}

/// The rows of each name, as a curve over the number of cores.
fn lines(rows: Vec<Row>) -> Vec<Curve> {
    let mut lines: Vec<Curve> = Vec::new();
    for row in rows {
        let rates = thousands(&row);
        match lines.iter_mut().find(|line| line.name == row.name) {
            Some(line) => line.points.push((row.cores, rates)),
            None => lines.push(Curve {
                name: row.name.to_owned(),
                points: vec![(row.cores, rates)],
            }),
        }
    }
    lines
}

/// A row's rates, in thousand a second.
fn thousands(row: &Row) -> Vec<f64> {
    row.rates.iter().map(|rate| rate / 1000.0).collect()
}

fn rate(plan: &Plan, usable: &[usize], length: Duration) -> f64 {
    let cores = schemes::cores(plan);
    let start = Barrier::new(cores.len());
    let began = Clock::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = cores
            .into_iter()
            .zip(usable)
            .map(|(core, &on)| {
                let start = &start;
                scope.spawn(move || {
                    pin(on);
                    start.wait();
                    work(core, began, length)
                })
            })
            .collect();
        let rates = threads
            .into_iter()
            .map(|thread| thread.join().expect("a core has failed"));
        rates.sum()
    })
}

/// Works until the time is over. Returns messages answered a second.
fn work(mut core: Box<dyn Core>, began: Clock, length: Duration) -> f64 {
    let mut turns = |until: Duration| {
        let from = Clock::now();
        let mut answered = 0;
        let mut idle = 0;
        loop {
            let now = Clock::now();
            if now - from >= until {
                return answered as f64 / (now - from).as_secs_f64();
            }
            let done = core.turn(Instant::from_micros(
                1_000_000 + (now - began).as_micros() as u64,
            ));
            answered += done;
            idle = if done > 0 { 0 } else { idle + 1 };
            if idle >= IDLE_TURNS {
                idle = 0;
                std::thread::yield_now();
            }
        }
    };
    turns(WARM_UP);
    let rate = turns(length);
    // Others are still at work: what they wait for is done for them until they have ended, too.
    turns(WARM_UP);
    rate
}

fn usable() -> Vec<usize> {
    sched_getaffinity(None).map_or(vec![0], |set| {
        (0..CpuSet::MAX_CPU)
            .filter(|core| set.is_set(*core))
            .collect()
    })
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    // It was one of ours a moment ago; if it is no more, the thread runs where it may.
    let _ = sched_setaffinity(None, &set);
}

/// The processor's clock, as /proc/cpuinfo has it.
fn hertz() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"));
    let mhz: f64 = line
        .and_then(|line| line.split(": ").nth(1))
        .and_then(|mhz| mhz.parse().ok())
        .context("/proc/cpuinfo says no MHz")?;
    Ok(mhz * 1e6)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{:.2} ({least:.2} to {most:.2})", median(values))
}
