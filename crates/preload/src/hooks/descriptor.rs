//! Hooks of calls on descriptors: close, dup, fcntl, ioctl and fdopen.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::FILE;
use rustix::io::Errno;

use super::{fail, hooks, nothing, number};
use crate::fd::operations;
use crate::fd::table::{self, Entry};
use crate::hooks::stdio;
use crate::interfaces;
use crate::sys::original;

hooks! {
    /// Closes.
    fn close(fd: c_int) -> c_int {
        if table::is_kernel(fd) {
            return original::close(fd);
        }
        nothing(operations::close(fd))
    }

    /// An alias of the function above.
    fn __close(fd: c_int) -> c_int {
        close(fd)
    }

    /// Closes a range.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        nothing(operations::close_range(first, last, flags))
    }

    /// Closes every descriptor from `first` on.
    fn closefrom(first: c_int) -> () {
        // It cannot fail for a valid range.
        let _ = operations::close_range(first.max(0) as c_uint, c_uint::MAX, 0);
    }

    /// Duplicates.
    fn dup(fd: c_int) -> c_int where settled(fd) {
        if table::is_kernel(fd) {
            return original::dup(fd);
        }
        operations::duplicate(fd, || original::dup(fd))
    }

    /// Duplicates to a number.
    fn dup2(from: c_int, to: c_int) -> c_int where settled(from) {
        if table::is_kernel(from) && table::is_kernel(to) {
            return original::dup2(from, to);
        }
        operations::duplicate_to(from, to, || original::dup2(from, to))
    }

    /// An alias of the function above.
    fn __dup2(from: c_int, to: c_int) -> c_int {
        dup2(from, to)
    }

    /// Duplicates to a number, with flags.
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int where settled(from) {
        if table::is_kernel(from) && table::is_kernel(to) {
            return original::dup3(from, to, flags);
        }
        operations::duplicate_to(from, to, || original::dup3(from, to, flags))
    }

    /// Does what the command says. The argument is an integer or a pointer, which is passed in the
    /// same place.
    fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int where settled(fd) {
        let kernel = || original::fcntl64(fd, command, argument);
        match table::get(fd) {
            Entry::Kernel => kernel(),
            Entry::Internal => fail(Errno::BADF),
            _ if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
                operations::duplicate(fd, kernel)
            }
            Entry::Socket(slot) => {
                match operations::control(fd, slot, command, argument as c_long) {
                    Some(result) => number(result),
                    None => kernel(),
                }
            }
            _ => kernel(),
        }
    }

    /// The older name of the function above.
    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        fcntl64(fd, command, argument)
    }

    /// An alias of the function above.
    fn __fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        fcntl64(fd, command, argument)
    }

    /// Controls a device.
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => {
                match operations::device_control(fd, slot, request, argument.cast()) {
                    Some(result) => number(result),
                    None if interfaces::is_about_devices(request) => {
                        interfaces::control_by_probe(request, argument)
                    }
                    None => original::ioctl(fd, request, argument),
                }
            }
            Entry::Internal => fail(Errno::BADF),
            _ if interfaces::is_request(request) => interfaces::control(fd, request, argument),
            _ => original::ioctl(fd, request, argument),
        }
    }

    /// Makes a stream of the C library.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        match table::get(fd) {
            Entry::Socket(_) => stdio::open(fd, mode),
            _ => original::fdopen(fd, mode),
        }
    }
}
