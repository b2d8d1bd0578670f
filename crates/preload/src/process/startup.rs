//! The start of the shim when the dynamic linker loads it.

use std::ffi::{c_char, c_int};

use crate::engine;
use crate::process::{environment, fork};
use crate::readiness::{epoll_sets, ready_list};
use crate::sys::{self, thread_sanitizer};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn(c_int, *const *mut c_char, *mut *mut c_char) = load;

/// Called by the dynamic linker.
extern "C" fn load(_: c_int, _: *const *mut c_char, strings: *mut *mut c_char) {
    sys::find_clock();
    thread_sanitizer::find();
    engine::on_unseen_fork(fork::after_unseen_fork);
    epoll_sets::before_close(|index, engine| {
        ready_list::show(index, engine);
    });
    // SAFETY: the dynamic linker hands over the environment, an array of strings that ends with a
    // null pointer.
    unsafe { environment::read(strings) };
    if environment::get().is_some_and(|environment| environment.is_awaited) {
        // If the engine cannot be reached, the sockets report it when they are used.
        let _ = engine::get();
    }
}
