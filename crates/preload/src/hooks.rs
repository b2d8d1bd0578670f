//! The functions that programs call. Each looks up its descriptor and calls the C library's own
//! function or the shim's.
//!
//! A panic in any of them ends the program, since an `extern "C"` function does not unwind.

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
pub mod stdio;
pub mod timeout;
pub mod uring;

use std::ffi::c_int;

use libc::{size_t, ssize_t};
use rustix::io::Errno;

use crate::fd::placeholder;
use crate::fd::table::{self, Entry};
use crate::sys::{self, Result};

/// Defines functions that the dynamic linker finds before the C library's. In tests they are
/// ordinary functions. `where settled(fd)` repeats a call whose descriptor has changed its meaning
/// meanwhile: see [`settled`].
macro_rules! hooks {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty $(where settled($fd:ident))? $body:block)*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// As the C library's function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case, reason = "the C library's name")]
        #[allow(unused_unsafe, reason = "some do nothing that is unsafe")]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the program keeps the promises that the C library's function of this name
            // asks for.
            unsafe { hooks!(@body $(settled($fd))? $body) }
        }
    )*};
    (@body settled($fd:ident) $body:block) => { $crate::hooks::settled($fd, || $body) };
    (@body $body:block) => { $body };
}
pub(crate) use hooks;

/// How often a call is repeated while the kernel and the table disagree about a number.
const ATTEMPTS: u32 = 1000;

/// Makes a call on a descriptor, and repeats it if another thread has changed the number's meaning
/// meanwhile. The table and the kernel change one after the other; a call between the two changes
/// would fail although it fails neither before nor after.
#[inline]
pub fn settled<T: PartialEq + From<i8>>(fd: c_int, call: impl Fn() -> T) -> T {
    for _ in 0..ATTEMPTS {
        let entry = table::get(fd);
        let result = call();
        if result != T::from(-1) || !is_unsettled(fd, entry) {
            return result;
        }
    }
    call()
}

/// Whether a call failed because its number has a new meaning. If not, errno is set as it must be.
#[cold]
fn is_unsettled(fd: c_int, entry: Entry) -> bool {
    match (sys::last_errno(), entry) {
        (Errno::BADF, Entry::Socket(_)) => table::get(fd) != entry,
        // The call itself handles a socket whose stack is not chosen yet.
        (_, Entry::Socket(_) | Entry::Internal | Entry::Undecided(_)) => false,
        // Calls on the placeholder fail with these errors.
        (errno @ (Errno::INVAL | Errno::NOTCONN | Errno::OPNOTSUPP), _)
            if placeholder::exists() =>
        {
            match (placeholder::is_open_one(fd), table::get(fd)) {
                (Ok(false), _) => sys::set_errno(errno),
                // Another thread has closed it, or is about to.
                (_, Entry::Kernel) => sys::set_errno(Errno::BADF),
                _ => {
                    sys::sched_yield();
                    return true;
                }
            }
            false
        }
        _ => false,
    }
}

/// Returns a length, or sets errno and returns -1.
pub fn length(result: Result<usize>) -> ssize_t {
    match result {
        Ok(len) => len as ssize_t,
        Err(errno) => {
            sys::set_errno(errno);
            -1
        }
    }
}

/// Returns a number, or sets errno and returns -1.
pub fn number(result: Result<c_int>) -> c_int {
    match result {
        Ok(number) => number,
        Err(errno) => {
            sys::set_errno(errno);
            -1
        }
    }
}

/// Returns 0, or sets errno and returns -1.
pub fn nothing(result: Result<()>) -> c_int {
    number(result.map(|()| 0))
}

/// Ends the program as the C library does if a call's buffer is smaller than it says
/// (`-D_FORTIFY_SOURCE`).
pub fn check_buffer(len: size_t, room: size_t) {
    if len > room {
        unsafe extern "C" {
            fn __chk_fail() -> !;
        }
        // SAFETY: it ends the program.
        unsafe { __chk_fail() }
    }
}

/// Sets errno and returns -1.
pub fn fail(errno: Errno) -> c_int {
    number(Err(errno))
}
