//! The program's buffers and vectors, as calls name them.

use std::ffi::c_void;

use libc::iovec;
use rustix::io::Errno;

use crate::sys::Result;
use crate::sys::thread_sanitizer;

/// The most bytes that Linux moves in one call.
pub const CALL_MAX: usize = 0x7fff_f000;
/// The most entries of one vector.
const VECTOR_MAX: usize = 1024;
/// Below this address nothing is mapped (vm.mmap_min_addr); above the next one is the kernel's
/// half.
const LOWEST: usize = 4096;
const HIGHEST: usize = 1 << 47;

/// Refuses pointers that cannot be valid: null and its neighbours, and the kernel's half. Other bad
/// pointers end the program, as in any function of the C library; finding them out as the kernel
/// does would take a system call.
pub fn check(at: *const c_void, len: usize) -> Result<()> {
    let at = at as usize;
    let good = len == 0 || at >= LOWEST && at.checked_add(len).is_some_and(|end| end <= HIGHEST);
    good.then_some(()).ok_or(Errno::FAULT)
}

/// A position in a vector of buffers. Bytes are taken from it, or put into it, in order.
#[derive(Clone, Copy, Debug)]
pub struct UserBuffers {
    /// The buffer of a call without a vector.
    one: iovec,
    /// The vector, or null.
    vector: *const iovec,
    count: usize,
    /// How many bytes of the first entry are done.
    offset: usize,
    left: usize,
}

impl UserBuffers {
    /// One buffer. `FAULT`: it cannot be valid.
    ///
    /// # Safety
    /// It stays valid for `len` bytes while this value is used.
    pub unsafe fn buffer(at: *const c_void, len: usize) -> Result<UserBuffers> {
        let left = len.min(CALL_MAX);
        check(at, left)?;
        Ok(UserBuffers {
            one: iovec {
                iov_base: at.cast_mut(),
                iov_len: left,
            },
            vector: std::ptr::null(),
            count: 1,
            offset: 0,
            left,
        })
    }

    /// A vector. Returns `too_many` for more entries than Linux takes, `INVAL` for a negative sum
    /// of lengths, and `FAULT` for bad pointers.
    ///
    /// # Safety
    /// The vector and its buffers stay valid while this value is used.
    pub unsafe fn vector(
        vector: *const iovec,
        count: usize,
        too_many: Errno,
    ) -> Result<UserBuffers> {
        if count > VECTOR_MAX {
            return Err(too_many);
        }
        check(vector.cast(), count * size_of::<iovec>())?;
        let mut left = 0usize;
        for index in 0..count {
            // SAFETY: the caller's promise.
            let entry = unsafe { *vector.add(index) };
            if entry.iov_len > isize::MAX as usize {
                return Err(Errno::INVAL);
            }
            let len = entry.iov_len.min(CALL_MAX - left);
            check(entry.iov_base, len)?;
            left += len;
        }
        Ok(UserBuffers {
            one: iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            },
            vector,
            count,
            offset: 0,
            left,
        })
    }

    /// The number of bytes left.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Advances by `len` bytes, at most those left, and hands out where they are.
    fn advance(&mut self, mut len: usize, mut piece: impl FnMut(*mut u8, usize)) {
        len = len.min(self.left);
        self.left -= len;
        while len > 0 {
            let entry = if self.vector.is_null() {
                self.one
            } else {
                // SAFETY: `left` is the sum of the entries' lengths, so there is one more entry
                // while it is not 0.
                unsafe { *self.vector }
            };
            let here = (entry.iov_len - self.offset).min(len);
            if here > 0 {
                // SAFETY: inside the entry.
                piece(
                    unsafe { entry.iov_base.cast::<u8>().add(self.offset) },
                    here,
                );
                self.offset += here;
                len -= here;
            } else {
                // SAFETY: as above.
                self.vector = unsafe { self.vector.add(1) };
                self.count -= 1;
                self.offset = 0;
            }
        }
    }

    /// Takes `len` bytes out.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes.
    pub unsafe fn take(&mut self, mut to: *mut u8, len: usize) {
        self.advance(len, |from, len| {
            // SAFETY: `from` by the promise of the constructor, `to` by the caller's; the staging
            // ring and a program's buffer are apart.
            unsafe {
                thread_sanitizer::copy_from_program(from, to, len);
                to = to.add(len);
            }
        });
    }

    /// Puts `len` bytes in.
    ///
    /// # Safety
    /// `from` is valid for `len` bytes.
    pub unsafe fn put(&mut self, mut from: *const u8, len: usize) {
        self.advance(len, |to, len| {
            // SAFETY: as in `take`, the other way round.
            unsafe {
                thread_sanitizer::copy_to_program(from, to, len);
                from = from.add(len);
            }
        });
    }

    /// Advances by `len` bytes without touching them.
    pub fn skip(&mut self, len: usize) {
        self.advance(len, |_, _| {});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(bytes: &mut [u8]) -> iovec {
        iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        }
    }

    #[test]
    fn a_vector_is_one_stretch_of_bytes() {
        let (mut a, mut b, mut c) = (*b"abc", [0u8; 0], *b"defgh");
        let vector = [entry(&mut a), entry(&mut b), entry(&mut c)];
        // SAFETY: the buffers live until the end of the test.
        let mut pieces = unsafe { UserBuffers::vector(vector.as_ptr(), 3, Errno::INVAL) }.unwrap();
        assert_eq!(pieces.left(), 8);
        let mut out = [0u8; 5];
        // SAFETY: `out` has five bytes.
        unsafe { pieces.take(out.as_mut_ptr(), 5) };
        assert_eq!((&out, pieces.left()), (b"abcde", 3));
        pieces.skip(1);
        // SAFETY: two bytes are there.
        unsafe { pieces.put(b"XY".as_ptr(), 2) };
        assert_eq!(&c, b"defXY");
        assert_eq!(pieces.left(), 0);
    }

    #[test]
    fn i1_bad_pointers_and_counts_are_errors() {
        assert_eq!(check(std::ptr::null(), 1), Err(Errno::FAULT));
        assert_eq!(check(std::ptr::null(), 0), Ok(()));
        assert_eq!(check(usize::MAX as *const c_void, 1), Err(Errno::FAULT));
        assert_eq!(check(8192 as *const c_void, usize::MAX), Err(Errno::FAULT));
        let vector = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: usize::MAX,
        }];
        // SAFETY: every one is refused before a buffer is used.
        unsafe {
            assert_eq!(
                UserBuffers::vector(vector.as_ptr(), 1025, Errno::MSGSIZE).err(),
                Some(Errno::MSGSIZE)
            );
            assert_eq!(
                UserBuffers::vector(vector.as_ptr(), 1, Errno::INVAL).err(),
                Some(Errno::INVAL)
            );
            assert_eq!(
                UserBuffers::vector(std::ptr::null(), 1, Errno::INVAL).err(),
                Some(Errno::FAULT)
            );
            assert_eq!(
                UserBuffers::vector(std::ptr::null(), 0, Errno::INVAL)
                    .unwrap()
                    .left(),
                0
            );
        }
    }
}
