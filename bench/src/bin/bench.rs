//! `make bench`: one epoll server on millrace over TAP and on the kernel over veth, in turns, under the same client on the kernel's
//! side; and what an engine costs that has nothing to do. With `--link xdp` or `macvtap` millrace is on the veth pair, too, and the pair is as a wire to both stacks.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use millrace_bench::cpu;
use millrace_bench::figures::{Spread, short};
use millrace_bench::load::{Kind, Outcome, hold};
use millrace_bench::{machine, supervise};
use millrace_e2e::scenario::{prepare, seconds, wait_until};
use millrace_e2e::{Link, Process, SUBJECT, Stack, World, command, compile, engine};
use rustix::process::{Pid, Signal};

/// Measures millrace beside the kernel: A B A B, at least five times, and prints ratios.
#[derive(Debug, Parser)]
struct Arguments {
    /// Two short rounds
    #[arg(long)]
    quick: bool,
    /// How often each stack is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Only workloads whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// What millrace is on: `tap`; or `xdp` or `macvtap`, on the same kind of veth pair as the kernel, which then has no offloads for either; the server and what serves it
    /// on core 0, the client on core 1
    #[arg(long, default_value = "tap", value_parser = link)]
    link: Link,
    /// Only the kernel, to see that the measuring works
    #[arg(long)]
    kernel_only: bool,
}

/// One thing to measure.
struct Workload {
    name: &'static str,
    /// Mode of `tests/programs/server.c`.
    server: &'static str,
    client: Kind,
    connections: usize,
    /// What is compared, and how it reads.
    figure: Figure,
    goal: &'static str,
}

#[derive(Clone, Copy)]
enum Figure {
    /// CPU of the whole machine per operation: less is better.
    CpuPerOperation,
    /// Median latency: less is better.
    MedianLatency,
    /// Gbit/s: more is better.
    Throughput,
}

const WORKLOADS: [Workload; 8] = [
    Workload {
        name: "short-256",
        server: "short",
        client: Kind::Short,
        connections: 256,
        figure: Figure::CpuPerOperation,
        goal: "ratio at most 0.65",
    },
    Workload {
        name: "pingpong-1",
        server: "echo",
        client: Kind::Pingpong,
        connections: 1,
        figure: Figure::MedianLatency,
        goal: "ratio at most 1.3",
    },
    Workload {
        name: "pingpong-64",
        server: "echo",
        client: Kind::Pingpong,
        connections: 64,
        figure: Figure::CpuPerOperation,
        goal: "ratio at most 1",
    },
    Workload {
        name: "pingpong-256",
        server: "echo",
        client: Kind::Pingpong,
        connections: 256,
        figure: Figure::CpuPerOperation,
        goal: "ratio at most 1",
    },
    Workload {
        name: "bulk-in",
        server: "sink",
        client: Kind::In,
        connections: 1,
        figure: Figure::Throughput,
        goal: "at least 12 Gbit/s",
    },
    Workload {
        name: "bulk-out",
        server: "source",
        client: Kind::Out,
        connections: 1,
        figure: Figure::Throughput,
        goal: "at least 12 Gbit/s",
    },
    Workload {
        name: "bulk-in-4",
        server: "sink",
        client: Kind::In,
        connections: 4,
        figure: Figure::Throughput,
        goal: "-",
    },
    Workload {
        name: "bulk-out-4",
        server: "source",
        client: Kind::Out,
        connections: 4,
        figure: Figure::Throughput,
        goal: "-",
    },
];

impl Figure {
    fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Figure::CpuPerOperation => outcome.cpu_us(),
            Figure::MedianLatency => outcome.latency_us[0],
            Figure::Throughput => outcome.gigabits(),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Figure::CpuPerOperation => "us of CPU of the whole machine per operation",
            Figure::MedianLatency => "us, median latency",
            Figure::Throughput => "Gbit/s",
        }
    }
}

const PORT: u16 = 7000;

fn link(text: &str) -> Result<Link, String> {
    match text {
        "tap" => Ok(Link::Tap),
        "xdp" => Ok(Link::Xdp),
        "macvtap" => Ok(Link::Macvtap),
        _ => Err("one of tap, xdp, macvtap".to_owned()),
    }
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    supervise::supervised(|| bench(&arguments))
}

