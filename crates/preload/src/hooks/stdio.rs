//! Streams of the C library on millrace sockets. The C library's own streams make system calls
//! directly, so these call the shim's functions by their names.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{FILE, size_t, ssize_t};
use rustix::io::Errno;

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
    unsafe { libc::read(cookie as usize as c_int, to.cast(), len) }
}

unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer. A cookie's write reports errors as 0.
    unsafe { libc::write(cookie as usize as c_int, from.cast(), len) }.max(0)
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: closing has no other demands.
    unsafe { libc::close(cookie as usize as c_int) }
}

/// The place of the descriptor's number (`_fileno`) in the C library's FILE, for programs that ask
/// for it.
#[cfg(target_pointer_width = "64")]
const FILENO_AT: usize = 112;

/// Makes a stream on a millrace socket.
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

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn __flbf(stream: *mut FILE) -> c_int;
}

/// The size of a standard stream's buffer, as in glibc for a descriptor.
const BUFFER: size_t = 4096;

/// The standard descriptors whose stream has been replaced, one bit each.
static REPLACED: AtomicU32 = AtomicU32::new(0);

/// Replaces a standard stream whose descriptor has become a millrace socket, as under inetd. The
/// new stream follows the descriptor's meaning at each call. Programs in C see it; the C++ library
/// has taken the old streams before the shim is loaded.
pub fn stand_in(fd: c_int) {
    if !(0..=2).contains(&fd) || REPLACED.fetch_or(1 << fd, Ordering::Relaxed) & 1 << fd != 0 {
        return;
    }
    let mode = if fd == 0 { c"r" } else { c"w" };
    // SAFETY: the C library's variables, which a program may assign to as well; the old stream
    // stays for whoever has kept it.
    unsafe {
        let stream = open(fd, mode.as_ptr());
        if stream.is_null() {
            return;
        }
        let standard = match fd {
            0 => &raw mut stdin,
            1 => &raw mut stdout,
            _ => &raw mut stderr,
        };
        if fd != 0 {
            libc::fflush(*standard);
            let buffering = if fd == 2 {
                libc::_IONBF
            } else if __flbf(*standard) != 0 {
                libc::_IOLBF
            } else {
                libc::_IOFBF
            };
            libc::setvbuf(stream, std::ptr::null_mut(), buffering, BUFFER);
        }
        *standard = stream;
    }
}
