//! The time, for what is below and has no clock.

use std::time;

use millrace_offload::Instant;

/// Counts nanoseconds since it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(time::Instant);

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock(time::Instant::now())
    }

    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
