//! Two programs of one engine, of which one does anything that a process of its user can do, from
//! seeds (`tests/programs/tenant`). What the other one carries is right, it keeps its share of the
//! engine, and when the processes of a seed are gone nothing of them is left.
//!
//! Other seeds: `MILLRACE_SEEDS=1000..2000 make e2e ARGS=strangers`. A seed that fails is named.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Range;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context as _, ensure};
use millrace_e2e::content::Bytes;
use millrace_e2e::engine::{self, Engine};
use millrace_e2e::{
    Link, Process, Result, SUBJECT, Stack, World, compile, http, load, scenario, seconds,
    wait_until,
};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// The victim's port, and a busy neighbour's.
const VICTIM: u16 = 7600;
const NEIGHBOUR: u16 = 7601;
/// Seeds between two looks at what is left of them.
const BATCH: u64 = 20;
/// Bytes of a transfer: what an echo server has room for.
const PIECE: usize = 4096;
/// How much the engine's own memory may grow while seeds are run, in bytes: what it keeps for
/// later, once.
const GROWTH: u64 = 24 << 20;

/// The seeds of a test, or those that the environment names.
fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(named) = std::env::var("MILLRACE_SEEDS") else {
        return usual;
    };
    let ends = named.split_once("..").and_then(|(first, end)| {
        let (first, end) = (first.parse().ok()?, end.parse().ok()?);
        Some(first..end)
    });
    ends.unwrap_or_else(|| panic!("MILLRACE_SEEDS={named}: want FIRST..END"))
}

/// What an engine holds when it holds nothing for the processes of seeds.
#[derive(Clone, Debug)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    /// Of all programs but the victim's: processes, sockets, bytes of receive memory.
    others: [u64; 3],
    in_flight: u64,
}

impl Holdings {
    /// `victim`: processes of the program that does not count.
    fn of(world: &World, engine: Pid, victim: &[i64]) -> Result<Holdings> {
        let counters = engine::counters(world)?;
        let mut others = [0; 3];
        let shards = counters["shards"].as_array().context("shards")?;
        for program in shards.iter().flat_map(programs) {
            if pids(program).any(|pid| victim.contains(&pid)) {
                continue;
            }
            others[0] += pids(program).count() as u64;
            others[1] += program["sockets"].as_u64().context("sockets")?;
            others[2] += program["receive_memory"]
                .as_u64()
                .context("receive_memory")?;
        }
        let tasks = format!("/proc/{}/task", engine.as_raw_nonzero());
        Ok(Holdings {
            descriptors: scenario::descriptors(engine)?,
            threads: std::fs::read_dir(tasks)?.count(),
            others,
            in_flight: counters["in_flight"]["now"].as_u64().context("in_flight")?,
        })
    }

    /// Whether they are no more than others are, each for itself.
    fn is_within(&self, limit: &Holdings) -> bool {
        let words = |it: &Holdings| {
            let counts = [it.descriptors as u64, it.threads as u64, it.in_flight];
            counts.into_iter().chain(it.others).collect::<Vec<_>>()
        };
        words(self)
            .iter()
            .zip(words(limit))
            .all(|(own, limit)| *own <= limit)
    }
}

/// The programs that a shard knows of.
fn programs(shard: &Value) -> impl Iterator<Item = &Value> {
    shard["programs"].as_array().into_iter().flatten()
}

/// The processes of a program.
fn pids(program: &Value) -> impl Iterator<Item = i64> {
    let pids = program["pids"].as_array().into_iter().flatten();
    pids.filter_map(Value::as_i64)
}

/// Memory of the engine's own, in bytes.
fn own_memory(engine: Pid) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", engine.as_raw_nonzero()))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kilobytes.context("RssAnon")?.trim().parse::<u64>()? * 1024)
}

/// An engine with a victim.
struct House {
    engine: Engine,
    pid: Pid,
    victim: Process,
    /// The victim's processes, as the engine knows them.
    victims: Vec<i64>,
}

impl House {
    fn build(world: &World) -> Result<House> {
        let engine = Engine::up(world)?;
        let victim = echo_server(world, &engine, VICTIM)?;
        let pid = engine::pid(world)?;
        let counters = engine::counters(world)?;
        let shards = counters["shards"].as_array().context("shards")?;
        let victims = shards.iter().flat_map(programs).flat_map(pids).collect();
        Ok(House {
            engine,
            pid,
            victim,
            victims,
        })
    }

    fn holdings(&self, world: &World) -> Result<Holdings> {
        Holdings::of(world, self.pid, &self.victims)
    }