fn bench(arguments: &Arguments) -> Result<()> {
    prepare()?;
    let (rounds, length) = if arguments.quick {
        (2, 1.0)
    } else {
        (arguments.rounds, arguments.seconds)
    };
    println!("{}", machine::describe());
    if let Some(warning) = machine::warning() {
        println!("{warning}");
    }
    println!(
        "server: one thread, epoll, level-triggered, unmodified (tests/programs/server.c); client: one thread, on the kernel"
    );
    let (options, offloads) = match arguments.link {
        Link::Tap => ("--link tap:mr0 --host-addr 10.9.0.1/24", "with its"),
        Link::Xdp => ("--link xdp:veth0", "without"),
        Link::Macvtap => ("--link macvtap:veth0", "without"),
    };
    println!(
        "millrace: `millrace run {options} --addr 10.9.0.2/24 -- server MODE 10.9.0.2 {PORT}`"
    );
    println!(
        "kernel: `server MODE 10.9.0.2 {PORT}` in a namespace, veth {offloads} offloads; client: `load KIND 10.9.0.2:{PORT} CONNECTIONS {length}`"
    );
    if arguments.link != Link::Tap {
        println!(
            "both: `ethtool -K veth0 tso off gso off gro off tx off rx off` at both ends, `taskset -c 0` for the server and its engine, `taskset -c 1` for the client"
        );
    }
    println!(
        "{rounds} rounds of {length} s after 0.5 s of warm-up, in turns; median (least .. greatest); cores as user/system/interrupt in %"
    );
    for workload in WORKLOADS
        .iter()
        .filter(|workload| workload.name.contains(&arguments.only))
    {
        compare(workload, rounds, length, arguments).with_context(|| workload.name)?;
    }
    let is_tap = arguments.link == Link::Tap;
    if is_tap && !arguments.kernel_only && "idle".contains(&arguments.only) {
        idle(if arguments.quick { 3 } else { 10 })?;
    }
    println!("\nload average {}", machine::load());
    Ok(())
}

/// Measures one workload on both stacks in turns and prints what came of it.
fn compare(workload: &Workload, rounds: usize, length: f64, arguments: &Arguments) -> Result<()> {
    println!(
        "\n{} ({} -> {:?} on {} connections)",
        workload.name, workload.server, workload.client, workload.connections
    );
    let stacks: &[Stack] = if arguments.kernel_only {
        &[Stack::Kernel]
    } else {
        &[Stack::Millrace, Stack::Kernel]
    };
    let mut outcomes: [Vec<Outcome>; 2] = Default::default();
    for _ in 0..rounds {
        for (index, &stack) in stacks.iter().enumerate() {
            let outcome = measure(workload, stack, arguments.link, length);
            outcomes[index].push(outcome.with_context(|| format!("on {stack:?}"))?);
        }
    }
    let figure = |outcomes: &[Outcome]| -> Vec<f64> {
        outcomes
            .iter()
            .map(|outcome| workload.figure.of(outcome))
            .collect()
    };
    for (stack, outcomes) in stacks.iter().zip(&outcomes) {
        let spread = |of: &dyn Fn(&Outcome) -> f64| {
            Spread::of(outcomes.iter().map(of).collect())
                .map(|spread| spread.to_string())
                .unwrap_or_default()
        };
        let name = format!("{stack:?}").to_lowercase();
        println!(
            "  {name:9} {} {}",
            spread(&|outcome| workload.figure.of(outcome)),
            workload.figure.unit()
        );
        let Some(last) = outcomes.last() else {
            continue;
        };
        match workload.figure {
            Figure::Throughput => println!(
                "            {} us of CPU per MB; cores {}",
                spread(&Outcome::cpu_us_per_megabyte),
                last.machine.describe()
            ),
            _ => println!(
                "            {} per second; {} us of CPU each; latency us 50/90/99/99.9/max %: {}; cores {}",
                spread(&Outcome::rate),
                spread(&Outcome::cpu_us),
                last.latency_us.map(short).join("/"),
                last.machine.describe()
            ),
        }
    }
    if let Some(ratios) = Spread::of_ratios(&figure(&outcomes[0]), &figure(&outcomes[1])) {
        println!("  ratio millrace/kernel {ratios}; goal: {}", workload.goal);
    }
    Ok(())
}

