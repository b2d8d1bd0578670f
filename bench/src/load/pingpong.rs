//! Messages to an echo server and back, one under way on each connection.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::meter::Meter;
use super::outcome::Outcome;
use super::sockets::{MESSAGE, Set, connected};

/// A connection with a message under way.
struct Player {
    socket: OwnedFd,
    sent: Instant,
    received: usize,
}

impl Player {
    fn serve(&mut self) -> Result<()> {
        ensure!(
            rustix::io::write(&self.socket, &[7; MESSAGE])? == MESSAGE,
            "a short write"
        );
        self.sent = Instant::now();
        self.received = 0;
        Ok(())
    }
}

/// Plays on `connections` at once.
pub fn run(address: SocketAddr, connections: usize, duration: Duration) -> Result<Outcome> {
    let mut set = Set::create()?;
    let mut players = Vec::with_capacity(connections);
    for number in 0..connections {
        let socket = connected(address)?;
        set.add(&socket, number, EventFlags::IN)?;
        players.push(Player {
            socket,
            sent: Instant::now(),
            received: 0,
        });
    }
    let mut meter = Meter::new(duration);
    let mut ready = Vec::with_capacity(connections);
    players.iter_mut().try_for_each(Player::serve)?;
    loop {
        ready.clear();
        ready.extend(set.wait()?);
        for &number in &ready {
            let player = &mut players[number];
            let mut buffer = [0; MESSAGE];
            match rustix::io::read(&player.socket, &mut buffer) {
                Ok(0) => bail!("the server closed"),
                Ok(count) => player.received += count,
                Err(Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            }
            if player.received == MESSAGE {
                meter.operation(player.sent, Instant::now());
                player.serve()?;
            }
        }
        if let Some(outcome) = meter.over(Instant::now())? {
            return Ok(outcome);
        }
    }
}