    /// Waits until the engine holds no more than it did; `when` says when.
    fn ensure_as_before(
        &self,
        world: &World,
        before: &Holdings,
        when: impl Fn() -> String,
    ) -> Result<()> {
        let mut now = None;
        let back = wait_until("nothing more is held than before", seconds(20), || {
            Ok(now.insert(self.holdings(world)?).is_within(before))
        });
        back.with_context(|| format!("{now:?} where {before:?} was, {}", when()))
    }

    /// The attacker, before its first seed.
    fn attacker(&self, world: &World, seeds: &Range<u64>, batch: u64) -> Result<Attacker> {
        let program = compile::static_program("tenant")?;
        let count = seeds.end - seeds.start;
        let numbers = [seeds.start, count, batch].map(|number| number.to_string());
        // Statically linked: the shim is not in it, nor in the way.
        let words = [&["env".to_owned(), program][..], &numbers[..]].concat();
        let mut run = self.engine.run(&words);
        run.stdin(Stdio::piped());
        let mut process = world.start_on_subject(run)?;
        let input = process.stdin().context("a pipe was asked for")?;
        let mut attacker = Attacker { process, input };
        attacker.wait_for(0)?;
        Ok(attacker)
    }

    fn end(self, world: &World) -> Result<()> {
        self.victim.stop(Signal::TERM, seconds(20))?;
        self.engine.down(world)
    }
}

/// An echo server of an ordinary user's.
fn echo_server(world: &World, engine: &Engine, port: u16) -> Result<Process> {
    let server = compile::program("server")?;
    let words = format!(
        "setpriv --reuid=65533 --regid=65533 --clear-groups {server} echo {SUBJECT} {port}"
    );
    let words: Vec<&str> = words.split(' ').collect();
    let mut server = world.start_on_subject(engine.run(&words))?;
    world.wait_for_port(&mut server, port)?;
    Ok(server)
}

/// The attacker, between two batches of seeds.
struct Attacker {
    process: Process,
    input: std::process::ChildStdin,
}

impl Attacker {
    /// Waits until so many seeds have been run; how many of them could attach.
    fn wait_for(&mut self, done: u64) -> Result<u64> {
        let begins = format!("quiet {done} ");
        let mut attached = 0;
        wait_until(&format!("{done} seeds have been run"), seconds(120), || {
            self.process.ensure_not_failed()?;
            let said = self.process.stdout();
            let line = said.lines().find_map(|line| line.strip_prefix(&begins));
            attached = line.map_or(Ok(0), str::parse)?;
            Ok(line.is_some())
        })?;
        Ok(attached)
    }

    /// Has it run the next seeds.
    fn go_on(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"\n")?)
    }
}

/// Operations of a server's clients.
#[derive(Default)]
struct Traffic {
    stop: AtomicBool,
    /// Transfers on a connection that stays, and conversations on connections of their own.
    done: AtomicU64,
}

