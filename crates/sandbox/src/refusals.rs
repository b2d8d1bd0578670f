//! A call that is not in the table of a thread's role.
//!
//! The kernel sends SIGSYS in place of the call (`SECCOMP_RET_TRAP`). The handler has the call
//! fail with EPERM and counts it; it says the first one. Nothing else would tell an operator that
//! a thread asks for what it should not: either there is a gap in the table, or somebody is in the
//! process.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

static REFUSED: AtomicU64 = AtomicU64::new(0);

/// How many system calls of this process have been refused.
pub fn count() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Catches them from now on, in all threads.
pub(crate) fn catch() -> io::Result<()> {
    // SAFETY: the structures are zeroed and then filled in; the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = refused as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGSYS);
        // Whoever started the process may have blocked it, and then the kernel would end the
        // process.
        let unblocked = libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        if unblocked != 0
            || libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The handler. It makes one system call, `write`, which every role has.
extern "C" fn refused(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = REFUSED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes both for SA_SIGINFO, and they are this handler's until it returns.
    let call = unsafe {
        fail(&mut *context.cast());
        (*info.cast::<SystemCall>()).number
    };
    if before == 0 {
        let mut text = [0; 128];
        let room = text.len();
        let mut rest = &mut text[..];
        // SAFETY: a call without arguments.
        let thread = unsafe { libc::gettid() };
        let _ = writeln!(
            rest,
            "millrace: system call {call} of thread {thread} is refused; see docs/isolation.md"
        );
        let len = room - rest.len();
        // SAFETY: it reads so many bytes of `text`.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), len) };
    }
}

/// The part of `siginfo_t` that tells of a system call (`si_call_addr`, `si_syscall`, `si_arch`).
#[repr(C)]
struct SystemCall {
    signal: [libc::c_int; 3],
    address: *const libc::c_void,
    number: libc::c_int,
}

/// The interrupted call returns EPERM.
#[cfg(target_arch = "x86_64")]
fn fail(context: &mut libc::ucontext_t) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::EPERM);
}

/// The interrupted call returns EPERM.
#[cfg(target_arch = "aarch64")]
fn fail(context: &mut libc::ucontext_t) {
    context.uc_mcontext.regs[0] = (-i64::from(libc::EPERM)) as u64;
}
