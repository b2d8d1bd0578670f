//! One core's stack, sans-IO: neighbours, IPv4 and IPv6, ICMP, connection table, sockets, timers, memory.
//!
//! A [`Shard`] is given frames ([`Shard::input`]), requests (the socket calls) and the time, and gives frames back
//! ([`Shard::transmit`]), the list of sockets that changed ([`Shard::take_changed`]) and the time of its next timer
//! ([`Shard::deadline`]). It reads no clock, makes no system call and holds no lock; the same calls give the same frames.
//!
//! The order of work is: any number of `input`, `advance` when its time has come, requests, then one `transmit`. Input only
//! processes and marks; so one ACK answers a batch, and rides on the program's reply if there is one.
#![forbid(unsafe_code)]

mod any;
mod claim;
mod config;
mod cookie;
mod counters;
mod datagram;
mod ends;
mod error;
mod ethernet;
mod fragments;
mod half_open;
mod handover;
mod icmp;
mod ip;
mod isn;
mod memory;
mod neighbour;
mod network;
mod output;
mod path;
mod pool;
mod ports;
mod reassembly;
mod recv_ring;
mod reply;
mod route;
mod segment;
mod segment_in;
mod send_memory;
mod send_ring;
mod shard;
mod share;
mod slab;
mod socket;
mod steer;
mod stray;
mod table;
mod tend;
mod time_wait;
mod tuning;
mod v6;
mod wheel;

pub use any::Request;
pub use config::{Buffers, Claim, Config, Ipv6, Limits, Network, Via};
pub use counters::Counters;
pub use datagram::{Report, SendTo};
pub use error::{Error, errno};
pub use handover::{Moved, Parcel, Taken};
pub use memory::{Block, HeapMemory, Lend, Memory, Owner};
pub use millrace_sockopt::{Discovery, FastOpenKeys, Opt, OptName};
pub use millrace_steer::{Groups, Hash, Tuple};
pub use route::Nearness;
pub use shard::{Egress, Shard, Usage};
pub use socket::{
    AcceptQueue, Device, How, Options, Poll, Reuse, SocketId, SocketInfo, SocketState,
    TCP_INFO_LEN, View, ViewFlags,
};
pub use steer::{Arrival, Flow, Steer, Stray};
