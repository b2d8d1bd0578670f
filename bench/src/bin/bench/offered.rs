//! The epoll server under the light client, on a wire, at fixed rates: how long operations take
//! when so many begin each second, whoever is late.

use anyhow::{Context as _, Result};
use millrace_bench::figures::{Spread, short};
use millrace_bench::load::Outcome;
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::Stack;

use crate::servers::Server;
use crate::subjects::{attempt, name, print};
use crate::wire::{self, Layout};
use crate::work::Work;

/// Ours, at a part of its own rate.
const OWN: &str = "millrace, of its own";
/// Who does less of what is due than this does not carry it; the rest may be late at the end of a
/// run by chance.
const CARRIED: f64 = 0.98;
/// Other stacks have no goals here, and take part in so many rounds at most.
pub const ROUNDS: usize = 3;

/// A part of what our stack and the kernel can do, in percent.
#[derive(Clone, Copy)]
pub struct Load {
    pub percent: u32,
    /// Operations a second: ours, and the kernel's.
    pub capacities: [Option<f64>; 2],
}

/// Who is asked.
#[derive(Clone, Copy)]
enum Whom<'a> {
    Stack(Stack, Layout),
    Other(&'a Server),
}

/// One row.
struct Row<'a> {
    subject: Subject,
    whom: Whom<'a>,
    /// Operations that begin each second.
    rate: Option<f64>,
}

impl Whom<'_> {
    fn measure(self, work: &Work, rate: Option<f64>, length: f64) -> Result<Outcome> {
        let rate = rate.context("the rate that this is a part of is not known")?;
        match self {
            Whom::Stack(stack, layout) => work.run(stack, layout, Some(rate), length),
            Whom::Other(server) => work.run_other(server, Layout::Strict, Some(rate), length),
        }
    }
}

impl Row<'_> {
    /// How much of what is due it does, if that is not about all, and what fails.
    fn shortfall(&self) -> Option<String> {
        let outcomes = &self.subject.outcomes;
        let carried = Spread::of(outcomes.iter().map(Outcome::carried).collect())?.median;
        let worst = outcomes.iter().max_by_key(|outcome| outcome.failed)?;
        let is_flawed = worst.is_flawed();
        if carried >= CARRIED && !is_flawed {
            return None;
        }
        let name = &self.subject.stack;
        let mut text = format!("{name} {} %", short(carried * 100.0));
        if is_flawed {
            text += &format!(
                " (up to {} failed in a run: {})",
                worst.failed, worst.failure
            );
        }
        Some(text)
    }
}

/// At the same part of what the kernel can do for all, and of what ours can for ours.
pub fn latency(
    work: &Work,
    load: Load,
    stacks: &[Stack],
    others: &[&Server],
    rounds: usize,
    length: f64,
) -> Scenario {
    let Load {
        percent,
        capacities,
    } = load;
    println!("{}: {}, open loop", work.at(percent), work.what);
    let [ours, kernels] = capacities.map(|capacity| Some(capacity? * f64::from(percent) / 100.0));
    let row = |name: String, whom, rate| Row {
        subject: Subject::named(name),
        whom,
        rate,
    };
    let strict = |stack| Whom::Stack(stack, Layout::Strict);
    let mut rows: Vec<Row<'_>> = stacks
        .iter()
        .map(|stack| row(name(*stack), strict(*stack), kernels))
        .collect();
    if work.polling_helps && stacks.contains(&Stack::Kernel) {
        let polling = Whom::Stack(Stack::Kernel, Layout::Polling);
        rows.push(row(wire::POLLING.to_owned(), polling, kernels));
    }
    let theirs = others.iter().copied();
    rows.extend(theirs.map(|other| row(other.stack().to_owned(), Whom::Other(other), kernels)));
    if stacks.contains(&Stack::Millrace) {
        rows.push(row(OWN.to_owned(), strict(Stack::Millrace), ours));
    }
    for round in 0..rounds {
        for row in &mut rows {
            if matches!(row.whom, Whom::Other(_)) && round >= ROUNDS {
                continue;
            }
            let (whom, rate) = (row.whom, row.rate);
            attempt(
                &mut row.subject,
                |outcome| outcome.latency_us[2],
                || whom.measure(work, rate, length),
            );
        }
    }
    let scenario = Scenario {
        group: "Latency at offered loads, on the same wire".to_owned(),
        name: work.at(percent),
        what: what(work, percent, [ours, kernels], &rows, rounds),
        unit: "us, 99 % of the operations".to_owned(),
        less_is_better: true,
        goals: match percent {
            50 => vec![Goal {
                against: Some("kernel".to_owned()),
                bound: 1.0,
            }],
            _ => Vec::new(),
        },
        subjects: rows.into_iter().map(|row| row.subject).collect(),
        reason: None,
    };
    print(&scenario);
    scenario
}

/// What was done, and who did not carry it.
fn what(
    work: &Work,
    percent: u32,
    [ours, kernels]: [Option<f64>; 2],
    rows: &[Row<'_>],
    rounds: usize,
) -> String {
    let rate = |rate: Option<f64>| rate.map_or_else(|| "?".to_owned(), short);
    let mut text = format!(
        "{}; strict layout; {} operations begin each second, {percent} % of the kernel's rate above, whoever serves; in the last row {}, of ours. Latency counts from when each was meant to \
         begin, so that who has to wait for a turn is late.",
        work.what,
        rate(kernels),
        rate(ours)
    );
    if work.polling_helps {
        text += wire::POLLING_EXPLAINED;
    }
    let has_others = rows.iter().any(|row| matches!(row.whom, Whom::Other(_)));
    if has_others && rounds > ROUNDS {
        text += &format!(" Other stacks, and ours embedded, in {ROUNDS} rounds.");
    }
    let short: Vec<String> = rows.iter().filter_map(Row::shortfall).collect();
    if !short.is_empty() {
        text += &format!(
            " That is more than some can carry; their latency is that of the part that they did: {}.",
            short.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use millrace_bench::cpu::Interval;

    use super::*;

    fn row(operations: u64, overdue: u64, failed: u64) -> Row<'static> {
        let outcome = Outcome {
            operations,
            bytes: 0,
            latency_us: [0.0; 5],
            distribution_us: Vec::new(),
            machine: Interval::default(),
            own_seconds: 0.0,
            overdue,
            failed,
            failure: "refused".to_owned(),
        };
        Row {
            subject: Subject {
                outcomes: vec![outcome],
                ..Subject::named("other")
            },
            whom: Whom::Stack(Stack::Kernel, Layout::Strict),
            rate: Some(1000.0),
        }
    }

    #[test]
    fn who_does_not_carry_a_load_is_named_with_what_it_does() {
        assert_eq!(row(995, 5, 0).shortfall(), None);
        assert_eq!(
            row(400, 600, 0).shortfall(),
            Some("other 40.0 %".to_owned())
        );
        assert_eq!(
            row(990, 0, 10).shortfall(),
            Some("other 99.0 % (up to 10 failed in a run: refused)".to_owned())
        );
    }
}
