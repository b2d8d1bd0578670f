//! The memory, rings and messages that a program and a shard share.
//!
//! A *program* is every process under one `millrace run`. It shares one [`Region`] of memory with
//! the engine. Only this crate defines its contents; the engine and the shim both use these types.
//! Trust is one-way: the shim believes what the engine wrote. The engine believes nothing that it
//! reads here ([`Slot::app`], submissions, staging) until it has copied and checked it.
//!
//! - [`layout`]: the parts of the region and their places.
//! - [`slot`]: a socket's shared state.
//! - [`submission`]: the ring of requests and the staging ring of payload, from program to shard.
//! - [`poller`]: the rings of hints, from shards to program.
//! - [`kernel_waits`]: threads that wait for a set since before it had a poller.
//! - [`lock`]: the word of a lock among threads of the program.
//! - [`reply`]: the answer to requests that need one.
//! - [`control_socket`]: the places of control sockets, and which process is believed there.
//! - [`protocol`]: the messages of the control socket.
//! - [`bypass`]: counters of traffic that bypasses the engine.
//! - [`futex`]: sleeping and waking on words of the region.

pub mod address;
pub mod bypass;
pub mod control_socket;
pub mod futex;
pub mod kernel_waits;
pub mod layout;
pub mod lock;
pub mod poller;
pub mod protocol;
#[cfg(not(millrace_loom))]
pub mod region;
pub mod reply;
mod routes;
pub mod slot;
pub mod submission;
pub mod sync;

pub use address::Address;
pub use bypass::Bypass;
pub use kernel_waits::KernelWaits;
pub use layout::Geometry;
pub use poller::Poller;
#[cfg(not(millrace_loom))]
pub use region::Region;
pub use routes::OWN_MAX;
pub use slot::{Slot, SlotRef, Status};
pub use submission::{Context, Operation, Submission};

/// The version of everything in this crate. The engine refuses a shim of another version, because a
/// layout that differs by a byte would be read as garbage.
pub const VERSION: u32 = 8;
