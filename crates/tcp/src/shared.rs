//! Values that many connections have in common are stored once.

use std::ops::Deref;
use std::sync::Arc;

/// Values that a [`Sharing`] remembers.
const REMEMBERED: usize = 16;

/// A type with one value that nearly all owners have. That value takes no memory.
pub trait Usual: PartialEq + 'static {
    /// The value that nearly all have.
    const USUAL: &'static Self;
}

/// A value that may be shared. It is changed by putting another in its place.
#[derive(Debug)]
pub struct Shared<T>(Option<Arc<T>>);

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Shared<T> {
        Shared(self.0.clone())
    }
}

impl<T> Shared<T> {
    /// The usual value.
    pub const USUAL: Shared<T> = Shared(None);
}

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared::USUAL
    }
}

impl<T: Usual> From<T> for Shared<T> {
    /// A value that is not shared, unless it is the usual one. [`Sharing`] shares values.
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

/// The values that were wanted last, for owners that want equal ones. It belongs to one thread, and
/// its values should stay there: a shared value counts its owners.
#[derive(Debug)]
pub struct Sharing<T> {
    /// At most [`REMEMBERED`], the latest first. An owner of many different values does not share
    /// them.
    last: Vec<Shared<T>>,
}

impl<T> Default for Sharing<T> {
    fn default() -> Sharing<T> {
        Sharing { last: Vec::new() }
    }
}

impl<T: Usual> Sharing<T> {
    /// This value, shared with its latest owners.
    pub fn share(&mut self, value: &T) -> Shared<T>
    where
        T: Clone,
    {
        self.find(|other| other == value, || value.clone())
    }

    /// The usual value or a recent one, whichever `is_meant` selects; else the value that `make`
    /// makes.
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
