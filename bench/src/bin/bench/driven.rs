//! The epoll server under the light client, on a wire: how many operations a second, then how long they take at fixed rates.

use anyhow::{Result, anyhow};
use millrace_bench::figures::{Spread, short};
use millrace_bench::load::Outcome;
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::{Stack, compile};

use crate::wire::{EXPLAINED, Layout, Wire};
use crate::{Arguments, PORT};

/// What is done.
struct Work {
    name: &'static str,
    what: &'static str,
    /// Mode of `tests/programs/server.c`.
    server: &'static str,
    /// Of `millrace load`.
    load: &'static str,
    connections: u32,
    /// Of the kernel's rate, natural and strict.
    goals: [f64; 2],
    /// Whether it is measured at offered loads, too.
    offered: bool,
}

const WORKS: [Work; 3] = [
    Work {
        name: "wire-short",
        what: "Connect, 64 bytes, 64 bytes back, the server closes",
        server: "short",
        load: "short",
        connections: 256,
        goals: [2.0, 3.0],
        offered: true,
    },
    Work {
        name: "wire-short-8k",
        what: "Connect, 64 bytes, 64 bytes back, the server closes",
        server: "short",
        load: "short",
        connections: 8192,
        goals: [2.0, 3.0],
        offered: false,
    },
    Work {
        name: "wire-ping",
        what: "64 bytes there and back",
        server: "echo",
        load: "pingpong",
        connections: 256,
        goals: [1.5, 1.5],
        offered: true,
    },
];
/// Ours, at a part of its own rate.
const OWN: &str = "millrace, of its own";
/// Of the kernel's strict rate, and of ours, in percent.
const LOADS: [u32; 3] = [10, 50, 80];

/// Everything whose name contains `--only`.
pub fn driven(rounds: usize, length: f64, arguments: &Arguments) -> Vec<Scenario> {
    let is_wanted = |name: &str| arguments.wants(name);
    let stacks = arguments.stacks();
    let mut scenarios = Vec::new();
    // A quick run has time for one load, and not for thousands of connections.
    let quick = |work: &&Work| !arguments.quick || work.offered;
    for work in WORKS.iter().filter(quick) {
        let natural = work.in_layout(Layout::Natural);
        let strict = work.in_layout(Layout::Strict);
        let loads = LOADS.into_iter();
        let loads = loads.filter(|load| work.offered && (*load == 50 || !arguments.quick));
        let loads: Vec<u32> = loads.filter(|load| is_wanted(&work.at(*load))).collect();
        let (is_natural, is_strict) = (is_wanted(&natural), is_wanted(&strict));
        if !is_natural && !is_strict && loads.is_empty() {
            continue;
        }
        if scenarios.is_empty() {
            println!("\non a wire, under `millrace load`\n{EXPLAINED}");
        }
        if is_natural {
            scenarios.push(rates(work, Layout::Natural, stacks, rounds, length));
        }
        if is_strict || !loads.is_empty() {
            let scenario = rates(work, Layout::Strict, stacks, rounds, length);
            let rate_of = |stack: Stack| {
                let mut subjects = scenario.subjects.iter();
                let subject = subjects.find(|subject| subject.stack == name(stack))?;
                Some(subject.spread()?.median)
            };
            let capacities = [Stack::Millrace, Stack::Kernel].map(rate_of);
            scenarios.push(scenario);
            for percent in loads {
                scenarios.push(latency(work, percent, capacities, stacks, rounds, length));
            }
        }
    }
    scenarios
}

impl Work {
    fn in_layout(&self, layout: Layout) -> String {
        format!("{}-{layout:?}", self.name).to_lowercase()
    }

    /// At this part of the kernel's rate, in percent.
    fn at(&self, percent: u32) -> String {
        format!("{}-at-{percent}", self.name)
    }

    /// One run, of a server of its own.
    fn run(&self, stack: Stack, layout: Layout, rate: Option<f64>, length: f64) -> Result<Outcome> {
        let program = compile::program("server")?;
        let wire = Wire::start(
            stack,
            layout,
            |_, address| {
                let words = [&program, self.server, address, &PORT.to_string()];
                Ok(words.map(String::from).to_vec())
            },
            |_, server| Ok(server.stdout().contains("ready")),
        )?;
        let rate = rate.map_or_else(String::new, |rate| format!(" --rate {rate:.0}"));
        let target = wire.target(PORT);
        // Who comes to a server with so many others at once may have to ask again, after a second.
        let warm_up = if self.connections > 1000 { 3.0 } else { 0.5 };
        let words = format!(
            "{} {target} --connections {} --warm-up {warm_up}{rate}",
            self.load, self.connections
        );
        let outcome = wire.load(&words, length)?;
        wire.stop()?;
        Ok(outcome)
    }
}

