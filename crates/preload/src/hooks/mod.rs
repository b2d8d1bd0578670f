//! The functions that programs call. Each looks at its descriptor's entry and goes to the kernel's way or to ours; nothing else is here.
//!
//! A panic in any of them ends the program: an `extern "C"` function does not unwind.

pub mod descriptor;
pub mod epoll;
pub mod interfaces;
pub mod io;
pub mod limits;
pub mod message;
pub mod options;
pub mod poll;
pub mod process;
pub mod raw;
pub mod sanitizer;
pub mod signal;
pub mod socket;
pub mod uring;

use std::ffi::c_int;

use libc::{size_t, ssize_t};
use rustix::io::Errno;

use crate::sys::{self, Result};

/// Defines functions that the dynamic linker finds before the C library's. In tests they are ordinary functions.
macro_rules! hooks {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty $body:block)*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// As the C library's function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case, reason = "the C library's name")]
        #[allow(unused_unsafe, reason = "some do nothing that is unsafe")]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the program keeps the promises that the C library's function of this name asks for.
            unsafe { $body }
        }
    )*};
}
pub(crate) use hooks;

/// A length, or -1 and errno.
pub fn length(result: Result<usize>) -> ssize_t {
    match result {
        Ok(len) => len as ssize_t,
        Err(errno) => {
            sys::set_errno(errno);
            -1
        }
    }
}

/// 0 or another number, or -1 and errno.
pub fn number(result: Result<c_int>) -> c_int {
    match result {
        Ok(number) => number,
        Err(errno) => {
            sys::set_errno(errno);
            -1
        }
    }
}

/// 0, or -1 and errno.
pub fn nothing(result: Result<()>) -> c_int {
    number(result.map(|()| 0))
}

/// The C library's end for a call whose buffer is smaller than what it asks for (`-D_FORTIFY_SOURCE`).
pub fn check_buffer(len: size_t, room: size_t) {
    if len > room {
        unsafe extern "C" {
            fn __chk_fail() -> !;
        }
        // SAFETY: it ends the program.
        unsafe { __chk_fail() }
    }
}

/// -1 with an errno.
pub fn fail(errno: Errno) -> c_int {
    number(Err(errno))
}
