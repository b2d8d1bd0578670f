//! Sleeping in a blocking call.
//!
//! A sleep ends when the awaited event comes, when the time is over, when a signal handler has run,
//! or when the engine ends. A call may sleep several times; a handler that runs between two sleeps
//! ends the call too (see [`crate::process::signals`]). The engine's end shows in a word of the
//! region that the kernel changes ([`millrace_context::layout::Header::life`]), or on the control
//! socket among the polled descriptors.

use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use millrace_context::futex;
use millrace_context::layout::LIFE_OVER;
use rustix::io::Errno;

use crate::engine::Engine;
use crate::engine::batch;
use crate::process::signals::{self, Count};
use crate::process::{interruptible_syscall, thread};
use crate::sys::{self, Result};
use crate::sys::{thread_sanitizer, user_buffers};

/// The longest sleep on a word where the engine's end wakes nobody, in microseconds.
const CHECK_US: u64 = 1_000_000;
/// `futex_waitv`'s flag for a 32-bit word that several processes map.
const FUTEX2_SIZE_U32: u32 = 2;

/// Set when the kernel has no `futex_waitv` (before Linux 5.16).
static ONE_WORD: AtomicBool = AtomicBool::new(false);

/// A call that may block. Signal handlers that run after it began interrupt it.
#[derive(Clone, Copy)]
pub struct Call(Count);

/// How a handler with SA_RESTART affects a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The call goes on.
    Allowed,
    /// It ends with EINTR all the same, as poll, select, epoll_wait and all calls with a time-out
    /// do (signal(7)).
    Never,
}

/// The kernel's `struct futex_waitv`.
#[repr(C)]
struct WaitWord {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

impl WaitWord {
    fn new(word: &AtomicU32, value: u32) -> WaitWord {
        WaitWord {
            value: value.into(),
            address: word.as_ptr() as u64,
            flags: FUTEX2_SIZE_U32,
            reserved: 0,
        }
    }
}

impl Call {
    /// Begins a call.
    pub fn begin() -> Call {
        signals::count_all();
        Call(Count::now())
    }

    /// Begins a call that blocks the signals of a mask. A handler of such a signal does not
    /// interrupt the call.
    pub fn begin_with_mask(mask: *const libc::sigset_t) -> Call {
        // The kernel reports a bad pointer.
        if mask.is_null() || user_buffers::check(mask.cast(), size_of::<u64>()).is_err() {
            return Call::begin();
        }
        // SAFETY: checked; the kernel's set, which the C library's begins with, is one word.
        signals::count_all_but(unsafe { mask.cast::<u64>().read_unaligned() });
        Call(Count::now())
    }

    /// Whether a handler has run that ends the call.
    fn is_interrupted(self, restart: Restart) -> bool {
        let now = Count::now();
        match restart {
            Restart::Allowed => now.interrupting != self.0.interrupting,
            Restart::Never => now.all != self.0.all,
        }
    }

    /// Makes a system call that sleeps. `INTR`: a handler that ends the call has run since the call
    /// began.
    ///
    /// # Safety
    /// The system call's requirements hold.
    unsafe fn enter(self, words: &[c_long; 7], restart: Restart) -> Result<usize> {
        let result = thread::with(|thread| {
            let (count, seen) = match restart {
                Restart::Allowed => (&thread.interrupting_handlers, self.0.interrupting),
                Restart::Never => (&thread.handlers, self.0.all),
            };
            // SAFETY: the caller's promise.
            thread_sanitizer::sleep(|| unsafe { interruptible_syscall::call(words, count, seen) })
        });
        sys::check(result)
    }

    /// Sleeps while `word` is `seen`, until `until_us` (see [`sys::now_us`]). `TIMEDOUT`: the time
    /// is over. `INTR`: a signal came. The thread is counted in `waiters` during the sleep. The
    /// engine may have ended when this returns.
    pub fn on_word(
        self,
        engine: &'static Engine,
        waiters: &AtomicU32,
        (word, seen): (&AtomicU32, u32),
        until_us: Option<u64>,
        restart: Restart,
    ) -> Result<()> {
        batch::end(engine);
        let life = &engine.region.header().life.0;
        let result = futex::counted(waiters, || {
            let alive = life.load(Ordering::Acquire);
            let result = if alive & LIFE_OVER != 0 {
                Ok(0)
            } else if alive == 0 || ONE_WORD.load(Ordering::Relaxed) {
                Err(Errno::NOSYS)
            } else {
                let words = [WaitWord::new(word, seen), WaitWord::new(life, alive)];
                self.on_words(&words, until_us, restart)
            };
            match result {
                Err(Errno::NOSYS) => self.on_one_word(engine, word, seen, until_us, restart),
                Err(Errno::AGAIN) => Ok(()),
                other => other.map(drop),
            }
        });
        if life.load(Ordering::Acquire) & LIFE_OVER != 0 {
            engine.note_over();
        }
        result
    }

