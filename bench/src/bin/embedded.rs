//! The library inside a program, beside others, in turns: an embedded server beside the unmodified
//! path and beside smoltcp's; `tun_proxy` in bulk; what `millrace load` costs beside a client on
//! the kernel's sockets; and what tasks cost beside direct calls.
//!
//! ```text
//! make embedded               # builds what it needs; as root
//! make embedded ARGS='--only proxy --rounds 3'
//! ```

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use millrace_bench::figures::Spread;
use millrace_bench::load::Outcome;
use millrace_bench::{machine, supervise};
use millrace_e2e::namespace::Namespace;
use millrace_e2e::others::{Other, Service};
use millrace_e2e::scenario::{prepare, seconds, wait_until};
use millrace_e2e::{Directory, Process, SUBJECT, Stack, World, command, compile, example};
use rustix::process::Signal;
use serde_json::Value;

/// Measures the library inside a program, in turns with what it is compared with.
#[derive(Debug, Parser)]
struct Arguments {
    /// How often each is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Only figures whose name contains this: server, proxy, generator, tasks
    #[arg(long, default_value = "")]
    only: String,
}

/// Where servers listen.
const PORT: u16 = 7000;
/// Connections of short transactions.
const CONNECTIONS: u32 = 256;
/// An address beyond the sandbox of the proxy.
const OUTSIDE: &str = "203.0.113.7";

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    supervise::supervised(|| {
        prepare()?;
        println!("{}", machine::describe());
        if let Some(warning) = machine::warning() {
            println!("{warning}");
        }
        let Arguments {
            rounds, seconds, ..
        } = arguments;
        println!(
            "{rounds} rounds of {seconds} s after 0.5 s of warm-up, in turns; median (least .. greatest)"
        );
        let wanted = |name: &str| name.contains(&arguments.only);
        if wanted("server") {
            servers(&arguments)?;
        }
        if wanted("proxy") {
            proxies(&arguments)?;
        }
        if wanted("generator") {
            generators(&arguments)?;
        }
        if wanted("tasks") {
            tasks()?;
        }
        println!("\nload average {}", machine::load());
        Ok(())
    })
}

/// A program that was built beside this one.
fn beside(name: &str) -> Result<String> {
    let path: PathBuf = std::env::current_exe()?.with_file_name(name);
    ensure!(
        path.exists(),
        "{} is missing; `cargo build --release` builds it",
        path.display()
    );
    Ok(path.display().to_string())
}

fn print(name: &str, values: Vec<f64>, unit: &str) {
    if let Some(spread) = Spread::of(values) {
        println!("  {name:22} {spread} {unit}");
    }
}

fn ready(process: &mut Process) -> Result<()> {
    wait_until("it is ready", seconds(20), || {
        process.ensure_not_failed()?;
        Ok(process.stdout().contains("ready"))
    })
}

/// The client on the kernel's sockets.
fn client(kind: &str, to: &str, connections: u32, length: f64) -> Result<Vec<String>> {
    let words = [kind, to, &connections.to_string(), &length.to_string()];
    let mut all = vec![beside("load")?];
    all.extend(words.map(String::from));
    Ok(all)
}

fn outcome(process: Process, length: f64) -> Result<Outcome> {
    let limit = Duration::from_secs_f64(length) + seconds(30);
    let ended = process.wait(limit)?.success()?;
    serde_json::from_slice(&ended.stdout).context("reading what the load says")
}

/// Short transactions with an embedded server, with an unmodified one, and with smoltcp.
fn servers(arguments: &Arguments) -> Result<()> {
    println!(
        "\nserver: short transactions over TAP on {CONNECTIONS} connections, client on the kernel; CPU of the whole machine for each"
    );
    let names = ["embedded", "unmodified", "smoltcp"];
    let mut figures: [Vec<f64>; 3] = Default::default();
    for round in 1..=arguments.rounds {
        for (at, name) in names.into_iter().enumerate() {
            let outcome = one_server(name, arguments.seconds).context(name)?;
            figures[at].push(outcome.cpu_us());
        }
        eprintln!("  server: round {round} of {}", arguments.rounds);
    }
    for (name, figures) in names.into_iter().zip(&figures) {
        print(name, figures.clone(), "us");
    }
    for (other, goal) in [(1, "at most 0.9"), (2, "below 1")] {
        if let Some(ratios) = Spread::of_ratios(&figures[0], &figures[other]) {
            println!("  ratio embedded/{} {ratios}; goal: {goal}", names[other]);
        }
    }
    Ok(())
}

