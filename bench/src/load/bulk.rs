//! As many bytes as go, in one direction.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::meter::Meter;
use super::outcome::Outcome;
use super::sockets::{Set, connected};

/// Bytes asked of one call.
const BLOCK: usize = 256 << 10;

/// Which way the bytes go, seen from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The client writes.
    In,
    /// The client reads.
    Out,
}

/// Moves bytes on `connections` at once.
pub fn run(
    address: SocketAddr,
    connections: usize,
    duration: Duration,
    direction: Direction,
) -> Result<Outcome> {
    let mut set = Set::create()?;
    let flags = match direction {
        Direction::In => EventFlags::OUT,
        Direction::Out => EventFlags::IN,
    };
    let mut sockets = Vec::with_capacity(connections);
    for number in 0..connections {
        let socket = connected(address)?;
        set.add(&socket, number, flags)?;
        sockets.push(socket);
    }
    let mut meter = Meter::new(duration);
    let mut buffer = vec![7; BLOCK];
    let mut ready = Vec::with_capacity(connections);
    loop {
        ready.clear();
        ready.extend(set.wait()?);
        for &number in &ready {
            let moved = match direction {
                Direction::In => rustix::io::write(&sockets[number], &buffer),
                Direction::Out => rustix::io::read(&sockets[number], &mut buffer[..]),
            };
            match moved {
                Ok(0) => bail!("the server closed"),
                Ok(count) => meter.moved(count),
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(outcome) = meter.over(Instant::now())? {
            return Ok(outcome);
        }
    }
}
