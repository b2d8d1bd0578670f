//! What programs ask for through the rings of their regions, and what the shard does for it.

mod datagram;
mod options;
pub(crate) mod outcome;
pub(crate) mod port_permits;
pub(crate) mod serve;
mod stream;