fn one_server(name: &str, length: f64) -> Result<Outcome> {
    let service = Service {
        mode: "short",
        port: PORT,
        connections: CONNECTIONS as usize,
    };
    let (world, server) = match name {
        "embedded" => Other::embedded(beside("embedded_server").map(PathBuf::from)),
        "smoltcp" => Other::smoltcp(beside("smoltcp-server").map(PathBuf::from)),
        _ => return unmodified(service, length),
    }
    .on_tap(service)?;
    short_transactions(world, server, length)
}

/// The server of tests/programs with an engine of its own.
fn unmodified(service: Service<'_>, length: f64) -> Result<Outcome> {
    let world = World::create(Stack::Millrace)?;
    let program = compile::program("server")?;
    let (own, port) = (SUBJECT.to_string(), service.port.to_string());
    let mut server = world.subject(&[&program[..], service.mode, &own, &port])?;
    ready(&mut server)?;
    short_transactions(world, server, length)
}

/// What the client makes of a server, which then ends.
fn short_transactions(world: World, server: Process, length: f64) -> Result<Outcome> {
    let target = format!("{SUBJECT}:{PORT}");
    let words = client("short", &target, CONNECTIONS, length)?;
    let outcome = outcome(world.peer(&words)?, length)?;
    server.stop(Signal::TERM, seconds(15))?;
    world.finish()?;
    Ok(outcome)
}

/// Bulk through the example `tun_proxy`, in both directions, on one connection, and on eight by one
/// thread and by two.
fn proxies(arguments: &Arguments) -> Result<()> {
    println!(
        "\nproxy: bulk from a sandbox through tun_proxy to a server of the kernel's, all on this machine; goal: 15 Gbit/s each way on one connection"
    );
    for (kind, mode) in [("in", "sink"), ("out", "source")] {
        let cases = [(1, 1), (8, 1), (8, 2)];
        let mut rates: [Vec<f64>; 3] = Default::default();
        let mut costs: [Vec<f64>; 3] = Default::default();
        for round in 1..=arguments.rounds {
            for (at, (connections, shards)) in cases.into_iter().enumerate() {
                let outcome = one_proxy((kind, mode), connections, shards, arguments.seconds)?;
                rates[at].push(outcome.gigabits());
                costs[at].push(outcome.cpu_us_per_megabyte());
            }
            eprintln!("  {kind}: round {round} of {}", arguments.rounds);
        }
        for (at, (connections, shards)) in cases.into_iter().enumerate() {
            let name = format!("{kind}, {connections} on {shards} shards");
            print(&name, rates[at].clone(), "Gbit/s");
            print(
                "",
                costs[at].clone(),
                "us of CPU of the whole machine for a MB",
            );
        }
        if let Some(ratios) = Spread::of_ratios(&rates[2], &rates[0]) {
            println!("  ratio {kind}, 8 on 2 shards/1 on 1 {ratios}; goal: above 1");
        }
    }
    Ok(())
}

fn one_proxy(
    (kind, mode): (&str, &str),
    connections: u32,
    shards: u32,
    length: f64,
) -> Result<Outcome> {
    let (sandbox, outside) = (Namespace::create()?, Namespace::create()?);
    let directory = Directory::create()?;
    outside.ip(&format!("address add {OUTSIDE}/32 dev lo"))?;
    let (program, port) = (compile::program("server")?, PORT.to_string());
    let mut server = Process::spawn(
        &outside,
        &directory,
        command(&[&program[..], mode, OUTSIDE, &port]),
    )?;
    let mut proxy = Process::spawn(
        &outside,
        &directory,
        command(&[
            &example("tun_proxy")?[..],
            "--netns",
            sandbox.name(),
            "--shards",
            &shards.to_string(),
        ]),
    )?;
    ready(&mut server)?;
    ready(&mut proxy)?;
    let words = client(kind, &format!("{OUTSIDE}:{port}"), connections, length)?;
    let outcome = outcome(
        Process::spawn(&sandbox, &directory, command(&words))?,
        length,
    )?;
    proxy.stop(Signal::TERM, seconds(15))?;
    server.stop(Signal::TERM, seconds(15))?;
    Ok(outcome)
}