    fn on_words(
        self,
        words: &[WaitWord; 2],
        until_us: Option<u64>,
        restart: Restart,
    ) -> Result<usize> {
        let until = until_us.map(sys::timespec);
        let call = [
            libc::SYS_futex_waitv,
            words.as_ptr() as c_long,
            words.len() as c_long,
            0,
            at_or_null(until.as_ref()),
            c_long::from(libc::CLOCK_MONOTONIC),
            0,
        ];
        // SAFETY: words and time stay where they are during the call.
        let result = unsafe { self.enter(&call, restart) };
        if result == Err(Errno::NOSYS) {
            ONE_WORD.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Sleeps where the kernel can watch only one word: in pieces, with a check after each that the
    /// engine lives.
    fn on_one_word(
        self,
        engine: &Engine,
        word: &AtomicU32,
        seen: u32,
        until_us: Option<u64>,
        restart: Restart,
    ) -> Result<()> {
        let left = until_us.map_or(u64::MAX, |until| until.saturating_sub(sys::now_us()));
        let time = sys::timespec(left.min(CHECK_US));
        let call = [
            libc::SYS_futex,
            word.as_ptr() as c_long,
            c_long::from(libc::FUTEX_WAIT),
            c_long::from(seen),
            &raw const time as c_long,
            0,
            0,
        ];
        // SAFETY: word and time stay where they are during the call.
        match unsafe { self.enter(&call, restart) } {
            Err(Errno::TIMEDOUT) => {
                engine.check();
                if left > CHECK_US {
                    Ok(())
                } else {
                    Err(Errno::TIMEDOUT)
                }
            }
            // The kernel does not restart a call with a time-out, even if the handler allows it.
            Err(Errno::INTR) if !self.is_interrupted(restart) && restart == Restart::Allowed => {
                Ok(())
            }
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Does `ppoll`.
    pub fn poll(
        self,
        fds: &mut [libc::pollfd],
        timeout_us: Option<u64>,
        mask: *const libc::sigset_t,
    ) -> Result<usize> {
        // The kernel may change the time.
        let mut timeout = timeout_us.map(sys::timespec);
        let call = [
            libc::SYS_ppoll,
            fds.as_mut_ptr() as c_long,
            fds.len() as c_long,
            at_or_null(timeout.as_mut().map(|time| &*time)),
            mask as c_long,
            sys::SIGNAL_SET,
            0,
        ];
        // SAFETY: descriptors and time stay where they are during the call; the mask is the
        // program's.
        unsafe { self.enter(&call, Restart::Never) }
    }

    /// Does `epoll_pwait2`, or `epoll_pwait` before Linux 5.11.
    pub fn epoll(
        self,
        epoll: c_int,
        events: &mut [libc::epoll_event],
        timeout_us: Option<u64>,
        mask: *const libc::sigset_t,
    ) -> Result<usize> {
        let timeout = timeout_us.map(sys::timespec);
        let len = events.len().min(c_int::MAX as usize);
        let mut call = [
            libc::SYS_epoll_pwait2,
            c_long::from(epoll),
            events.as_mut_ptr() as c_long,
            len as c_long,
            at_or_null(timeout.as_ref()),
            mask as c_long,
            sys::SIGNAL_SET,
        ];
        // SAFETY: events and time stay where they are during the call; the mask is the program's.
        let result = unsafe { self.enter(&call, Restart::Never) };
        if result != Err(Errno::NOSYS) {
            return result;
        }
        let ms = |us: u64| c_long::from(c_int::try_from(us.div_ceil(1000)).unwrap_or(c_int::MAX));
        call[0] = libc::SYS_epoll_pwait;
        call[4] = timeout_us.map_or(-1, ms);
        // SAFETY: as above.
        unsafe { self.enter(&call, Restart::Never) }
    }
}

fn at_or_null(time: Option<&libc::timespec>) -> c_long {
    time.map_or(0, |time| std::ptr::from_ref(time) as c_long)
}
