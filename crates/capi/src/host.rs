//! A stack with what a program holds of it: sockets, sets of them to wait for, pipes.
//!
//! Things are named by small numbers that are used again, lowest first. What a program sees is made
//! of them elsewhere: [`crate::numbers`] for `mr_*`, and the numbers themselves for `mtcp_*`.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::c_int;
use std::time::Duration;

use millrace::{Instant, Poll, SocketId, Stack};

use crate::epoll::Set;
use crate::mtcp::periodic::Periodic;
use crate::opening::Opening;
use crate::outcome::Outcome;
use crate::packets::Packets;
use crate::pipe::End;

/// A stack and what a program holds of it.
pub struct Host {
    pub stack: Stack,
    pub things: RefCell<Things>,
    /// Packets that wait for the caller, of a stack whose link is the caller's.
    pub packets: Option<RefCell<Packets>>,
    /// The time is the caller's: nothing waits.
    pub manual: bool,
    /// How many things there may be at once.
    pub most: u32,
    /// What a context of mTCP's does beside its calls.
    pub periodic: Option<Periodic>,
    /// Something was lent to the program by the call before: see [`crate::lend`].
    pub lent: Cell<Option<Lent>>,
}

/// Room to send that the program writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    pub key: u32,
    pub room: usize,
}

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

/// Who is to be told of a socket's readiness: a set, and the place in it.
pub type Watcher = (u32, u32);

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

impl Host {
    pub fn new(stack: Stack, manual: bool, packets: Option<Packets>) -> Host {
        stack.keep_changed(true);
        Host {
            stack,
            things: RefCell::default(),
            packets: packets.map(RefCell::new),
            manual,
            most: u32::MAX,
            periodic: None,
            lent: Cell::new(None),
        }
    }

    /// Whether so many things more may be made.
    ///
    /// # Errors
    /// `ENFILE`.
    pub fn ensure_room(&self, count: usize) -> Outcome<()> {
        let things = self.things.borrow();
        let held = things.all.len() - things.vacant.len();
        (held + count <= self.most as usize)
            .then_some(())
            .ok_or(libc::ENFILE)
    }

    /// Does what there is to do now, and notes who has become ready. Returns how much that was.
    pub fn work(&self) -> usize {
        let done = match &self.packets {
            Some(packets) => {
                self.stack.read_clock();
                let mut packets = packets.borrow_mut();
                let before = packets.waiting();
                self.stack.transmit(&mut *packets);
                packets.waiting() - before
            }
            None => self.stack.poll(),
        };
        if let Some(periodic) = &self.periodic {
            self.beat(periodic);
        }
        done + self.open_agreed() + self.note_changed()
    }

    /// Notes who has become ready; returns how many sockets have changed.
    pub fn note_changed(&self) -> usize {
        let mut count = 0;
        self.stack.take_changed(|id| {
            count += 1;
            self.note(id);
        });
        count
    }

    /// What was asked for leaves now.
    pub fn flush(&self) {
        match self.packets {
            Some(_) => {
                self.work();
            }
            None => self.stack.flush(),
        }
    }

    /// Does what there is to do, or waits until there is something.
    ///
    /// # Errors
    /// `EAGAIN` when `until` has come, or when time or packets are the caller's to bring and
    /// nothing is left to do; `EINTR`. Work was done before either: what is waited for may have
    /// happened all the same.
    pub fn wait(&self, until: Option<Instant>) -> Outcome<()> {
        let busy = self.work() > 0;
        // Work that never ends does not keep a wait from ending.
        if until.is_some_and(|until| until <= self.stack.now()) {
            return Err(libc::EAGAIN);
        }
        let interrupted = || self.periodic.as_ref().is_some_and(Periodic::is_interrupted);
        if interrupted() {
            return Err(libc::EINTR);
        }
        if busy {
            return Ok(());
        }
        if self.manual || self.packets.is_some() {
            return Err(libc::EAGAIN);
        }
        let now = self.stack.read_clock();
        if until.is_some_and(|until| until <= now) {
            return Err(libc::EAGAIN);
        }
        let beat = self.periodic.as_ref().and_then(Periodic::deadline);
        let all = [until, self.stack.deadline(), beat];
        let first = all.into_iter().flatten().min();
        let span = first.map(|first| match first > now {
            true => Duration::from_micros((first - now).as_micros()),
            false => Duration::ZERO,
        });
        match self.stack.wait_for_news(span) {
            Ok(()) if interrupted() => Err(libc::EINTR),
            Ok(()) => Ok(()),
            Err(error) => Err(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Closes all there is, and works until every connection has said what it had to say, or for so
    /// many milliseconds.
    pub fn end(&self, timeout_ms: c_int) {
        let keys = self.things.borrow().keys();
        for key in keys {
            // It is there; what it says of its end interests nobody any more.
            let _ = self.remove(key, false);
        }
        let until = self.until(u64::try_from(timeout_ms).unwrap_or(0) * 1000);
        self.work();
        while timeout_ms > 0 && self.stack.usage().orphans > 0 {
            if self.wait(until).is_err() {
                break;
            }
        }
    }

    /// When a call gives up that waits for so many microseconds; 0 is never.
    pub fn until(&self, patience: u64) -> Option<Instant> {
        let span = millrace::Duration::from_micros(patience);
        (patience != 0).then(|| self.stack.read_clock() + span)
    }
}
