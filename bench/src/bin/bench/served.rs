//! One server on millrace and on the kernel, and others' that do the same, in turns, under the same
//! client on the kernel's side.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use millrace_bench::load::{Kind, Outcome};
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::others::Service;
use millrace_e2e::scenario::{seconds, wait_until};
use millrace_e2e::{Link, Process, SUBJECT, Stack, World, command, compile};
use rustix::process::Signal;

use crate::arguments::{Arguments, PORT};
use crate::jobs::Job;
use crate::servers::{Server, Whose};
use crate::subjects::{attempt, name, print};
use crate::wire;

/// One thing to measure.
struct Workload {
    name: &'static str,
    /// Mode of `tests/programs/server.c`.
    server: &'static str,
    client: Kind,
    connections: usize,
    /// What is compared, and how it reads.
    figure: Figure,
    goals: &'static [Bound],
    /// Whether stacks with an adapter here are measured, too.
    has_peers: bool,
    /// Whether a kernel whose server polls is.
    polling_helps: bool,
    /// Whether a quick run has time for it.
    is_quick: bool,
}

impl Workload {
    /// What is done, in a sentence.
    fn what(&self) -> String {
        let connections = match self.connections {
            1 => "one connection".to_owned(),
            many => format!("{many} connections"),
        };
        match self.client {
            Kind::Short => format!(
                "Connect, 64 bytes, 64 bytes back, the server closes; {connections} at a time."
            ),
            Kind::Pingpong => format!("64 bytes there and back on {connections}."),
            Kind::In => format!("As many bytes as go to the server, on {connections}."),
            Kind::Out => format!("As many bytes as come from the server, on {connections}."),
        }
    }
}

/// The bound of the figure, as a ratio to a stack's or by itself.
enum Bound {
    Of(&'static str, f64),
    Value(f64),
}

impl Bound {
    fn goal(&self) -> Goal {
        match *self {
            Bound::Of(stack, bound) => Goal {
                against: Some(stack.to_owned()),
                bound,
            },
            Bound::Value(bound) => Goal {
                against: None,
                bound,
            },
        }
    }
}

/// Of bulk on one connection: what it reaches by itself, and beside others.
const BULK: &[Bound] = &[
    Bound::Value(20.0),
    Bound::Of("gVisor", 1.8),
    Bound::Of("smoltcp", 2.5),
];

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
        goals: &[Bound::Of("kernel", 0.65)],
        has_peers: true,
        polling_helps: true,
        is_quick: true,
    },
    Workload {
        name: "pingpong-1",
        server: "echo",
        client: Kind::Pingpong,
        connections: 1,
        figure: Figure::MedianLatency,
        goals: &[Bound::Of("kernel", 1.3)],
        has_peers: true,
        polling_helps: true,
        is_quick: true,
    },
    Workload {
        name: "pingpong-64",
        server: "echo",
        client: Kind::Pingpong,
        connections: 64,
        figure: Figure::CpuPerOperation,
        goals: &[Bound::Of("kernel", 1.0)],
        has_peers: true,
        polling_helps: false,
        is_quick: false,
    },
    Workload {
        name: "pingpong-256",
        server: "echo",
        client: Kind::Pingpong,
        connections: 256,
        figure: Figure::CpuPerOperation,
        goals: &[Bound::Of("kernel", 1.0)],
        has_peers: false,
        polling_helps: false,
        is_quick: false,
    },
    Workload {
        name: "bulk-in",
        server: "sink",
        client: Kind::In,
        connections: 1,
        figure: Figure::Throughput,
        goals: BULK,
        has_peers: true,
        polling_helps: false,
        is_quick: true,
    },
    Workload {
        name: "bulk-out",
        server: "source",
        client: Kind::Out,
        connections: 1,
        figure: Figure::Throughput,
        goals: BULK,
        has_peers: true,
        polling_helps: false,
        is_quick: true,
    },
    Workload {
        name: "bulk-in-4",
        server: "sink",
        client: Kind::In,
        connections: 4,
        figure: Figure::Throughput,
        goals: &[],
        has_peers: false,
        polling_helps: false,
        is_quick: false,
    },
    Workload {
        name: "bulk-out-4",
        server: "source",
        client: Kind::Out,
        connections: 4,
        figure: Figure::Throughput,
        goals: &[],
        has_peers: false,
        polling_helps: false,
        is_quick: false,
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

    fn is_less_better(self) -> bool {
        !matches!(self, Figure::Throughput)
    }

    fn explained(self) -> &'static str {
        match self {
            Figure::CpuPerOperation => {
                "What counts is what all cores do for one, client and kernel included."
            }
            Figure::MedianLatency => "What counts is how long one takes.",
            Figure::Throughput => "What counts is payload.",
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

/// A job for each workload that is wanted.
pub fn jobs<'a>(
    rounds: usize,
    length: f64,
    arguments: &'a Arguments,
    servers: &'a [Server],
) -> Vec<Job<'a>> {
    let wanted = WORKLOADS.iter().filter(|workload| {
        arguments.wants(workload.name) && (!arguments.quick || workload.is_quick)
    });
    let job = |workload: &'static Workload| {
        let servers: Vec<&Server> = servers
            .iter()
            .filter(|server| workload.has_peers || server.whose == Whose::Given)
            .collect();
        let polling = usize::from(polls(workload, arguments));
        let times = arguments.stacks().len() + polling + servers.len();
        Job::new(workload.name, rounds, times, length, 0.6, move |rounds| {
            Ok(vec![compare(workload, rounds, length, arguments, &servers)])
        })
    };
    wanted.map(job).collect()
}

