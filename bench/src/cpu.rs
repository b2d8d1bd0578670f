//! What the machine's cores did, and what one process used.

use std::fs;

use anyhow::{Context as _, Result};
use rustix::process::Pid;

pub use millrace_load::machine::{Core, Interval, Sample};

/// CPU time that a process and its threads have used, in seconds; threads that have ended do not
/// count.
pub fn used_by(pid: Pid) -> Result<f64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))
        .context("the process has ended")?;
    let mut nanoseconds = 0u64;
    for task in tasks {
        // A thread may end while this looks.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else {
            continue;
        };
        nanoseconds += text
            .split_whitespace()
            .next()
            .and_then(|field| field.parse::<u64>().ok())
            .context("a line of schedstat")?;
    }
    Ok(nanoseconds as f64 / 1e9)
}
