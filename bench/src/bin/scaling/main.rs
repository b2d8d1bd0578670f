//! `make bench-scaling`: connections divided among cores by virtual queues, beside all cores
//! serving every connection under locks, of the same stack. What is counted is counted by valgrind,
//! for as many cores as one likes; what is timed is timed on the cores there are. See
//! docs/scaling.md.

mod client;
mod count;
mod schemes;
mod server;
mod timed;

use std::path::Path;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};
use millrace_bench::report::{Curve, Curves, SCALING, SCALING_PUBLISHED};
use millrace_bench::{machine, supervise};
use schemes::{Plan, Rounds, Scheme};

/// Measures how the stack scales with cores, beside a scheme that locks.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    only: Option<Only>,
    #[command(flatten)]
    measured: Measured,
}

#[derive(Debug, Args)]
struct Measured {
    /// Connections for each core
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Bytes of a message, and of its answer
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1400])]
    bytes: Vec<usize>,
    /// How often each is timed
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each time, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Counts, and times nothing: for a machine that has other work
    #[arg(long, conflicts_with = "time_only")]
    count_only: bool,
    /// Times, and counts nothing: counts are the same wherever the compiler is
    #[arg(long)]
    time_only: bool,
    /// Writes the curves that `make bench` shows as docs/scaling.json, too, for a reference machine
    #[arg(long)]
    publish: bool,
}

#[derive(Debug, Subcommand)]
enum Only {
    /// Has cores take turns, for valgrind
    Play {
        /// How the work is divided
        scheme: Scheme,
        /// Cores that run the stack
        shards: usize,
        /// Connections of each
        connections: usize,
        /// Bytes of a message
        bytes: usize,
        /// Rounds of all cores before those that are counted
        warm_up: u64,
        /// Rounds that are counted
        rounds: u64,
    },
}

/// Shards that are counted.
const COUNTED: [usize; 6] = [1, 2, 4, 8, 12, 14];
/// Those whose writes are followed, which takes long.
const TRACED: [usize; 4] = [1, 2, 8, 14];
/// Rounds until every connection is at work, and those that are counted.
const ROUNDS: Rounds = Rounds {
    warm_up: 64,
    counted: 64,
};
/// Likewise, and connections of each core, when writes are followed.
const ROUNDS_TRACED: Rounds = Rounds {
    warm_up: 12,
    counted: 8,
};
const CONNECTIONS_TRACED: usize = 4;

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    match &arguments.only {
        Some(Only::Play {
            scheme,
            shards,
            connections,
            bytes,
            warm_up,
            rounds,
        }) => {
            let plan = Plan {
                scheme: *scheme,
                shards: *shards,
                ports: 1,
                apart: true,
                connections: *connections,
                message: *bytes,
            };
            play(
                &plan,
                Rounds {
                    warm_up: *warm_up,
                    counted: *rounds,
                },
            );
            std::process::ExitCode::SUCCESS
        }
        None => supervise::supervised(|| measure(&arguments.measured)),
    }
}

fn play(plan: &Plan, rounds: Rounds) {
    let cores = schemes::cores(plan);
    let (marks, apart) = schemes::marks();
    println!("marks {marks} apart {apart}");
    let answered = schemes::play(cores, rounds);
    println!("answered {answered}");
}

/// What plays a plan, as arguments.
fn arguments(scheme: Scheme, numbers: [usize; 3], rounds: Rounds) -> Vec<String> {
    let scheme = match scheme {
        Scheme::Decoupled => "decoupled",
        Scheme::Concurrent => "concurrent",
    };
    let mut all = vec!["play".to_string(), scheme.to_string()];
    all.extend(numbers.map(|number| number.to_string()));
    all.extend([rounds.warm_up, rounds.counted].map(|rounds| rounds.to_string()));
    all
}