/// Whether the kernel is measured once more, polling.
fn polls(workload: &Workload, arguments: &Arguments) -> bool {
    let has_kernel = arguments.stacks().contains(&Stack::Kernel);
    workload.polling_helps && has_kernel && arguments.link == Link::Tap
}

/// Measures one workload on all stacks in turns, and prints what came of it.
fn compare(
    workload: &Workload,
    rounds: usize,
    length: f64,
    arguments: &Arguments,
    servers: &[&Server],
) -> Scenario {
    println!(
        "{} ({} -> {:?} on {} connections)",
        workload.name, workload.server, workload.client, workload.connections
    );
    let stacks = arguments.stacks();
    let mut subjects: Vec<Subject> = stacks
        .iter()
        .map(|stack| Subject::named(name(*stack)))
        .chain(servers.iter().map(|server| Subject::named(server.stack())))
        .collect();
    let mut polling = polls(workload, arguments).then(|| Subject::named(wire::POLLING));
    let value = |outcome: &Outcome| workload.figure.of(outcome);
    for _ in 0..rounds {
        let (ours, others) = subjects.split_at_mut(stacks.len());
        for (stack, subject) in stacks.iter().zip(ours) {
            attempt(subject, value, || {
                measure(workload, *stack, arguments.link, length)
            });
        }
        if let Some(subject) = &mut polling {
            attempt(subject, value, || measure_polling(workload, length));
        }
        for (server, subject) in servers.iter().zip(others) {
            attempt(subject, value, || other(workload, server, length));
        }
    }
    let explained = match polling {
        Some(subject) => {
            subjects.insert(stacks.len(), subject);
            wire::POLLING_EXPLAINED
        }
        None => "",
    };
    let scenario = Scenario {
        group: format!(
            "A server under a client on the kernel's side, over {}",
            link_name(arguments.link)
        ),
        name: workload.name.to_owned(),
        what: format!(
            "{} The epoll server of tests/programs/server.c, unmodified, mode {}; of other stacks, and of ours embedded, a server of their own that does the same. {}{explained}",
            workload.what(),
            workload.server,
            workload.figure.explained()
        ),
        unit: workload.figure.unit().to_owned(),
        less_is_better: workload.figure.is_less_better(),
        goals: workload.goals.iter().map(Bound::goal).collect(),
        subjects,
        reason: None,
    };
    print(&scenario);
    scenario
}

fn link_name(link: Link) -> &'static str {
    match link {
        Link::Tap => "TAP (the kernel's own over veth)",
        Link::Xdp => "AF_XDP on veth",
        Link::Macvtap => "macvtap on veth",
    }
}

/// One run of a workload in a world of its own.
fn measure(workload: &Workload, stack: Stack, link: Link, length: f64) -> Result<Outcome> {
    let world = World::create_on(stack, link, 1)?;
    if link != Link::Tap {
        world.turn_offloads_off()?;
    }
    let server = start(&world, workload.server, &[])?;
    let outcome = client(workload, &world, length)?;
    server.stop(Signal::TERM, seconds(15))?;
    world.finish()?;
    Ok(outcome)
}

/// The same on a kernel whose server polls.
fn measure_polling(workload: &Workload, length: f64) -> Result<Outcome> {
    let world = World::create(Stack::Kernel)?;
    wire::make_pollable(&world)?;
    let server = start(&world, workload.server, &[wire::POLLED])?;
    let outcome = client(workload, &world, length)?;
    server.stop(Signal::TERM, seconds(15))?;
    world.finish()?;
    Ok(outcome)
}

/// The same with a server of another stack, on a TAP device.
fn other(workload: &Workload, server: &Server, length: f64) -> Result<Outcome> {
    let (world, process) = server.other.on_tap(Service {
        mode: workload.server,
        port: PORT,
        connections: workload.connections,
    })?;
    let outcome = client(workload, &world, length)?;
    process.stop(Signal::TERM, seconds(15))?;
    world.finish()?;
    Ok(outcome)
}

/// What the client on the kernel's side comes to.
fn client(workload: &Workload, world: &World, length: f64) -> Result<Outcome> {
    let load = std::env::current_exe()?.with_file_name("load");
    let kind = format!("{:?}", workload.client).to_lowercase();
    let mut words = match world.link {
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
    serde_json::from_slice(&ended.stdout).context("reading what the load says")
}

/// The server program, listening; `more` are words for it beside mode, address and port.
pub fn start(world: &World, mode: &str, more: &[&str]) -> Result<Process> {
    let program = compile::program("server")?;
    let (address, port) = (SUBJECT.to_string(), PORT.to_string());
    let words = [&program, mode, &address, &port].into_iter();
    let words: Vec<&str> = words.chain(more.iter().copied()).collect();
    let plain = world.on_subject(&words);
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
