//! Keeps threads on cores.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may use.
pub(crate) fn cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|core| set.is_set(*core))
            .collect(),
        Err(_) => Vec::new(),
    }
}

/// Keeps the calling thread on one core.
pub(crate) fn pin_to(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    // The process could use it a moment ago. If it cannot any more, the thread runs on any core.
    let _ = sched_setaffinity(None, &set);
}
