//! Protocol only: two stacks of one kind joined in memory, everything in one thread, checksums
//! computed and looked at. The adapters keep the contract of `bench/peers/README.md`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use millrace_bench::figures::short;
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::compile;
use serde::Deserialize;

use crate::arguments::Arguments;
use crate::command::run;
use crate::go;
use crate::jobs::Job;

/// What is done, and how much of it is tried before it is known how long it takes.
struct Work {
    name: &'static str,
    what: &'static str,
    mode: &'static str,
    parallel: u64,
    trial: u64,
    /// Two lengths whose difference is counted.
    counted: [u64; 2],
    unit: Unit,
    /// The most nanoseconds of an operation, or the least GB/s; and the most instructions, of an
    /// operation or of a byte.
    goals: [f64; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Operation,
    Byte,
}

const WORKS: [Work; 5] = [
    Work {
        name: "memory-short-1",
        what: "Connect, 64 bytes, 64 bytes back, close; one connection at a time.",
        mode: "short",
        parallel: 1,
        trial: 500,
        counted: [1_000, 3_000],
        unit: Unit::Operation,
        goals: [800.0, 8_000.0],
    },
    Work {
        name: "memory-short-64",
        what: "The same, 64 connections at a time.",
        mode: "short",
        parallel: 64,
        trial: 1_000,
        counted: [1_000, 3_000],
        unit: Unit::Operation,
        goals: [800.0, 8_000.0],
    },
    Work {
        name: "memory-ping-1",
        what: "64 bytes there and back on one connection.",
        mode: "ping",
        parallel: 1,
        trial: 1_000,
        counted: [2_000, 6_000],
        unit: Unit::Operation,
        goals: [280.0, 2_500.0],
    },
    Work {
        name: "memory-ping-64",
        what: "64 bytes there and back on each of 64 connections.",
        mode: "ping",
        parallel: 64,
        trial: 2_000,
        counted: [2_048, 6_144],
        unit: Unit::Operation,
        goals: [280.0, 2_500.0],
    },
    Work {
        name: "memory-bulk",
        what: "Bytes one way on one connection, segments of 1,448 bytes.",
        mode: "bulk",
        parallel: 1,
        trial: 8,
        counted: [8, 24],
        unit: Unit::Byte,
        goals: [8.0, 1.0],
    },
];

/// One stack's adapter.
pub struct Peer {
    /// As it is called in reports.
    pub stack: String,
    /// Built, or why not.
    program: Result<PathBuf>,
    /// Whether valgrind can count its instructions.
    countable: bool,
}

/// What an adapter says.
#[derive(Deserialize)]
struct Said {
    operations: u64,
    seconds: f64,
}

/// A job for each work that is wanted, timed and counted. `length`: about how long each takes, in
/// seconds.
pub fn jobs<'a>(
    rounds: usize,
    length: f64,
    arguments: &Arguments,
    peers: &'a [Peer],
) -> Vec<Job<'a>> {
    let wanted = WORKS.iter().filter(|work| arguments.wants(work.name));
    let quick = arguments.quick;
    let job = |work: &'static Work| {
        let job = Job::new(work.name, rounds, peers.len(), length, 0.1, move |rounds| {
            println!("{}: {}", work.name, work.what);
            Ok(vec![
                timed(work, peers, rounds, length),
                counted(work, peers),
            ])
        });
        // Under callgrind everything takes fifty times as long.
        job.and(if quick { 2.0 } else { 3.0 })
    };
    wanted.map(job).collect()
}

/// Whether anything is wanted for which [`all_peers`] are needed.
pub fn is_wanted(arguments: &Arguments) -> bool {
    WORKS.iter().any(|work| arguments.wants(work.name))
}

