//! io_uring: refused with ENOSYS, as by a kernel without it. Its requests would reach the kernel
//! past the shim, and name descriptors in which the kernel has only placeholders. Programs fall
//! back to the calls that the shim sees.
//!
//! liburing makes its system calls itself, so its functions that make a ring are here as well. What
//! calls the kernel past both is refused by a filter where `millrace run` may install one.

use std::ffi::{c_int, c_uint, c_void};

use libc::{ENOSYS, size_t};
use millrace_context::Bypass;

use super::hooks;
use crate::engine::bypass;
use crate::process::environment;
use crate::sys::original;

hooks! {
    /// Makes a ring.
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
        if is_refused() { -ENOSYS } else { original::io_uring_setup(entries, parameters) }
    }

    /// Makes a ring.
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        if is_refused() { -ENOSYS } else { original::io_uring_queue_init(entries, ring, flags) }
    }

    /// Makes a ring.
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int {
        if is_refused() { -ENOSYS } else { original::io_uring_queue_init_params(entries, ring, parameters) }
    }

    /// Makes a ring in the program's memory.
    fn io_uring_queue_init_mem(
        entries: c_uint,
        ring: *mut c_void,
        parameters: *mut c_void,
        memory: *mut c_void,
        len: size_t,
    ) -> c_int {
        if is_refused() {
            -ENOSYS
        } else {
            original::io_uring_queue_init_mem(entries, ring, parameters, memory, len)
        }
    }
}

/// Whether the program is on millrace. If so, the refusal is counted and reported.
pub fn is_refused() -> bool {
    let refused = environment::get().is_some();
    if refused {
        bypass::note(
            Bypass::IoUring,
            &[
                "io_uring is refused with ENOSYS: the kernel would take its requests past millrace; the program has to do without",
            ],
        );
    }
    refused
}
