//! Sockets of the kernel that do not block, and the set that they are waited for in.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Bytes of a small message.
pub const MESSAGE: usize = 64;

/// A set of descriptors, each with its connection's number.
pub struct Set {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Set {
    pub fn create() -> Result<Set> {
        Ok(Set {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(512),
        })
    }

    pub fn add(&self, socket: &OwnedFd, number: usize, flags: epoll::EventFlags) -> Result<()> {
        Ok(epoll::add(
            &self.epoll,
            socket,
            epoll::EventData::new_u64(number as u64),
            flags,
        )?)
    }

    pub fn change(&self, socket: &OwnedFd, number: usize, flags: epoll::EventFlags) -> Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            socket,
            epoll::EventData::new_u64(number as u64),
            flags,
        )?)
    }

    /// Waits at most a tenth of a second; the numbers of connections with events.
    pub fn wait(&mut self) -> Result<impl Iterator<Item = usize> + '_> {
        self.events.clear();
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.events.iter().map(|event| event.data.u64() as usize))
    }
}

/// A socket that is connecting, without blocking.
pub fn start_connecting(address: SocketAddr) -> Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error).with_context(|| format!("connecting to {address}")),
    }
}

/// A connection, without blocking from here on.
pub fn connected(address: SocketAddr) -> Result<OwnedFd> {
    let stream = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(10))
        .with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}
