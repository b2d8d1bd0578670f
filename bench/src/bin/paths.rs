//! `make paths`: what the kernel's TCP and ours make of the same long and lossy path in real time, in turns; and what the simulator says ours
//! makes of it. Sender and receiver are iperf3; the receiver is on the kernel always.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use millrace_bench::figures::Spread;
use millrace_bench::{machine, supervise};
use millrace_e2e::namespace::Namespace;
use millrace_e2e::relay::Relay;
use millrace_e2e::scenario::{prepare, seconds, wait_until};
use millrace_e2e::{PEER, Process, SUBJECT, Stack, World, command};
use millrace_sim::goodput::{ALGORITHMS, Scenario, run};
use millrace_sim::{Link, LinkCounters};
use millrace_tcp::Duration;
use serde_json::Value;

/// Measures the kernel's TCP and ours over one impaired path.
#[derive(Debug, Parser)]
struct Arguments {
    /// Mbit/s of the bottleneck
    #[arg(long, default_value_t = 100)]
    rate: u64,
    /// Round trip in milliseconds
    #[arg(long, default_value_t = 100)]
    round_trip: u64,
    /// Frames lost on the way there, of ten thousand
    #[arg(long, default_value_t = 100)]
    loss: u64,
    /// Queue before the bottleneck, in quarters of what the path holds
    #[arg(long, default_value_t = 4)]
    queue: u64,
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// What does not count at the start of each, in seconds
    #[arg(long, default_value_t = 5)]
    warm_up: u64,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Congestion controls, and how many connections use each side by side: those that hardly use the path need many for a mean
    #[arg(long, value_delimiter = ',', default_value = "cubic:20,bbr:1")]
    control: Vec<String>,
    /// Where to keep what iperf3 says of each measurement, second by second
    #[arg(long)]
    reports: Option<std::path::PathBuf>,
}

/// The receiver's address, and the sender's kernel's.
const THERE: &str = "10.9.1.2";
const HERE: &str = "10.9.1.1";

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    supervise::supervised(|| measure(&arguments))
}

fn measure(arguments: &Arguments) -> Result<()> {
    prepare()?;
    let Arguments {
        rate,
        round_trip,
        loss,
        queue,
        ..
    } = *arguments;
    println!("{}", machine::describe());
    println!(
        "{rate} Mbit/s, round trip {round_trip} ms, {}.{:02} % lost, a queue of {queue}/4 of what the path holds; {} s each\n",
        loss / 100,
        loss % 100,
        arguments.seconds
    );
    println!("| control | flows | kernel, Mbit/s | millrace | simulated | millrace / kernel |");
    println!("|---|--:|--:|--:|--:|--:|");
    for control in &arguments.control {
        let (name, flows) = control.split_once(':').context("--control NAME:FLOWS")?;
        let flows = flows.parse().context("--control NAME:FLOWS")?;
        let algorithm = ALGORITHMS.iter().find(|(known, _)| *known == name);
        let (_, algorithm) = algorithm.with_context(|| format!("there is no {name}"))?;
        let (mut kernel, mut ours) = (Vec::new(), Vec::new());
        for round in 0..arguments.rounds {
            kernel.push(once(arguments, Stack::Kernel, name, flows, round)?);
            ours.push(once(arguments, Stack::Millrace, name, flows, round)?);
        }
        let simulated = run(&Scenario {
            algorithm: *algorithm,
            flows,
            rate: rate * 1_000_000,
            round_trip_us: round_trip * 1_000,
            loss,
            queue,
            warm_up_s: arguments.warm_up.max(flows as u64 / 3),
            measured_s: arguments.seconds,
            ..Scenario::default()
        });
        let simulated = simulated.goodput as f64 / 1e3 * rate as f64 * 1_448.0 / 1_514.0;
        let [kernel, ours] = [kernel, ours].map(|values| Spread::of(values).context("a round"));
        let (kernel, ours) = (kernel?, ours?);
        let ratio = ours.median / kernel.median;
        println!("| {name} | {flows} | {kernel} | {ours} | {simulated:.1} | {ratio:.2} |");
    }
    Ok(())
}

/// Megabits of payload a second, of all flows.
fn once(
    arguments: &Arguments,
    stack: Stack,
    control: &str,
    flows: usize,
    round: u64,
) -> Result<f64> {
    let world = World::create(Stack::Millrace)?;
    let (here, there) = (world.peer_namespace(), Namespace::create()?);
    let rate = arguments.rate * 1_000_000;
    let way = Link {
        rate: Some(rate),
        queue_bytes: rate / 8 * arguments.round_trip / 1_000 * arguments.queue / 4,
        delay: Duration::from_micros(arguments.round_trip * 500),
        loss: arguments.loss as f64 / 10_000.0,
        spare_arp: true,
        ..Link::default()
    };
    let back = Link {
        rate: None,
        loss: 0.0,
        ..way
    };
    let ends = [
        (here, &*format!("{HERE}/24")),
        (&there, &*format!("{THERE}/24")),
    ];
    let relay = Relay::start(ends, [way, back], round)?;
    here.set("ipv4.ip_forward", "1")?;
    there.ip(&format!("route add {SUBJECT}/32 via {HERE}"))?;
    let server = Process::spawn(
        &there,
        world.directory(),
        command(&["iperf3", "-s", "--forceflush"]),
    )?;
    wait_until("iperf3 listens", seconds(10), || {
        Ok(server.stdout().contains("listening"))
    })?;
    let words = format!(
        "iperf3 -c {THERE} -C {control} -t {} -O {} -P {flows} --json",
        arguments.seconds, arguments.warm_up
    );
    let words: Vec<&str> = words.split_whitespace().collect();
    let client: Command = match stack {
        Stack::Kernel => command(&words),
        Stack::Millrace => {
            let mut run = world.millrace(&["run", "--link", "tap:mr0", "--gateway"]);
            run.arg(PEER.to_string())
                .args(["--addr", &format!("{SUBJECT}/24")])
                .args(["--host-addr", &format!("{PEER}/24"), "--"])
                .args(&words);
            run
        }
    };
    let limit = seconds(arguments.seconds + arguments.warm_up + 30);
    let ended = world.start_on_peer(client)?.wait(limit)?;
    if let Some(reports) = &arguments.reports {
        let name = format!("{stack:?}-{control}-{round}.json").to_lowercase();
        std::fs::write(reports.join(name), &ended.stdout)?;
    }
    let said: Value = serde_json::from_slice(&ended.stdout)
        .with_context(|| format!("iperf3 wrote {:?} {:?}", ended.text(), ended.error_text()))?;
    ensure!(said["error"].is_null(), "iperf3: {}", said["error"]);
    let [way, _]: [LinkCounters; 2] = relay.stop()?;
    ensure!(
        arguments.loss == 0 || way.lost > 0,
        "nothing was lost: {way:?}"
    );
    let bits = said["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .context("iperf3 says how much was received")?;
    Ok(bits / 1e6)
}
