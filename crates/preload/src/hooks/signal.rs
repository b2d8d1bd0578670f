//! Hooks of signal handlers. The shim's handler counts each run and calls the program's (see
//! [`crate::process::signals`]).

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{
    SA_NODEFER, SA_RESETHAND, SA_RESTART, SIG_BLOCK, SIG_ERR, SIG_UNBLOCK, sigaction as Action,
    sighandler_t, sigset_t,
};
use rustix::io::Errno;

use super::{fail, hooks};
use crate::process::signals;
use crate::sys;
use crate::sys::{original, user_buffers};

/// The disposition with which `sigset` blocks the signal.
const SIG_HOLD: sighandler_t = 2;
/// Signals for which `siginterrupt` has asked that handlers set by `signal` interrupt.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

hooks! {
    /// Installs a handler.
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        let unusable = |at: *const Action| !at.is_null() && user_buffers::check(at.cast(), size_of::<Action>()).is_err();
        if unusable(new) || unusable(old) {
            return fail(Errno::FAULT);
        }
        signals::action(signal, new, old, |new, old| original::sigaction(signal, new, old))
    }

    /// An alias of the function above.
    fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        sigaction(signal, new, old)
    }

    /// Installs a handler as BSD does: it stays, its own signal is blocked, and calls are restarted
    /// unless `siginterrupt` says otherwise.
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        let flags = if INTERRUPTING.load(Ordering::Relaxed) & bit(signal) == 0 { SA_RESTART } else { 0 };
        install(signal, handler, flags, true)
    }

    /// An alias of the function above.
    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        self::signal(signal, handler)
    }

    /// An alias of the function above.
    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        self::signal(signal, handler)
    }

    /// Installs a handler as System V does: for one signal, which is not blocked meanwhile.
    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        install(signal, handler, SA_RESETHAND | SA_NODEFER, false)
    }

    /// An alias of the function above.
    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        sysv_signal(signal, handler)
    }

    /// Installs a handler or blocks the signal, as System V does.
    fn sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t {
        let mut set: sigset_t = std::mem::zeroed();
        let mut before: sigset_t = std::mem::zeroed();
        if libc::sigaddset(&mut set, signal) != 0 {
            return SIG_ERR;
        }
        let mut old: Action = std::mem::zeroed();
        if disposition == SIG_HOLD {
            libc::sigprocmask(SIG_BLOCK, &set, &mut before);
            if sigaction(signal, std::ptr::null(), &mut old) != 0 {
                return SIG_ERR;
            }
        } else {
            let mut new: Action = std::mem::zeroed();
            new.sa_sigaction = disposition;
            if sigaction(signal, &new, &mut old) != 0 {
                return SIG_ERR;
            }
            libc::sigprocmask(SIG_UNBLOCK, &set, &mut before);
        }
        if libc::sigismember(&before, signal) == 1 { SIG_HOLD } else { old.sa_sigaction }
    }

    /// Says whether a handler interrupts calls, the one there is and those that `signal` will set.
    fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
        let mut action: Action = std::mem::zeroed();
        if sigaction(signal, std::ptr::null(), &mut action) != 0 {
            return -1;
        }
        if interrupts == 0 {
            INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed);
            action.sa_flags |= SA_RESTART;
        } else {
            INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed);
            action.sa_flags &= !SA_RESTART;
        }
        sigaction(signal, &action, std::ptr::null_mut())
    }
}

/// A signal's bit in a word; 0 for a number that is no signal.
fn bit(signal: c_int) -> u64 {
    match signal {
        1..=64 => 1 << (signal - 1),
        _ => 0,
    }
}

/// Installs a handler; the one before, or SIG_ERR and errno.
///
/// # Safety
/// As the C library's `signal`.
unsafe fn install(
    signal: c_int,
    handler: sighandler_t,
    flags: c_int,
    blocks_itself: bool,
) -> sighandler_t {
    if handler == SIG_ERR || bit(signal) == 0 {
        sys::set_errno(Errno::INVAL);
        return SIG_ERR;
    }
    // SAFETY: zeros are actions; both are good for the call; the caller's promise for the handler.
    unsafe {
        let (mut new, mut old): (Action, Action) = std::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if blocks_itself {
            libc::sigaddset(&mut new.sa_mask, signal);
        }
        match sigaction(signal, &new, &mut old) {
            0 => old.sa_sigaction,
            _ => SIG_ERR,
        }
    }
}
