//! How many instructions the stack takes for what it does, counted by callgrind, beside what
//! `docs/instructions.toml` says: more than it says by a few hundredths is a failure, until the
//! file is renewed in the commit that explains it.
//!
//! Counts repeat from run to run and from build to build of one compiler. Of another compiler they
//! say nothing, and are not compared.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

/// Where the counts are.
const FILE: &str = "docs/instructions.toml";
/// Growth that is a failure, in percent.
const GROWTH: f64 = 3.0;

/// What is counted: an example, its mode, two lengths whose difference is measured, and the rest of
/// its arguments.
struct Kind {
    name: &'static str,
    /// An example, and the crate that it is of.
    example: (&'static str, &'static str),
    mode: &'static str,
    counts: [u64; 2],
    rest: &'static [&'static str],
    per: Per,
}

/// What the instructions are divided by.
#[derive(Clone, Copy)]
enum Per {
    /// Operations in each of the mode's units.
    Unit(u64),
    /// Segments with payload, or without, that the example says have arrived; counted is only what
    /// this function of its does.
    Segment { bare: bool, within: &'static str },
}

/// Two shards joined in memory.
const PAIR: (&str, &str) = ("pair", "millrace-shard");
/// Two stacks of the library's, likewise.
const PINGPONG: (&str, &str) = ("pingpong", "millrace");

/// Virtual queues between a port and groups.
const STEER: (&str, &str) = ("steer", "millrace-steer");

/// Receive offload by itself.
const SEGMENTS: (&str, &str) = ("segments", "millrace-offload");

/// What is counted with little beside it and with much, and how far the counts may be apart, in
/// percent.
const FLAT: [(&str, &str, f64); 4] = [
    (
        "a frame through the virtual queues of 1 group, and its answer",
        "a frame through the virtual queues of 14 groups, and its answer",
        2.0,
    ),
    (
        "64 bytes there and back",
        "the same beside 10,000 connections",
        10.0,
    ),
    (
        "64 bytes there and back",
        "the same with 10,000 connections in TIME-WAIT",
        10.0,
    ),
    (
        "connect, 64 bytes each way, close",
        "connect, 64 bytes each way, close, with 10,000 in TIME-WAIT",
        10.0,
    ),
];

const KINDS: [Kind; 20] = [
    Kind {
        name: FLAT[3].0,
        example: PAIR,
        mode: "short",
        counts: [1_000, 3_000],
        rest: &["64"],
        per: Per::Unit(1),
    },
    Kind {
        name: FLAT[3].1,
        example: PAIR,
        mode: "short",
        counts: [1_000, 3_000],
        rest: &["64", "waiting=10000"],
        per: Per::Unit(1),
    },
    Kind {
        name: FLAT[1].0,
        example: PAIR,
        mode: "ping",
        counts: [2_000, 6_000],
        rest: &["64"],
        per: Per::Unit(1),
    },
    Kind {
        name: FLAT[1].1,
        example: PAIR,
        mode: "ping",
        counts: [2_000, 6_000],
        rest: &["64", "beside=10000"],
        per: Per::Unit(1),
    },
    Kind {
        name: FLAT[2].1,
        example: PAIR,
        mode: "ping",
        counts: [2_000, 6_000],
        rest: &["64", "waiting=10000"],
        per: Per::Unit(1),
    },
    Kind {
        name: "a kilobyte of bulk, checksums included",
        example: PAIR,
        mode: "bulk",
        counts: [8, 24],
        rest: &[],
        per: Per::Unit(1_000),
    },
    Kind {
        name: "a kilobyte of bulk, checksums included, segments joined",
        example: PAIR,
        mode: "bulk",
        counts: [8, 24],
        rest: &["join"],
        per: Per::Unit(1_000),
    },
    Kind {
        name: "a kilobyte of bulk, checksums left to the device",
        example: PAIR,
        mode: "bulk",
        counts: [8, 24],
        rest: &["offload"],
        per: Per::Unit(1_000),
    },
    Kind {
        name: "a segment of 1,448 bytes out, as transmitted with its checksum",
        example: PAIR,
        mode: "bulk",
        counts: [8, 24],
        rest: &[],
        per: Per::Segment {
            bare: false,
            within: "*transmit_requests*",
        },
    },
    Kind {
        name: "a segment of 1,448 bytes in, in order, checksum included",
        example: PAIR,
        mode: "bulk",
        counts: [8, 24],
        rest: &[],
        per: Per::Segment {
            bare: false,
            within: "*input_payload*",
        },
    },
    Kind {
        name: "a pure acknowledgement in",
        example: PAIR,
        mode: "bulk",
        counts: [8, 24],
        rest: &[],
        per: Per::Segment {
            bare: true,
            within: "*input_bare*",
        },
    },
    Kind {
        name: "64 bytes there and back by the library, called directly",
        example: PINGPONG,
        mode: "direct",
        counts: [2_000, 6_000],
        rest: &[],
        per: Per::Unit(1),
    },
    Kind {
        name: "64 bytes there and back by the library, in tasks",
        example: PINGPONG,
        mode: "tasks",
        counts: [2_000, 6_000],
        rest: &[],
        per: Per::Unit(1),
    },
    Kind {
        name: FLAT[0].0,
        example: STEER,
        mode: "way",
        counts: [17_920, 53_760],
        rest: &["1"],
        per: Per::Unit(1),
    },
    Kind {
        name: FLAT[0].1,
        example: STEER,
        mode: "way",
        counts: [17_920, 53_760],
        rest: &["14"],
        per: Per::Unit(1),
    },
    Kind {
        name: "a segment of 1,460 bytes into a unit of the card's, checksum included",
        example: SEGMENTS,
        mode: "bulk",
        counts: [20_000, 60_000],
        rest: &["1"],
        per: Per::Segment {
            bare: false,
            within: "*offload_*",
        },
    },
    Kind {
        name: "the same of 64 flows in turn",
        example: SEGMENTS,
        mode: "bulk",
        counts: [20_000, 60_000],
        rest: &["64"],
        per: Per::Segment {
            bare: false,
            within: "*offload_*",
        },
    },
    Kind {
        name: "the same of one flow, somebody having vouched for the checksum",
        example: SEGMENTS,
        mode: "known",
        counts: [20_000, 60_000],
        rest: &["1"],
        per: Per::Segment {
            bare: false,
            within: "*offload_*",
        },
    },
    Kind {
        name: "a message of 64 bytes through the card",
        example: SEGMENTS,
        mode: "message",
        counts: [20_000, 60_000],
        rest: &["on"],
        per: Per::Segment {
            bare: false,
            within: "*offload_*",
        },
    },
    Kind {
        name: "the same, aggregation off",
        example: SEGMENTS,
        mode: "message",
        counts: [20_000, 60_000],
        rest: &["off"],
        per: Per::Segment {
            bare: false,
            within: "*offload_*",
        },
    },
];

/// Compares, or writes the file anew.
pub fn run(root: &Path, write: bool) -> ExitCode {
    match compare(root, write) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare(root: &Path, write: bool) -> Result<bool> {
    let rustc = output(Command::new("rustc").arg("--version"))?
        .trim()
        .to_string();
    let page = root.join(FILE);
    let known = if write {
        String::new()
    } else {
        // A guard without its file would let everything pass.
        std::fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?
    };
    if !write && value(&known, "rustc") != Some(&format!("\"{rustc}\"")) {
        println!(
            "instructions: {FILE} is of {}, this is {rustc}: not compared",
            value(&known, "rustc").unwrap_or("no compiler")
        );
        return Ok(true);
    }
    let examples = build(root)?;
    let mut text = format!(
        "# Instructions by callgrind, both ends together. `cargo xtask instructions` compares, `cargo xtask instructions --write` renews.\n\
         rustc = \"{rustc}\"\n\n[instructions]\n"
    );
    let mut good = true;
    let mut counts = Vec::new();
    for kind in &KINDS {
        let [less, more] = kind.counts;
        let (less, more) = (count(&examples, kind, less)?, count(&examples, kind, more)?);
        let each = (more.0 - less.0) as f64 / (more.1 - less.1) as f64;
        counts.push((kind.name, each));
        text += &format!("\"{}\" = {each:.0}\n", kind.name);
        let before = value(&known, &format!("\"{}\"", kind.name));
        let before = before.and_then(|text| text.parse::<f64>().ok());
        let change = before.map(|before| (each / before - 1.0) * 100.0);
        let said = change.map_or("new".to_string(), |change| format!("{change:+.1} %"));
        println!("{:>8.0}  {said:>8}  {}", each, kind.name);
        good &= change.is_some_and(|change| change <= GROWTH);
    }
    let of = |name| counts.iter().find(|(at, _)| *at == name);
    for (little, much, bound) in FLAT {
        if let (Some((_, little)), Some((_, many))) = (of(little), of(much)) {
            let apart = (many / little - 1.0) * 100.0;
            ensure!(apart.abs() <= bound, "{much}: {apart:+.1} %");
        }
    }
    if write {
        std::fs::write(&page, text)?;
        println!("instructions: {FILE} is written");
        return Ok(true);
    }
    if !good {
        eprintln!(
            "instructions: more than {GROWTH} % above {FILE}. If that is meant: cargo xtask instructions --write, and say why in the commit"
        );
    }
    Ok(good)
}

/// What stands behind `key = `.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim_start().strip_prefix('=').map(str::trim)
}

/// Where the examples are.
fn build(root: &Path) -> Result<std::path::PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    for (example, package) in [PAIR, PINGPONG, STEER, SEGMENTS] {
        let words = ["build", "--release", "--locked", "--quiet", "-p", package];
        let status = Command::new(&cargo)
            .current_dir(root)
            .args(words)
            .args(["--example", example])
            .status()?;
        ensure!(status.success(), "building the example {example}");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
    Ok(target.join("release/examples"))
}

/// Instructions of one run, and what they are divided by.
fn count(examples: &Path, kind: &Kind, count: u64) -> Result<(u64, u64)> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        // Else `rep movsb` counts an instruction for each byte, or not, as the processor has it.
        .env(
            "GLIBC_TUNABLES",
            "glibc.cpu.x86_rep_movsb_threshold=1000000000",
        )
        .args(match kind.per {
            Per::Unit(_) => None,
            Per::Segment { within, .. } => Some(format!("--toggle-collect={within}")),
        })
        .arg(examples.join(kind.example.0))
        .args([kind.mode, &count.to_string()])
        .args(kind.rest);
    let ran = command.output().context("running valgrind")?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "valgrind: {said}");
    let collected = said
        .lines()
        .find_map(|line| line.split_once("Collected : "));
    let (_, number) = collected.with_context(|| format!("valgrind counted nothing: {said}"))?;
    let instructions = number.trim().parse().context("valgrind's count")?;
    let operations = match kind.per {
        Per::Unit(per) => count * per,
        Per::Segment { bare, .. } => {
            let printed = String::from_utf8_lossy(&ran.stdout);
            let number = |at| printed.split_whitespace().nth(at)?.parse().ok();
            // "N segments with payload, M without"
            number(if bare { 4 } else { 0 }).context("the example says how many segments")?
        }
    };
    Ok((instructions, operations))
}

fn output(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8(command.output()?.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn values_stand_behind_their_keys() {
        let text = "# rustc = no\nrustc = \"1.95\"\n\n[instructions]\n\"a b\" = 12\n";
        assert_eq!(value(text, "rustc"), Some("\"1.95\""));
        assert_eq!(value(text, "\"a b\""), Some("12"));
        assert_eq!(value(text, "\"a\""), None);
    }
}
