//! One core's stack, sans-IO: neighbours, IPv4 and IPv6, ICMP, connection table, sockets, timers,
//! memory.
//!
//! A [`Shard`] is given frames ([`Shard::input`]), requests (the socket calls) and the time, and
//! gives frames back ([`Shard::transmit`]), the list of sockets that changed
//! ([`Shard::take_changed`]) and the time of its next timer ([`Shard::deadline`]). It reads no
//! clock, makes no system call and holds no lock; the same calls give the same frames.
//!
//! The order of work is: any number of `input`, `advance` when its time has come, requests, then
//! one `transmit`. Input only processes and marks; so one ACK answers a batch, and rides on the
//! program's reply if there is one.
#![forbid(unsafe_code)]

mod base;
mod config;
mod connection_table;
mod counters;
mod env;
mod error;
mod ip;
mod link;
mod memory;
mod network;
mod rate_limit;
mod secrets;
mod shard;
mod slab;
mod socket;
mod steering;
mod tcp;
mod timer_wheel;
mod udp;

pub use config::{Buffers, Config, ConflictDetection, Ipv6, Limits, Network, Via};
pub use counters::Counters;
pub use error::{Error, errno};
pub use ip::route::Nearness;
pub use link::ethernet::Egress;
pub use memory::{Block, HeapMemory, Lend, Memory, Owner};
pub use millrace_sockopt::{Discovery, FastOpenKeys, Opt, OptName};
pub use millrace_steer::{Groups, Hash, Tuple};
pub use shard::{Shard, Usage};
pub use socket::{
    AcceptQueue, Device, How, Options, Poll, Reuse, SocketId, SocketInfo, SocketState,
    TCP_INFO_LEN, View, ViewFlags,
};
pub use steering::migration::{FlowBatch, Taken};
pub use steering::{Arrival, Flow, Misrouted, Steer};
pub use tcp::catch_all::Request;
pub use tcp::migration::Moved;
pub use udp::{Report, SendTo};
