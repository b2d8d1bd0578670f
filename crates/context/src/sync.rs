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
    if !is_left_out(Step::Fences) {
        fence(Ordering::SeqCst);
    }
}

/// What the model checker can leave out of a protocol, to see it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// [`fence_after_update`].
    Fences,
    /// [`crate::Poller::must_pass_on`]: a thread that takes a ring and leaves rings again.
    PassOn,
    /// [`crate::KernelWaits::count_in`]: a new poller counts who sleeps already.
    CountIn,
}

#[cfg(millrace_loom)]
thread_local! {
    /// The checker runs all threads of a model in one thread.
    static LEFT_OUT: std::cell::Cell<Option<Step>> = const { std::cell::Cell::new(None) };
}

/// Makes the calling thread's models leave out this step from now on.
#[cfg(millrace_loom)]
pub fn leave_out(step: Step) {
    LEFT_OUT.set(Some(step));
}

/// Whether the model checker leaves this step out.
#[cfg(millrace_loom)]
pub(crate) fn is_left_out(step: Step) -> bool {
    LEFT_OUT.get() == Some(step)
}

/// Only the model checker leaves a step out.
#[cfg(not(millrace_loom))]
#[inline]
pub(crate) const fn is_left_out(_: Step) -> bool {
    false
}
