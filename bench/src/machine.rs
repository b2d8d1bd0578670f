//! What figures were taken on.

use std::fs;

/// Kernel, processor, cores, memory and load in one line.
pub fn describe() -> String {
    let kernel = read("/proc/sys/kernel/osrelease");
    let cpuinfo = read("/proc/cpuinfo");
    let field = |name: &str| {
        cpuinfo
            .lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| line.split(": ").nth(1))
            .unwrap_or("?")
            .to_string()
    };
    let cores = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let memory = read("/proc/meminfo");
    let kilobytes = memory.split_whitespace().nth(1);
    let memory: f64 = kilobytes.and_then(|word| word.parse().ok()).unwrap_or(0.0);
    format!(
        "kernel {kernel}, {cores} cores of {} at {} MHz, {:.0} GB of memory, load average {}",
        field("model name"),
        field("cpu MHz"),
        memory / 1e6,
        load()
    )
}

/// The load averages.
pub fn load() -> String {
    read("/proc/loadavg")
        .split(' ')
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A warning if the machine has other work: what is taken from `/proc/stat` counts that too.
pub fn warning() -> Option<String> {
    let load: f64 = load().split(' ').next()?.parse().ok()?;
    (load > 0.5).then(|| format!("warning: load average {load}: other work on this machine counts in the CPU figures below"))
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_string()
}
