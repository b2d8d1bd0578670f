//! What C points to, checked as far as it can be: null, the page at address 0 and what no program
//! can have are `EFAULT`, lengths that no object has are `EINVAL`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::net::SocketAddr;

use libc::{iovec, sockaddr, socklen_t};

use crate::address;
use crate::outcome::Outcome;

/// Nothing is ever mapped below this.
const LOWEST: usize = 4096;
/// No program has more bytes of addresses than this, nor, where processors ask for it, an address
/// beyond.
const SPACE: usize = 1 << 56;
/// Pieces that one call takes, as on Linux.
pub const PIECES_MAX: c_int = 1024;
/// Length of a `struct sockaddr_storage`.
const ADDRESS_MAX: socklen_t = 128;

/// Whether `len` bytes can be at an address.
fn check<T>(pointer: *const T, len: usize) -> Outcome<()> {
    if len > isize::MAX as usize {
        return Err(libc::EINVAL);
    }
    let start = pointer as usize;
    let end = start.saturating_add(len);
    let there = end <= SPACE || !cfg!(target_arch = "x86_64") && end < usize::MAX;
    let fits = start >= LOWEST && len <= SPACE && there;
    (fits && pointer.is_aligned())
        .then_some(())
        .ok_or(libc::EFAULT)
}

/// Bytes to read. None at all may be anywhere.
///
/// # Safety
/// There are `len` bytes if the pointer passes the check, and nobody changes them meanwhile.
pub unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(pointer.cast::<u8>(), len)?;
    // SAFETY: not null, not longer than an object can be; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), len) })
}

/// Bytes to write.
///
/// # Safety
/// As [`bytes`], and nobody reads them meanwhile.
pub unsafe fn bytes_mut<'a>(pointer: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(pointer.cast::<u8>(), len)?;
    // SAFETY: not null, not longer than an object can be; the rest is the caller's promise. Bytes
    // need no initial value to be written, and none is read.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

/// Text.
///
/// # Safety
/// It ends with a 0 if the pointer passes the check.
pub unsafe fn text<'a>(pointer: *const c_char) -> Outcome<&'a str> {
    check(pointer, 1)?;
    // SAFETY: not null; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| libc::EILSEQ)
}

/// A place to write a value to.
///
/// # Safety
/// There is room for it if the pointer passes the check.
pub unsafe fn put<T>(pointer: *mut T, value: T) -> Outcome<()> {
    check(pointer, size_of::<T>())?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    unsafe { pointer.write(value) };
    Ok(())
}

/// A value to read.
///
/// # Safety
/// It is there if the pointer passes the check.
pub unsafe fn get<T: Copy>(pointer: *const T) -> Outcome<T> {
    check(pointer, size_of::<T>())?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    Ok(unsafe { pointer.read() })
}

/// A socket address; none is `AF_UNSPEC`.
///
/// # Safety
/// There are `len` bytes if the pointer passes the check.
pub unsafe fn address(
    pointer: *const sockaddr,
    len: socklen_t,
    family: c_int,
) -> Outcome<Option<SocketAddr>> {
    if len > ADDRESS_MAX {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    address::parse(unsafe { bytes(pointer.cast(), len as usize)? }, family)
}

/// Whether there is room for an address, if one is wanted: looked at before anything is taken that
/// could not be told.
///
/// # Safety
/// There is what [`put_address`] needs.
pub unsafe fn check_address(to: *const sockaddr, len: *const socklen_t) -> Outcome<()> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let room = c_int::try_from(unsafe { get(len)? }).map_err(|_| libc::EINVAL)?;
    check(to.cast::<u8>(), room as usize)
}

