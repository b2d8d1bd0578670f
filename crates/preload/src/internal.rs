//! The shim's own descriptors: the control socket, doorbells, the anchor.
//!
//! They live at high numbers, so that the program gets the low ones it would get without us, are closed on exec, and are not open as far as
//! the program can tell. If it wants one of their numbers (`dup2`), they move.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;

use crate::engine;
use crate::lock::{self, Guard, Rank};
use crate::sys::{self, Result};
use crate::table::{self, Entry};

/// Where a descriptor's present number is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(usize);

/// Own descriptors of one process, at most: an epoll set and a thread in `poll` have one each.
const HANDLES: usize = 16 * 1024;
/// Numbers plus 1; 0 is a free place, so that the array costs nothing until it is used.
static HELD: [AtomicI32; HANDLES] = [const { AtomicI32::new(0) }; HANDLES];

impl Handle {
    /// The number now.
    pub fn fd(self) -> c_int {
        HELD[self.0].load(Ordering::Acquire) - 1
    }

    /// As a number to keep in an atomic.
    pub fn to_bits(self) -> u32 {
        self.0 as u32
    }

    /// Back.
    pub fn from_bits(bits: u32) -> Handle {
        Handle(bits as usize % HANDLES)
    }
}

/// While it is held no own descriptor is between the kernel and where it is kept. A fork holds it: a child that had one that it does not know of would keep what is behind
/// it open, an epoll set say, for as long as it lives. None in a signal handler above such a change.
pub fn lock() -> Option<Guard<'static>> {
    lock::take(engine::DESCRIPTORS, Rank::Descriptors)
}

/// From where on own descriptors are numbered: above what a program with few descriptors reaches, and above what `select` can name, if the limit
/// allows; not so high that the kernel's table of this process (copied by fork) becomes large.
fn base() -> i64 {
    let limit = sys::descriptor_limit().min(table::DESCRIPTORS_MAX as u64);
    match limit {
        1536.. => 1024,
        512.. => limit as i64 - 128,
        _ => limit as i64 * 3 / 4,
    }
}

/// A copy of `fd` at a high number, closed on exec.
fn lift(fd: c_int) -> Result<c_int> {
    let high = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, base()).or_else(|errno| match errno {
        // The numbers above are all taken: any will do.
        Errno::MFILE | Errno::INVAL => sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3),
        _ => Err(errno),
    })?;
    if !table::holds(high) {
        sys::close(high);
        return Err(Errno::MFILE);
    }
    table::set(high, Entry::Internal);
    Ok(high)
}

/// Takes a descriptor in; its old number is closed.
#[expect(clippy::needless_pass_by_value, reason = "the caller has it no more")]
pub fn adopt(fd: OwnedFd) -> Result<Handle> {
    copy(fd.as_raw_fd())
}

/// Takes a duplicate of a descriptor in.
pub fn copy(fd: c_int) -> Result<Handle> {
    let _lock = lock();
    let high = lift(fd)?;
    let free = HELD.iter().position(|held| {
        held.compare_exchange(0, high + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    });
    match free {
        Some(index) => Ok(Handle(index)),
        None => {
            forget(high);
            Err(Errno::MFILE)
        }
    }
}

/// Closes one.
pub fn release(handle: Handle) {
    let _lock = lock();
    let fd = HELD[handle.0].swap(0, Ordering::AcqRel) - 1;
    if fd >= 0 {
        forget(fd);
    }
}

fn forget(fd: c_int) {
    table::set(fd, Entry::Kernel);
    sys::close(fd);
}

/// Moves an own descriptor out of the way: the program wants its number. The number is left closed.
pub fn vacate(fd: c_int) -> Result<()> {
    let _lock = lock();
    let high = lift(fd)?;
    let moved = HELD.iter().any(|held| {
        held.compare_exchange(fd + 1, high + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    });
    forget(if moved { fd } else { high });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_descriptors_are_high_and_move_away() {
        let (one, other) = rustix::pipe::pipe().unwrap();
        let handle = adopt(one).unwrap();
        let fd = handle.fd();
        assert!(i64::from(fd) >= base() && table::get(fd) == Entry::Internal);
        vacate(fd).unwrap();
        assert_ne!(handle.fd(), fd);
        assert!(table::is_kernel(fd));
        // Still the same pipe.
        rustix::io::write(&other, b"x").unwrap();
        // SAFETY: the handle's descriptor is open until it is released.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(handle.fd()) };
        assert_eq!(rustix::io::read(borrowed, &mut [0u8; 4]).unwrap(), 1);
        release(handle);
        assert_eq!(handle.fd(), -1);
    }
}
