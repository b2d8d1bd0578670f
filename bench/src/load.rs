//! Loads from the kernel's side: one thread, non-blocking sockets, epoll. It asks the kernel
//! directly, so that no library comes between.

mod bulk;
mod idle;
mod meter;
mod outcome;
mod pingpong;
mod short;
mod sockets;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;

pub use idle::{hold, open};
pub use outcome::Outcome;
pub use sockets::MESSAGE;

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Connects, writes 64 bytes, reads 64 bytes, and waits for the server to close.
    Short,
    /// Writes 64 bytes and waits for them to come back.
    Pingpong,
    /// Writes as much as the server takes.
    In,
    /// Reads as much as the server writes.
    Out,
}

/// Runs a load on `connections` at once for some time after a warm-up.
pub fn run(
    kind: Kind,
    address: SocketAddr,
    connections: usize,
    duration: Duration,
) -> Result<Outcome> {
    match kind {
        Kind::Short => short::run(address, connections, duration),
        Kind::Pingpong => pingpong::run(address, connections, duration),
        Kind::In => bulk::run(address, connections, duration, bulk::Direction::In),
        Kind::Out => bulk::run(address, connections, duration, bulk::Direction::Out),
    }
}
