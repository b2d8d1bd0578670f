//! What a run consists of: jobs that give scenarios, one after the other, with how long they take.
//! Where there is a limit and not enough time, each has fewer rounds, down to [`LEAST`]; then the
//! last are left out. One that fails costs its own scenarios, no others; what there is so far is on
//! disk after each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use millrace_bench::report::{Report, Scenario};

use crate::reasons;

/// Rounds that are not given up for others.
const LEAST: usize = 3;
/// So many seconds of plan say how fast it goes.
const TELLING: f64 = 20.0;

/// Something to do that gives scenarios.
pub struct Job<'a> {
    /// Of the first of its scenarios.
    pub name: String,
    /// How often everything is measured.
    rounds: usize,
    /// About how many seconds a round takes, and what is done once.
    round: f64,
    once: f64,
    /// What there is to do, in so many rounds.
    run: Box<dyn FnOnce(usize) -> Result<Vec<Scenario>> + 'a>,
}

impl<'a> Job<'a> {
    /// One that in each round measures so many times for `length` seconds, and needs `overhead`
    /// seconds for each beside.
    pub fn new(
        name: impl Into<String>,
        rounds: usize,
        times: usize,
        length: f64,
        overhead: f64,
        run: impl FnOnce(usize) -> Result<Vec<Scenario>> + 'a,
    ) -> Job<'a> {
        Job {
            name: name.into(),
            rounds,
            round: times as f64 * (length + overhead),
            once: 0.0,
            run: Box::new(run),
        }
    }

    /// One without rounds, that takes so many seconds.
    pub fn once(
        name: impl Into<String>,
        seconds: f64,
        run: impl FnOnce() -> Result<Vec<Scenario>> + 'a,
    ) -> Job<'a> {
        Job::new(name, 1, 0, 0.0, 0.0, |_| run()).and(seconds)
    }

    /// The same, with so many seconds that it takes whatever the number of rounds.
    pub fn and(mut self, seconds: f64) -> Job<'a> {
        self.once += seconds;
        self
    }

    /// About how many seconds it takes in so many rounds.
    fn seconds(&self, rounds: usize) -> f64 {
        self.once + self.round * rounds as f64
    }

    /// In all of its rounds.
    fn whole(&self) -> f64 {
        self.seconds(self.rounds)
    }
}

/// How many rounds the first of some jobs has, so that all of them end in `seconds` of plan, each
/// giving up the same part; `None` if it does not end even with the fewest.
fn rounds(jobs: &[Job<'_>], seconds: f64) -> Option<usize> {
    let job = jobs.first()?;
    let once: f64 = jobs.iter().map(|job| job.once).sum();
    let all: f64 = jobs.iter().map(Job::whole).sum();
    let part = match all <= seconds {
        true => 1.0,
        false => ((seconds - once) / (all - once)).clamp(0.0, 1.0),
    };
    let least = LEAST.min(job.rounds);
    let rounds = ((job.rounds as f64 * part) as usize).max(least);
    (job.seconds(rounds) <= seconds).then_some(rounds)
}

/// Does them all, or as much as ends before `limit`; what they give goes into the report, and with
/// it to `folder`.
pub fn run_all(
    mut jobs: Vec<Job<'_>>,
    limit: Option<Duration>,
    report: &mut Report,
    folder: &Path,
) -> Result<()> {
    let all: f64 = jobs.iter().map(Job::whole).sum();
    let count = jobs.len();
    println!("\n{count} jobs, about {} in all", minutes(all));
    let (begun, mut planned) = (Instant::now(), 0.0);
    for at in 0..count {
        let gone = begun.elapsed().as_secs_f64();
        // By how it went so far.
        let pace = match planned > TELLING {
            true => gone / planned,
            false => 1.0,
        };
        let given = match limit {
            Some(limit) => rounds(&jobs, (limit.as_secs_f64() - gone) / pace),
            None => jobs.first().map(|job| job.rounds),
        };
        let left: f64 = jobs.iter().map(Job::whole).sum();
        let job = jobs.remove(0);
        let name = job.name.clone();
        let Some(rounds) = given else {
            println!("\n{name}: left out, there is no time for it");
            report.left_out.push(format!(
                "{name}: it would not have ended in time (`--minutes`)"
            ));
            continue;
        };
        println!(
            "\n[{} of {count}; {} gone, about {} to go]",
            at + 1,
            minutes(gone),
            minutes(left * pace)
        );
        if rounds < job.rounds {
            println!("{rounds} rounds, so that all of it ends in time");
        }
        planned += job.seconds(rounds);
        let run = job.run;
        let done = catch_unwind(AssertUnwindSafe(|| run(rounds)))
            .unwrap_or_else(|_| Err(anyhow!("it panicked; the message is above")));
        match done {
            Ok(mut scenarios) => {
                for scenario in &mut scenarios {
                    scenario.reason = reasons::of(scenario);
                    let mut subjects = scenario.subjects.iter();
                    if rounds < job.rounds && subjects.any(|one| one.values.len() == rounds) {
                        scenario.what += &format!(" In {rounds} rounds, for want of time.");
                    }
                }
                report.scenarios.append(&mut scenarios);
            }
            Err(error) => {
                println!("  {name} failed: {error:#}");
                report.left_out.push(format!("{name}: failed: {error:#}"));
            }
        }
        report.save(folder)?;
    }
    println!("\n{} in all", minutes(begun.elapsed().as_secs_f64()));
    Ok(())
}

/// `3:07`.
fn minutes(seconds: f64) -> String {
    format!("{}:{:02} min", seconds as u64 / 60, seconds as u64 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs of ten seconds a round and five once.
    fn jobs(count: usize, rounds: usize) -> Vec<Job<'static>> {
        let job = |_| Job::new("one", rounds, 1, 9.0, 1.0, |_| Ok(Vec::new())).and(5.0);
        (0..count).map(job).collect()
    }

    #[test]
    fn with_time_enough_all_rounds_are_done() {
        assert_eq!(rounds(&jobs(4, 5), 220.0), Some(5));
    }

    #[test]
    fn rounds_are_given_up_before_jobs() {
        assert_eq!(rounds(&jobs(4, 5), 200.0), Some(4));
        assert_eq!(rounds(&jobs(4, 5), 100.0), Some(3));
        assert_eq!(rounds(&jobs(4, 2), 60.0), Some(2));
    }

    #[test]
    fn what_does_not_end_in_time_is_left_out() {
        assert_eq!(rounds(&jobs(4, 5), 34.0), None);
        let once = [Job::once("once", 20.0, || Ok(Vec::new()))];
        assert_eq!(rounds(&once, 20.0), Some(1));
        assert_eq!(rounds(&once, 19.0), None);
    }
}
