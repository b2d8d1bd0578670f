//! Connections that do nothing.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use anyhow::{Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};

use super::sockets::{MESSAGE, connected};

/// `count` connections, on which nothing has been sent.
pub fn open(address: SocketAddr, count: usize) -> Result<Vec<OwnedFd>> {
    (0..count).map(|_| connected(address)).collect()
}

/// `count` connections to an echo server; on each a message has gone to and fro.
pub fn hold(address: SocketAddr, count: usize) -> Result<Vec<OwnedFd>> {
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = connected(address)?;
        ensure!(
            rustix::io::write(&socket, &[7; MESSAGE])? == MESSAGE,
            "a short write"
        );
        let mut buffer = [0; MESSAGE];
        let mut received = 0;
        while received < MESSAGE {
            poll(&mut [PollFd::new(&socket, PollFlags::IN)], None)?;
            let count = rustix::io::read(&socket, &mut buffer)?;
            ensure!(count > 0, "the server closed");
            received += count;
        }
        sockets.push(socket);
    }
    Ok(sockets)
}