/// As it is called in reports.
pub fn name(stack: Stack) -> String {
    format!("{stack:?}").to_lowercase()
}

/// One more value of a subject, or why not.
pub fn add(subject: &mut Subject, outcome: Result<Outcome>, value: impl Fn(&Outcome) -> f64) {
    match outcome {
        Ok(outcome) => {
            subject.values.push(value(&outcome));
            subject.outcomes.push(outcome);
        }
        Err(error) => subject.failure = Some(format!("{error:#}")),
    }
}

/// As many as go, in turns.
fn rates(work: &Work, layout: Layout, stacks: &[Stack], rounds: usize, length: f64) -> Scenario {
    let title = work.in_layout(layout);
    println!("\n{title}: {}", work.what);
    let named = |stack: &Stack| Subject::named(name(*stack));
    let mut subjects: Vec<Subject> = stacks.iter().map(named).collect();
    for _ in 0..rounds {
        for (stack, subject) in stacks.iter().zip(&mut subjects) {
            let outcome = work.run(*stack, layout, None, length);
            add(subject, outcome, Outcome::rate);
        }
    }
    let scenario = Scenario {
        group: "A server under a light user-level client, on a wire by AF_XDP".to_owned(),
        name: title,
        what: format!(
            "{}; {} connections; {layout:?} layout. The epoll server of tests/programs/server.c, unmodified; `millrace load`.",
            work.what, work.connections
        ),
        unit: "per second".to_owned(),
        less_is_better: false,
        goal: Some(Goal {
            against: Some("kernel".to_owned()),
            bound: work.goals[usize::from(layout == Layout::Strict)],
        }),
        subjects,
    };
    print(&scenario);
    scenario
}

/// What operations take when so many begin each second, whoever is late: a part of what the kernel can do, for both, and of what ours can, for ours.
fn latency(
    work: &Work,
    percent: u32,
    [ours, kernels]: [Option<f64>; 2],
    stacks: &[Stack],
    rounds: usize,
    length: f64,
) -> Scenario {
    println!("\n{}: {}, open loop", work.at(percent), work.what);
    let part = f64::from(percent) / 100.0;
    let mut offered: Vec<(Subject, Stack, Option<f64>)> = stacks
        .iter()
        .map(|stack| (Subject::named(name(*stack)), *stack, kernels))
        .collect();
    offered.push((Subject::named(OWN), Stack::Millrace, ours));
    for _ in 0..rounds {
        for (subject, stack, capacity) in &mut offered {
            let outcome = match capacity {
                Some(capacity) => work.run(*stack, Layout::Strict, Some(*capacity * part), length),
                None => Err(anyhow!("the rate that this is a part of is not known")),
            };
            add(subject, outcome, |outcome| outcome.latency_us[2]);
        }
    }
    let offer = |rate: Option<f64>| rate.map_or_else(|| "?".to_owned(), |rate| short(rate * part));
    let scenario = Scenario {
        group: "Latency at offered loads, on the same wire".to_owned(),
        name: work.at(percent),
        what: format!(
            "{}; strict layout; {} operations begin each second, {percent} % of the kernel's rate above; in the last row {}, of ours. Latency counts from when each was meant to begin, \
             so that who has to wait for a turn is late.",
            work.what,
            offer(kernels),
            offer(ours),
        ),
        unit: "us, 99 % of the operations".to_owned(),
        less_is_better: true,
        goal: (percent == 50).then(|| Goal {
            against: Some("kernel".to_owned()),
            bound: 1.0,
        }),
        subjects: offered.into_iter().map(|(subject, ..)| subject).collect(),
    };
    print(&scenario);
    scenario
}

/// What came of a scenario.
pub fn print(scenario: &Scenario) {
    for subject in &scenario.subjects {
        if let Some(failure) = &subject.failure {
            println!("  {:9} failed: {failure}", subject.stack);
        }
        let Some(figure) = subject.spread() else {
            continue;
        };
        println!("  {:9} {figure} {}", subject.stack, scenario.unit);
        let Some(last) = subject.outcomes.last() else {
            continue;
        };
        let spread = |of: &dyn Fn(&Outcome) -> f64| {
            Spread::of(subject.outcomes.iter().map(of).collect())
                .map(|spread| spread.to_string())
                .unwrap_or_default()
        };
        println!(
            "            {} per second; {} us of CPU each;{} cores {}",
            spread(&Outcome::rate),
            spread(&Outcome::cpu_us),
            match last.has_latency() {
                true => format!(
                    " latency us 50/90/99/99.9/max %: {};",
                    last.latency_us.map(short).join("/")
                ),
                false => String::new(),
            },
            last.machine.describe()
        );
    }
    if let Some(ratios) = scenario.ratio_to("kernel") {
        println!(
            "  ratio millrace/kernel {ratios}; goal: {}",
            scenario.goal_text()
        );
    }
}