/// One run of a workload in a world of its own.
fn measure(workload: &Workload, stack: Stack, link: Link, length: f64) -> Result<Outcome> {
    let world = World::create_on(stack, link, 1)?;
    if link != Link::Tap {
        let line = "ethtool -K veth0 tso off gso off gro off tx off rx off";
        let words: Vec<&str> = line.split(' ').collect();
        world
            .start_on_subject(command(&words))?
            .wait(seconds(10))?
            .success()?;
        world.run_on_peer(&words, seconds(10))?;
    }
    let server = start(&world, workload.server)?;
    let load = std::env::current_exe()?.with_file_name("load");
    let kind = format!("{:?}", workload.client).to_lowercase();
    let mut words = match link {
        Link::Tap => Vec::new(),
        Link::Xdp | Link::Macvtap => ["taskset", "-c", "1"].map(String::from).to_vec(),
    };
    words.extend([
        load.to_string_lossy().into_owned(),
        kind,
        SocketAddr::from((SUBJECT, PORT)).to_string(),
        workload.connections.to_string(),
        length.to_string(),
    ]);
    let ended = world.run_on_peer(&words, Duration::from_secs_f64(length) + seconds(30))?;
    server.stop(Signal::TERM, seconds(15))?;
    world.finish()?;
    serde_json::from_slice(&ended.stdout).context("reading what the load says")
}

/// The server program, listening.
fn start(world: &World, mode: &str) -> Result<Process> {
    let plain = world.on_subject(&[
        &compile::program("server")?,
        mode,
        &SUBJECT.to_string(),
        &PORT.to_string(),
    ]);
    let mut server = world.start_on_subject(match world.link {
        Link::Tap => plain,
        Link::Xdp | Link::Macvtap => {
            let mut pinned = command(&["taskset", "-c", "0"]);
            pinned.arg(plain.get_program()).args(plain.get_args());
            pinned
        }
    })?;
    // Where others may have its address an engine asks for seven seconds.
    wait_until("the server listens", seconds(20), || {
        server.ensure_not_failed()?;
        Ok(server.stdout().contains("ready"))
    })?;
    Ok(server)
}

/// What an engine costs at rest: memory at start, memory of an idle connection, CPU with 1,000 of them.
fn idle(length: u64) -> Result<()> {
    println!("\nidle (millrace alone, echo server)");
    let world = World::create(Stack::Millrace)?;
    let server = start(&world, "echo")?;
    let engine = engine::pid(&world)?;
    println!(
        "  engine at start: {} MB resident; goal: under 64",
        short(memory(engine)?.total() / 1e6)
    );
    let program = program_pid(&world)?;
    let connect = |count| world.peer_namespace().enter(|| hold(world.at(PORT), count));

    let thousand = connect(1000)?;
    thread::sleep(seconds(2));
    let before = cpu::used_by(engine)?;
    thread::sleep(seconds(length));
    let percent = (cpu::used_by(engine)? - before) / length as f64 * 100.0;
    println!(
        "  engine with 1,000 idle connections: {} % of a core over {length} s; goal: under 1",
        short(percent)
    );

    let before = (memory(engine)?, memory(program)?);
    let count = 9000;
    let more = connect(count)?;
    thread::sleep(seconds(2));
    let after = (memory(engine)?, memory(program)?);
    let each = |before: f64, after: f64| short((after - before) / count as f64);
    println!(
        "  each of {count} more connections, bytes: engine {} private + {} shared; program {} private + {} shared; goal: under 1024 in the engine",
        each(before.0.private, after.0.private),
        each(before.0.shared, after.0.shared),
        each(before.1.private, after.1.private),
        each(before.1.shared, after.1.shared),
    );
    drop((thousand, more));
    server.stop(Signal::TERM, seconds(15))?;
    world.finish()
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
