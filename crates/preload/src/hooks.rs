//! The functions that programs call. Each looks at its descriptor's entry and goes to the kernel's
//! way or to ours; nothing else is here.
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
pub mod stdio;
pub mod uring;

use std::ffi::c_int;

use libc::{size_t, ssize_t};
use rustix::io::Errno;

use crate::fd::placeholder;
use crate::fd::table::{self, Entry};
use crate::sys::{self, Result};

/// Defines functions that the dynamic linker finds before the C library's. In tests they are
/// ordinary functions. `where settled(fd)` makes a call that the number of its descriptor has left
/// meanwhile again: see [`settled`].
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

/// Looks at a number that the kernel and the table name differently, at most.
const ATTEMPTS: u32 = 1000;

/// Makes a call on a descriptor, again if another thread gave its number another meaning meanwhile.
/// The table and the kernel change one after the other: a call that finds the one changed and the
/// other not fails as it would neither before nor after.
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

/// Whether a call on a descriptor with this entry has failed because its number means something
/// else by now. Otherwise errno is what it has to be.
#[cold]
fn is_unsettled(fd: c_int, entry: Entry) -> bool {
    match (sys::last_errno(), entry) {
        (Errno::BADF, Entry::Socket(_)) => table::get(fd) != entry,
        // What becomes of one that is not decided is the call's own doing.
        (_, Entry::Socket(_) | Entry::Internal | Entry::Undecided(_)) => false,
        // As calls on the placeholder fail.
        (errno @ (Errno::INVAL | Errno::NOTCONN | Errno::OPNOTSUPP), _)
            if placeholder::exists() =>
        {
            match (placeholder::is_open_one(fd), table::get(fd)) {
                (Ok(false), _) => sys::set_errno(errno),
                // Another thread has it closed, or is about to.
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

/// The C library's end for a call whose buffer is smaller than what it asks for
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

/// -1 with an errno.
pub fn fail(errno: Errno) -> c_int {
    number(Err(errno))
}
