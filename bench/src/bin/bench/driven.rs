//! The epoll server under the light client, on a wire: how many operations a second; how long they take at fixed rates is in [`crate::offered`].

use anyhow::Result;
use millrace_bench::figures::{Spread, short};
use millrace_bench::load::Outcome;
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::others::Service;
use millrace_e2e::{Stack, compile};

use crate::jobs::Job;
use crate::servers::{Server, Whose};
use crate::wire::{self, Layout, Wire};
use crate::{Arguments, PORT, offered};

/// What is done.
pub struct Work {
    pub name: &'static str,
    pub what: &'static str,
    /// Mode of `tests/programs/server.c`.
    server: &'static str,
    /// Of `millrace load`.
    load: &'static str,
    connections: u32,
    /// Of the kernel's rate, natural and strict.
    goals: [f64; 2],
    /// Whether it is measured at offered loads, too.
    offered: bool,
    /// Whether a kernel that polls is, which helps where the server would sleep often and not for long.
    pub polling_helps: bool,
    /// Whether a quick run has time for one of those.
    is_quick: bool,
    /// Whether other stacks with an adapter are measured.
    has_peers: bool,
    /// Of their rates, in either layout.
    goal_beside_peers: Option<f64>,
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
        polling_helps: false,
        is_quick: false,
        has_peers: true,
        goal_beside_peers: Some(2.0),
    },
    Work {
        name: "wire-short-8k",
        what: "Connect, 64 bytes, 64 bytes back, the server closes",
        server: "short",
        load: "short",
        connections: 8192,
        goals: [2.0, 3.0],
        offered: false,
        polling_helps: false,
        is_quick: false,
        has_peers: false,
        goal_beside_peers: None,
    },
    Work {
        name: "wire-ping",
        what: "64 bytes there and back",
        server: "echo",
        load: "pingpong",
        connections: 256,
        goals: [1.5, 1.5],
        offered: true,
        polling_helps: true,
        is_quick: true,
        has_peers: true,
        goal_beside_peers: None,
    },
];
/// Of the kernel's strict rate, and of ours, in percent.
const LOADS: [u32; 3] = [10, 50, 80];

/// A job for each rate that is wanted; with the strict ones go the fixed rates that are parts of them.
pub fn jobs<'a>(
    rounds: usize,
    length: f64,
    arguments: &'a Arguments,
    servers: &'a [Server],
) -> Vec<Job<'a>> {
    let stacks = arguments.stacks();
    let mut jobs = Vec::new();
    // A quick run has time for one layout and one load, and not for thousands of connections.
    for work in WORKS.iter().filter(|work| !arguments.quick || work.offered) {
        let others: Vec<&Server> = servers
            .iter()
            .filter(|server| match server.whose {
                Whose::Ours => !arguments.quick,
                Whose::Peers => work.has_peers && !arguments.quick,
                Whose::Given => true,
            })
            .collect();
        let each = stacks.len() + others.len();
        let overhead = 0.4 + work.warm_up();
        let natural = work.in_layout(Layout::Natural);
        if arguments.wants(&natural) && !arguments.quick {
            let others = others.clone();
            let run = move |rounds| {
                let natural = rates(work, Layout::Natural, stacks, &others, rounds, length);
                Ok(vec![natural])
            };
            jobs.push(Job::new(natural, rounds, each, length, overhead, run));
        }
        let strict = work.in_layout(Layout::Strict);
        let is_strict = arguments.wants(&strict);
        let loads = LOADS.into_iter().filter(|load| {
            let has_time = !arguments.quick || (*load == 50 && work.is_quick);
            work.offered && has_time && arguments.wants(&work.at(*load))
        });
        let loads: Vec<u32> = loads.collect();
        if !is_strict && loads.is_empty() {
            continue;
        }
        let more = 1 + usize::from(work.polling_helps);
        let times = each + loads.len() * (stacks.len() + more);
        let theirs = loads.len() * others.len() * rounds.min(offered::ROUNDS);
        let run = move |rounds| {
            let scenario = rates(work, Layout::Strict, stacks, &others, rounds, length);
            let rate_of = |stack: Stack| {
                let mut subjects = scenario.subjects.iter();
                let subject = subjects.find(|subject| subject.stack == name(stack))?;
                Some(subject.spread()?.median)
            };
            let capacities = [Stack::Millrace, Stack::Kernel].map(rate_of);
            let mut scenarios = vec![scenario];
            for percent in loads {
                let load = offered::Load {
                    percent,
                    capacities,
                };
                scenarios.push(offered::latency(
                    work, load, stacks, &others, rounds, length,
                ));
            }
            Ok(scenarios)
        };
        let job = Job::new(strict, rounds, times, length, overhead, run);
        jobs.push(job.and(theirs as f64 * (length + overhead)));
    }
    jobs
}

