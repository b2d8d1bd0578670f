//! `make demo`: unmodified nginx and redis-server on millrace, then on the kernel, and what each
//! did, side by side.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use millrace_bench::cpu::{Interval, Sample};
use millrace_bench::figures::short;
use millrace_bench::{machine, supervise};
use millrace_e2e::content::{ensure_same, write_file};
use millrace_e2e::programs::{Nginx, redis};
use millrace_e2e::scenario::{prepare, seconds};
use millrace_e2e::{SUBJECT, Stack, World};
use rustix::process::Signal;

/// Runs nginx and redis-server on millrace over a TAP link, then on the kernel over a veth pair,
/// and shows both side by side.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only the kernel, to see that the demonstration works
    #[arg(long)]
    kernel_only: bool,
}

/// Bytes of the large file.
const LARGE: usize = 100_000_000;
/// How often it is downloaded.
const DOWNLOADS: usize = 5;

/// A measured step: what it came to, and what the machine did meanwhile.
struct Row {
    /// The figure.
    value: f64,
    /// How many operations (or MB) that was.
    count: f64,
    /// The machine.
    machine: Interval,
}

/// The steps by name, in the order of the table.
type Rows = BTreeMap<usize, Row>;

/// What a step is called, and what its figure is.
const STEPS: [(&str, &str); 7] = [
    ("nginx: curl, 100 MB, checksum verified", "Gbit/s"),
    ("nginx: ab -c 64, 4 KB, new connection each", "requests/s"),
    ("nginx: ab -k -c 64, 4 KB, kept alive", "requests/s"),
    ("redis: SET, 50 clients", "requests/s"),
    ("redis: GET, 50 clients", "requests/s"),
    ("redis: SET, pipelines of 32", "requests/s"),
    ("redis: GET, pipelines of 32", "requests/s"),
];

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    supervise::supervised(|| demo(&arguments))
}

fn demo(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let say = |text: &str| println!("[{:5.1} s] {text}", start.elapsed().as_secs_f64());
    prepare()?;
    say(&machine::describe());
    if let Some(warning) = machine::warning() {
        say(&warning);
    }
    let mut results = Vec::new();
    let stacks: &[Stack] = if arguments.kernel_only {
        &[Stack::Kernel]
    } else {
        &[Stack::Millrace, Stack::Kernel]
    };
    for &stack in stacks {
        say(match stack {
            Stack::Millrace => {
                "millrace: its own network namespace, a TAP link; the kernel of that namespace is the client"
            }
            Stack::Kernel => {
                "kernel: two network namespaces, a veth pair with its offloads; the same clients"
            }
        });
        let mut rows = Rows::new();
        nginx(stack, &mut rows, &say)?;
        redis_server(stack, &mut rows, &say)?;
        results.push(rows);
    }
    table(&results, stacks);
    say("done; namespaces, devices and processes are gone");
    Ok(())
}

/// Measures the machine while `step` runs; `step` gives the figure and how many operations (or MB)
/// that was.
fn measure(
    rows: &mut Rows,
    number: usize,
    step: impl FnOnce() -> Result<(f64, f64)>,
) -> Result<String> {
    let before = Sample::take()?;
    let (value, count) = step()?;
    let machine = before.until_now()?;
    rows.insert(
        number,
        Row {
            value,
            count,
            machine,
        },
    );
    Ok(format!(
        "  {}: {} {}",
        STEPS[number].0,
        short(value),
        STEPS[number].1
    ))
}

/// nginx with a master and two workers, under curl and ab.
fn nginx(stack: Stack, rows: &mut Rows, say: &dyn Fn(&str)) -> Result<()> {
    let world = World::create(stack)?;
    let words = Nginx {
        port: 80,
        main: "daemon off;",
        http: "sendfile on;",
        server: "",
    }
    .configure(&world)?;
    let file = world.directory().join("www/large");
    write_file(&file, 1, LARGE)?;
    write_file(&world.directory().join("www/small"), 2, 4096)?;
    let command = world.on_subject(&["nginx"]);
    let shown: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    say(&format!("  {}", shown.join(" ")));
    let server = world.serve(&words, 80)?;
    let got = world.directory().join("got");
    // Several times: one takes so little that the machine's counters, which tick 100 times a
    // second, say nothing of it.
    let line = measure(rows, 0, || {
        let start = Instant::now();
        for _ in 0..DOWNLOADS {
            let url = format!("http://{SUBJECT}/large");
            world.run_on_peer(
                &["curl", "-sS", "--fail", "-o", &got.to_string_lossy(), &url],
                seconds(60),
            )?;
        }
        let bytes = (DOWNLOADS * LARGE) as f64;
        Ok((
            bytes * 8.0 / 1e9 / start.elapsed().as_secs_f64(),
            bytes / 1e6,
        ))
    })?;
    ensure_same(&file, &got)?;
    let sum = world
        .run_on_peer(&["sha256sum", &got.to_string_lossy()], seconds(30))?
        .text();
    say(&format!(
        "{line}, SHA-256 {}...",
        sum.get(..16).unwrap_or_default()
    ));
    for (number, arguments, count) in [(1, vec![], 30_000), (2, vec!["-k"], 100_000)] {
        say(&measure(rows, number, || ab(&world, &arguments, count))?);
    }
    server.stop(Signal::QUIT, seconds(20))?.success()?;
    world.finish()
}

