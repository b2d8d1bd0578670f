//! Temporary buffers from the kernel: a hook may run inside the allocator, and on a small stack.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::{self, Result};

/// Types for which all bits 0 is a value.
///
/// # Safety
/// All bytes 0 is a value of the type.
pub unsafe trait Zero: Copy {
    /// The value with all bits 0.
    fn zero() -> Self {
        // SAFETY: the promise of the trait.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}
// SAFETY: an integer.
unsafe impl Zero for u8 {}
// SAFETY: an integer.
unsafe impl Zero for u64 {}
// SAFETY: integers only.
unsafe impl Zero for libc::pollfd {}
// SAFETY: a pointer may be null.
unsafe impl Zero for *const libc::c_char {}

/// The bytes of a spare block.
const SPARE: usize = 64 * 1024;
/// The number of spare blocks: an exec takes three at once.
const SPARES: usize = 4;

/// Spare blocks for when the kernel gives no memory: a process at its limit (RLIMIT_AS) can still
/// call exec. An unused block takes no memory.
struct Spares {
    blocks: UnsafeCell<[[u64; SPARE / 8]; SPARES]>,
    taken: [AtomicBool; SPARES],
}
// SAFETY: a block is used by whoever has set its mark.
unsafe impl Sync for Spares {}

static SPARE_BLOCKS: Spares = Spares {
    blocks: UnsafeCell::new([[0; SPARE / 8]; SPARES]),
    taken: [const { AtomicBool::new(false) }; SPARES],
};

impl Spares {
    fn first(&self) -> *mut u8 {
        self.blocks.get().cast()
    }

    /// Takes a zeroed block, if one is free and large enough.
    fn take(&self, bytes: usize) -> Option<*mut u8> {
        let free = |taken: &AtomicBool| !taken.swap(true, Ordering::Acquire);
        let index = (bytes <= SPARE).then(|| self.taken.iter().position(free))??;
        // SAFETY: one of the blocks.
        Some(unsafe { self.first().add(index * SPARE) })
    }

    /// Gives a block back. False: `at` is not a spare block.
    fn give(&self, at: *mut u8) -> bool {
        let index = (at as usize).wrapping_sub(self.first() as usize) / SPARE;
        let Some(taken) = self.taken.get(index) else {
            return false;
        };
        // SAFETY: a block of ours, which nobody uses any more.
        unsafe { at.write_bytes(0, SPARE) };
        taken.store(false, Ordering::Release);
        true
    }
}

/// An array of plain values that begins as all bits 0. Dropping it unmaps it.
pub struct MmapBuffer<T: Zero> {
    at: *mut T,
    len: usize,
}

impl<T: Zero> MmapBuffer<T> {
    /// Makes an array of `len` values. `NOMEM`: there is no memory.
    pub fn new(len: usize) -> Result<MmapBuffer<T>> {
        let bytes = len.max(1) * size_of::<T>();
        let mapped = sys::map(bytes, false).map(<*mut c_void>::cast::<u8>);
        let at = mapped.or_else(|errno| SPARE_BLOCKS.take(bytes).ok_or(errno))?;
        Ok(MmapBuffer { at: at.cast(), len })
    }
}

impl<T: Zero> Deref for MmapBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: mapped with this length; zero pages are values of T.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<T: Zero> DerefMut for MmapBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl<T: Zero> Drop for MmapBuffer<T> {
    fn drop(&mut self) {
        if SPARE_BLOCKS.give(self.at.cast()) {
            return;
        }
        // SAFETY: mapped by `new` with this length; nothing refers to it any more.
        unsafe { sys::unmap(self.at.cast(), self.len.max(1) * size_of::<T>()) };
    }
}

/// An array of plain values that is on the stack up to `N` values.
pub enum SmallBuffer<T: Zero, const N: usize> {
    /// The array is on the stack; so many values are in use.
    Inline([T; N], usize),
    /// The array is too large for the stack.
    Mapped(MmapBuffer<T>),
}

impl<T: Zero, const N: usize> SmallBuffer<T, N> {
    /// Makes an array of `len` values. `NOMEM`: there is no memory.
    pub fn new(len: usize) -> Result<SmallBuffer<T, N>> {
        if len <= N {
            Ok(SmallBuffer::Inline([T::zero(); N], len))
        } else {
            MmapBuffer::new(len).map(SmallBuffer::Mapped)
        }
    }
}

impl<T: Zero, const N: usize> Deref for SmallBuffer<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            SmallBuffer::Inline(values, len) => &values[..*len],
            SmallBuffer::Mapped(values) => values,
        }
    }
}

impl<T: Zero, const N: usize> DerefMut for SmallBuffer<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            SmallBuffer::Inline(values, len) => &mut values[..*len],
            SmallBuffer::Mapped(values) => values,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_blocks_are_zero_and_as_many_as_there_are() {
        for _ in 0..2 {
            let blocks: Vec<_> = (0..SPARES)
                .map(|_| SPARE_BLOCKS.take(SPARE).unwrap())
                .collect();
            assert!(SPARE_BLOCKS.take(1).is_none());
            for at in blocks {
                // SAFETY: a block that has been taken.
                let block = unsafe { std::slice::from_raw_parts_mut(at, SPARE) };
                assert!(block.iter().all(|byte| *byte == 0));
                block.fill(7);
                assert!(SPARE_BLOCKS.give(at));
            }
        }
        assert!(SPARE_BLOCKS.take(SPARE + 1).is_none());
        assert!(!SPARE_BLOCKS.give(std::ptr::null_mut()));
    }

    #[test]
    fn room_is_zero_wherever_it_is() {
        for len in [0, 1, 8, 9, 100_000] {
            let mut room = SmallBuffer::<u64, 8>::new(len).unwrap();
            assert_eq!(room.len(), len);
            assert!(room.iter().all(|value| *value == 0));
            room.fill(7);
            assert!(room.iter().all(|value| *value == 7));
        }
    }
}
