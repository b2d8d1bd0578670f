//! Connections in SYN-RECEIVED: they belong to a listener and are no sockets yet.

use std::num::NonZeroU32;

use millrace_tcp::{Duration, HalfOpen, Instant};

use crate::connection_table::Tuple;
use crate::memory::Owner;
use crate::memory::shares::Shares;
use crate::slab::Slab;
use crate::timer_wheel::TimerWheel;

/// One connection in SYN-RECEIVED.
pub struct HalfOpenConnection {
    /// Its ends.
    pub tuple: Tuple,
    /// Index of the listener's socket, which lives at least as long.
    pub listener: u32,
    /// The owner of the listener.
    pub owner: Owner,
    /// The handshake.
    pub state: HalfOpen,
    /// The program has been asked whether it is wanted, and has not said so: the SYN has no answer
    /// yet.
    pub asked: bool,
}

/// How long a SYN waits for the program's word: by then its sender has given up, or is about to.
const ASKED_FOR: Duration = Duration::from_secs(60);

/// The half-open connections, with their timers.
pub struct HalfOpenTable {
    entries: Slab<HalfOpenConnection>,
    wheel: TimerWheel,
    shares: Shares,
}

/// An owner may have twice as many as are left for all.
const GENEROSITY: u32 = 2;

impl HalfOpenTable {
    /// An empty table of at most `limit` connections; `shared`: of owners that must not be able to
    /// harm each other.
    pub fn new(limit: u32, shared: bool, now: Instant) -> HalfOpenTable {
        HalfOpenTable {
            entries: Slab::new(limit),
            wheel: TimerWheel::new(now),
            shares: Shares::new(limit, shared, GENEROSITY),
        }
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no room for another.
    pub fn is_full(&self) -> bool {
        self.shares.is_used_up()
    }

    /// Whether there is room for another one of `owner`'s.
    pub fn has_room(&self, owner: Owner) -> bool {
        self.shares.allows(owner)
    }

    /// Every connection, with its index.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &HalfOpenConnection)> {
        self.entries.iter()
    }

    /// Adds a connection; `None` when the table is full.
    pub fn insert(&mut self, pending: HalfOpenConnection, now: Instant) -> Option<u32> {
        let deadline = match pending.asked {
            true => now + ASKED_FOR,
            false => pending.state.deadline(),
        };
        let owner = pending.owner;
        let index = self.entries.insert(pending).ok()?;
        self.shares.take(owner);
        self.wheel.arm(index, deadline);
        Some(index)
    }

    /// Tells apart the connections that have had the same index.
    pub fn generation(&self, index: u32) -> NonZeroU32 {
        self.entries.generation(index)
    }

    /// The connection at `index`.
    pub fn get(&self, index: u32) -> Option<&HalfOpenConnection> {
        self.entries.get(index)
    }

    /// The connection at `index`, to change.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut HalfOpenConnection> {
        self.entries.get_mut(index)
    }

    /// Takes a connection out. It is inlined so that a caller who drops it does not pay for a move.
    #[inline(always)]
    pub fn remove(&mut self, index: u32) -> Option<HalfOpenConnection> {
        self.wheel.cancel(index);
        let pending = self.entries.remove(index)?;
        self.shares.give(pending.owner);
        Some(pending)
    }

    /// A connection whose timer may be due; after that it must be armed again or removed.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.wheel.pop(now)
    }

    /// Sets the timer as the connection wants it.
    pub fn arm(&mut self, index: u32) {
        if let Some(pending) = self.entries.get(index) {
            self.wheel.arm(index, pending.state.deadline());
        }
    }

    /// When the next timer may be due.
    pub fn deadline(&self) -> Option<Instant> {
        self.wheel.deadline()
    }
}
