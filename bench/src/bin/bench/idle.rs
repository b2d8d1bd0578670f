//! What a server and its stack cost that have nothing to do: memory at start, CPU, memory of each
//! connection.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::thread;

use anyhow::{Context as _, Result};
use millrace_bench::cpu;
use millrace_bench::load::hold;
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::others::Service;
use millrace_e2e::scenario::seconds;
use millrace_e2e::{Process, SUBJECT, Stack, World, engine};
use rustix::process::{Pid, Signal};

use crate::arguments::{Arguments, PORT};
use crate::jobs::Job;
use crate::kernel::{field, slabs};
use crate::served::start;
use crate::servers::Server;
use crate::subjects::name;

/// Connections that are idle while CPU is measured.
const FEW: usize = 1_000;
/// More of them, so that what each takes shows.
const MORE: usize = 9_000;

/// What was seen of one stack.
struct Seen {
    /// MB resident when it has just started, of what serves.
    start: f64,
    /// % of a core with [`FEW`] idle connections.
    cpu: f64,
    /// Bytes for each connection, of the stack's own memory.
    each: f64,
    /// Bytes for each connection, of memory that it shares with the program, and of the program's
    /// own.
    shared: f64,
}

/// One job, of all stacks.
pub fn jobs<'a>(arguments: &'a Arguments, servers: &'a [Server]) -> Vec<Job<'a>> {
    let names = ["idle-cpu", "idle-connection", "idle-slot", "engine-memory"];
    if arguments.kernel_only || !names.iter().any(|name| arguments.wants(name)) {
        return Vec::new();
    }
    let length = if arguments.quick { 2 } else { 4 };
    let servers: Vec<&Server> = match arguments.millrace_only || arguments.quick {
        true => Vec::new(),
        false => servers.iter().collect(),
    };
    let stacks = arguments.stacks().len() + servers.len();
    let seconds = stacks as f64 * (length as f64 + 3.5);
    vec![Job::once("idle", seconds, move || {
        Ok(idle(length, arguments.stacks(), &servers))
    })]
}

fn idle(length: u64, stacks: &[Stack], servers: &[&Server]) -> Vec<Scenario> {
    println!("idle: echo server with {FEW} connections that do nothing, then {MORE} more");
    let mut all: Vec<(String, Result<Seen>)> = Vec::new();
    for stack in stacks {
        let seen = match stack {
            Stack::Millrace => ours(length),
            Stack::Kernel => kernels(length),
        };
        all.push((name(*stack), seen));
    }
    for server in servers {
        all.push((server.stack().to_owned(), others(server, length)));
    }
    let scenario = |name: &str, unit: &str, most: f64, what: &str, of: fn(&Seen) -> Option<f64>| {
        let mut subjects = Vec::new();
        for (stack, seen) in &all {
            let mut subject = Subject::named(stack);
            match seen {
                Ok(seen) => match of(seen) {
                    Some(value) => subject.values.push(value),
                    None => continue,
                },
                Err(error) => subject.failure = Some(format!("{error:#}")),
            }
            subjects.push(subject);
        }
        let scenario = Scenario {
            group: "At rest".to_owned(),
            name: name.to_owned(),
            what: what.to_owned(),
            unit: unit.to_owned(),
            less_is_better: true,
            goals: vec![Goal {
                against: None,
                bound: most,
            }],
            subjects,
            reason: None,
        };
        for subject in &scenario.subjects {
            match subject.values.first() {
                Some(value) => println!("  {name}: {}: {value:.2} {unit}", subject.stack),
                None => println!("  {name}: {} {}", subject.stack, subject.without_value()),
            }
        }
        scenario
    };
    vec![
        scenario(
            "engine-memory",
            "MB",
            64.0,
            "Resident memory of what serves when it has just started: our engine; of other stacks, and of ours embedded, the whole server; the kernel's own is not counted.",
            |seen| (seen.start > 0.0).then_some(seen.start),
        ),
        scenario(
            "idle-cpu",
            "% of a core",
            0.5,
            "CPU of what serves 1,000 connections that do nothing: our engine; of other stacks, and of ours embedded, the whole server; on the kernel that of the server, what the kernel itself does not counted.",
            |seen| Some(seen.cpu),
        ),
        scenario(
            "idle-connection",
            "bytes",
            600.0,
            "What each connection that does nothing takes, of 10,000 (smoltcp and lwIP, which look through all of them for each segment: 1,000): of our engine's private memory; of the kernel's slabs, half of \
             what both ends take; of other stacks, and of ours embedded, the server's memory, buffers included.",
            |seen| Some(seen.each),
        ),
        scenario(
            "idle-slot",
            "bytes",
            1024.0,
            "What each of them takes beside that, of memory that engine and program share, and of the program's own.",
            |seen| (seen.shared > 0.0).then_some(seen.shared),
        ),
    ]
}

