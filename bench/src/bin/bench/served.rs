//! One server on millrace and on the kernel, in turns, under the same client on the kernel's side.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use millrace_bench::figures::{Spread, short};
use millrace_bench::load::{Kind, Outcome};
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::scenario::{seconds, wait_until};
use millrace_e2e::world::DEVICE;
use millrace_e2e::{Link, PEER, Process, SUBJECT, Stack, World, command, compile};
use rustix::process::Signal;

use crate::driven::add;
use crate::protocol::cargo;
use crate::{Arguments, PORT};

/// One thing to measure.
pub struct Workload {
    pub name: &'static str,
    /// Mode of `tests/programs/server.c`.
    server: &'static str,
    client: Kind,
    connections: usize,
    /// What is compared, and how it reads.
    figure: Figure,
    goal: Option<Bound>,
}

#[derive(Clone, Copy)]
enum Bound {
    /// Of the kernel's figure.
    OfKernel(f64),
    /// Of the figure itself.
    Value(f64),
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

pub const WORKLOADS: [Workload; 8] = [
    Workload {
        name: "short-256",
        server: "short",
        client: Kind::Short,
        connections: 256,
        figure: Figure::CpuPerOperation,
        goal: Some(Bound::OfKernel(0.65)),
    },
    Workload {
        name: "pingpong-1",
        server: "echo",
        client: Kind::Pingpong,
        connections: 1,
        figure: Figure::MedianLatency,
        goal: Some(Bound::OfKernel(1.3)),
    },
    Workload {
        name: "pingpong-64",
        server: "echo",
        client: Kind::Pingpong,
        connections: 64,
        figure: Figure::CpuPerOperation,
        goal: Some(Bound::OfKernel(1.0)),
    },
    Workload {
        name: "pingpong-256",
        server: "echo",
        client: Kind::Pingpong,
        connections: 256,
        figure: Figure::CpuPerOperation,
        goal: Some(Bound::OfKernel(1.0)),
    },
    Workload {
        name: "bulk-in",
        server: "sink",
        client: Kind::In,
        connections: 1,
        figure: Figure::Throughput,
        goal: Some(Bound::Value(12.0)),
    },
    Workload {
        name: "bulk-out",
        server: "source",
        client: Kind::Out,
        connections: 1,
        figure: Figure::Throughput,
        goal: Some(Bound::Value(12.0)),
    },
    Workload {
        name: "bulk-in-4",
        server: "sink",
        client: Kind::In,
        connections: 4,
        figure: Figure::Throughput,
        goal: None,
    },
    Workload {
        name: "bulk-out-4",
        server: "source",
        client: Kind::Out,
        connections: 4,
        figure: Figure::Throughput,
        goal: None,
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

    fn unit(self) -> &'static str {
        match self {
            Figure::CpuPerOperation => "us of CPU of the whole machine per operation",
            Figure::MedianLatency => "us, median latency",
            Figure::Throughput => "Gbit/s",
        }
    }
}

/// Measures one workload on both stacks in turns, and prints what came of it.
pub fn compare(workload: &Workload, rounds: usize, length: f64, arguments: &Arguments) -> Scenario {
    println!(
        "\n{} ({} -> {:?} on {} connections)",
        workload.name, workload.server, workload.client, workload.connections
    );
    let stacks = arguments.stacks();
    let name = |stack: &Stack| format!("{stack:?}").to_lowercase();
    let mut subjects: Vec<Subject> = stacks
        .iter()
        .map(|stack| Subject::named(name(stack)))
        .collect();
    // The one mode that its server has.
    let with_smoltcp =
        workload.server == "short" && arguments.link == Link::Tap && stacks.len() > 1;
    if with_smoltcp {
        subjects.push(Subject::named("smoltcp"));
    }
    for _ in 0..rounds {
        if with_smoltcp && let Some(subject) = subjects.last_mut() {
            let outcome = smoltcp(workload, length);
            add(subject, outcome, |outcome| workload.figure.of(outcome));
        }
        for (stack, subject) in stacks.iter().zip(&mut subjects) {
            let outcome = measure(workload, *stack, arguments.link, length);
            add(subject, outcome, |outcome| workload.figure.of(outcome));
        }
    }
    let scenario = Scenario {
        group: format!(
            "A server under a client on the kernel's side, over {}",
            link_name(arguments.link)
        ),
        name: workload.name.to_owned(),
        what: format!(
            "The epoll server of tests/programs/server.c, unmodified, mode {}; {} connections do {:?}.",
            workload.server, workload.connections, workload.client
        ),
        unit: workload.figure.unit().to_owned(),
        less_is_better: workload.figure.is_less_better(),
        goal: workload.goal.map(|bound| match bound {
            Bound::OfKernel(bound) => Goal {
                against: Some("kernel".to_owned()),
                bound,
            },
            Bound::Value(bound) => Goal {
                against: None,
                bound,
            },
        }),
        subjects,
    };
    print(workload, &scenario);
    scenario
}

fn link_name(link: Link) -> &'static str {
    match link {
        Link::Tap => "TAP (millrace) and veth (kernel)",
        Link::Xdp => "AF_XDP on veth",
        Link::Macvtap => "macvtap on veth",
    }
}

fn print(workload: &Workload, scenario: &Scenario) {
    for subject in &scenario.subjects {
        if let Some(failure) = &subject.failure {
            println!("  {:9} failed: {failure}", subject.stack);
        }
        let (Some(figure), Some(last)) = (subject.spread(), subject.outcomes.last()) else {
            continue;
        };
        println!("  {:9} {figure} {}", subject.stack, scenario.unit);
        let spread = |of: &dyn Fn(&Outcome) -> f64| {
            Spread::of(subject.outcomes.iter().map(of).collect())
                .map(|spread| spread.to_string())
                .unwrap_or_default()
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
    if let Some(ratios) = scenario.ratio_to("kernel") {
        println!(
            "  ratio millrace/kernel {ratios}; goal: {}",
            scenario.goal_text()
        );
    }
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
    let outcome = client(workload, &world, length)?;
    server.stop(Signal::TERM, seconds(15))?;
    world.finish()?;
    Ok(outcome)
}

/// The same with smoltcp's stack inside the server, which then is a program of its own, on a TAP device.
fn smoltcp(workload: &Workload, length: f64) -> Result<Outcome> {
    let program = cargo(&["-p", "millrace-peer-smoltcp"], "smoltcp-tap")?;
    let world = World::create(Stack::Millrace)?;
    let (own, port) = (SUBJECT.to_string(), PORT.to_string());
    let mut server = world.peer(&[&*program.to_string_lossy(), DEVICE, &own, &port, "1024"])?;
    wait_until("smoltcp listens", seconds(20), || {
        server.ensure_not_failed()?;
        Ok(server.stdout().contains("ready"))
    })?;
    let peer = world.peer_namespace();
    peer.ip(&format!("address add {PEER}/24 dev {DEVICE}"))?;
    peer.ip(&format!("link set {DEVICE} up"))?;
    let outcome = client(workload, &world, length)?;
    server.stop(Signal::TERM, seconds(15))?;
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

/// The server program, listening.
pub fn start(world: &World, mode: &str) -> Result<Process> {
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
