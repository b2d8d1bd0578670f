//! The engine: shards on threads, a control socket, memory shared with programs.
//!
//! There are two kinds of thread, and a third one in a pipeline:
//!
//! - The **control thread** (`control`) accepts processes of programs and the command line. It
//!   sends what it decides to the workers, as commands (`control::command`).
//! - A **worker** (`worker`) owns one shard and the queues of that shard. No other thread touches
//!   either. It receives frames, serves requests, runs timers, transmits and publishes. Then it
//!   sleeps until a frame or a doorbell.
//! - An **I/O thread** (`links::io_thread`) owns queues of the device in place of the shards.
//!
//! The rooms, from the bottom up:
//!
//! - `shared`: the memory that is shared with programs.
//! - `programs`: what a worker knows of each program and each of its sockets.
//! - `links`: ports, virtual queues, I/O threads.
//! - `peers`: the other shards: rings, channels, replicas of bound sockets.
//! - `requests`: what programs ask for through their rings.
//! - `migration`: sockets that move to another shard or another program.
//! - `server`: one shard with all that it serves. It wires the parts in the rooms above.
//! - `worker`: the thread of a shard: its rounds, its sleep, the commands that it executes.
//! - `control`: the control thread.
//! - [`config`], [`topology`], [`mod@start`]: from flags to a running engine.
//! - [`launch`]: how `millrace run` starts programs.

pub mod config;
pub mod control;
pub mod doorbell;
pub mod launch;
mod links;
mod migration;
mod peers;
pub mod programs;
mod requests;
mod server;
pub mod shared;
pub mod start;
pub mod topology;
pub mod worker;

pub use config::Config;
pub use launch::{process, seccomp};
pub use start::{StartError, start};
