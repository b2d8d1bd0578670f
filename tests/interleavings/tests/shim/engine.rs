//! What the shim has of the engine: a region of one slot, and the doorbell of one shard.

use loom::sync::{Condvar, Mutex};
use millrace_context::layout::{HINTS, Line};
use millrace_context::protocol::Request;
use millrace_context::submission::SubmissionCell;
use millrace_context::sync::AtomicU32;
use millrace_context::{Context, Geometry, Poller, Slot};

use crate::kernel::{BELL, Fd};
use crate::sys::Result;

#[allow(dead_code, reason = "the checks need some of it")]
#[path = "../../../../crates/preload/src/engine/batch.rs"]
pub mod batch;
#[allow(dead_code, reason = "the checks need some of it")]
#[path = "../../../../crates/preload/src/engine/submission.rs"]
pub mod submission;

/// Contexts: one for each thread of a check.
pub const CONTEXTS: u32 = 2;

loom::lazy_static! {
    /// Made anew in each order of steps.
    static ref ENGINE: Engine = Engine::default();
}

#[derive(Default)]
pub struct Engine {
    pub region: Region,
    bell: Mutex<bool>,
    rung: Condvar,
}

#[derive(Default)]
pub struct Region {
    slot: Slot,
    contexts: [(Context, [SubmissionCell; 2]); CONTEXTS as usize],
    poller: Poller,
    hints: [AtomicU32; HINTS as usize],
    pub sleeping: Line,
}

/// What comes with an answer of the control thread.
pub struct Descriptors;

impl Descriptors {
    pub fn take(&mut self, _index: usize) -> Option<Fd> {
        Some(Fd(BELL))
    }
}

pub fn get() -> Result<&'static Engine> {
    Ok(&ENGINE)
}

pub fn mapped() -> Option<&'static Engine> {
    Some(&ENGINE)
}

impl Region {
    pub fn slot(&self, index: u32) -> Option<&Slot> {
        (index == 0).then_some(&self.slot)
    }

    pub fn context(&self, index: u32) -> Option<(&Context, &[SubmissionCell])> {
        let (context, ring) = self.contexts.get(index as usize)?;
        Some((context, ring))
    }

    pub fn poller(&self, index: u32) -> Option<(&Poller, &[AtomicU32])> {
        (index == 0).then_some((&self.poller, &self.hints))
    }

    pub fn geometry(&self) -> Geometry {
        Geometry {
            slots: 1,
            contexts: CONTEXTS,
            pollers: 1,
            shards: 1,
            arena: 0,
        }
    }

    pub fn staging(&self, _context: u32, _at: usize, _len: usize) -> Option<*mut u8> {
        None
    }
}

impl Engine {
    pub fn is_lost(&self) -> bool {
        false
    }

    pub fn check(&self) {}

    pub fn contexts(&self) -> u32 {
        CONTEXTS
    }

    pub fn context(&self, thread: u32, _shard: u32) -> u32 {
        thread % CONTEXTS
    }

    pub fn sleep_of(&self, _shard: u32) -> u32 {
        self.region.sleeping.wakefulness()
    }

    pub fn ring(&self, _shard: u32) {
        *self.bell.lock().unwrap() = true;
        self.rung.notify_one();
    }

    /// The shard sleeps until somebody rings.
    pub fn wait_for_ring(&self) {
        let mut is_rung = self.bell.lock().unwrap();
        while !*is_rung {
            is_rung = self.rung.wait(is_rung).unwrap();
        }
        *is_rung = false;
    }

    /// The one request is for a poller, and the answer its index.
    pub fn call(&self, _: &Request, _payload: &[u8]) -> Result<([u64; 8], Descriptors)> {
        Ok(([0; 8], Descriptors))
    }

    pub fn tell(&self, _: &Request) {}

    pub fn control_fd(&self) -> i32 {
        -1
    }
}
