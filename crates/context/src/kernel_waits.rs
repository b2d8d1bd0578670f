//! Threads that wait in the kernel's own set, for a set that has no poller yet.
//!
//! Nothing rings for such a thread, until another thread puts the first millrace socket into the
//! set and makes the poller for it. From then on these threads are among the poller's sleepers: one
//! for all of them, until the last has left. A single ring is not enough: another thread may take
//! it that looks into the set without waiting.

use crate::poller::Poller;
use crate::sync::{AtomicU32, Ordering, fence, fence_after_update};

/// The threads of one process that wait for one set.
#[derive(Debug, Default)]
pub struct KernelWaits {
    threads: AtomicU32,
    /// 1 while the poller counts a sleeper for all of them.
    counted: AtomicU32,
}

impl KernelWaits {
    /// Nobody waits.
    #[cfg(not(millrace_loom))]
    pub const fn new() -> KernelWaits {
        KernelWaits {
            threads: AtomicU32::new(0),
            counted: AtomicU32::new(0),
        }
    }

    /// A thread is about to wait. It looks for a poller after this, and waits only if there is
    /// none. [`KernelWaits::end`] follows either way.
    pub fn begin(&self) {
        self.threads.fetch_add(1, Ordering::Relaxed);
        // Whoever makes the poller shows it before looking for waits.
        fence_after_update();
    }

    /// The thread does not wait any more. `poller` finds the set's poller, if there is one by now.
    pub fn end<'a>(&self, poller: impl FnOnce() -> Option<&'a Poller>) {
        let last = self.threads.fetch_sub(1, Ordering::Relaxed) == 1;
        fence_after_update();
        if let Some(poller) = last.then(poller).flatten() {
            self.are_over(poller);
        }
    }

    /// The set has got a poller, which everybody finds: it counts the waits. Whether there are any:
    /// they have to be rung for, too.
    pub fn count_in(&self, poller: &Poller) -> bool {
        fence(Ordering::SeqCst);
        if self.threads.load(Ordering::Relaxed) == 0 {
            return false;
        }
        poller.sleep_begins();
        let counted = self.counted.swap(1, Ordering::Relaxed) == 1;
        fence_after_update();
        if counted {
            poller.sleep_ends();
        }
        // The last may have left before it could see that it is counted.
        if self.threads.load(Ordering::Relaxed) == 0 {
            self.are_over(poller);
        }
        true
    }

    fn are_over(&self, poller: &Poller) {
        if self.counted.swap(0, Ordering::AcqRel) == 1 {
            poller.sleep_ends();
        }
    }

    /// In the child of a fork: the threads, and the sleeper that was counted, are the parent's.
    pub fn forget(&self) {
        self.threads.store(0, Ordering::Relaxed);
        self.counted.store(0, Ordering::Relaxed);
    }
}
