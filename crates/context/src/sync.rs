//! Atomics and fences, either the processor's or the model checker's (`--cfg millrace_loom`,
//! tests/interleavings).

#[cfg(not(millrace_loom))]
pub use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(millrace_loom)]
pub use loom::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

/// A full fence after a read-modify-write, which is a full fence itself on x86-64.
#[cfg(not(millrace_loom))]
#[inline]
pub fn fence_after_update() {
    if cfg!(target_arch = "x86_64") {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The full fence for the model checker, which also shows that protocols fail without it: see
/// [`leave_out`].
#[cfg(millrace_loom)]
pub fn fence_after_update() {
    if !LEFT_OUT.get() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(millrace_loom)]
thread_local! {
    /// The checker runs all threads of a model in one thread.
    static LEFT_OUT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Makes the calling thread's models leave out [`fence_after_update`] from now on.
#[cfg(millrace_loom)]
pub fn leave_out(fences: bool) {
    LEFT_OUT.set(fences);
}
