//! What connections take of memory: our two shards joined in memory, both ends together, by the size of the process.

use std::path::Path;

use anyhow::{Context as _, Result};
use millrace_bench::report::{Goal, Scenario, Subject};

use crate::Arguments;
use crate::driven::print;
use crate::jobs::Job;
use crate::protocol::{pair, run};

/// Connections, the most first: what is said of them is the goal's.
const COUNTS: [(u64, &str); 4] = [
    (1_000_000, "1,000,000 connections"),
    (100_000, "100,000 connections"),
    (10_000, "10,000 connections"),
    (1_000, "1,000 connections"),
];

/// Names of the two kinds.
const NAMES: [&str; 2] = ["memory-of-idle", "memory-of-active"];

/// A job for both kinds, if one of them is wanted; a quick run has no time for a million.
pub fn jobs<'a>(arguments: &'a Arguments) -> Vec<Job<'a>> {
    let is_wanted = |name: &&str| arguments.wants(name);
    if !NAMES.iter().any(is_wanted) {
        return Vec::new();
    }
    let counts = &COUNTS[usize::from(arguments.quick)..];
    let seconds = if arguments.quick { 4.0 } else { 20.0 };
    vec![Job::new(NAMES[0], 1, seconds, 0.0, move || {
        Ok(memory(counts))
    })]
}

fn memory(counts: &[(u64, &str)]) -> Vec<Scenario> {
    println!("memory of connections: `pair idle COUNT`, two shards joined in memory");
    let pair = pair();
    let mut kinds: [Vec<Subject>; 2] = Default::default();
    for &(count, title) in counts {
        let taken = match &pair {
            Ok(pair) => each(pair, count),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        for (at, subjects) in kinds.iter_mut().enumerate() {
            let mut subject = Subject::named(title);
            match &taken {
                Ok(bytes) => subject.values.push(bytes[at]),
                Err(error) => subject.failure = Some(format!("{error:#}")),
            }
            subjects.push(subject);
        }
    }
    let [idle, active] = kinds;
    let whats = [
        "Bytes resident for each end of a connection that is established and does nothing.",
        "Bytes more, of both ends, for a connection with 64 bytes that wait to be read.",
    ];
    let goals = [Some(600.0), None];
    let mut scenarios = Vec::new();
    for (((name, what), goal), subjects) in
        NAMES.into_iter().zip(whats).zip(goals).zip([idle, active])
    {
        let goal = goal.map(|bound| Goal {
            against: None,
            bound,
        });
        let scenario = Scenario {
            group: "Memory of connections: two shards joined in memory".to_owned(),
            name: name.to_owned(),
            what: what.to_owned(),
            unit: "bytes".to_owned(),
            less_is_better: true,
            goals: goal.into_iter().collect(),
            subjects,
            reason: None,
        };
        println!("{name}: {what}");
        print(&scenario);
        scenarios.push(scenario);
    }
    scenarios
}

/// Bytes of an idle end, and what a message that waits adds.
fn each(pair: &Path, count: u64) -> Result<[f64; 2]> {
    let mut command = std::process::Command::new(pair);
    let said = String::from_utf8(run(command.args(["idle", &count.to_string()]))?)?;
    let number = |rest: &str| -> Result<f64> {
        let mut lines = said.lines();
        let line = lines.find(|line| line.contains(rest));
        let word = line.and_then(|line| line.split(' ').next());
        let word = word.with_context(|| format!("it said {said}"))?;
        Ok(word.parse()?)
    };
    Ok([
        number("resident for each end")?,
        number("more for each connection")?,
    ])
}
