//! Reference counts of slots: the descriptors of this process that mean a slot, and its calls at
//! work on the slot.
//!
//! The engine is told when the last reference is dropped. A blocking call has a reference, so a
//! `close` by another thread takes effect when the call returns, as in the kernel.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::fd::table::{self, Entry};
use crate::sys::{self, Result};

/// Set once the socket has been in an epoll set of this process.
const IN_SETS: u32 = 1 << 31;

static REFS: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static LEN: AtomicU32 = AtomicU32::new(0);

/// Makes the counts, all 0.
pub fn make(slots: u32) -> Result<()> {
    let at = sys::map(slots as usize * 4, false)?;
    LEN.store(slots, Ordering::Relaxed);
    REFS.store(at.cast(), Ordering::Release);
    Ok(())
}

fn cell(slot: u32) -> Option<&'static AtomicU32> {
    let at = REFS.load(Ordering::Acquire);
    (!at.is_null() && slot < LEN.load(Ordering::Relaxed)).then(|| {
        // SAFETY: `make` mapped LEN counts there, and they stay.
        unsafe { &*at.add(slot as usize) }
    })
}

/// Sets the count of a slot that is new to this process: one descriptor means it.
pub fn first(slot: u32) {
    if let Some(cell) = cell(slot) {
        cell.store(1, Ordering::Release);
    }
}

/// Adds a reference if there is one already. False: the socket has been closed.
pub fn more(slot: u32) -> bool {
    cell(slot).is_some_and(|cell| {
        cell.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
            (count & !IN_SETS != 0).then_some(count + 1)
        })
        .is_ok()
    })
}

/// Drops a reference. True: it was the last.
pub fn fewer(slot: u32) -> bool {
    cell(slot).is_some_and(|cell| cell.fetch_sub(1, Ordering::AcqRel) & !IN_SETS == 1)
}

/// The number of references.
pub fn count(slot: u32) -> u32 {
    cell(slot).map_or(0, |cell| cell.load(Ordering::Acquire) & !IN_SETS)
}

/// Whether this process holds the slot.
pub fn any(slot: u32) -> bool {
    cell(slot).is_some_and(|cell| cell.load(Ordering::Acquire) & !IN_SETS != 0)
}

/// Notes that the socket is in an epoll set.
pub fn note_in_sets(slot: u32) {
    if let Some(cell) = cell(slot) {
        cell.fetch_or(IN_SETS, Ordering::Relaxed);
    }
}

/// Whether the socket may be in an epoll set of this process.
pub fn in_sets(slot: u32) -> bool {
    cell(slot).is_some_and(|cell| cell.load(Ordering::Relaxed) & IN_SETS != 0)
}

/// Counts anew from the table: after an exec, and in the child of a fork, where the calls of the
/// parent's other threads do not continue.
pub fn count_again(slots: u32) {
    let sockets = || {
        table::all().filter_map(|(_, entry)| match entry {
            Entry::Socket(slot) if slot.index < slots => Some(slot.index),
            _ => None,
        })
    };
    for slot in sockets() {
        if let Some(cell) = cell(slot) {
            cell.fetch_and(IN_SETS, Ordering::Relaxed);
        }
    }
    for slot in sockets() {
        if let Some(cell) = cell(slot) {
            cell.fetch_add(1, Ordering::Relaxed);
        }
    }
}
