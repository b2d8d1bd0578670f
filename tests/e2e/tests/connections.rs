//! Many connections: held, one after the other, and what is left of them.

use std::sync::{Mutex, PoisonError};

use millrace_e2e::load::{echo_on_all, hold, short_conversations, short_transactions};
use millrace_e2e::scenario::{descriptors, resident};
use millrace_e2e::{
    Context as _, Process, Result, SUBJECT, Stack, World, compile, engine, ensure, on_both_stacks,
    seconds, wait_until,
};
use rustix::process::{Pid, Signal};

on_both_stacks!(
    a_thousand_are_held,
    p7_ten_thousand_are_held,
    p8_twenty_thousand_in_a_row_leak_nothing,
    p8_twenty_thousand_closed_by_the_server_leave_time_wait_alone,
    o4_one_listener_queues_many,
);

const PORT: u16 = 7000;

/// The epoll server of `tests/programs`.
fn start(world: &World, mode: &str) -> Result<Process> {
    let program = compile::program("server")?;
    world.serve(
        &[&program, mode, &SUBJECT.to_string(), &PORT.to_string()],
        PORT,
    )
}

/// The process of the server program itself, which on millrace is a child of what was started.
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

fn stop(server: Process) -> Result<()> {
    server.stop(Signal::TERM, seconds(15)).map(|_| ())
}

/// Connections are there, seen from the stack under test where it can be asked.
fn ensure_connected(world: &World, count: usize) -> Result<()> {
    match world.stack {
        Stack::Kernel => Ok(()),
        Stack::Millrace => engine::wait_for_connections(world, count),
    }
}

fn held(world: &World, count: usize) -> Result<()> {
    let server = start(world, "echo")?;
    let mut streams = world
        .peer_namespace()
        .enter(|| hold(world.at(PORT), count))?;
    for _ in 0..3 {
        echo_on_all(&mut streams)?;
    }
    ensure_connected(world, count)?;
    drop(streams);
    ensure_connected(world, 0)?;
    stop(server)
}

fn a_thousand_are_held(world: &World) -> Result<()> {
    held(world, 1000)
}

fn p7_ten_thousand_are_held(world: &World) -> Result<()> {
    // One of these at a time: the clients are descriptors of this process, and twice as many may be
    // more than it may have.
    static MANY: Mutex<()> = Mutex::new(());
    let _many = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    held(world, 10_000)
}

fn o4_one_listener_queues_many(world: &World) -> Result<()> {
    // A stopped server accepts nothing: the stack alone takes the connections of its backlog, and
    // what was sent on them waits.
    let server = start(world, "echo")?;
    let pid = program_pid(world)?;
    rustix::process::kill_process(pid, Signal::STOP)?;
    let mut streams = world.peer_namespace().enter(|| hold(world.at(PORT), 500))?;
    rustix::process::kill_process(pid, Signal::CONT)?;
    echo_on_all(&mut streams)?;
    drop(streams);
    stop(server)
}

/// What a stack and its program hold.
#[derive(Debug, Clone, Copy)]
struct Held {
    program_memory: u64,
    engine_memory: u64,
    program_descriptors: usize,
    engine_descriptors: usize,
}

impl Held {
    fn now(world: &World) -> Result<Held> {
        let program = program_pid(world)?;
        let (engine_memory, engine_descriptors) = match world.stack {
            Stack::Kernel => (0, 0),
            Stack::Millrace => {
                let engine = engine::pid(world)?;
                (resident(engine)?, descriptors(engine)?)
            }
        };
        Ok(Held {
            program_memory: resident(program)?,
            engine_memory,
            program_descriptors: descriptors(program)?,
            engine_descriptors,
        })
    }
}

/// Runs `count` transactions twice and compares what is held after each; memory may differ by
/// `slack` bytes.
fn leaks_nothing(world: &World, mode: &str, count: usize, slack: u64) -> Result<()> {
    let server = start(world, mode)?;
    let run = |count: usize| -> Result<()> {
        world.peer_namespace().enter(|| match mode {
            "short" => short_transactions(world.at(PORT), count),
            _ => short_conversations(world.at(PORT), count),
        })?;
        ensure_connected(world, 0)
    };
    run(count / 4)?;
    // Who has asked the engine for its connections is a visitor, until the engine has seen it go.
    let (mut before, mut steady) = (Held::now(world)?, 0);
    wait_until("the engine's visitors are gone", seconds(10), || {
        let last = std::mem::replace(&mut before, Held::now(world)?);
        let same = last.engine_descriptors == before.engine_descriptors;
        steady = if same { steady + 1 } else { 0 };
        Ok(steady >= 20)
    })?;
    run(count)?;
    wait_until("all descriptors are back", seconds(10), || {
        let now = Held::now(world)?;
        Ok(now.program_descriptors == before.program_descriptors
            && now.engine_descriptors == before.engine_descriptors)
    })?;
    let after = Held::now(world)?;
    ensure!(
        after.engine_descriptors == before.engine_descriptors,
        "{before:?} {after:?}"
    );
    ensure!(
        after.program_memory < before.program_memory + slack,
        "{before:?} {after:?}"
    );
    ensure!(
        after.engine_memory < before.engine_memory + slack,
        "{before:?} {after:?}"
    );
    stop(server)
}

fn p8_twenty_thousand_in_a_row_leak_nothing(world: &World) -> Result<()> {
    // The client closes first: nothing of a connection is left with the server's stack.
    leaks_nothing(world, "echo", 20_000, 256 << 10)
}

fn p8_twenty_thousand_closed_by_the_server_leave_time_wait_alone(world: &World) -> Result<()> {
    // The server closes first: an entry in TIME-WAIT stays of each for a minute, and costs little.
    const TIME_WAIT: u64 = 300;
    leaks_nothing(world, "short", 20_000, 20_000 * TIME_WAIT)
}
