//! The driver's poller of one queue.

/// What is known of the poller of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Poller {
    /// It is not wanted, or the kernel does not say which it is, so that there is none to run:
    /// frames come by interrupts.
    None,
    /// Wanted. The first frame that comes by an interrupt tells which it is.
    Wanted,
    /// It runs whenever frames are looked for.
    Ours,
}
