//! What a program holds of a stack: sockets, sets of them to wait for, pipes.
//!
//! Things are named by small numbers that are used again, lowest first. What a program sees is made
//! of them elsewhere: [`crate::numbers`] for `mr_*`, and the numbers themselves for `mtcp_*`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::c_int;

use millrace::{Instant, Poll, SocketId};

use crate::epoll::{Set, Watcher};
use crate::opening::Opening;
use crate::outcome::Outcome;
use crate::pipe::End;

/// What a program holds.
#[derive(Default)]
pub struct Things {
    all: Vec<Option<Thing>>,
    vacant: BinaryHeap<Reverse<u32>>,
    /// The key of a socket, by its index in the shard.
    keys: Vec<u32>,
    /// Those that have an [`Opening`].
    pub opening: Vec<u32>,
}

/// Something that has a number.
pub enum Thing {
    Socket(Socket),
    Set(Set),
    Pipe(End),
}

/// A socket as a program sees it.
pub struct Socket {
    pub id: SocketId,
    pub family: c_int,
    pub datagrams: bool,
    pub nonblocking: bool,
    pub bound: bool,
    /// The port was left to the stack when it was bound.
    pub port_free: bool,
    /// A connect was begun, and nobody was told how it went.
    pub connecting: bool,
    /// It is connecting, and its connection is not opened yet.
    pub opening: Option<Opening>,
    pub broadcast: bool,
    /// What is told of each datagram, by [`crate::control::TELLING`].
    pub telling: u8,
    /// How long a call that reads, and one that writes, waits, in microseconds; 0 is for ever.
    pub patience: [u64; 2],
    pub watchers: Vec<Watcher>,
    /// What was known of it when it last changed.
    pub known: Known,
    /// What it died of, once it is no socket of the shard's any more.
    pub dead: Option<c_int>,
    /// When it was last heard of.
    pub active: Instant,
}

/// What of a socket's readiness is old.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub bits: Poll,
    pub received: u64,
    /// A write had to wait: room is news.
    pub starved: bool,
}

impl Socket {
    pub fn new(id: SocketId, family: c_int, datagrams: bool, now: Instant) -> Socket {
        Socket {
            id,
            family,
            datagrams,
            nonblocking: false,
            bound: false,
            port_free: false,
            connecting: false,
            opening: None,
            broadcast: false,
            telling: 0,
            patience: [0, 0],
            watchers: Vec::new(),
            known: Known {
                bits: Poll::empty(),
                received: 0,
                starved: false,
            },
            dead: None,
            active: now,
        }
    }
}

impl Things {
    /// How many things are held.
    pub fn count(&self) -> usize {
        self.all.len() - self.vacant.len()
    }

    /// Holds something; it has the lowest number that is free.
    pub fn insert(&mut self, thing: Thing) -> u32 {
        let id = match &thing {
            Thing::Socket(socket) => Some(socket.id),
            _ => None,
        };
        let key = match self.vacant.pop() {
            Some(Reverse(key)) => {
                self.all[key as usize] = Some(thing);
                key
            }
            None => {
                self.all.push(Some(thing));
                self.all.len() as u32 - 1
            }
        };
        if let Some(id) = id {
            self.index(id, key);
        }
        key
    }

    /// The socket of the shard's is from now on the one with this key.
    pub fn index(&mut self, id: SocketId, key: u32) {
        let at = id.index() as usize;
        if self.keys.len() <= at {
            self.keys.resize(at + 1, u32::MAX);
        }
        self.keys[at] = key;
    }

    pub fn get(&self, key: u32) -> Option<&Thing> {
        self.all.get(key as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, key: u32) -> Option<&mut Thing> {
        self.all.get_mut(key as usize)?.as_mut()
    }

    pub fn remove(&mut self, key: u32) -> Option<Thing> {
        let thing = self.all.get_mut(key as usize)?.take()?;
        self.vacant.push(Reverse(key));
        Some(thing)
    }

    /// The numbers of all there is.
    pub fn keys(&self) -> Vec<u32> {
        let all = self.all.iter().enumerate();
        all.filter(|(_, thing)| thing.is_some())
            .map(|(key, _)| key as u32)
            .collect()
    }

    /// The socket with this key.
    ///
    /// # Errors
    /// `EBADF`; `ENOTSOCK` for something else.
    pub fn socket(&self, key: u32) -> Outcome<&Socket> {
        match self.get(key) {
            Some(Thing::Socket(socket)) => Ok(socket),
            Some(_) => Err(libc::ENOTSOCK),
            None => Err(libc::EBADF),
        }
    }

    /// [`Things::socket`], to be changed.
    ///
    /// # Errors
    /// As [`Things::socket`].
    pub fn socket_mut(&mut self, key: u32) -> Outcome<&mut Socket> {
        match self.get_mut(key) {
            Some(Thing::Socket(socket)) => Ok(socket),
            Some(_) => Err(libc::ENOTSOCK),
            None => Err(libc::EBADF),
        }
    }

    /// The key of a socket of the shard's, if the program holds it.
    pub fn key_of(&self, id: SocketId) -> Option<u32> {
        let key = *self.keys.get(id.index() as usize)?;
        self.socket(key)
            .is_ok_and(|socket| socket.id == id)
            .then_some(key)
    }
}
