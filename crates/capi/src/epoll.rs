//! Sets of sockets to wait for: `epoll`, level and edge, as Linux has it.
//!
//! Readiness is asked of the socket when the program asks; what the shard tells is only who has
//! changed. A change is news when something came, room came for which a write had waited, or a bit
//! was set that was not: that is what an edge is.

use std::collections::VecDeque;

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT};

/// What can be asked for. The kernel's `EPOLLEXCLUSIVE` and `EPOLLWAKEUP` mean nothing where one
/// thread waits, and are refused.
pub const KNOWN: u32 = 0x3ff | libc::EPOLLRDHUP as u32 | EPOLLET as u32 | EPOLLONESHOT as u32;
/// What is told without being asked for.
pub const ALWAYS: u32 = (EPOLLERR | EPOLLHUP) as u32;

/// One who is waited for.
pub struct Watch {
    pub key: u32,
    pub events: u32,
    pub data: u64,
    /// It is in the queue.
    pub queued: bool,
    /// `EPOLLONESHOT` has told, and nobody has asked again.
    pub spent: bool,
}

/// A set of sockets and pipes to wait for.
#[derive(Default)]
pub struct Set {
    pub watches: Vec<Option<Watch>>,
    pub vacant: Vec<u32>,
    /// Places in `watches` that may be ready. One that is gone keeps its place until it comes out
    /// of here.
    pub queue: VecDeque<u32>,
}

/// Who is to be told of a socket's readiness: a set, and the place in it.
pub type Watcher = (u32, u32);

/// What happened to one who is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub events: u32,
    pub data: u64,
}

/// What is to be done about a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    Add(u32, u64),
    Modify(u32, u64),
    Delete,
}

impl Set {
    pub fn enqueue(&mut self, at: u32) {
        if let Some(Some(watch)) = self.watches.get_mut(at as usize)
            && !watch.queued
        {
            watch.queued = true;
            self.queue.push_back(at);
        }
    }

    /// Forgets a watch. Its place is used again at once, unless the queue still has it.
    pub fn forget(&mut self, at: u32) {
        if let Some(watch) = self.watches.get_mut(at as usize)
            && let Some(old) = watch.take()
            && !old.queued
        {
            self.vacant.push(at);
        }
    }
}