impl Traffic {
    /// Random bytes there and back on one connection, each as it was sent.
    fn carry(&self, world: &World, port: u16) -> Result<()> {
        world.peer_namespace().join_thread()?;
        let mut stream: TcpStream = http::connect(world.at(port))?;
        stream.set_read_timeout(Some(seconds(60)))?;
        let mut bytes = Bytes::from_seed(u64::from(port));
        let mut back = vec![0; PIECE];
        while !self.stop.load(Ordering::Relaxed) {
            let piece = bytes.take(PIECE);
            stream.write_all(&piece)?;
            stream
                .read_exact(&mut back)
                .context("reading what was sent")?;
            ensure!(back == piece, "other bytes came back");
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Short connections one after the other.
    fn converse(&self, world: &World, port: u16) -> Result<()> {
        world.peer_namespace().join_thread()?;
        while !self.stop.load(Ordering::Relaxed) {
            load::short_conversations(world.at(port), 1)?;
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Runs `body` while there is traffic.
    fn during<R>(&self, world: &World, port: u16, body: impl FnOnce() -> Result<R>) -> Result<R> {
        thread::scope(|scope| {
            let carrying = scope.spawn(|| self.carry(world, port));
            let conversing = scope.spawn(|| self.converse(world, port));
            let result = body();
            self.stop.store(true, Ordering::Relaxed);
            for thread in [carrying, conversing] {
                let outcome = thread
                    .join()
                    .unwrap_or_else(|p| std::panic::resume_unwind(p));
                outcome.context("the victim's traffic")?;
            }
            result
        })
    }
}

/// Runs seeds beside the victim's traffic, and looks after each batch that nothing is left of them.
fn seeds_leave_nothing(world: &World, seeds: Range<u64>) -> Result<()> {
    let house = House::build(world)?;
    let before = house.holdings(world)?;
    let traffic = Traffic::default();
    let attacker = traffic.during(world, VICTIM, || {
        let mut attacker = house.attacker(world, &seeds, BATCH)?;
        let at_start = house.holdings(world)?;
        let mut memory = None;
        let count = seeds.end - seeds.start;
        let mut done = 0;
        while done < count {
            let batch = done..count.min(done + BATCH);
            let named = || {
                format!(
                    "among seeds {}..{}",
                    seeds.start + batch.start,
                    seeds.start + batch.end
                )
            };
            let served = traffic.done.load(Ordering::Relaxed);
            attacker.go_on()?;
            done = batch.end;
            let attached = attacker.wait_for(done).with_context(named)?;
            ensure!(
                attached == done,
                "only {attached} of the first {done} could attach, {}",
                named()
            );
            house.ensure_as_before(world, &at_start, named)?;
            wait_until("the victim is served", seconds(60), || {
                Ok(traffic.done.load(Ordering::Relaxed) > served)
            })
            .with_context(named)?;
            let own = own_memory(house.pid)?;
            let first = *memory.get_or_insert(own);
            ensure!(
                own <= first + GROWTH,
                "{own} bytes of memory where there were {first}, {}",
                named()
            );
        }
        Ok(attacker)
    })?;
    attacker.process.wait(seconds(20))?.success()?;
    house.ensure_as_before(world, &before, || "when the attacker has ended".into())?;
    house.end(world)
}

/// The rate at which a victim is served beside an attacker, and beside a neighbour that is as busy
/// and well-behaved, in turns.
fn the_share_is_kept(world: &World) -> Result<()> {
    const TURNS: usize = 6;
    let house = House::build(world)?;
    let _neighbour = echo_server(world, &house.engine, NEIGHBOUR)?;
    let mut best = 0.0f64;
    let mut first = 900_000;
    for _ in 0..TURNS {
        let seeds = first..first + BATCH;
        first = seeds.end;
        let (beside_attacker, spent) = rate(world, |world| {
            let mut attacker = house.attacker(world, &seeds, BATCH)?;
            attacker.go_on()?;
            attacker.wait_for(BATCH)?;
            attacker.process.wait(seconds(20))?.success().map(|_| ())
        })?;
        let (beside_neighbour, _) = rate(world, |world| {
            let busy = Traffic::default();
            busy.during(world, NEIGHBOUR, || {
                thread::sleep(spent);
                Ok(())
            })
        })?;
        best = best.max(beside_attacker / beside_neighbour);
        println!(
            "beside an attacker {beside_attacker:.0}, beside a neighbour {beside_neighbour:.0} operations a second"
        );
        if best >= 0.5 {
            return house.end(world);
        }
    }
    anyhow::bail!(
        "in each of {TURNS} turns the victim had less than half of its share: {best:.2} of it at best"
    )
}

/// Operations of the victim a second while `body` runs, and for how long it ran.
fn rate(
    world: &World,
    body: impl FnOnce(&World) -> Result<()>,
) -> Result<(f64, std::time::Duration)> {
    let traffic = Traffic::default();
    traffic.during(world, VICTIM, || {
        let begin = std::time::Instant::now();
        body(world)?;
        let spent = begin.elapsed();
        let done = traffic.done.load(Ordering::Relaxed);
        Ok((done as f64 / spent.as_secs_f64(), spent))
    })
}

#[test]
fn nothing_is_left_of_a_stranger_on_one_shard() {
    scenario::run(Stack::Millrace, |world| {
        seeds_leave_nothing(world, seeds(0..100))
    });
}

#[test]
fn nothing_is_left_of_a_stranger_on_two_shards() {
    scenario::run_on_shards(2, |world| seeds_leave_nothing(world, seeds(100..200)));
}

#[test]
fn nothing_is_left_of_a_stranger_over_xdp() {
    scenario::run_over(Link::Xdp, 2, |world| {
        seeds_leave_nothing(world, seeds(200..240))
    });
}

#[test]
fn a_stranger_leaves_the_others_their_share_of_one_shard() {
    scenario::run(Stack::Millrace, the_share_is_kept);
}

#[test]
fn a_stranger_leaves_the_others_their_share_of_two_shards() {
    scenario::run_on_shards(2, the_share_is_kept);
}
