//! Threads that wait in the kernel's epoll set because the set has no poller yet.
//!
//! Nothing wakes such a thread until another thread puts the first millrace socket into the set and
//! makes its poller. From then on these threads count as one sleeper of the poller, until the last
//! has left. A single ring is not enough, because a thread that looks into the set without waiting
//! may take it.

use crate::poller::Poller;
use crate::sync::{AtomicU32, Ordering, Step, fence, fence_after_update, is_left_out};

/// The threads of one process that wait for one set.
#[derive(Debug, Default)]
pub struct KernelWaits {
    threads: AtomicU32,
    /// 1 while the poller counts a sleeper for all of them.
    counted: AtomicU32,
}

impl KernelWaits {
    /// No thread waits.
    #[cfg(not(millrace_loom))]
    pub const fn new() -> KernelWaits {
        KernelWaits {
            threads: AtomicU32::new(0),
            counted: AtomicU32::new(0),
        }
    }

    /// No thread waits.
    #[cfg(millrace_loom)]
    pub fn new() -> KernelWaits {
        KernelWaits::default()
    }

    /// Counts a thread that is about to wait. The thread then looks for a poller, and waits only if
    /// there is none. [`KernelWaits::end`] follows in both cases.
    pub fn begin(&self) {
        self.threads.fetch_add(1, Ordering::Relaxed);
        // The thread that makes the poller publishes it before it looks for waits.
        fence_after_update();
    }

    /// The thread no longer waits. `poller` finds the set's poller if it exists by now.
    pub fn end<'a>(&self, poller: impl FnOnce() -> Option<&'a Poller>) {
        let last = self.threads.fetch_sub(1, Ordering::Relaxed) == 1;
        fence_after_update();
        if let Some(poller) = last.then(poller).flatten() {
            self.are_over(poller);
        }
    }

    /// Counts the waiting threads in the set's new poller, which every thread can find. Returns
    /// whether there are any: the caller has to ring for them.
    pub fn count_in(&self, poller: &Poller) -> bool {
        fence(Ordering::SeqCst);
        if is_left_out(Step::CountIn) {
            return true;
        }
        if self.threads.load(Ordering::Relaxed) == 0 {
            return false;
        }
        poller.sleep_begins();
        let counted = self.counted.swap(1, Ordering::Relaxed) == 1;
        fence_after_update();
        if counted {
            poller.sleep_ends();
        }
        // The last thread may have left before it could see that it is counted.
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

    /// In the child of a fork: the threads and their counted sleeper belong to the parent.
    pub fn forget(&self) {
        self.threads.store(0, Ordering::Relaxed);
        self.counted.store(0, Ordering::Relaxed);
    }
}
