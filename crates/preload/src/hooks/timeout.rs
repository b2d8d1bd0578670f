//! The time-outs that programs give.

use std::ffi::c_int;

use libc::timespec;
use rustix::io::Errno;

use crate::sys::{Result, user_buffers};

/// A time-out in milliseconds as microseconds. `None`: it is negative, which means for ever.
pub fn ms(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| ms * 1000)
}

/// A time-out in microseconds, rounded up; `None` is for ever. `INVAL`: it is not a valid time.
///
/// # Safety
/// The pointer is null or valid.
pub unsafe fn duration(timeout: *const timespec) -> Result<Option<u64>> {
    if timeout.is_null() {
        return Ok(None);
    }
    user_buffers::check(timeout.cast(), size_of::<timespec>())?;
    // SAFETY: the caller's promise.
    let time = unsafe { *timeout };
    if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) {
        return Err(Errno::INVAL);
    }
    let us = (time.tv_sec as u64).saturating_mul(1_000_000);
    Ok(Some(
        us.saturating_add((time.tv_nsec as u64).div_ceil(1000)),
    ))
}
