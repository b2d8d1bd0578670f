//! Support for programs built with ThreadSanitizer (`-fsanitize=thread`).
//!
//! Its runtime judges memory accesses by the synchronisation that it sees. It does not see the
//! shim's atomic words, because the shim is not compiled with it, and it takes copies by the C
//! library's memcpy for the program's accesses. So the shim copies by itself. It tells the runtime
//! what the program has read and written, and that a send comes before the receive, as the
//! runtime's own versions of these calls do.
//!
//! The runtime also defers a signal until the thread makes a call that the runtime knows, and it
//! knows no call that sleeps here. So the kernel's handler is [`enter`]. It runs the program's
//! handler at once in a thread that sleeps in the shim, and leaves the signal to the runtime
//! otherwise.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering, compiler_fence};

use libc::siginfo_t;

use crate::process::thread;
use crate::sys::{self, SIGNALS};

type Order = unsafe extern "C" fn(*const c_void);
type Access = unsafe extern "C" fn(*const c_void, usize);
pub type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The runtime's functions; null without the runtime.
static ACQUIRE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static RELEASE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static READ_RANGE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static WRITE_RANGE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The object by which all sends and receives are ordered. The runtime also treats all sockets as
/// one.
static SOCKETS: AtomicU8 = AtomicU8::new(0);
/// The runtime's handler of each signal.
static RUNTIMES: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// Runs the program's handler at once; set before [`enter`] is installed.
static PROGRAM: AtomicUsize = AtomicUsize::new(0);

/// Finds the runtime. Called once, when the shim is loaded.
pub fn find() {
    let functions: [(&AtomicPtr<c_void>, &CStr); 4] = [
        (&RELEASE, c"__tsan_release"),
        (&READ_RANGE, c"__tsan_read_range"),
        (&WRITE_RANGE, c"__tsan_write_range"),
        (&ACQUIRE, c"__tsan_acquire"),
    ];
    for (at, name) in functions {
        // SAFETY: a name that ends with 0.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        at.store(found, Ordering::Relaxed);
    }
}

/// Whether the runtime is in the program.
#[inline]
pub fn is_present() -> bool {
    !ACQUIRE.load(Ordering::Relaxed).is_null()
}

/// Orders the sends and requests of other threads before the calling thread's next accesses.
#[inline]
pub fn acquire() {
    order(&ACQUIRE);
}

/// Orders the calling thread's accesses before the next receives of other threads.
#[inline]
pub fn release() {
    order(&RELEASE);
}

#[inline]
fn order(function: &AtomicPtr<c_void>) {
    let function = function.load(Ordering::Relaxed);
    if !function.is_null() {
        // SAFETY: the runtime's function has this type, and takes any address.
        unsafe { std::mem::transmute::<*mut c_void, Order>(function)(SOCKETS.as_ptr().cast()) };
    }
}

/// Copies from the program's buffer.
///
/// # Safety
/// Both are valid for `len` bytes and do not overlap.
#[inline]
pub unsafe fn copy_from_program(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if is_present() {
            access(&READ_RANGE, from, len);
            copy(from, to, len);
        } else {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
    }
}

/// Copies to the program's buffer.
///
/// # Safety
/// Both are valid for `len` bytes and do not overlap.
#[inline]
pub unsafe fn copy_to_program(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if is_present() {
            acquire();
            access(&WRITE_RANGE, to, len);
            copy(from, to, len);
        } else {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
    }
}

#[cold]
fn access(function: &AtomicPtr<c_void>, at: *const u8, len: usize) {
    let function = function.load(Ordering::Relaxed);
    if !function.is_null() {
        // SAFETY: the runtime's function has this type, and takes any range.
        unsafe { std::mem::transmute::<*mut c_void, Access>(function)(at.cast(), len) };
    }
}

/// Copies without the C library's memcpy, which the runtime replaces.
///
/// # Safety
/// The requirements of [`copy_to_program`] hold.
#[cold]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: the caller's promise. Volatile accesses are not made a memcpy of.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAction {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

/// Installs [`enter`] in front of the runtime's handler, which has just been installed. `program`
/// runs the program's handler.
pub fn take_signal(signal: c_int, program: Handler) {
    if !is_present() {
        return;
    }
    let Some(runtimes) = RUNTIMES.get(signal as usize) else {
        return;
    };
    let mut action = KernelAction {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    PROGRAM.store(program as *const () as usize, Ordering::Release);
    let own = enter as *const () as usize;
    let found = sys::signal_action(signal, std::ptr::null(), (&raw mut action).cast());
    if found.is_err() || action.handler == own {
        return;
    }
    runtimes.store(action.handler, Ordering::Release);
    action.handler = own;
    let _ = sys::signal_action(signal, (&raw const action).cast(), std::ptr::null_mut());
}

/// The kernel's handler of the program's signals in a program with the runtime.
unsafe extern "C" fn enter(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let sleeps = thread::with(|thread| {
        thread.deferred.set(true);
        thread.sleeping.replace(false)
    });
    if sleeps {
        let program = PROGRAM.load(Ordering::Acquire);
        // SAFETY: it is a function of this type, as the kernel calls this one only once it is set,
        // and the arguments are the kernel's own.
        unsafe { std::mem::transmute::<usize, Handler>(program)(signal, info, context) };
        begin_sleep();
        return;
    }
    let runtimes = RUNTIMES[signal as usize % SIGNALS].load(Ordering::Acquire);
    if runtimes != 0 {
        // SAFETY: what the runtime has installed for this signal has this type, as it always asks
        // for the details.
        unsafe { std::mem::transmute::<usize, Handler>(runtimes)(signal, info, context) };
    }
}

/// Makes a call that sleeps. The runtime's deferred signals are handled before it, and new ones
/// during it.
pub fn sleep<T>(call: impl FnOnce() -> T) -> T {
    if !is_present() {
        return call();
    }
    begin_sleep();
    let result = call();
    compiler_fence(Ordering::SeqCst);
    thread::with(|thread| thread.sleeping.set(false));
    result
}

/// From here on signals are handled at once, and the runtime defers none.
fn begin_sleep() {
    let mut is_ready = false;
    while !is_ready {
        thread::with(|thread| thread.deferred.set(false));
        compiler_fence(Ordering::SeqCst);
        // SAFETY: it only tells the time. It is one of the runtime's functions, which all handle
        // what has been kept.
        unsafe { libc::time(std::ptr::null_mut()) };
        is_ready = thread::with(|thread| {
            thread.sleeping.set(true);
            compiler_fence(Ordering::SeqCst);
            // The runtime has deferred a signal that came meanwhile.
            let kept = thread.deferred.get();
            thread.sleeping.set(!kept);
            !kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_by_hand_is_one() {
        let from: Vec<u8> = (0..100).collect();
        let mut to = [0u8; 100];
        // SAFETY: both have a hundred bytes.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        assert_eq!(from, to);
    }

    #[test]
    fn without_the_runtime_nothing_changes() {
        find();
        assert!(!is_present());
        acquire();
        release();
        assert_eq!(sleep(|| 7), 7);
    }
}
