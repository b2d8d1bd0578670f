//! What a run consists of: jobs that give scenarios, one after the other, with how long they take. One that fails costs its own scenarios, no others; what there is so far is
//! on disk after each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use millrace_bench::report::{Report, Scenario};

use crate::reasons;

/// Something to do that gives scenarios.
pub struct Job<'a> {
    /// Of the first of its scenarios.
    pub name: String,
    /// About how long it takes, in seconds.
    pub seconds: f64,
    /// What there is to do.
    pub run: Box<dyn FnOnce() -> Result<Vec<Scenario>> + 'a>,
}

impl<'a> Job<'a> {
    /// One that measures so many times for `length` seconds, and needs `overhead` seconds for each beside.
    pub fn new(
        name: impl Into<String>,
        times: usize,
        length: f64,
        overhead: f64,
        run: impl FnOnce() -> Result<Vec<Scenario>> + 'a,
    ) -> Job<'a> {
        Job {
            name: name.into(),
            seconds: times as f64 * (length + overhead),
            run: Box::new(run),
        }
    }
}

/// Does them all, or as many as begin before `limit`; what they give goes into the report, and with it to `folder`.
pub fn run_all(
    jobs: Vec<Job<'_>>,
    limit: Option<Duration>,
    report: &mut Report,
    folder: &Path,
) -> Result<()> {
    let all: f64 = jobs.iter().map(|job| job.seconds).sum();
    let count = jobs.len();
    println!("\n{count} jobs, about {} in all", minutes(all));
    let (begun, mut planned) = (Instant::now(), 0.0);
    for (at, job) in jobs.into_iter().enumerate() {
        let gone = begun.elapsed();
        let name = job.name.clone();
        if limit.is_some_and(|limit| gone + Duration::from_secs_f64(job.seconds) > limit) {
            println!("\n{name}: left out, there is no time for it");
            report.left_out.push(format!(
                "{name}: it would not have ended in time (`--minutes`)"
            ));
            continue;
        }
        // By how it went so far.
        let pace = if planned > 20.0 {
            gone.as_secs_f64() / planned
        } else {
            1.0
        };
        println!(
            "\n[{} of {count}; {} gone, about {} to go]",
            at + 1,
            minutes(gone.as_secs_f64()),
            minutes((all - planned).max(0.0) * pace)
        );
        planned += job.seconds;
        let run = job.run;
        let done = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err(anyhow!("it panicked; the message is above")));
        match done {
            Ok(mut scenarios) => {
                for scenario in &mut scenarios {
                    scenario.reason = reasons::of(scenario);
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
