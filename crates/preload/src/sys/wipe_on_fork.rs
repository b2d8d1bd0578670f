//! State that a child does not inherit. The kernel clears this page in the child of every fork
//! (`MADV_WIPEONFORK`), so a child made by the raw system call notices at its first call that it
//! has not attached, and finds no lock of its parent's other threads.

use std::sync::atomic::{AtomicBool, AtomicU32};

/// The page.
#[repr(C, align(4096))]
pub struct Own {
    /// Whether this process has attached to the engine.
    pub attached: AtomicBool,
    /// The word of the engine's lock.
    pub engine_lock: AtomicU32,
    /// The word of the lock of the shim's own descriptors.
    pub descriptors_lock: AtomicU32,
}

/// The state of this process.
pub static OWN: Own = Own {
    attached: AtomicBool::new(false),
    engine_lock: AtomicU32::new(0),
    descriptors_lock: AtomicU32::new(0),
};

/// Asks the kernel to clear [`OWN`] in the child of every fork. A kernel before Linux 4.14 cannot;
/// then the shim clears it in the children that it sees.
pub fn clear_in_children() {
    // SAFETY: a page of its own, in the part of the library's data that no file backs.
    let _ = unsafe {
        rustix::mm::madvise(
            (&raw const OWN).cast_mut().cast(),
            size_of::<Own>(),
            rustix::mm::Advice::LinuxWipeOnFork,
        )
    };
}
