//! `millrace nic`: a software network card in front of the kernel's own stack.
//!
//! Frames of a wire port go through receive offload to a TAP device that the kernel uses as its
//! interface; what the kernel sends goes onto the wire. Each shard is a thread with a queue of both
//! and flows of its own; nothing is shared on the way of a frame, and one that has nothing to do
//! sleeps.

mod clock;
mod config;
mod control;
mod follow;
mod report;
mod shard;
mod start;
mod worker;

pub use config::Config;
pub use control::{names, query};
pub use millrace_offload::{ActiveAck, Flows};
pub use shard::{Round, Shard};
pub use start::{StartError, start};
