//! What connections take of memory: our two shards joined in memory, both ends together, by the size of the process.

use std::path::Path;

use anyhow::{Context as _, Result};
use millrace_bench::report::{Goal, Scenario, Subject};

use crate::Arguments;
use crate::driven::print;
use crate::protocol::{pair, run};

/// Connections, the most first: what is said of them is the goal's.
const COUNTS: [(u64, &str); 4] = [
    (1_000_000, "1,000,000 connections"),
    (100_000, "100,000 connections"),
    (10_000, "10,000 connections"),
    (1_000, "1,000 connections"),
];

/// The two kinds, if their name contains `--only`.
pub fn memory(arguments: &Arguments) -> Vec<Scenario> {
    let names = ["memory-of-idle", "memory-of-active"];
    let is_wanted = |name: &&str| arguments.wants(name);
    if !names.iter().any(is_wanted) {
        return Vec::new();
    }
    println!("\nmemory of connections: `pair idle COUNT`, two shards joined in memory");
    let pair = pair();
    let mut kinds: [Vec<Subject>; 2] = Default::default();
    // A quick run has no time for a million.
    for (count, title) in COUNTS.into_iter().skip(usize::from(arguments.quick)) {
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
        names.into_iter().zip(whats).zip(goals).zip([idle, active])
    {
        let scenario = Scenario {
            group: "Memory of connections: two shards joined in memory".to_owned(),
            name: name.to_owned(),
            what: what.to_owned(),
            unit: "bytes".to_owned(),
            less_is_better: true,
            goal: goal.map(|bound| Goal {
                against: None,
                bound,
            }),
            subjects,
        };
        println!("{name}: {what}");
        print(&scenario);
        if is_wanted(&name) {
            scenarios.push(scenario);
        }
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
