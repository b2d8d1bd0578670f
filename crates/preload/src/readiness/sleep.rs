//! Sleeping in a blocking call, for as long as the program asked and in one piece.
//!
//! What ends a sleep is what the call waits for, its time, a signal handler, or the end of the
//! engine. A call may sleep several times; a handler that runs in between counts as well (see
//! [`crate::process::signals`]). The end of the engine is told by a word in the region that the
//! kernel changes ([`millrace_context::layout::Header::life`]), or by the control socket among what
//! is polled.

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

/// How long a sleep on a word lasts at most where nobody tells of the engine's end, in
/// microseconds.
const CHECK_US: u64 = 1_000_000;
/// A word of 32 bits that several processes map, for `futex_waitv`.
const FUTEX2_SIZE_U32: u32 = 2;

/// Set when the kernel has no `futex_waitv` (before Linux 5.16).
static ONE_WORD: AtomicBool = AtomicBool::new(false);

/// A call that may block: handlers that run from here on interrupt it.
#[derive(Clone, Copy)]
pub struct Call(Count);

/// What a handler with SA_RESTART means to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The call goes on.
    Allowed,
    /// It ends with EINTR all the same, as poll, select, epoll_wait and all calls with a time-out
    /// do (signal(7)).
    Never,
}

/// As the kernel has it (`struct futex_waitv`).
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
    /// It begins.
    pub fn begin() -> Call {
        signals::count_all();
        Call(Count::now())
    }

    /// One that blocks the signals of a mask begins: a handler of such a signal runs before it or
    /// after it, as far as it is concerned.
    pub fn begin_with_mask(mask: *const libc::sigset_t) -> Call {
        // The kernel complains of a pointer that is not good.
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

    /// Makes a system call that sleeps, unless a handler has run since the call began that ends it:
    /// `INTR` then.
    ///
    /// # Safety
    /// As the system call's.
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

    /// Sleeps while `word` is `seen`, until `until_us` (as [`sys::now_us`]) at most: `TIMEDOUT`
    /// then, `INTR` for a signal. The thread is counted in `waiters` meanwhile. The engine may have
    /// ended when it returns.
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

    /// Where only one word can be slept on: in pieces, after which it is looked whether the engine
    /// lives.
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
            // The kernel does not restart a call with a time, whatever the handler says.
            Err(Errno::INTR) if !self.is_interrupted(restart) && restart == Restart::Allowed => {
                Ok(())
            }
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// `ppoll`.
    pub fn poll(
        self,
        fds: &mut [libc::pollfd],
        timeout_us: Option<u64>,
        mask: *const libc::sigset_t,
    ) -> Result<usize> {
        // The kernel may change it.
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

    /// `epoll_pwait2`, or what comes nearest to it before Linux 5.11.
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
