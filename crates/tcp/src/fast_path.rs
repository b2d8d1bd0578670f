//! The short ways through a connection that nothing disturbs: segments in by header prediction, segments out with the last of what is queued.

pub(crate) mod input;
pub(crate) mod output;
