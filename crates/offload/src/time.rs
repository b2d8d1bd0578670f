//! Time, as those who call tell it.

/// A point in time: nanoseconds from any origin. Frames of one flow come less than a microsecond
/// apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// So many nanoseconds later.
    #[must_use]
    pub fn after(self, nanos: u64) -> Instant {
        Instant(self.0.saturating_add(nanos))
    }

    /// Nanoseconds since `earlier`; 0 when that is later.
    pub fn since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
