//! `make profile SCENARIO=NAME`: where the time of a scenario goes, as a flame graph. `perf` takes samples by the clock, so it works in virtual machines, too.

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
Scenarios:
  memory-short, memory-ping, memory-bulk   two of our shards in one thread
  short-256, pingpong-64, bulk-out, ...    as `bench --only NAME`, engine, shim, server and client, and the kernel: all that the machine does; needs root

Examples:
  make profile SCENARIO=memory-short
  sudo make profile SCENARIO=short-256")]
struct Arguments {
    /// Which
    scenario: String,
    /// Samples in a second
    #[arg(long, default_value_t = 1999)]
    frequency: u32,
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
        Some(mode) => {
            let count = match mode {
                "short" => "2000000",
                "ping" => "6000000",
                "bulk" => "16000",
                _ => bail!("no scenario {name}; see profile --help"),
            };
            vec![own("examples/pair"), mode.into(), count.into(), "64".into()]
        }
        None => {
            let more = [
                "--rounds",
                "1",
                "--seconds",
                "5",
                "--millrace-only",
                "--only",
            ];
            let mut words = vec![own("bench")];
            words.extend(more.map(OsString::from));
            words.extend([name.into(), "--out".into(), here.join("profile").into()]);
            words
        }
    };
    let samples = here.join("perf.data");
    record(
        &words,
        name.starts_with("memory-"),
        arguments.frequency,
        &samples,
    )?;
    let svg = arguments.out.join(format!("{name}.svg"));
    draw(&samples, name, &svg)?;
    std::fs::remove_file(&samples)?;
    println!("{}", svg.display());
    Ok(())
}

/// Runs a command and takes samples: of it alone, or of the whole machine.
fn record(words: &[OsString], alone: bool, frequency: u32, samples: &Path) -> Result<()> {
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
    if !alone {
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
        .args(["script", "--input"])
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
