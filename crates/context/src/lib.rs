//! What a program and a shard share: memory layout, rings, sockets' shared state, control protocol.
//!
//! A *program* is every process under one `millrace run`. It shares one [`Region`] of memory with
//! the engine. This crate is the only definition of what lies in it; the engine and the shim both
//! use these types. Trust runs one way: the shim believes what the engine wrote; the engine
//! believes nothing it reads here ([`Slot::app`], submissions, staging) until it has copied and
//! checked it.
//!
//! - [`layout`]: where things are.
//! - [`slot`]: a socket's shared state.
//! - [`submission`]: the ring of requests and the staging ring of payload, program to shard.
//! - [`poller`]: the rings of hints, shards to program.
//! - [`kernel_waits`]: threads that wait for a set since before it had a poller.
//! - [`lock`]: the word of a lock among threads of the program.
//! - [`reply`]: the answer to the few requests that want one.
//! - [`control_socket`]: where control sockets are, and whose process is believed there.
//! - [`protocol`]: messages of the control socket.
//! - [`bypass`]: what goes past the engine.
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

/// Version of everything in this crate. The engine refuses a shim of another version, by name,
/// because a layout that differs by a byte would be read as garbage.
pub const VERSION: u32 = 8;
