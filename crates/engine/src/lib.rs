//! The engine: shards on threads, control socket, memory shared with programs, life cycle.
//!
//! Two kinds of thread, and in a pipeline a third (`io`). [`control`] accepts processes of programs and the command line; what it decides it sends to the workers as
//! [`command::Command`]s. A [`worker`] owns one shard and its queues, the device's or virtual ones, and is the only one that touches either: it
//! receives frames, serves submissions, runs timers, transmits and publishes, then sleeps until a frame or a doorbell.
//!
//! - [`arena`], [`memory`]: receive rings inside the programs' regions.
//! - [`program`], [`socket`]: what the engine believes of each program and each of its sockets, in private memory.
//! - `serve`, `calls`: submissions. `life`: who holds what. `publish`: slots, hints and wake-ups.
//! - `peers`, `replicas`: what several shards of one engine have to do with each other. `scale`, `moving`: how many of them serve, and buckets on their way.
//! - [`topology`], `io`, `queues`: which threads there are; those that own queues of the device in place of the shards, and the way between.
//! - `held`, `kernels`: ports, addresses and routes where they are the kernel's, too.
//! - [`config`], [`mod@start`]: from flags to a running engine.

pub mod arena;
mod audit;
mod calls;
mod clients;
mod closer;
pub mod command;
pub mod config;
pub mod control;
mod datagrams;
mod document;
pub mod doorbell;
mod egress;
mod follow;
mod held;
mod io;
pub mod keepers;
mod kernels;
mod life;
mod limits;
mod link;
mod look;
mod losses;
pub mod memory;
mod moving;
mod nap;
mod numbers;
mod options;
mod peers;
mod pin;
mod ports;
pub mod process;
pub mod program;
mod publish;
mod queues;
mod quota;
mod reach;
mod replicas;
mod rights;
mod robust_list;
mod scale;
pub mod seccomp;
mod serve;
mod serving;
mod shares;
mod sleep;
mod snapshot;
pub mod socket;
pub mod start;
mod strays;
pub mod topology;
mod transfer;
pub mod watches;
pub mod worker;
mod workers;

pub use config::Config;
pub use start::{StartError, start};
