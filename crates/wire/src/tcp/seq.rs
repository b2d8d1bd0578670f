//! Sequence numbers (RFC 9293 section 3.4).

use core::ops::{Add, AddAssign, Sub};

/// A sequence number. They go round modulo 2^32, so there is no order among them, only before and
/// after at less than 2^31 distance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// Whether `self` comes before `other`.
    pub fn before(self, other: Seq) -> bool {
        self - other < 0
    }

    /// Whether `self` comes after `other`.
    pub fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    /// Whether `self` is `other` or comes before it.
    pub fn at_or_before(self, other: Seq) -> bool {
        !other.before(self)
    }

    /// Whether `self` is `other` or comes after it.
    pub fn at_or_after(self, other: Seq) -> bool {
        !self.before(other)
    }

    /// Whether `self` is one of the `len` numbers from `start` on.
    pub fn within(self, start: Seq, len: u32) -> bool {
        self.0.wrapping_sub(start.0) < len
    }
}

impl Add<u32> for Seq {
    type Output = Seq;

    fn add(self, len: u32) -> Seq {
        Seq(self.0.wrapping_add(len))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, len: u32) {
        *self = *self + len;
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;

    fn sub(self, len: u32) -> Seq {
        Seq(self.0.wrapping_sub(len))
    }
}

/// The distance from `other` to `self`: positive when `self` comes after it.
impl Sub for Seq {
    type Output = i32;

    fn sub(self, other: Seq) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}
