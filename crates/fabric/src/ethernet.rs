//! Messages over Ethernet: frames of an EtherType of their own, over any port.
//!
//! A node finds another one by a hello to all stations; from then on frames go to the station that
//! answered. A session begins with hello, welcome, confirm and an acknowledgement. Whoever answers
//! a hello keeps nothing: its epoch in the welcome is a keyed hash of the names and of the peer's
//! epoch, and the confirm shows that the welcome was received. So frames with a forged sender
//! neither take up memory nor end a session that there is.
//!
//! [`Node`] is sans-IO. [`Port`] is a node with one port on a link of this host, of any kind that
//! [`millrace_port::open`] knows.

pub mod frame;
mod link;
mod node;
mod port;

pub use link::{DEAD_AFTER, Link, WINDOW};
pub use node::{MTU_MIN, Node, NodeCounters};
pub use port::{LinkError, Port};
