//! Room for a while, straight from the kernel: a hook may run inside the allocator, and on a small stack.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use crate::sys::{self, Result};

/// Types whose every field may be all bits 0.
///
/// # Safety
/// All bytes 0 is a value of the type.
pub unsafe trait Zero: Copy {
    /// That value.
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

/// An array of plain values, all bytes 0 at first. Unmapped when dropped.
pub struct Scratch<T: Zero> {
    at: *mut T,
    len: usize,
}

impl<T: Zero> Scratch<T> {
    /// Room for `len` values. `NOMEM` if there is none.
    pub fn new(len: usize) -> Result<Scratch<T>> {
        let bytes = len.max(1) * size_of::<T>();
        Ok(Scratch {
            at: sys::map(bytes, false)?.cast(),
            len,
        })
    }
}

impl<T: Zero> Deref for Scratch<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: mapped with this length; zero pages are values of T.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<T: Zero> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl<T: Zero> Drop for Scratch<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nothing refers to it any more.
        unsafe { sys::unmap(self.at.cast(), self.len.max(1) * size_of::<T>()) };
    }
}

/// The same, on the stack as long as `N` values are enough.
pub enum Room<T: Zero, const N: usize> {
    /// That many are in use.
    Here([T; N], usize),
    /// Too many for the stack.
    There(Scratch<T>),
}

impl<T: Zero, const N: usize> Room<T, N> {
    /// Room for `len` values. `NOMEM` if there is none.
    pub fn new(len: usize) -> Result<Room<T, N>> {
        if len <= N {
            Ok(Room::Here([T::zero(); N], len))
        } else {
            Scratch::new(len).map(Room::There)
        }
    }
}

impl<T: Zero, const N: usize> Deref for Room<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Room::Here(values, len) => &values[..*len],
            Room::There(values) => values,
        }
    }
}

impl<T: Zero, const N: usize> DerefMut for Room<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Room::Here(values, len) => &mut values[..*len],
            Room::There(values) => values,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_zero_wherever_it_is() {
        for len in [0, 1, 8, 9, 100_000] {
            let mut room = Room::<u64, 8>::new(len).unwrap();
            assert_eq!(room.len(), len);
            assert!(room.iter().all(|value| *value == 0));
            room.fill(7);
            assert!(room.iter().all(|value| *value == 7));
        }
    }
}