/// So many connections from the kernel's side, on each of which a message has gone to and fro.
fn connect(world: &World, count: usize) -> Result<Vec<OwnedFd>> {
    let address = SocketAddr::from((SUBJECT, PORT));
    world.peer_namespace().enter(|| hold(address, count))
}

/// % of a core that a process uses in the next seconds.
fn at_rest(pid: Pid, length: u64) -> Result<f64> {
    // What connecting has begun is to be over.
    thread::sleep(seconds(1));
    let before = cpu::used_by(pid)?;
    thread::sleep(seconds(length));
    Ok((cpu::used_by(pid)? - before) / length as f64 * 100.0)
}

fn stop(world: World, server: Process) -> Result<()> {
    server.stop(Signal::TERM, seconds(15))?;
    world.finish()
}

fn ours(length: u64) -> Result<Seen> {
    let world = World::create(Stack::Millrace)?;
    let server = start(&world, "echo", &[])?;
    let engine = engine::pid(&world)?;
    let resident = memory(engine)?.total() / 1e6;
    let program = program_pid(&world)?;
    let few = connect(&world, FEW)?;
    let cpu = at_rest(engine, length)?;
    let before = (memory(engine)?, memory(program)?);
    let more = connect(&world, MORE)?;
    thread::sleep(seconds(1));
    let after = (memory(engine)?, memory(program)?);
    drop((few, more));
    stop(world, server)?;
    let each = |before: f64, after: f64| (after - before) / MORE as f64;
    Ok(Seen {
        start: resident,
        cpu,
        each: each(before.0.private, after.0.private),
        shared: each(before.0.shared, after.0.shared) + each(before.1.private, after.1.private),
    })
}

fn kernels(length: u64) -> Result<Seen> {
    let world = World::create(Stack::Kernel)?;
    let server = start(&world, "echo", &[])?;
    let program = program_pid(&world)?;
    let few = connect(&world, FEW)?;
    let cpu = at_rest(program, length)?;
    let before = (slabs()?, memory(program)?);
    let more = connect(&world, MORE)?;
    thread::sleep(seconds(1));
    let after = (slabs()?, memory(program)?);
    drop((few, more));
    stop(world, server)?;
    let count = MORE as f64;
    Ok(Seen {
        start: 0.0,
        cpu,
        each: (after.0 - before.0) / 2.0 / count,
        shared: (after.1.private - before.1.private) / count,
    })
}

fn others(server: &Server, length: u64) -> Result<Seen> {
    let start = |connections| {
        server.other.on_tap(Service {
            mode: "echo",
            port: PORT,
            connections,
        })
    };
    let (world, process) = start(1)?;
    let bare = memory(process.pid())?;
    stop(world, process)?;
    let all = if server.is_slow { FEW } else { FEW + MORE };
    let (world, process) = start(all)?;
    let few = connect(&world, FEW)?;
    let cpu = at_rest(process.pid(), length)?;
    let more = connect(&world, all - FEW)?;
    thread::sleep(seconds(1));
    let after = memory(process.pid())?;
    drop((few, more));
    stop(world, process)?;
    Ok(Seen {
        start: bare.total() / 1e6,
        cpu,
        each: (after.private - bare.private) / all as f64,
        shared: 0.0,
    })
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
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    Ok(Memory {
        private: field(&status, "RssAnon:")? + field(&status, "RssFile:")?,
        shared: field(&status, "RssShmem:")?,
    })
}

/// The server program's own process.
fn program_pid(world: &World) -> Result<Pid> {
    let is_server = |pid: &Pid| {
        fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
            .is_ok_and(|name| name.trim() == "server")
    };
    world
        .subject_namespace()
        .processes()?
        .into_iter()
        .find(is_server)
        .context("no process is called server")
}