/// The adapters, built, and what `--peer` names; ours first, or alone.
pub fn all_peers(arguments: &Arguments) -> Vec<Peer> {
    let mut peers = vec![ours()];
    if arguments.millrace_only {
        return peers;
    }
    peers.extend(others());
    peers.extend(arguments.peer.iter().map(|(stack, program)| Peer {
        stack: stack.clone(),
        program: Ok(program.clone()),
        countable: true,
    }));
    for peer in &peers {
        if let Err(error) = &peer.program {
            println!("  {} cannot be built: {error:#}", peer.stack);
        }
    }
    peers
}

fn ours() -> Peer {
    Peer {
        stack: "millrace".to_owned(),
        program: cargo(
            &["-p", "millrace-shard", "--example", "pair"],
            "examples/pair",
        ),
        countable: true,
    }
}

fn others() -> Vec<Peer> {
    vec![
        Peer {
            stack: "smoltcp".to_owned(),
            program: cargo(&["-p", "millrace-peer-smoltcp"], "millrace-peer-smoltcp"),
            countable: true,
        },
        Peer {
            stack: "lwIP".to_owned(),
            program: compile::lwip("pair"),
            countable: true,
        },
        Peer {
            stack: "gVisor".to_owned(),
            program: gvisor(),
            countable: false,
        },
    ]
}

/// Where this program was built to, and other release builds are.
fn target() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.parent().context("a folder")?.to_owned())
}

/// Where the sources of an adapter are.
fn peer_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("peers")
        .join(name)
}

/// Builds something of this workspace; where it then is.
pub fn cargo(what: &[&str], file: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--release", "--locked", "--quiet"])
        .args(what);
    let release = target()?;
    // Beside this program, whatever the environment says by now.
    let target = release.parent().context("a folder above")?;
    command.arg("--target-dir").arg(target);
    run(command.current_dir(env!("CARGO_MANIFEST_DIR")))?;
    Ok(release.join(file))
}

/// gVisor's.
pub fn gvisor() -> Result<PathBuf> {
    let program = target()?.join("millrace-peer-gvisor");
    let folder = peer_folder("gvisor");
    let mut command = Command::new(go::toolchain(&folder)?);
    // No parts of another toolchain; and nothing is asked of git, which answers only whose checkout
    // it is.
    command
        .env_remove("GOROOT")
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&program)
        .arg(".");
    run(command.current_dir(folder))?;
    Ok(program)
}

impl Peer {
    /// Where it is, or why it is not.
    pub fn program(&self) -> Result<&Path> {
        match &self.program {
            Ok(program) => Ok(program),
            Err(error) => Err(anyhow::anyhow!("cannot be built: {error:#}")),
        }
    }
}

/// One run: operations, or bytes, and seconds.
fn once(peer: &Peer, work: &Work, count: u64) -> Result<Said> {
    let mut command = Command::new(peer.program()?);
    command.args([work.mode, &count.to_string(), &work.parallel.to_string()]);
    let said = String::from_utf8(run(&mut command)?)?;
    let last = said.trim().lines().last().context("it said nothing")?;
    if last.starts_with('{') {
        return Ok(serde_json::from_str(last)?);
    }
    // Our own example is for people: "200000 x transaction: 1.9 us each, 0.38 s".
    let number = |text: Option<&str>| text.and_then(|text| text.parse().ok());
    let operations = number(last.split(' ').next()).map(|count: f64| count as u64);
    let seconds = number(
        last.strip_suffix(" s")
            .and_then(|text| text.rsplit(' ').next()),
    );
    let both = operations
        .zip(seconds)
        .with_context(|| format!("it said {last}"))?;
    Ok(Said {
        operations: both.0,
        seconds: both.1,
    })
}

fn value(work: &Work, said: &Said) -> f64 {
    match work.unit {
        Unit::Operation => said.seconds * 1e9 / said.operations as f64,
        Unit::Byte => said.operations as f64 / 1e9 / said.seconds,
    }
}

