//! Points and spans of time, in microseconds. The stack reads no clock: every call is passed the
//! time.

use std::ops::{Add, AddAssign, Sub};

/// A point in time, in microseconds from an origin that the caller chooses and never changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// Later than any time that is reached: the deadline of a timer that does not run.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// // No deadline is later.
    /// assert!(millrace::Instant::from_micros(u64::MAX - 1) < millrace::Instant::NEVER);
    /// ```
    pub const NEVER: Instant = Instant(u64::MAX);

    /// The point `micros` microseconds after the origin.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// let later = millrace::Instant::from_micros(700) + millrace::Duration::from_micros(300);
    /// assert_eq!(later, millrace::Instant::from_millis(1));
    /// ```
    pub const fn from_micros(micros: u64) -> Instant {
        Instant(micros)
    }

    /// The point `millis` milliseconds after the origin.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Instant::from_millis(2).as_micros(), 2_000);
    /// ```
    pub const fn from_millis(millis: u64) -> Instant {
        Instant(millis.saturating_mul(1_000))
    }

    /// Microseconds since the origin.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Instant::from_millis(1_500).as_micros(), 1_500_000);
    /// ```
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Milliseconds since the origin, rounded down.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Instant::from_millis(1_500).as_millis(), 1_500);
    /// ```
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000
    }

    /// Seconds since the origin, rounded down.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Instant::from_millis(1_500).as_secs(), 1);
    /// ```
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000
    }

    /// `Some(self)`, or `None` for [`Instant::NEVER`].
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Instant::NEVER.reached_ever(), None);
    /// ```
    pub const fn reached_ever(self) -> Option<Instant> {
        if self.0 == u64::MAX { None } else { Some(self) }
    }
}

/// A point in time in units of 1.024 ms, modulo 50 days. It takes four bytes, and no division.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ticks(u32);

impl Ticks {
    /// A point at least `span` before `now`.
    pub(crate) const fn before(now: Instant, span: Duration) -> Ticks {
        Ticks(((now.0 >> 10) as u32).wrapping_sub((span.0 >> 10) as u32 + 1))
    }

    /// Time from this point to `now`, to 1.024 ms.
    pub(crate) const fn elapsed(self, now: Instant) -> Duration {
        Duration((((now.0 >> 10) as u32).wrapping_sub(self.0) as u64) << 10)
    }
}

impl Instant {
    /// This point in units of 1.024 ms.
    pub(crate) const fn ticks(self) -> Ticks {
        Ticks((self.0 >> 10) as u32)
    }

    /// Units of 2^20 microseconds, about a second, since the origin.
    pub(crate) const fn near_seconds(self) -> u32 {
        (self.0 >> 20) as u32
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, span: Duration) -> Instant {
        Instant(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

/// The span from the right-hand point to the left-hand one; zero if that is earlier.
impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

/// A span of time, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Duration(u64);

impl Duration {
    /// No time at all.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// let now = millrace::Instant::from_millis(1);
    /// // A point that lies ahead is zero time ago.
    /// assert_eq!(now - millrace::Instant::from_millis(2), millrace::Duration::ZERO);
    /// ```
    pub const ZERO: Duration = Duration(0);

    /// A span of `micros` microseconds.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Duration::from_micros(1_000), millrace::Duration::from_millis(1));
    /// ```
    pub const fn from_micros(micros: u64) -> Duration {
        Duration(micros)
    }

    /// A span of `millis` milliseconds.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Duration::from_millis(1_000), millrace::Duration::from_secs(1));
    /// ```
    pub const fn from_millis(millis: u64) -> Duration {
        Duration(millis.saturating_mul(1_000))
    }

    /// A span of `secs` seconds.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Duration::from_secs(2).as_millis(), 2_000);
    /// ```
    pub const fn from_secs(secs: u64) -> Duration {
        Duration(secs.saturating_mul(1_000_000))
    }

    /// Whole microseconds.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Duration::from_millis(1_500).as_micros(), 1_500_000);
    /// ```
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded down.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Duration::from_millis(1_500).as_millis(), 1_500);
    /// ```
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole seconds, rounded down.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Duration::from_millis(1_500).as_secs(), 1);
    /// ```
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The span doubled `times` times, at most `limit`: exponential back-off.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// use millrace::Duration;
    /// let (first, most) = (Duration::from_millis(200), Duration::from_secs(120));
    /// assert_eq!(first.backed_off(2, most), Duration::from_millis(800));
    /// assert_eq!(first.backed_off(20, most), most);
    /// ```
    pub fn backed_off(self, times: u32, limit: Duration) -> Duration {
        let factor = 1u64 << times.min(40);
        Duration(self.0.saturating_mul(factor)).min(limit)
    }
}

impl Add for Duration {
    type Output = Duration;

    fn add(self, other: Duration) -> Duration {
        Duration(self.0.saturating_add(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_to_its_limit() {
        let base = Duration::from_millis(200);
        let limit = Duration::from_secs(120);
        assert_eq!(base.backed_off(0, limit), base);
        assert_eq!(base.backed_off(3, limit), Duration::from_millis(1_600));
        assert_eq!(base.backed_off(200, limit), limit);
    }

    #[test]
    fn never_is_never_reached_even_by_addition() {
        assert_eq!(Instant::NEVER + Duration::from_secs(1), Instant::NEVER);
        assert_eq!(Instant::NEVER.reached_ever(), None);
        assert_eq!(
            Instant::from_micros(7).reached_ever(),
            Some(Instant::from_micros(7))
        );
    }
}
