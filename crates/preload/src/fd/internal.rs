//! The shim's own descriptors: the control socket, the doorbells and the placeholder.
//!
//! They have high numbers, so that the program gets the low numbers that it would get without the
//! shim. An exec closes them, and to the program they are not open. If the program wants one of
//! their numbers (`dup2`), the descriptor moves to another number.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::io::Errno;

use crate::fd::table::{self, Entry};
use crate::sys::robust_lock::{self, Guard, Rank};
use crate::sys::wipe_on_fork::OWN;
use crate::sys::{self, Result};

/// Names one of these descriptors, whatever its present number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(usize);

/// The most descriptors of its own that the shim has in one process. An epoll set and a thread in
/// `poll` have one each.
const HANDLES: usize = 16 * 1024;
/// Present numbers plus 1. 0 is a free place, so the array takes no memory until it is used.
static HELD: [AtomicI32; HANDLES] = [const { AtomicI32::new(0) }; HANDLES];

impl Handle {
    /// The present number.
    pub fn fd(self) -> c_int {
        HELD[self.0].load(Ordering::Acquire) - 1
    }

    /// The handle as a number that fits in an atomic.
    pub fn to_bits(self) -> u32 {
        self.0 as u32
    }

    /// The handle from [`Handle::to_bits`].
    pub fn from_bits(bits: u32) -> Handle {
        Handle(bits as usize % HANDLES)
    }
}

/// The lock word of [`lock`].
pub static LOCK: &AtomicU32 = &OWN.descriptors_lock;

/// Locks the shim's own descriptors: while the lock is held, each open descriptor is recorded. A
/// fork holds the lock. A child with an unrecorded descriptor would keep the object behind it open
/// as long as the child lives, for example an epoll set. `None`: this is a signal handler in the
/// middle of such a change.
pub fn lock() -> Option<Guard<'static>> {
    robust_lock::take(LOCK, Rank::Descriptors)
}

/// The lowest number for these descriptors. It is above what a program with few descriptors
/// reaches, and above what `select` can name if the limit allows it. It is low enough to keep the
/// kernel's table of this process, which fork copies, small.
fn base() -> i64 {
    let limit = sys::descriptor_limit().min(table::DESCRIPTORS_MAX as u64);
    match limit {
        1536.. => 1024,
        512.. => limit as i64 - 128,
        _ => limit as i64 * 3 / 4,
    }
}

/// Duplicates `fd` to a high number, closed on exec.
fn lift(fd: c_int) -> Result<c_int> {
    let high = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, base()).or_else(|errno| match errno {
        // All higher numbers are taken: any number will do.
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

/// Takes over a descriptor. Its old number is closed.
#[expect(clippy::needless_pass_by_value, reason = "the caller has it no more")]
pub fn adopt(fd: OwnedFd) -> Result<Handle> {
    copy(fd.as_raw_fd())
}

/// Takes over a duplicate of a descriptor.
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

/// Closes a descriptor.
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

/// Moves an own descriptor away from a number that the program wants. The number is left closed.
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
        // It is still the same pipe.
        rustix::io::write(&other, b"x").unwrap();
        // SAFETY: the handle's descriptor is open until it is released.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(handle.fd()) };
        assert_eq!(rustix::io::read(borrowed, &mut [0u8; 4]).unwrap(), 1);
        release(handle);
        assert_eq!(handle.fd(), -1);
    }
}
