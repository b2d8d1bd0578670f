//! A segment that a full port did not take.

use std::num::NonZeroU32;

use millrace_tcp::Outgoing;

/// A segment that a full port did not take, or not all of.
pub(crate) struct Stalled {
    pub socket: u32,
    pub generation: NonZeroU32,
    pub outgoing: Outgoing,
    /// Payload bytes that were taken.
    pub sent: usize,
}
