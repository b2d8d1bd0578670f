//! Bulk from the stack under test over a path that loses frames.

use millrace_bench::cpu::Sample;
use millrace_bench::load::Outcome;
use millrace_bench::path::LossyPath;
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::Stack;

use crate::arguments::Arguments;
use crate::jobs::Job;
use crate::subjects::{attempt, name, print};

/// Names, and frames lost of ten thousand.
const LOSSES: [(&str, u64); 3] = [("loss-0", 0), ("loss-0.1", 10), ("loss-1", 100)];
/// Seconds that do not count.
const WARM_UP: u64 = 1;
/// Connections side by side, so that what chance does to one is no more than a part.
const FLOWS: usize = 4;

/// A job for each loss that is wanted; a quick run has no time for it.
pub fn jobs<'a>(rounds: usize, length: f64, arguments: &'a Arguments) -> Vec<Job<'a>> {
    let is_wanted = |(name, _): &(&str, u64)| arguments.wants(name) && !arguments.quick;
    let stacks = arguments.stacks();
    let job = |(name, loss): (&'static str, u64)| {
        let seconds = seconds(length) as f64 + WARM_UP as f64;
        let run = move |rounds| Ok(vec![compare(name, loss, rounds, length, stacks)]);
        Job::new(name, rounds, stacks.len(), seconds, 0.3, run)
    };
    LOSSES.into_iter().filter(is_wanted).map(job).collect()
}

/// iperf3 counts in whole ones, and a loss in a hundred needs some until it says anything.
fn seconds(length: f64) -> u64 {
    length.max(2.0).ceil() as u64
}

fn compare(title: &str, loss: u64, rounds: usize, length: f64, stacks: &[Stack]) -> Scenario {
    let path = LossyPath {
        rate: 500,
        round_trip: 10,
        loss,
        queue: 4,
        seconds: seconds(length),
        warm_up: WARM_UP,
    };
    let what = format!(
        "iperf3 sends on {FLOWS} connections, CUBIC, by TAP over a relay: {} Mbit/s, {} ms there and back, a queue of what that holds, {} % of the frames lost on the way there; the \
         kernel receives.",
        path.rate,
        path.round_trip,
        loss as f64 / 100.0
    );
    println!("{title}: {what}");
    let mut subjects: Vec<Subject> = stacks
        .iter()
        .map(|stack| Subject::named(name(*stack)))
        .collect();
    for round in 0..rounds {
        for (stack, subject) in stacks.iter().zip(&mut subjects) {
            let megabits = |outcome: &Outcome| outcome.gigabits() * 1000.0;
            attempt(subject, megabits, || {
                let before = Sample::take()?;
                let megabits = path.goodput(*stack, "cubic", FLOWS, round as u64, None)?;
                let machine = before.until_now()?;
                Ok(Outcome {
                    // As if all of the time had been like that which counts.
                    bytes: (megabits * 1e6 / 8.0 * machine.seconds) as u64,
                    operations: 0,
                    latency_us: [0.0; 5],
                    distribution_us: Vec::new(),
                    machine,
                    own_seconds: 0.0,
                    overdue: 0,
                    failed: 0,
                    failure: String::new(),
                })
            });
        }
    }
    let scenario = Scenario {
        group: "Bulk over a path with loss".to_owned(),
        name: title.to_owned(),
        what,
        unit: "Mbit/s".to_owned(),
        less_is_better: false,
        goals: vec![Goal {
            against: Some("kernel".to_owned()),
            bound: 0.9,
        }],
        subjects,
        reason: None,
    };
    print(&scenario);
    scenario
}
