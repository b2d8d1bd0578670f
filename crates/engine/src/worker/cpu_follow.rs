//! Keeps the shard's thread on the core of its program's thread.
//!
//! On a machine with few cores a hand-over between two threads costs about 2.6 us on one core, and
//! 25 us or more across two, since waking an idle core takes an interrupt. The scheduler cannot
//! know which threads talk to each other through memory. So the shard's thread asks for the core
//! that its program's thread last ran on, and stays there for a while.

use rustix::thread::{CpuSet, sched_setaffinity};

/// How often the program must be seen on another core before the thread moves.
const PATIENCE: u32 = 8;

/// The core of the thread, and the core where its program was seen.
#[derive(Debug)]
pub(crate) struct CpuFollow {
    enabled: bool,
    core: Option<u32>,
    candidate: u32,
    seen: u32,
}

impl CpuFollow {
    pub(crate) fn new(enabled: bool) -> CpuFollow {
        CpuFollow {
            enabled,
            core: None,
            candidate: 0,
            seen: 0,
        }
    }

    /// The program's thread was seen on `core`.
    pub(crate) fn program_seen_on(&mut self, core: u32) {
        if !self.enabled || self.core == Some(core) {
            self.seen = 0;
            return;
        }
        if self.candidate != core {
            self.candidate = core;
            self.seen = 0;
        }
        self.seen += 1;
        if self.seen < PATIENCE && self.core.is_some() {
            return;
        }
        self.seen = 0;
        if (core as usize) < CpuSet::MAX_CPU {
            let mut set = CpuSet::new();
            set.set(core as usize);
            // The process may not use that core: the thread stays, and does not ask for it again.
            let _ = sched_setaffinity(None, &set);
            self.core = Some(core);
        }
    }
}
