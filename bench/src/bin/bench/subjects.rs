//! Subjects of a scenario: their names, one more value of each, and what is printed of them.

use anyhow::Result;
use millrace_bench::figures::{Spread, short};
use millrace_bench::load::Outcome;
use millrace_bench::report::{Scenario, Subject};
use millrace_e2e::Stack;

/// As it is called in reports.
pub fn name(stack: Stack) -> String {
    format!("{stack:?}").to_lowercase()
}

/// One more value of a subject, or why not. One that has failed in its first round is not tried
/// again.
pub fn attempt(
    subject: &mut Subject,
    value: impl Fn(&Outcome) -> f64,
    measure: impl FnOnce() -> Result<Outcome>,
) {
    if subject.failure.is_some() && subject.values.is_empty() {
        return;
    }
    match measure() {
        Ok(outcome) => {
            subject.values.push(value(&outcome));
            subject.outcomes.push(outcome);
        }
        Err(error) => subject.failure = Some(format!("{error:#}")),
    }
}

/// What came of a scenario.
pub fn print(scenario: &Scenario) {
    for subject in &scenario.subjects {
        let Some(figure) = subject.spread() else {
            println!("  {:9} {}", subject.stack, subject.without_value());
            continue;
        };
        if let Some(failure) = &subject.failure {
            println!("  {:9} failed: {failure}", subject.stack);
        }
        println!("  {:9} {figure} {}", subject.stack, scenario.unit);
        let Some(last) = subject.outcomes.last() else {
            continue;
        };
        let spread = |of: &dyn Fn(&Outcome) -> f64| {
            Spread::of(subject.outcomes.iter().map(of).collect())
                .map(|spread| spread.to_string())
                .unwrap_or_default()
        };
        let cost = match last.operations {
            0 => format!("{} us of CPU per MB", spread(&Outcome::cpu_us_per_megabyte)),
            _ => format!(
                "{} per second; {} us of CPU each",
                spread(&Outcome::rate),
                spread(&Outcome::cpu_us)
            ),
        };
        let latency = match last.has_latency() {
            true => format!(
                "; latency us 50/90/99/99.9/max %: {}",
                last.latency_us.map(short).join("/")
            ),
            false => String::new(),
        };
        println!(
            "            {cost}{latency}; cores {}",
            last.machine.describe()
        );
    }
    if scenario.compares() {
        for subject in scenario.subjects.iter().skip(1) {
            if let Some(ratios) = scenario.ratio_to(&subject.stack) {
                println!("  ratio millrace/{} {ratios}", subject.stack);
            }
        }
    }
    println!("  goal: {}", scenario.goals_text());
}