/// Writes an address, cut to the room that there is, and the length that it has.
///
/// # Safety
/// There are as many bytes as `len` points to, if the pointers pass the check.
pub unsafe fn put_address(
    address: SocketAddr,
    family: c_int,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Outcome<()> {
    let (bytes, used) = address::format(address, family);
    // SAFETY: the caller's promise.
    let room = unsafe { get(len)? };
    let copied = used.min(c_int::try_from(room).map_err(|_| libc::EINVAL)? as usize);
    // SAFETY: the caller's promise; no more than the room is written.
    unsafe { bytes_mut(to.cast(), copied)? }.copy_from_slice(&bytes[..copied]);
    // SAFETY: the caller's promise.
    unsafe { put(len, used as socklen_t) }
}

/// The pieces of a vector, copied, each of them checked; and how many bytes they are.
///
/// # Safety
/// There are as many if the pointer passes the check.
unsafe fn vector(pointer: *const iovec, count: c_int) -> Outcome<(Vec<iovec>, usize)> {
    if !(0..=PIECES_MAX).contains(&count) {
        return Err(libc::EINVAL);
    }
    if count == 0 {
        return Ok((Vec::new(), 0));
    }
    check(pointer, count as usize * size_of::<iovec>())?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    let vector = unsafe { std::slice::from_raw_parts(pointer, count as usize) }.to_vec();
    let total = vector
        .iter()
        .try_fold(0usize, |total, piece| total.checked_add(piece.iov_len));
    let total = total.filter(|total| *total <= isize::MAX as usize);
    let total = total.ok_or(libc::EINVAL)?;
    for piece in vector.iter().filter(|piece| piece.iov_len > 0) {
        check(piece.iov_base.cast::<u8>(), piece.iov_len)?;
    }
    Ok((vector, total))
}

/// Pieces to read.
///
/// # Safety
/// As [`bytes`], for each of them.
pub unsafe fn pieces<'a>(pointer: *const iovec, count: c_int) -> Outcome<Vec<&'a [u8]>> {
    // SAFETY: the caller's promise.
    let (vector, _) = unsafe { vector(pointer, count)? };
    // SAFETY: the caller's promise.
    let piece = |piece: &iovec| unsafe { bytes(piece.iov_base, piece.iov_len) };
    vector.iter().map(piece).collect()
}

/// Pieces to write, and for how many bytes they have room. They may overlap: use one before the
/// next is asked for, and not after.
///
/// # Safety
/// As [`bytes_mut`], for each of them.
pub unsafe fn pieces_mut<'a>(
    pointer: *const iovec,
    count: c_int,
) -> Outcome<(usize, impl Iterator<Item = &'a mut [u8]>)> {
    // SAFETY: the caller's promise.
    let (vector, total) = unsafe { vector(pointer, count)? };
    // SAFETY: the caller's promise.
    let piece = |piece: iovec| unsafe { bytes_mut(piece.iov_base, piece.iov_len) };
    // Every one of them has been checked.
    Ok((
        total,
        vector.into_iter().filter_map(move |each| piece(each).ok()),
    ))
}

/// Values to read and change.
///
/// # Safety
/// There are `count` of them if the pointer passes the check, and nobody looks at them meanwhile.
pub unsafe fn values_mut<'a, T: Copy>(pointer: *mut T, count: usize) -> Outcome<&'a mut [T]> {
    if count == 0 {
        return Ok(&mut []);
    }
    let len = count.checked_mul(size_of::<T>()).ok_or(libc::EINVAL)?;
    check(pointer, len)?;
    // SAFETY: not null and aligned, not longer than an object can be; the rest is the caller's
    // promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

/// Places for values that are to be written.
///
/// # Safety
/// There is room for `count` of them if the pointer passes the check.
pub unsafe fn places<'a, T>(pointer: *mut T, count: usize) -> Outcome<&'a mut [MaybeUninit<T>]> {
    let len = count.checked_mul(size_of::<T>()).ok_or(libc::EINVAL)?;
    check(pointer, len)?;
    // SAFETY: not null and aligned, not longer than an object can be; the rest is the caller's
    // promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), count) })
}
