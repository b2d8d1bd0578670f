//! Bulk from the stack under test over a path that loses frames.

use millrace_bench::path::LossyPath;
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::Stack;

use crate::Arguments;
use crate::driven::{name, print};

/// Names, and frames lost of ten thousand.
const LOSSES: [(&str, u64); 3] = [("loss-0", 0), ("loss-0.1", 10), ("loss-1", 100)];
/// Connections side by side, so that what chance does to one is no more than a part.
const FLOWS: usize = 4;

/// Everything whose name contains `--only`; a quick run has no time for it.
pub fn lossy(rounds: usize, length: f64, arguments: &Arguments) -> Vec<Scenario> {
    let is_wanted = |(name, _): &(&str, u64)| arguments.wants(name) && !arguments.quick;
    let wanted = LOSSES.into_iter().filter(is_wanted);
    wanted
        .map(|(name, loss)| compare(name, loss, rounds, length, arguments.stacks()))
        .collect()
}

fn compare(title: &str, loss: u64, rounds: usize, length: f64, stacks: &[Stack]) -> Scenario {
    let path = LossyPath {
        rate: 500,
        round_trip: 10,
        loss,
        queue: 4,
        seconds: length.max(3.0).ceil() as u64,
        warm_up: 1,
    };
    let what = format!(
        "iperf3 sends on {FLOWS} connections, CUBIC, by TAP over a relay: {} Mbit/s, {} ms there and back, a queue of what that holds, {} % of the frames lost on the way there; the \
         kernel receives.",
        path.rate,
        path.round_trip,
        loss as f64 / 100.0
    );
    println!("\n{title}: {what}");
    let mut subjects: Vec<Subject> = stacks
        .iter()
        .map(|stack| Subject::named(name(*stack)))
        .collect();
    for round in 0..rounds {
        for (stack, subject) in stacks.iter().zip(&mut subjects) {
            match path.goodput(*stack, "cubic", FLOWS, round as u64, None) {
                Ok(megabits) => subject.values.push(megabits),
                Err(error) => subject.failure = Some(format!("{error:#}")),
            }
        }
    }
    let scenario = Scenario {
        group: "Bulk over a path with loss".to_owned(),
        name: title.to_owned(),
        what,
        unit: "Mbit/s".to_owned(),
        less_is_better: false,
        goal: Some(Goal {
            against: Some("kernel".to_owned()),
            bound: 0.9,
        }),
        subjects,
    };
    print(&scenario);
    scenario
}
