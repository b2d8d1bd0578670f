//! The epoll server under the light client, on a wire: how many operations a second; how long they
//! take at fixed rates is in [`crate::offered`].

use millrace_bench::load::Outcome;
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::Stack;

use crate::arguments::Arguments;
use crate::jobs::Job;
use crate::offered;
use crate::servers::{Server, Whose};
use crate::subjects::{attempt, name, print};
use crate::wire::Layout;
use crate::work::{WORKS, Work};

/// Of the kernel's strict rate, and of ours, in percent.
const LOADS: [u32; 3] = [10, 50, 80];

/// A job for each rate that is wanted; with the strict ones go the fixed rates that are parts of
/// them.
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
