//! The shim's state of the calling thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// The state of a thread. It has no destructor, so using it allocates nothing.
pub struct Thread {
    tid: Cell<u32>,
    number: Cell<u32>,
    /// The thread is in a batch: since its last wait returned events, it rings no doorbell.
    pub batch: Cell<bool>,
    /// The shards whose doorbells the thread has to ring.
    pub unrung: Cell<u64>,
    /// Another thread waits for one of these submissions.
    pub urgent: Cell<bool>,
    /// The address of the thread's hidden poller for `poll` and `select`; 0 for none.
    pub poller: Cell<usize>,
    /// The number of locks that the thread holds, one byte for each rank.
    pub locks: Cell<u64>,
    /// How many signal handlers of the program have run in the thread: see
    /// [`crate::process::signals`].
    pub handlers: Cell<u32>,
    /// How many of these were installed without SA_RESTART.
    pub interrupting_handlers: Cell<u32>,
    /// The thread is in a call that sleeps: see [`crate::sys::thread_sanitizer`].
    pub sleeping: Cell<bool>,
    /// A signal has come since this was cleared: see [`crate::sys::thread_sanitizer`].
    pub deferred: Cell<bool>,
    /// Signals that the present call blocks: their handlers are not counted.
    pub blocked: Cell<u64>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            tid: Cell::new(0),
            number: Cell::new(0),
            batch: Cell::new(false),
            unrung: Cell::new(0),
            urgent: Cell::new(false),
            poller: Cell::new(0),
            locks: Cell::new(0),
            handlers: Cell::new(0),
            interrupting_handlers: Cell::new(0),
            sleeping: Cell::new(false),
            deferred: Cell::new(false),
            blocked: Cell::new(0),
        }
    };
}

static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// Calls `use_it` with the calling thread's state.
pub fn with<T>(use_it: impl FnOnce(&Thread) -> T) -> T {
    THREAD.with(use_it)
}

/// The calling thread's id.
pub fn tid() -> u32 {
    with(|thread| {
        if thread.tid.get() == 0 {
            thread.tid.set(sys::gettid());
        }
        thread.tid.get()
    })
}

/// A small number that differs between the first 2^32 threads. It spreads threads over contexts.
pub fn number() -> u32 {
    with(|thread| {
        if thread.number.get() == 0 {
            thread
                .number
                .set(NUMBERS.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        }
        thread.number.get() - 1
    })
}

/// Clears the parent's state if this process is the child of an unseen fork.
pub fn check() {
    if with(|thread| thread.tid.get() != sys::gettid()) {
        forked();
    }
}

/// In the child of a fork: the only thread has a new id, and nothing of the parent's is pending.
pub fn forked() {
    with(|thread| {
        thread.tid.set(0);
        thread.batch.set(false);
        thread.unrung.set(0);
        thread.urgent.set(false);
        thread.poller.set(0);
        thread.locks.set(0);
    });
}
