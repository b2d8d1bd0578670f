//! The fast paths of an undisturbed connection: header prediction for segments in, and the last of
//! what is queued out.

pub(crate) mod input;
pub(crate) mod output;
