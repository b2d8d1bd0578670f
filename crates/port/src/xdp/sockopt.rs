//! Options of AF_XDP sockets, as the kernel has them.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::ioctl::check;

pub(super) fn get_option<T>(socket: &OwnedFd, option: c_int, value: &mut T) -> io::Result<()> {
    get(socket, libc::SOL_XDP, option, value)
}

pub(super) fn get<T>(
    socket: &OwnedFd,
    level: c_int,
    option: c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut len = size_of::<T>() as u32;
    // SAFETY: the value outlives the call, and is as long as is said; every value of these bytes is
    // one of its type, which is of numbers.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_mut(value).cast(),
            &raw mut len,
        )
    })
    .map(drop)
}

pub(super) fn set_option<T>(socket: &OwnedFd, option: c_int, value: &T) -> io::Result<()> {
    set(socket, libc::SOL_XDP, option, value)
}

pub(super) fn set<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value outlives the call, and is as long as is said; the memory that it may name
    // outlives the socket.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as u32,
        )
    })
    .map(drop)
}
