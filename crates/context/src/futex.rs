//! Sleeping and waking on a word that several processes map.

use std::io;
use std::time::Duration;

use crate::sync::{AtomicU32, Ordering, fence_after_update};

#[cfg(not(millrace_loom))]
use rustix::thread::futex as kernel;

/// Sleeps while `word` is `value`, for `timeout` at most. Returns `Ok` when woken or if the word
/// differs already, else `ETIMEDOUT` or `EINTR`.
pub fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|t| kernel::Timespec {
        tv_sec: t.as_secs() as i64,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    match kernel::wait(word, kernel::Flags::empty(), value, timeout.as_ref()) {
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Wakes at most `count` sleepers.
pub fn wake(word: &AtomicU32, count: u32) {
    // This cannot fail for a mapped, aligned word.
    let _ = kernel::wake(word, kernel::Flags::empty(), count);
}

/// Sleeps by `wait` on a word that [`change`] increments. The thread is counted in `waiters`.
pub fn counted<T>(waiters: &AtomicU32, wait: impl FnOnce() -> T) -> T {
    waiters.fetch_add(1, Ordering::Relaxed);
    // `wait` sees every increment whose thread could not see the count yet.
    fence_after_update();
    let outcome = wait();
    waiters.fetch_sub(1, Ordering::Relaxed);
    outcome
}

/// Increments a word and wakes all threads that sleep on it, counted in `waiters`. Returns whether
/// there were any.
pub fn change(word: &AtomicU32, waiters: &AtomicU32) -> bool {
    word.fetch_add(1, Ordering::AcqRel);
    fence_after_update();
    let any = waiters.load(Ordering::Relaxed) > 0;
    if any {
        wake(word, i32::MAX as u32);
    }
    any
}

/// The kernel's futex for the model checker. A sleep has no time-out there.
#[cfg(millrace_loom)]
mod kernel {
    use loom::sync::{Condvar, Mutex};
    use rustix::io::Result;
    pub use rustix::thread::futex::{Flags, Timespec};

    use crate::sync::{AtomicU32, Ordering};

    loom::lazy_static! {
        /// The number of wakes of the one word that a test sleeps on.
        static ref WAKES: (Mutex<u32>, Condvar) = (Mutex::new(0), Condvar::new());
    }

    pub fn wait(word: &AtomicU32, _: Flags, value: u32, _: Option<&Timespec>) -> Result<()> {
        let (wakes, bell) = &*WAKES;
        let mut count = wakes.lock().unwrap();
        // As in the kernel: a thread that changes the word and wakes finds this one asleep, or this
        // one sees the change.
        loom::sync::atomic::fence(Ordering::SeqCst);
        let before = *count;
        while word.load(Ordering::Relaxed) == value && *count == before {
            count = bell.wait(count).unwrap();
        }
        Ok(())
    }

    pub fn wake(_: &AtomicU32, _: Flags, most: u32) -> Result<usize> {
        let (wakes, bell) = &*WAKES;
        loom::sync::atomic::fence(Ordering::SeqCst);
        *wakes.lock().unwrap() += 1;
        match most {
            1 => bell.notify_one(),
            _ => bell.notify_all(),
        }
        Ok(0)
    }
}
