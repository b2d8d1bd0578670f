//! What the shim knows of the calling thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// A thread's own state. Without a destructor, so that using it allocates nothing.
pub struct Thread {
    tid: Cell<u32>,
    number: Cell<u32>,
    /// Set from the return of a wait with events until the next wait.
    pub batch: Cell<bool>,
    /// Shards that have submissions they have not been rung for.
    pub unrung: Cell<u64>,
    /// Somebody waits for one of these submissions.
    pub urgent: Cell<bool>,
    /// The hidden poller of `poll` and `select`, as an address; 0 for none.
    pub poller: Cell<usize>,
    /// Locks held, a byte for each rank.
    pub locks: Cell<u64>,
    /// Signal handlers of the program that have run in the thread; see [`crate::process::signals`].
    pub handlers: Cell<u32>,
    /// Those without SA_RESTART among them.
    pub interrupting_handlers: Cell<u32>,
    /// It is in a call that sleeps; see [`crate::sys::thread_sanitizer`].
    pub sleeping: Cell<bool>,
    /// A signal has come since this was unset; see [`crate::sys::thread_sanitizer`].
    pub deferred: Cell<bool>,
    /// Signals whose handlers are not counted: the call at work blocks them.
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

/// A small number, different for each thread until 2^32 have been: it spreads threads over
/// contexts.
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

/// In a process that may be a child which nobody has told so.
pub fn check() {
    if with(|thread| thread.tid.get() != sys::gettid()) {
        forked();
    }
}

/// In a forked child: the one thread there is has a new id, and nothing of its parent's is pending.
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