/// `ab` on the small file: requests per second.
fn ab(world: &World, arguments: &[&str], count: u32) -> Result<(f64, f64)> {
    let (count_text, url) = (count.to_string(), format!("http://{SUBJECT}/small"));
    let words = [
        &["ab", "-q"],
        arguments,
        &["-c", "64", "-n", &count_text, &url],
    ]
    .concat();
    let said = world.run_on_peer(&words, seconds(60))?.text();
    ensure!(said.contains("Failed requests:        0"), "ab:\n{said}");
    let rate = said
        .lines()
        .find_map(|line| line.strip_prefix("Requests per second:"))
        .context("ab gives a rate")?;
    let rate = rate
        .split_whitespace()
        .next()
        .context("a number")?
        .parse()?;
    Ok((rate, f64::from(count)))
}

/// redis-server under redis-benchmark.
fn redis_server(stack: Stack, rows: &mut Rows, say: &dyn Fn(&str)) -> Result<()> {
    let world = World::create(stack)?;
    let server = world.serve(&redis(&world, &SUBJECT.to_string(), 6379, ""), 6379)?;
    say("  redis-server, one thread");
    for (number, test, count, pipeline) in [
        (3, "set", 200_000, "1"),
        (4, "get", 200_000, "1"),
        (5, "set", 1_000_000, "32"),
        (6, "get", 1_000_000, "32"),
    ] {
        let line = measure(rows, number, || {
            let (address, count_text) = (SUBJECT.to_string(), count.to_string());
            let words = [
                "redis-benchmark",
                "-h",
                &address,
                "--csv",
                "-t",
                test,
                "-n",
                &count_text,
                "-c",
                "50",
                "-P",
                pipeline,
            ];
            let said = world.run_on_peer(&words, seconds(60))?.text();
            let rate = said
                .lines()
                .last()
                .and_then(|line| line.split("\",\"").nth(1))
                .context("redis-benchmark gives a rate")?;
            Ok((rate.parse()?, f64::from(count)))
        })?;
        say(&line);
    }
    server.stop(Signal::TERM, seconds(20))?.success()?;
    world.finish()
}

/// Both stacks side by side.
fn table(results: &[Rows], stacks: &[Stack]) {
    println!();
    println!(
        "{:44} {:10} {:>11} {:>9} {:>22}",
        "", "", "", "CPU us", "each core, %"
    );
    println!(
        "{:44} {:10} {:>11} {:>9} {:>22}",
        "", "stack", "", "each", "user/system/interrupt"
    );
    for (number, (name, unit)) in STEPS.iter().enumerate() {
        for (index, stack) in stacks.iter().enumerate() {
            let Some(row) = results[index].get(&number) else {
                continue;
            };
            let each = row.machine.busy() * 1e6 / row.count;
            let stack = format!("{stack:?}").to_lowercase();
            let name = if index == 0 { *name } else { "" };
            println!(
                "{name:44} {stack:10} {:>11} {:>9} {:>22}",
                format!("{} {}", short(row.value), abbreviate(unit)),
                short(each),
                row.machine.describe()
            );
        }
        let pair = |of: fn(&Row) -> f64| {
            Some(of(results.first()?.get(&number)?) / of(results.get(1)?.get(&number)?))
        };
        if let (Some(speed), Some(cpu)) = (
            pair(|row| row.value),
            pair(|row| row.machine.busy() / row.count),
        ) {
            println!(
                "{:44} {:10} {:>11} {:>9}",
                "",
                "ratio",
                short(speed),
                short(cpu)
            );
        }
    }
    println!(
        "\nCPU: of the whole machine, client included, per request (per MB for curl), from /proc/stat."
    );
    println!(
        "With one client on the same machine the rates are mostly the client's: CPU per request says more.\n"
    );
}

/// A unit that fits the column.
fn abbreviate(unit: &str) -> &str {
    if unit == "requests/s" { "/s" } else { unit }
}
