//! What many connections have in common is kept once for all of them.

use std::ops::Deref;
use std::sync::Arc;

/// How many values a [`Sharing`] remembers.
const REMEMBERED: usize = 16;

/// A value of which most are alike: those take no memory.
pub trait Usual: PartialEq + 'static {
    /// What most are.
    const USUAL: &'static Self;
}

/// A value that others may have, too. It is changed by taking another in its place.
#[derive(Debug)]
pub struct Shared<T>(Option<Arc<T>>);

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Shared<T> {
        Shared(self.0.clone())
    }
}

impl<T> Shared<T> {
    /// The usual one.
    pub const USUAL: Shared<T> = Shared(None);
}

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared::USUAL
    }
}

impl<T: Usual> From<T> for Shared<T> {
    /// Shared with nobody, unless it is the usual one; [`Sharing`] is for many.
    fn from(value: T) -> Shared<T> {
        Shared((value != *T::USUAL).then(|| Arc::new(value)))
    }
}

impl<T: Usual> Deref for Shared<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        match &self.0 {
            None => T::USUAL,
            Some(value) => value,
        }
    }
}

/// The values that were wanted last, for those who want an equal one. It belongs to one thread, and what it gives should stay with that thread: what has many owners
/// counts them.
#[derive(Debug)]
pub struct Sharing<T> {
    /// At most [`REMEMBERED`], the last one first: who wants many different ones has them for itself.
    last: Vec<Shared<T>>,
}

impl<T> Default for Sharing<T> {
    fn default() -> Sharing<T> {
        Sharing { last: Vec::new() }
    }
}

impl<T: Usual> Sharing<T> {
    /// This value, shared with those who wanted it of late.
    pub fn share(&mut self, value: &T) -> Shared<T>
    where
        T: Clone,
    {
        self.find(|other| other == value, || value.clone())
    }

    /// The usual value or one of late, whichever is the one that is meant, or else what `make` makes.
    #[inline]
    pub fn find(&mut self, is_meant: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> Shared<T> {
        if is_meant(T::USUAL) {
            return Shared(None);
        }
        match self.last.iter().position(|last| is_meant(last)) {
            Some(0) => {}
            Some(at) => self.last[..=at].rotate_right(1),
            None => {
                self.last.truncate(REMEMBERED - 1);
                self.last.insert(0, Shared(Some(Arc::new(make()))));
            }
        }
        self.last[0].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Usual for u32 {
        const USUAL: &'static u32 = &0;
    }

    fn is_one(a: &Shared<u32>, b: &Shared<u32>) -> bool {
        std::ptr::eq(&**a, &**b)
    }

    #[test]
    fn equal_values_are_one() {
        let mut sharing = Sharing::default();
        let first: Vec<_> = (0..REMEMBERED as u32)
            .map(|value| sharing.share(&value))
            .collect();
        for (value, first) in (0..).zip(&first) {
            let second = sharing.share(&value);
            assert_eq!(*second, value);
            assert!(is_one(first, &second), "{value}");
        }
        assert_eq!(size_of::<Shared<u32>>(), size_of::<usize>());
    }

    #[test]
    fn what_is_forgotten_stays_what_it_was() {
        let mut sharing = Sharing::default();
        let first = sharing.share(&1);
        for value in 0..10_000 {
            assert_eq!(*sharing.share(&value), value);
            assert!(sharing.last.len() <= REMEMBERED);
        }
        assert_eq!(*first, 1);
        assert!(!is_one(&first, &sharing.share(&1)));
    }
}
