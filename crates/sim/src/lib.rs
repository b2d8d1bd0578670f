//! Whole networks in virtual time, from a seed: hosts with a [`millrace_shard::Shard`] each, links
//! that lose, reorder, duplicate and damage, and programs whose every byte is checked.
//!
//! ```
//! use millrace_sim::{Client, Link, Network, Nic, Plan, Server};
//!
//! let mut network = Network::new(7);
//! let client = network.add_host(Nic::Plain, Link { loss: 0.02, ..Link::default() });
//! let server = network.add_host(Nic::Plain, Link::default());
//! let plan = Plan::exchange(20_000, 50_000);
//! let port = network.address_of(server, 80);
//! network.run_program(server, Server::new(port, plan, 3));
//! network.run_program(client, Client::new(port, plan, 3, 2));
//! network.run_until_done();
//! network.settle();
//! ```
//!
//! A run is a function of its seed and of what it is told: the same calls give the same frames at
//! the same times, which [`Network::digest`] sums up. What goes wrong is a panic;
//! [`Network::trace`] tells what led to it.
#![forbid(unsafe_code)]

mod context;
mod correspondent;
mod end;
pub mod flood;
pub mod goodput;
mod host;
mod link;
mod network;
mod nic;
mod pattern;
pub mod plots;
mod program;
mod rng;
mod router;
pub mod soak;
mod station;
mod stream;
mod talk;
mod trace;

pub use context::Context;
pub use correspondent::{Book, Correspondent};
pub use host::{HostId, Tuning};
pub use link::{Fate, Kind, Line, Link, LinkCounters};
pub use network::Network;
pub use nic::Nic;
pub use pattern::Pattern;
pub use program::{Client, Peer, Program, Server};
pub use rng::Rng;
pub use station::StationId;
pub use stream::{Received, Sink, Source};
pub use talk::{Ending, Pace, Plan, Read};
pub use trace::Trace;
