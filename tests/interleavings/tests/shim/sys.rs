//! System calls.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};

use libc::{epoll_event, pollfd};
use loom::thread;
use millrace_context::sync::AtomicU32;
use rustix::io::Errno;

use crate::kernel::{self, Fd, OWN_BELL};

pub type Result<T> = std::result::Result<T, Errno>;

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, 4096).unwrap()
}

pub fn map(len: usize, _shared: bool) -> Result<*mut c_void> {
    // SAFETY: it is not empty.
    Ok(unsafe { alloc_zeroed(layout(len)) }.cast())
}

/// # Safety
/// As of `munmap`.
pub unsafe fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: from `map` with this length.
    unsafe { dealloc(at.cast(), layout(len)) };
}

pub fn epoll_ctl(_: c_int, operation: c_int, fd: c_int, event: &mut epoll_event) -> Result<()> {
    assert_eq!(operation, libc::EPOLL_CTL_ADD);
    if fd < 0 {
        return Err(Errno::BADF);
    }
    kernel::add(fd, event.u64);
    Ok(())
}

pub fn epoll_now(_: c_int, events: &mut [epoll_event]) -> Result<usize> {
    Ok(kernel::look(events))
}

pub fn ring(eventfd: c_int) {
    kernel::ring(eventfd);
}

pub fn eventfd() -> Result<Fd> {
    Ok(Fd(OWN_BELL))
}

/// For callers that wait for the set itself: there are none in a check.
pub fn silence(_: c_int) {}

pub fn poll_now(_: &mut [pollfd]) -> Result<usize> {
    Ok(0)
}

pub fn now_us() -> u64 {
    0
}

pub fn sched_yield() {
    thread::yield_now();
}

pub fn sleep_us(_: u32) {
    thread::yield_now();
}

pub fn getpid() -> u32 {
    1
}

pub fn core() -> u32 {
    0
}

pub fn futex_wait(word: &AtomicU32, value: u32, _us: u64) -> Result<()> {
    millrace_context::futex::wait(word, value, None).map_err(|_| Errno::INTR)
}

pub mod thread_sanitizer {
    pub fn release() {}
}

/// Locks, each a mutex of the checker: `tests/all/order.rs` runs the production lock.
pub mod robust_lock {
    use std::collections::HashMap;
    use std::marker::PhantomData;

    use loom::sync::{Arc, Mutex, MutexGuard};

    #[allow(dead_code, reason = "the checks need some of it")]
    pub enum Rank {
        Numbers,
        Set,
        Leaf,
        Submission,
    }

    loom::lazy_static! {
        /// By the address of the word. Made anew in each order of steps.
        static ref LOCKS: std::sync::Mutex<HashMap<usize, Arc<Mutex<()>>>> = std::sync::Mutex::default();
    }

    pub struct Guard<'a> {
        _guard: MutexGuard<'static, ()>,
        _lock: Arc<Mutex<()>>,
        _word: PhantomData<&'a ()>,
    }

    pub fn take<Word>(word: &Word, _: Rank) -> Option<Guard<'_>> {
        let address = std::ptr::from_ref(word) as usize;
        let lock = LOCKS
            .lock()
            .unwrap()
            .entry(address)
            .or_insert_with(|| Arc::new(Mutex::new(())))
            .clone();
        // SAFETY: the guard is dropped before the lock.
        let forever = unsafe { &*std::ptr::from_ref(&*lock) };
        Some(Guard {
            _guard: forever.lock().unwrap(),
            _lock: lock,
            _word: PhantomData,
        })
    }
}
