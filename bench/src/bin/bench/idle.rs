//! What an engine costs that has nothing to do.

use std::thread;

use anyhow::{Context as _, Result};
use millrace_bench::cpu;
use millrace_bench::load::hold;
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::scenario::seconds;
use millrace_e2e::{Stack, World, engine};
use rustix::process::{Pid, Signal};

use crate::PORT;
use crate::served::start;

/// Memory at start, CPU with 1,000 idle connections over `length` seconds, memory of each of 9,000 more.
pub fn idle(length: u64) -> Result<Vec<Scenario>> {
    println!("\nat rest (millrace alone, echo server)");
    let world = World::create(Stack::Millrace)?;
    let server = start(&world, "echo")?;
    let engine = engine::pid(&world)?;
    let resident = memory(engine)?.total() / 1e6;
    let program = program_pid(&world)?;
    let connect = |count| world.peer_namespace().enter(|| hold(world.at(PORT), count));

    let thousand = connect(1000)?;
    thread::sleep(seconds(2));
    let before = cpu::used_by(engine)?;
    thread::sleep(seconds(length));
    let percent = (cpu::used_by(engine)? - before) / length as f64 * 100.0;

    let before = (memory(engine)?, memory(program)?);
    let count = 9000;
    let more = connect(count)?;
    thread::sleep(seconds(2));
    let after = (memory(engine)?, memory(program)?);
    let each = |before: f64, after: f64| (after - before) / count as f64;
    let scenarios = vec![
        one(
            "engine-memory",
            "MB",
            64.0,
            "Resident memory of an engine that has just started.",
            resident,
        ),
        one(
            "idle-cpu",
            "% of a core",
            0.5,
            "CPU of an engine with 1,000 connections that do nothing.",
            percent,
        ),
        one(
            "idle-connection",
            "bytes",
            600.0,
            "What each of 9,000 more connections takes of the engine's private memory. Their slots are in memory that engine and program share:",
            each(before.0.private, after.0.private),
        ),
        one(
            "idle-slot",
            "bytes",
            1024.0,
            "What each of them takes of shared memory and of the program's own.",
            each(before.0.shared, after.0.shared) + each(before.1.private, after.1.private),
        ),
    ];
    drop((thousand, more));
    server.stop(Signal::TERM, seconds(15))?;
    world.finish()?;
    Ok(scenarios)
}

fn one(name: &str, unit: &str, most: f64, what: &str, value: f64) -> Scenario {
    let scenario = Scenario {
        group: "At rest".to_owned(),
        name: name.to_owned(),
        what: what.to_owned(),
        unit: unit.to_owned(),
        less_is_better: true,
        goal: Some(Goal {
            against: None,
            bound: most,
        }),
        subjects: vec![Subject {
            values: vec![value],
            ..Subject::named("millrace")
        }],
    };
    println!(
        "  {name}: {value:.2} {unit}; goal: {}",
        scenario.goal_text()
    );
    scenario
}

/// Resident memory of a process, in bytes.
#[derive(Clone, Copy)]
struct Memory {
    private: f64,
    shared: f64,
}

impl Memory {
    fn total(self) -> f64 {
        self.private + self.shared
    }
}

fn memory(pid: Pid) -> Result<Memory> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    let field = |name: &str| -> Result<f64> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .with_context(|| format!("no {name}"))?;
        let kilobytes: f64 = line
            .split_whitespace()
            .next()
            .context("a number")?
            .parse()?;
        Ok(kilobytes * 1024.0)
    };
    Ok(Memory {
        private: field("RssAnon:")? + field("RssFile:")?,
        shared: field("RssShmem:")?,
    })
}

/// The server program's own process.
fn program_pid(world: &World) -> Result<Pid> {
    let is_server = |pid: &Pid| {
        std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
            .is_ok_and(|name| name.trim() == "server")
    };
    world
        .subject_namespace()
        .processes()?
        .into_iter()
        .find(is_server)
        .context("no process is called server")
}
