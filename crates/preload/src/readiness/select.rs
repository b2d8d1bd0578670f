//! `select` by means of `poll`: converts its bit sets in both directions.

use std::ffi::c_int;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, pollfd, sigset_t};
use rustix::io::Errno;

use crate::fd::table::DESCRIPTORS_MAX;
use crate::readiness::poll::{self, Begun};
use crate::sys::Result;
use crate::sys::mmap_buffer::SmallBuffer;
use crate::sys::user_buffers;

/// One of select's bit sets, with as many 64-bit words as the largest descriptor needs; null for
/// none.
#[derive(Clone, Copy)]
pub struct Bits(*mut u64);

impl Bits {
    /// Makes a set from the program's pointer, for descriptors below `count`. `FAULT`: the pointer
    /// cannot be valid.
    ///
    /// # Safety
    /// The pointer is null, or points to as many bits, rounded up to whole words, until the value
    /// is dropped.
    pub unsafe fn new(at: *mut libc::fd_set, count: usize) -> Result<Bits> {
        if !at.is_null() {
            user_buffers::check(at.cast(), count.div_ceil(64) * 8)?;
        }
        Ok(Bits(at.cast()))
    }

    fn has(self, fd: usize) -> bool {
        // SAFETY: `fd` is below the count given to `new`.
        !self.0.is_null() && unsafe { *self.0.add(fd / 64) } & 1 << (fd % 64) != 0
    }

    fn clear(self, count: usize) {
        if !self.0.is_null() {
            for word in 0..count.div_ceil(64) {
                // SAFETY: within the count given to `new`.
                unsafe { *self.0.add(word) = 0 };
            }
        }
    }

    fn set(self, fd: usize) {
        // SAFETY: as in `has`; the caller has seen the bit there before.
        unsafe { *self.0.add(fd / 64) |= 1 << (fd % 64) };
    }
}

/// The three bit sets of a select.
#[derive(Clone, Copy)]
pub struct Sets {
    /// The sets have the descriptors below this.
    pub count: usize,
    /// Descriptors to read.
    pub read: Bits,
    /// Descriptors to write.
    pub write: Bits,
    /// Descriptors with exceptions.
    pub except: Bits,
}

const READ: i16 = POLLIN | POLLHUP | POLLERR | libc::POLLRDNORM | libc::POLLRDBAND;
const WRITE: i16 = POLLOUT | POLLERR | libc::POLLWRNORM | libc::POLLWRBAND;

impl Sets {
    fn members(self) -> impl Iterator<Item = usize> {
        (0..self.count)
            .filter(move |fd| self.read.has(*fd) || self.write.has(*fd) || self.except.has(*fd))
    }

    /// Whether a member concerns the shim.
    pub fn concerns_us(self) -> bool {
        self.members().any(|fd| poll::is_ours(fd as c_int))
    }

    /// Waits. Returns how many bits are set in the results.
    pub fn wait(self, timeout_us: Option<u64>, mask: *const sigset_t) -> Result<usize> {
        let mut fds: SmallBuffer<pollfd, 32> = SmallBuffer::new(self.members().count())?;
        for (polled, fd) in fds.iter_mut().zip(self.members()) {
            let wants = |bits: Bits, events: i16| if bits.has(fd) { events } else { 0 };
            polled.fd = fd as c_int;
            polled.events = wants(self.read, POLLIN | libc::POLLRDNORM | libc::POLLRDBAND)
                | wants(self.write, POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND)
                | wants(self.except, POLLPRI);
        }
        poll::poll(&mut fds, Begun::now(mask), timeout_us, mask)?;
        if fds.iter().any(|polled| polled.revents & POLLNVAL != 0) {
            return Err(Errno::BADF);
        }
        let had = self;
        let results = |fd: usize, revents: i16| {
            [(had.read, READ), (had.write, WRITE), (had.except, POLLPRI)]
                .map(|(bits, events)| bits.has(fd) && revents & events != 0)
        };
        // All results are computed before any bit changes.
        for polled in fds.iter_mut() {
            let [read, write, except] = results(polled.fd as usize, polled.revents);
            polled.events = i16::from(read) | i16::from(write) << 1 | i16::from(except) << 2;
        }
        let mut count = 0;
        for (at, bits) in [self.read, self.write, self.except].into_iter().enumerate() {
            bits.clear(self.count);
            for polled in fds.iter().filter(|polled| polled.events & 1 << at != 0) {
                bits.set(polled.fd as usize);
                count += 1;
            }
        }
        Ok(count)
    }
}

/// The number of descriptors that select was given, at most as many as can exist. `INVAL`: it is
/// negative.
pub fn count(given: c_int) -> Result<usize> {
    let count = usize::try_from(given).map_err(|_| Errno::INVAL)?;
    Ok(count.min(DESCRIPTORS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_select_has_them() {
        // SAFETY: zeros are an fd_set.
        let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
        // SAFETY: 70 is below FD_SETSIZE.
        unsafe { libc::FD_SET(70, &mut set) };
        // SAFETY: an fd_set holds 1024 bits.
        let bits = unsafe { Bits::new(&mut set, 128) }.unwrap();
        assert!(bits.has(70) && !bits.has(6));
        bits.clear(128);
        bits.set(3);
        // SAFETY: as above.
        unsafe {
            assert!(libc::FD_ISSET(3, &set) && !libc::FD_ISSET(70, &set));
        }
        assert_eq!(count(-1), Err(Errno::INVAL));
    }
}
