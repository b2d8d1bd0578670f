//! IP over messages: a link whose packets are messages between IP ports.
//!
//! The last port of a node, [`IP_PORT`], is its IP port: no program can open it. A packet goes to
//! the IP port of the node that has its destination address:
//!
//! * as it is in the request, when it and its header have [`INLINE_MAX`] bytes at most;
//! * by the system channel, up to [`SYSTEM_MAX`] bytes;
//! * else by normal channel 0, for which the receiver has a ring of posted buffers. Each buffer is
//!   posted again as soon as its packet has been taken out.
//!
//! A small packet goes by the normal channel, too, while a large one is under way to the same node,
//! since channels have no order between them and TCP takes disorder for loss.
//!
//! [`Neighbours`] knows which node has an address: from a table, and from announcements of the
//! nodes. [`Module`] is the IP module; [`Link`] makes a port of it that a stack takes, and
//! [`Bridge`] a device of the kernel's.

mod announcements;
mod bridge;
mod header;
mod link;
mod module;
mod neighbours;
#[cfg(test)]
mod tests;

pub use bridge::Bridge;
pub use link::{Link, OpenError, PEER, open};
pub use module::{Config, Counters, Module};
pub use neighbours::{NEIGHBOURS_MAX, Neighbours};

use crate::types::{INLINE_MAX, SYSTEM_MAX};

/// The number of the IP port of each node.
pub const IP_PORT: u16 = u16::MAX;
/// The MTU unless another one is asked for, in bytes.
pub const MTU_DEFAULT: u16 = 8192;

const _: () = assert!(INLINE_MAX < SYSTEM_MAX);