fn timed(work: &Work, peers: &[Peer], rounds: usize, length: f64) -> Scenario {
    let mut subjects: Vec<Subject> = peers
        .iter()
        .map(|peer| Subject::named(&peer.stack))
        .collect();
    // How much each stack gets done in the time.
    let counts: Vec<Result<u64>> = peers
        .iter()
        .map(|peer| {
            let said = once(peer, work, work.trial)?;
            let times = (length / said.seconds.max(1e-4)).clamp(1.0, 10_000.0);
            Ok((work.trial as f64 * times) as u64)
        })
        .collect();
    for _ in 0..rounds {
        for ((peer, count), subject) in peers.iter().zip(&counts).zip(&mut subjects) {
            let outcome = match count {
                Ok(count) => once(peer, work, *count),
                Err(error) => Err(anyhow::anyhow!("{error:#}")),
            };
            match outcome {
                Ok(said) => subject.values.push(value(work, &said)),
                Err(error) => subject.failure = Some(format!("{error:#}")),
            }
        }
    }
    let unit = match work.unit {
        Unit::Operation => "ns each",
        Unit::Byte => "GB/s",
    };
    scenario(
        work,
        "",
        unit,
        work.unit == Unit::Operation,
        work.goals[0],
        subjects,
    )
}

fn counted(work: &Work, peers: &[Peer]) -> Scenario {
    let subjects = peers.iter().map(|peer| {
        let mut subject = Subject::named(&peer.stack);
        if !peer.countable {
            let reason = "valgrind does not count programs of this kind";
            subject.left_out = Some(reason.to_owned());
            return subject;
        }
        let [few, many] = work.counted;
        let each = || -> Result<f64> {
            let [few_taken, many_taken] = [
                instructions(peer, work, few)?,
                instructions(peer, work, many)?,
            ];
            let operations = (many - few) as f64
                * if work.unit == Unit::Byte {
                    f64::from(1 << 20)
                } else {
                    1.0
                };
            Ok((many_taken - few_taken) / operations)
        };
        match each() {
            Ok(value) => subject.values.push(value),
            Err(error) => subject.failure = Some(format!("{error:#}")),
        }
        subject
    });
    let unit = match work.unit {
        Unit::Operation => "instructions each",
        Unit::Byte => "instructions for a byte",
    };
    scenario(
        work,
        "-instructions",
        unit,
        true,
        work.goals[1],
        subjects.collect(),
    )
}

/// Instructions of a whole run. Long copies are to be counted by what they copy, not as one
/// instruction of `rep movsb`.
fn instructions(peer: &Peer, work: &Work, count: u64) -> Result<f64> {
    let mut command = Command::new("valgrind");
    command
        .env(
            "GLIBC_TUNABLES",
            "glibc.cpu.x86_rep_movsb_threshold=1000000000",
        )
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(peer.program()?)
        .args([work.mode, &count.to_string(), &work.parallel.to_string()]);
    let output = command.output().context("running valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines()
        .find_map(|line| line.split("Collected : ").nth(1)?.trim().parse().ok())
        .with_context(|| format!("valgrind: {}", said.lines().last().unwrap_or_default()))
}

fn scenario(
    work: &Work,
    suffix: &str,
    unit: &str,
    less_is_better: bool,
    bound: f64,
    subjects: Vec<Subject>,
) -> Scenario {
    let scenario = Scenario {
        group: "Protocol only: two stacks of a kind joined in memory".to_owned(),
        name: format!("{}{suffix}", work.name),
        what: work.what.to_owned(),
        unit: unit.to_owned(),
        less_is_better,
        goals: vec![Goal {
            against: None,
            bound,
        }],
        subjects,
        reason: None,
    };
    for subject in &scenario.subjects {
        match subject.spread() {
            Some(spread) => println!(
                "  {:9} {spread} {unit}{}",
                subject.stack,
                scenario
                    .ratio_to(&subject.stack)
                    .map_or_else(String::new, |ratio| format!(
                        " (ours is {} of it)",
                        short(ratio.median)
                    ))
            ),
            None => println!("  {:9} {}", subject.stack, subject.without_value()),
        }
    }
    println!("  goal: {}", scenario.goals_text());
    scenario
}
