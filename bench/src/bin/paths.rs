//! `make paths`: what the kernel's TCP and ours make of the same long and lossy path in real time,
//! in turns; and what the simulator says ours makes of it. Sender and receiver are iperf3; the
//! receiver is on the kernel always.

use anyhow::{Context as _, Result};
use clap::Parser;
use millrace_bench::figures::Spread;
use millrace_bench::path::LossyPath;
use millrace_bench::{machine, supervise};
use millrace_e2e::Stack;
use millrace_e2e::scenario::prepare;
use millrace_sim::goodput::{ALGORITHMS, Scenario, run};

/// Measures the kernel's TCP and ours over one impaired path.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    path: LossyPath,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Congestion controls, and how many connections use each side by side: those that hardly use
    /// the path need many for a mean
    #[arg(long, value_delimiter = ',', default_value = "cubic:20,bbr:1")]
    control: Vec<String>,
    /// Where to keep what iperf3 says of each measurement, second by second
    #[arg(long)]
    reports: Option<std::path::PathBuf>,
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    supervise::supervised(|| measure(&arguments))
}

fn measure(arguments: &Arguments) -> Result<()> {
    prepare()?;
    let path = &arguments.path;
    let LossyPath {
        rate,
        round_trip,
        loss,
        queue,
        ..
    } = *path;
    let reports = arguments.reports.as_deref();
    println!("{}", machine::describe());
    println!(
        "{rate} Mbit/s, round trip {round_trip} ms, {}.{:02} % lost, a queue of {queue}/4 of what the path holds; {} s each\n",
        loss / 100,
        loss % 100,
        path.seconds
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
            kernel.push(path.goodput(Stack::Kernel, name, flows, round, reports)?);
            ours.push(path.goodput(Stack::Millrace, name, flows, round, reports)?);
        }
        let simulated = run(&Scenario {
            algorithm: *algorithm,
            flows,
            rate: rate * 1_000_000,
            round_trip_us: round_trip * 1_000,
            loss,
            queue,
            warm_up_s: path.warm_up.max(flows as u64 / 3),
            measured_s: path.seconds,
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
