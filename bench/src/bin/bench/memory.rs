//! What connections take of memory: two stacks of one kind joined in memory, both ends together, by
//! the size of the process; and beside them the kernel's, by its slabs.

use std::process::Command;

use anyhow::{Context as _, Result};
use millrace_bench::report::{Goal, Scenario, Subject};

use crate::arguments::Arguments;
use crate::command::said_last;
use crate::jobs::Job;
use crate::kernel::{self, Said};
use crate::protocol::Peer;
use crate::subjects::print;

/// Connections, the most first, and about how many seconds all stacks take for them. The goal is of
/// the most that are measured.
const COUNTS: [(u64, &str, f64); 4] = [
    (1_000_000, "1m", 14.0),
    (100_000, "100k", 26.0),
    (10_000, "10k", 6.0),
    (1_000, "1k", 2.0),
];
/// So many are asked of ours alone.
const OURS_ALONE: u64 = 1_000_000;
/// What is said of the kernel's.
const KERNELS: &str = " The kernel's ends are in two namespaces, over veth, held by processes of up to 15,000 each; what counts is its slabs, and the bytes of messages.";
/// What an adapter ends with when more is asked for than goes.
const TOO_MUCH: i32 = 2;

/// A kind, what it is, and its goal.
const KINDS: [(&str, &str, Option<f64>); 2] = [
    (
        "memory-of-idle",
        "Bytes resident for each end of a connection that is established and does nothing, buffers included",
        Some(600.0),
    ),
    (
        "memory-of-active",
        "Bytes resident for a connection, both its ends, with 64 bytes that are sent at one and wait to be read at the other, buffers included",
        None,
    ),
];

/// Why there is no figure.
enum Missing {
    TooMuch(String),
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Missing {
    fn from(error: anyhow::Error) -> Missing {
        Missing::Failed(error)
    }
}

/// Whether anything is wanted for which the adapters are needed.
pub fn is_wanted(arguments: &Arguments) -> bool {
    counts(arguments).next().is_some()
}

/// A job for each number of connections that is wanted in one of the kinds; a quick run has no time
/// for the most.
pub fn jobs<'a>(arguments: &'a Arguments, peers: &'a [Peer]) -> Vec<Job<'a>> {
    let job = |(at, (count, size, seconds)): (usize, (u64, &'static str, f64))| {
        let first = format!("{}-{size}", KINDS[0].0);
        let has_kernel = !arguments.millrace_only && count < OURS_ALONE;
        Job::once(first, seconds, move || {
            Ok(memory(count, size, at == 0, has_kernel, peers))
        })
    };
    counts(arguments).enumerate().map(job).collect()
}

fn counts(arguments: &Arguments) -> impl Iterator<Item = (u64, &'static str, f64)> {
    let counts = if arguments.quick {
        &COUNTS[2..]
    } else {
        &COUNTS[..]
    };
    counts.iter().copied().filter(|(_, size, _)| {
        KINDS
            .iter()
            .any(|(kind, ..)| arguments.wants(&format!("{kind}-{size}")))
    })
}

/// Both kinds with so many connections; `is_judged`: beside the goal.
fn memory(
    count: u64,
    size: &str,
    is_judged: bool,
    has_kernel: bool,
    peers: &[Peer],
) -> Vec<Scenario> {
    println!("memory of {count} connections: `pair idle {count}` of ours, `PROGRAM idle {count}`");
    let asked = if count >= OURS_ALONE { 1 } else { peers.len() };
    let mut taken: Vec<(&str, Result<Said, Missing>)> = peers[..asked]
        .iter()
        .map(|peer| (peer.stack.as_str(), each(peer, count)))
        .collect();
    if has_kernel {
        let kernels = kernel::each(count).map_err(Missing::Failed);
        taken.insert(1, ("kernel", kernels));
    }
    let mut scenarios = Vec::new();
    for (at, (kind, what, goal)) in KINDS.into_iter().enumerate() {
        let subject = |(stack, taken): &(&str, Result<Said, Missing>)| {
            let mut subject = Subject::named(*stack);
            match taken {
                Ok(said) => subject
                    .values
                    .push([said.idle, 2.0 * said.idle + said.active][at]),
                Err(Missing::TooMuch(reason)) => subject.left_out = Some(reason.clone()),
                Err(Missing::Failed(error)) => subject.failure = Some(format!("{error:#}")),
            }
            subject
        };
        let goal = goal.filter(|_| is_judged).map(|bound| Goal {
            against: None,
            bound,
        });
        let scenario = Scenario {
            group: "Memory of connections: two stacks of a kind joined in memory; the kernel's over veth".to_owned(),
            name: format!("{kind}-{size}"),
            what: match count {
                OURS_ALONE => format!("{what}; of a million, which nobody else is asked for."),
                _ => format!(
                    "{what}; of {count} connections.{}",
                    if has_kernel { KERNELS } else { "" }
                ),
            },
            unit: "bytes".to_owned(),
            less_is_better: true,
            goals: goal.into_iter().collect(),
            subjects: taken.iter().map(subject).collect(),
            reason: None,
        };
        println!("{}: {}", scenario.name, scenario.what);
        print(&scenario);
        scenarios.push(scenario);
    }
    scenarios
}

/// What connections take on one stack.
fn each(peer: &Peer, count: u64) -> Result<Said, Missing> {
    let output = Command::new(peer.program()?)
        .args(["idle", &count.to_string()])
        .output()
        .context("running it")?;
    if output.status.code() == Some(TOO_MUCH) {
        return Err(Missing::TooMuch(said_last(&output.stderr)));
    }
    if !output.status.success() {
        let last = said_last(&output.stderr);
        return Err(anyhow::anyhow!("{}: {last}", output.status).into());
    }
    Ok(read(&String::from_utf8_lossy(&output.stdout))?)
}

fn read(said: &str) -> Result<Said> {
    if let Some(line) = said.lines().find(|line| line.starts_with('{')) {
        return serde_json::from_str(line).with_context(|| format!("it said {said}"));
    }
    // Our own example is for people.
    let number = |rest: &str| -> Result<f64> {
        let mut lines = said.lines();
        let line = lines.find(|line| line.contains(rest));
        let word = line.and_then(|line| line.split(' ').next());
        let word = word.with_context(|| format!("it said {said}"))?;
        Ok(word.parse()?)
    };
    Ok(Said {
        idle: number("resident for each end")?,
        active: number("more for each connection")?,
    })
}