fn measure(measured: &Measured) -> Result<()> {
    ensure!(!measured.bytes.is_empty(), "--bytes: one at least");
    for &bytes in &measured.bytes {
        ensure!(
            (1..=client::MESSAGE_MAX).contains(&bytes),
            "--bytes {bytes}: 1 to {}",
            client::MESSAGE_MAX
        );
    }
    ensure!(
        (1..=128).contains(&measured.connections),
        "--connections: 1 to 128"
    );
    println!("{}\n", machine::describe());
    let mut curves = Vec::new();
    for &bytes in &measured.bytes {
        if !measured.time_only {
            curves.extend(count(measured.connections, bytes)?);
        }
        if !measured.count_only {
            curves.push(timed::run(
                measured.connections,
                bytes,
                measured.rounds,
                measured.seconds,
            )?);
        }
    }
    keep(curves, SCALING)?;
    if measured.publish {
        // With what is counted or timed there already.
        keep(Curves::read(SCALING)?, SCALING_PUBLISHED)?;
    }
    Ok(())
}

/// Writes curves to a file; those of other names stay there.
fn keep(new: Vec<Curves>, file: &str) -> Result<()> {
    let mut all = match Path::new(file).exists() {
        true => Curves::read(file)?,
        false => Vec::new(),
    };
    all.retain(|old| new.iter().all(|new| new.name != old.name));
    all.extend(new);
    all.sort_by(|one, other| one.name.cmp(&other.name));
    if let Some(folder) = Path::new(file).parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(std::fs::write(file, serde_json::to_string_pretty(&all)?)?)
}

/// Counts both schemes with more and more cores, and prints a table.
fn count(connections: usize, bytes: usize) -> Result<[Curves; 2]> {
    let mut instructions = Vec::new();
    let mut written = Vec::new();
    println!("## A message of {bytes} bytes and its answer, counted\n");
    println!(
        "| scheme | cores | instructions | beside one core | instructions that lock | writes to lines that several cores write | such lines |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    let mut load = 0.0;
    for scheme in [Scheme::Decoupled, Scheme::Concurrent] {
        let mut one = None;
        let named = |name| Curve {
            name,
            points: Vec::new(),
        };
        let mut lines = [0, 1].map(|_| named(format!("{scheme:?}").to_lowercase()));
        for shards in COUNTED {
            let counted = arguments(scheme, [shards, connections, bytes], ROUNDS);
            let cost = count::instructions(&counted)?;
            let writes = if TRACED.contains(&shards) {
                let traced = arguments(scheme, [shards, CONNECTIONS_TRACED, bytes], ROUNDS_TRACED);
                let writes = count::writes(&traced)?;
                lines[1].points.push((shards, vec![writes.each]));
                format!("{:.1} | {}", writes.each, writes.lines)
            } else {
                " | ".to_string()
            };
            lines[0].points.push((shards, vec![cost.instructions]));
            load = cost.load;
            let one = *one.get_or_insert(cost.instructions);
            println!(
                "| {scheme:?} | {shards} | {:.0} | {:+.1} % | {:.2} | {writes} |",
                cost.instructions,
                (cost.instructions / one - 1.0) * 100.0,
                cost.locked,
            );
        }
        let [cost, writes] = lines;
        instructions.push(cost);
        written.push(writes);
    }
    println!("\nThe load's own {load:.0} instructions are not in these.\n");
    let what = format!(
        "A message of {bytes} bytes and its answer, counted with each core's shard in turns"
    );
    Ok([
        Curves {
            name: format!("scaling-instructions-{bytes}"),
            what: format!(
                "{what}: instructions. Connections divided among cores, beside all cores serving all under locks."
            ),
            unit: "instructions".to_owned(),
            lines: instructions,
        },
        Curves {
            name: format!("scaling-writes-{bytes}"),
            what: format!("{what}: writes to cache lines that several cores write."),
            unit: "writes".to_owned(),
            lines: written,
        },
    ])
}