/// What tasks cost beside direct calls, both ends in memory: instructions, which are the same every
/// time.
fn tasks() -> Result<()> {
    println!(
        "\ntasks: instructions of two messages of 64 bytes there and back in memory, both ends, by callgrind; goal: at most 1.15 of direct calls"
    );
    let [direct, tasks] = ["direct", "tasks"].map(exchange);
    let (direct, tasks) = (direct?, tasks?);
    println!("  {:22} {direct:.0}", "direct calls");
    println!("  {:22} {tasks:.0}", "tasks");
    println!("  ratio tasks/direct calls {:.3}", tasks / direct);
    Ok(())
}

/// Instructions of one exchange: what a longer run takes more, for each that it has more.
fn exchange(mode: &str) -> Result<f64> {
    let program = example("pingpong")?;
    let count = |exchanges: &str| -> Result<f64> {
        let output = std::process::Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .args([&program, mode, exchanges])
            .output()
            .context("running valgrind (apt-get install valgrind)")?;
        let text = String::from_utf8_lossy(&output.stderr);
        let collected = text.split("Collected :").nth(1).unwrap_or_default().trim();
        let number = collected.split_whitespace().next().unwrap_or_default();
        number
            .parse()
            .with_context(|| format!("callgrind says {text:?}"))
    };
    Ok((count("11000")? - count("1000")?) / 10_000.0)
}

/// What the client itself costs: `millrace load` on a TAP device, and the client on the kernel's
/// sockets, with one server on the kernel.
fn generators(arguments: &Arguments) -> Result<()> {
    println!(
        "\ngenerator: CPU of the client's process for an operation on {CONNECTIONS} connections, server on the kernel"
    );
    for (kind, mode) in [("short", "short"), ("pingpong", "echo")] {
        let mut figures: [Vec<f64>; 2] = Default::default();
        for round in 1..=arguments.rounds {
            for (at, ours) in [true, false].into_iter().enumerate() {
                figures[at].push(one_generator(kind, mode, ours, arguments.seconds)?);
            }
            eprintln!("  {kind}: round {round} of {}", arguments.rounds);
        }
        let [ours, kernels] = &figures;
        print(&format!("{kind}, millrace load"), ours.clone(), "us");
        print(&format!("{kind}, kernel's sockets"), kernels.clone(), "us");
        if let Some(ratios) = Spread::of_ratios(ours, kernels) {
            println!("  ratio {ratios}");
        }
    }
    Ok(())
}

fn one_generator(kind: &str, mode: &str, ours: bool, length: f64) -> Result<f64> {
    let world = World::create(Stack::Kernel)?;
    let (own, port) = (SUBJECT.to_string(), PORT.to_string());
    let program = compile::program("server")?;
    let mut server = world.subject(&[&program[..], mode, "0.0.0.0", &port])?;
    ready(&mut server)?;
    let each = if ours {
        // On the server's side of a TAP device, which a packet socket would not be.
        let (length, connections) = (length.to_string(), CONNECTIONS.to_string());
        let words = [
            "load",
            kind,
            &format!("10.7.0.1:{port}"),
            "-c",
            &connections,
            "-d",
            &length,
            "--json",
            "--addr",
            "10.7.0.2/24",
        ];
        let ended = world
            .start_on_subject(world.millrace(&words))?
            .wait(seconds(60))?
            .success()?;
        let report: Value = serde_json::from_slice(&ended.stdout).context("reading the report")?;
        let number = |name: &str| report[name].as_f64().context(name.to_owned());
        number("cpu_seconds")? * 1e6 / number("operations")?
    } else {
        let words = client(kind, &format!("{own}:{port}"), CONNECTIONS, length)?;
        let ended = world.peer(&words)?.wait(seconds(60))?.success()?;
        let outcome: Outcome =
            serde_json::from_slice(&ended.stdout).context("reading what the load says")?;
        outcome.own_cpu_us()
    };
    server.stop(Signal::TERM, seconds(15))?;
    world.finish()?;
    Ok(each)
}
