//! `make profile SCENARIO=NAME`: where the time of a scenario goes, as a flame graph. `perf` takes
//! samples by the clock, so it works in virtual machines, too.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use inferno::collapse::Collapse as _;
use inferno::collapse::perf::{Folder, Options};
use inferno::flamegraph;

/// Draws a flame graph of a scenario.
#[derive(Debug, Parser)]
#[command(after_help = "\
Scenarios are those of the report, by name:
  memory-short-64, memory-ping-1, memory-bulk, memory-of-idle-1m   two of our shards in one thread
  short-256, bulk-in, wire-short-strict, wire-ping-at-50, nginx-keep-64k, redis-get, iscsi-read, loss-1, ...
      five seconds of it on our stack: engine, shim, server and client, and what the kernel does for them; needs root. With --machine
      all that the machine does, the kernel's threads of network devices too, and whatever else runs

Examples:
  make profile SCENARIO=memory-short-64
  sudo make profile SCENARIO=short-256
  sudo make profile SCENARIO=nginx-keep-64k ARGS='--frequency 499'")]
struct Arguments {
    /// Which
    scenario: String,
    /// Samples in a second
    #[arg(long, default_value_t = 1999)]
    frequency: u32,
    /// All that the machine does, not the scenario's processes alone
    #[arg(long)]
    machine: bool,
    /// Where SCENARIO.svg is written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results"))]
    out: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all(&arguments.out)?;
    let here = std::env::current_exe()?.with_file_name("");
    let own = |name: &str| here.join(name).into_os_string();
    let name = arguments.scenario.as_str();
    let words: Vec<OsString> = match name.strip_prefix("memory-") {
        Some(work) => {
            let mut pair = vec![own("examples/pair")];
            pair.extend(in_memory(work)?.into_iter().map(OsString::from));
            pair
        }
        None => {
            let more = ["--rounds", "1", "--seconds", "5", "--millrace-only"];
            let mut words = vec![own("bench")];
            words.extend(more.map(OsString::from));
            let (only, out) = (format!("--only=={name}"), here.join("profile-report"));
            words.extend([only.into(), "--out".into(), out.into()]);
            words
        }
    };
    let samples = here.join("perf.data");
    record(&words, arguments.machine, arguments.frequency, &samples)?;
    let svg = arguments.out.join(format!("{name}.svg"));
    draw(&samples, name, &svg)?;
    std::fs::remove_file(&samples)?;
    println!("{}", svg.display());
    Ok(())
}

/// What our pair does that is called so in the report: `short-64`, `ping-1`, `bulk`, `of-idle-1m`;
/// without a number 64 connections.
fn in_memory(work: &str) -> Result<Vec<String>> {
    if work.starts_with("of-") {
        return Ok(vec!["idle".to_owned(), "1000000".to_owned()]);
    }
    let (mode, parallel) = match work.split_once('-') {
        Some((mode, parallel)) => (mode, parallel.parse()?),
        None if work == "bulk" => (work, 1),
        None => (work, 64u32),
    };
    let count = match mode {
        "short" => "2000000",
        "ping" => "6000000",
        "bulk" => "16000",
        _ => bail!("no scenario memory-{work}; see profile --help"),
    };
    Ok(vec![
        mode.to_owned(),
        count.to_owned(),
        parallel.to_string(),
    ])
}

/// Runs a command and takes samples: of it and its children, or of the whole machine.
fn record(words: &[OsString], machine: bool, frequency: u32, samples: &Path) -> Result<()> {
    let mut perf = Command::new("perf");
    // Stacks by frame information, since release builds keep no frame pointers.
    perf.args([
        "record",
        "--quiet",
        "--event",
        "cpu-clock",
        "--call-graph",
        "dwarf,8192",
        "--freq",
    ]);
    perf.arg(frequency.to_string()).arg("--output").arg(samples);
    if machine {
        perf.arg("--all-cpus");
    }
    let status = perf
        .arg("--")
        .args(words)
        .status()
        .context("running perf: Debian has it in the package linux-perf")?;
    ensure!(status.success(), "perf record: {status}");
    Ok(())
}

/// Turns samples into a flame graph.
fn draw(samples: &Path, title: &str, svg: &Path) -> Result<()> {
    eprintln!("reading the samples");
    let mut script = Command::new("perf")
        // Looking up what was inlined takes minutes.
        .args(["script", "--no-inline", "--input"])
        .arg(samples)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let said = script.stdout.take().context("perf has no output")?;
    let mut folded = Vec::new();
    Folder::from(Options::default()).collapse(std::io::BufReader::new(said), &mut folded)?;
    let status = script.wait()?;
    ensure!(
        status.success() && !folded.is_empty(),
        "perf script: {status}, {} bytes",
        folded.len()
    );
    let mut options = flamegraph::Options::default();
    options.title = format!("millrace: {title}");
    options.count_name = "samples".to_owned();
    flamegraph::from_reader(&mut options, &folded[..], File::create(svg)?)?;
    Ok(())
}
