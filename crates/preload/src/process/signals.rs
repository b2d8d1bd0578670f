//! The program's signal handlers, counted in the thread in which they run.
//!
//! A blocking call of the shim may sleep several times. A handler that runs between two of these
//! sleeps would interrupt the kernel's call, which is a single one, so it must end the shim's call
//! with EINTR too. The shim therefore installs [`enter`] for each handler, which counts the handler
//! and then runs it. [`crate::process::interruptible_syscall`] compares the count with that of the
//! call's beginning, so that no handler goes unnoticed before the sleep.
//!
//! The kernel knows which signals the program handles. The table here knows only the functions, so
//! a child that shares this memory (vfork) and restores the defaults changes nothing here.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use libc::{SA_RESTART, SA_SIGINFO, SIG_DFL, SIG_IGN, sigaction, siginfo_t};

use crate::process::{interruptible_syscall, thread};
use crate::sys::{SIGNALS, thread_sanitizer};

/// The program's handler of a signal and its flags.
struct Handler {
    function: AtomicUsize,
    flags: AtomicU32,
}

static HANDLERS: [Handler; SIGNALS] = [const {
    Handler {
        function: AtomicUsize::new(SIG_DFL),
        flags: AtomicU32::new(0),
    }
}; SIGNALS];

/// How many handlers have run in the calling thread. A call takes it when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// All handlers.
    pub all: u32,
    /// Handlers that were installed without SA_RESTART.
    pub interrupting: u32,
}

impl Count {
    /// The count now.
    pub fn now() -> Count {
        thread::with(|thread| Count {
            all: thread.handlers.get(),
            interrupting: thread.interrupting_handlers.get(),
        })
    }
}

/// From here on every handler counts in the calling thread.
pub fn count_all() {
    count_all_but(0);
}

/// From here on every handler counts, except for the signals in a set of the kernel's form.
pub fn count_all_but(blocked: u64) {
    thread::with(|thread| thread.blocked.set(blocked));
}

/// The kernel's handler of each signal that the program handles.
///
/// # Safety
/// The arguments are the kernel's.
pub unsafe extern "C" fn enter(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let handler = &HANDLERS[signal as usize % SIGNALS];
    let flags = handler.flags.load(Ordering::Relaxed);
    let bit = 1u64.rotate_left((signal as u32).wrapping_sub(1));
    thread::with(|thread| {
        if thread.blocked.get() & bit != 0 {
            return;
        }
        thread.handlers.set(thread.handlers.get().wrapping_add(1));
        if flags & SA_RESTART as u32 == 0 {
            let count = thread.interrupting_handlers.get().wrapping_add(1);
            thread.interrupting_handlers.set(count);
        }
    });
    // SAFETY: the kernel's context of this very signal.
    unsafe { interruptible_syscall::restart(context) };
    let function = handler.function.load(Ordering::Acquire);
    if function == SIG_DFL || function == SIG_IGN {
        return;
    }
    // SAFETY: the program has installed it for this; one without SA_SIGINFO ignores what else is in
    // the registers.
    unsafe {
        let function: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
            std::mem::transmute(function);
        function(signal, info, context);
    }
}

fn own() -> usize {
    enter as *const () as usize
}

/// Does what `sigaction` does; `real` is the C library's.
///
/// # Safety
/// The pointers are null or valid, as for the C library's function.
pub unsafe fn action(
    signal: c_int,
    new: *const sigaction,
    old: *mut sigaction,
    real: impl Fn(*const sigaction, *mut sigaction) -> c_int,
) -> c_int {
    let Some(handler) = usize::try_from(signal).ok().and_then(|it| HANDLERS.get(it)) else {
        return real(new, old);
    };
    let before = (
        handler.function.load(Ordering::Acquire),
        handler.flags.load(Ordering::Relaxed),
    );
    // SAFETY: the caller's promise. A copy, since `old` may be the same place.
    let wanted = (!new.is_null()).then(|| unsafe { new.read() });
    let result = match wanted {
        Some(mut action) if action.sa_sigaction != SIG_DFL && action.sa_sigaction != SIG_IGN => {
            // A program may pass the shim's own handler, which it has read by other means than
            // these calls.
            if action.sa_sigaction != own() {
                handler
                    .flags
                    .store(action.sa_flags as u32, Ordering::Relaxed);
                handler
                    .function
                    .store(action.sa_sigaction, Ordering::Release);
            }
            action.sa_sigaction = own();
            action.sa_flags |= SA_SIGINFO;
            let result = real(&action, old);
            if result != 0 {
                handler.function.store(before.0, Ordering::Release);
                handler.flags.store(before.1, Ordering::Relaxed);
            } else {
                thread_sanitizer::take_signal(signal, enter);
            }
            result
        }
        _ => real(new, old),
    };
    if result == 0 && !old.is_null() {
        // SAFETY: the caller's promise; the C library has just written it.
        let old = unsafe { &mut *old };
        if old.sa_sigaction == own() {
            old.sa_sigaction = before.0;
            if before.1 & SA_SIGINFO as u32 == 0 {
                old.sa_flags &= !SA_SIGINFO;
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    static RAN: AtomicBool = AtomicBool::new(false);

    extern "C" fn note(_signal: c_int) {
        RAN.store(true, Ordering::Relaxed);
    }

    fn set(signal: c_int, function: usize, flags: c_int) -> sigaction {
        // SAFETY: zeros are an action.
        let (mut new, mut old): (sigaction, sigaction) = unsafe { std::mem::zeroed() };
        new.sa_sigaction = function;
        new.sa_flags = flags;
        // SAFETY: both are good.
        let result = unsafe {
            action(signal, &new, &mut old, |new, old| {
                libc::sigaction(signal, new, old)
            })
        };
        assert_eq!(result, 0);
        old
    }

    #[test]
    fn handlers_run_are_counted_and_look_as_they_were_set() {
        let signal = libc::SIGUSR2;
        let note = note as *const () as usize;
        assert_eq!(set(signal, note, SA_RESTART).sa_sigaction, SIG_DFL);
        let before = Count::now();
        // SAFETY: it is handled.
        unsafe { libc::raise(signal) };
        assert!(RAN.swap(false, Ordering::Relaxed));
        let restarting = Count::now();
        assert_eq!(restarting.all, before.all + 1);
        assert_eq!(restarting.interrupting, before.interrupting);
        let old = set(signal, note, 0);
        assert_eq!(old.sa_sigaction, note);
        assert_eq!(old.sa_flags & (SA_RESTART | SA_SIGINFO), SA_RESTART);
        // SAFETY: it is handled.
        unsafe { libc::raise(signal) };
        assert!(RAN.load(Ordering::Relaxed));
        assert_eq!(Count::now().interrupting, before.interrupting + 1);
        assert_eq!(set(signal, SIG_IGN, 0).sa_sigaction, note);
        assert_eq!(set(signal, SIG_DFL, 0).sa_sigaction, SIG_IGN);
    }
}
