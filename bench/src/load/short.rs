//! Short transactions, each on its own connection.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::meter::Meter;
use super::outcome::Outcome;
use super::sockets::{MESSAGE, Set, start_connecting};

/// A transaction under way.
struct Transaction {
    socket: OwnedFd,
    begun: Instant,
    is_sent: bool,
    received: usize,
}

impl Transaction {
    fn begin(address: SocketAddr, number: usize, set: &Set) -> Result<Transaction> {
        let begun = Instant::now();
        let socket = start_connecting(address)?;
        set.add(&socket, number, EventFlags::OUT)?;
        Ok(Transaction {
            socket,
            begun,
            is_sent: false,
            received: 0,
        })
    }

    /// Goes on as far as it can; whether it is over.
    fn advance(&mut self, number: usize, set: &Set) -> Result<bool> {
        if !self.is_sent {
            ensure!(
                rustix::io::write(&self.socket, &[7; MESSAGE])? == MESSAGE,
                "a short write"
            );
            self.is_sent = true;
            set.change(&self.socket, number, EventFlags::IN)?;
            return Ok(false);
        }
        let mut buffer = [0; MESSAGE + 1];
        loop {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) if self.received == MESSAGE => return Ok(true),
                Ok(0) => bail!("the server closed after {} bytes", self.received),
                Ok(count) => self.received += count,
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Keeps `concurrent` transactions under way.
pub fn run(address: SocketAddr, concurrent: usize, duration: Duration) -> Result<Outcome> {
    let mut set = Set::create()?;
    let mut running = (0..concurrent)
        .map(|number| Transaction::begin(address, number, &set))
        .collect::<Result<Vec<_>>>()?;
    let mut meter = Meter::new(duration);
    let mut ready = Vec::with_capacity(concurrent);
    loop {
        ready.clear();
        ready.extend(set.wait()?);
        for &number in &ready {
            if running[number].advance(number, &set)? {
                meter.operation(running[number].begun, Instant::now());
                running[number] = Transaction::begin(address, number, &set)?;
            }
        }
        if let Some(outcome) = meter.over(Instant::now())? {
            return Ok(outcome);
        }
    }
}
