//! fdopen on a millrace socket: the C library's streams call the kernel themselves, so such a stream is made of our calls.

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, size_t, ssize_t};
use rustix::io::Errno;

use crate::hooks::{descriptor, io};
use crate::sys;

#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

unsafe extern "C" fn read(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { io::read(cookie as usize as c_int, to.cast(), len) }
}

unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer. A cookie's write reports errors as 0.
    unsafe { io::write(cookie as usize as c_int, from.cast(), len) }.max(0)
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: closing has no other demands.
    unsafe { descriptor::close(cookie as usize as c_int) }
}

/// Where a FILE keeps its descriptor's number in the C library's own structure (`_fileno`), for programs that ask for it.
#[cfg(target_pointer_width = "64")]
const FILENO_AT: usize = 112;

/// A stream on a millrace socket.
///
/// # Safety
/// `mode` is a string.
pub unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions {
        read: Some(read),
        write: Some(write),
        seek: None,
        close: Some(close),
    };
    // SAFETY: the caller's promise.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if stream.is_null() {
        sys::set_errno(Errno::NOMEM);
        return stream;
    }
    // SAFETY: a FILE of the C library; a stream of this kind does not use the field itself.
    unsafe {
        stream.cast::<u8>().add(FILENO_AT).cast::<c_int>().write(fd);
    }
    stream
}