impl Work {
    fn in_layout(&self, layout: Layout) -> String {
        format!("{}-{layout:?}", self.name).to_lowercase()
    }

    /// At this part of the kernel's rate, in percent.
    pub fn at(&self, percent: u32) -> String {
        format!("{}-at-{percent}", self.name)
    }

    /// Seconds before it counts: who comes to a server with so many others at once may have to ask again, after a second.
    fn warm_up(&self) -> f64 {
        if self.connections > 1000 { 3.0 } else { 0.5 }
    }

    /// One run, of a server of its own; operations that have failed are in what it came to.
    pub fn run(
        &self,
        stack: Stack,
        layout: Layout,
        rate: Option<f64>,
        length: f64,
    ) -> Result<Outcome> {
        let program = compile::program("server")?;
        let wire = Wire::start(
            stack,
            layout,
            |_, address| {
                let mut words = [&program, self.server, address, &PORT.to_string()]
                    .map(String::from)
                    .to_vec();
                if layout == Layout::Polling {
                    words.push(wire::POLLED.to_owned());
                }
                Ok(words)
            },
            |_, server| Ok(server.stdout().contains("ready")),
        )?;
        self.load(wire, rate, length)
    }

    /// The same of another stack's server.
    pub fn run_other(
        &self,
        server: &Server,
        layout: Layout,
        rate: Option<f64>,
        length: f64,
    ) -> Result<Outcome> {
        let connections = usize::try_from(self.connections)?;
        let service = Service {
            mode: self.server,
            port: PORT,
            connections,
        };
        let wire = Wire::start_other(server, layout, service)?;
        self.load(wire, rate, length)
    }

    /// What the generator comes to on a wire.
    fn load(&self, wire: Wire, rate: Option<f64>, length: f64) -> Result<Outcome> {
        let rate = rate.map_or_else(String::new, |rate| format!(" --rate {rate:.0}"));
        let target = wire.target(PORT);
        let words = format!(
            "{} {target} --connections {} --warm-up {}{rate}",
            self.load,
            self.connections,
            self.warm_up()
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

/// One more value of a subject, or why not. One that has failed in its first round is not tried again.
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

/// As many as go, in turns.
fn rates(
    work: &Work,
    layout: Layout,
    stacks: &[Stack],
    others: &[&Server],
    rounds: usize,
    length: f64,
) -> Scenario {
    let title = work.in_layout(layout);
    println!("{title}: {}", work.what);
    let named = |stack: &Stack| Subject::named(name(*stack));
    let mut subjects: Vec<Subject> = stacks.iter().map(named).collect();
    subjects.extend(others.iter().map(|server| Subject::named(server.stack())));
    for _ in 0..rounds {
        let (ours, theirs) = subjects.split_at_mut(stacks.len());
        for (stack, subject) in stacks.iter().zip(ours) {
            attempt(subject, Outcome::rate, || {
                work.run(*stack, layout, None, length)?.flawless()
            });
        }
        for (server, subject) in others.iter().zip(theirs) {
            attempt(subject, Outcome::rate, || {
                work.run_other(server, layout, None, length)?.flawless()
            });
        }
    }
    let mut goals = vec![Goal {
        against: Some("kernel".to_owned()),
        bound: work.goals[usize::from(layout == Layout::Strict)],
    }];
    if let Some(bound) = work.goal_beside_peers {
        goals.extend(others.iter().filter_map(|server| server.goal(bound)));
    }
    let scenario = Scenario {
        group: "A server under a light user-level client, on a wire by AF_XDP".to_owned(),
        name: title,
        what: format!(
            "{}; {} connections; {layout:?} layout. The epoll server of tests/programs/server.c, unmodified; of other stacks, and of ours embedded, a server of their own that does \
             the same; `millrace load`.",
            work.what, work.connections
        ),
        unit: "per second".to_owned(),
        less_is_better: false,
        goals,
        subjects,
        reason: None,
    };
    print(&scenario);
    scenario
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
