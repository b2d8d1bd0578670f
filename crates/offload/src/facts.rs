//! What is read of a segment before anything is decided about it.

use millrace_wire::tcp::{Flags, Seq};

/// What is remembered of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) tag: u64,
    pub(crate) seq: Seq,
    pub(crate) end: Seq,
    pub(crate) flags: Flags,
}
