//! What programs ask for through the rings of their regions, and what the shard does for it.

pub(crate) mod datagram;
pub(crate) mod options;
pub(crate) mod serve;
pub(crate) mod stream;
