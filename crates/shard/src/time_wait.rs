//! Connections in TIME-WAIT. All wait equally long, so they stand in line, and only the first is ever looked at.

use millrace_tcp::{Instant, TimeWait};

use crate::slab::Slab;
use crate::table::Tuple;

const NONE: u32 = u32::MAX;

/// One connection in TIME-WAIT.
pub struct Waiting {
    /// Its ends.
    pub tuple: Tuple,
    /// What it answers.
    pub state: TimeWait,
    /// Whether its socket had `SO_REUSEADDR`.
    pub reuse: bool,
    /// Whether segments carry timestamps.
    pub timestamps: bool,
    /// When it came here.
    pub since: Instant,
    next: u32,
    prev: u32,
}

/// The line.
pub struct TimeWaitTable {
    entries: Slab<Waiting>,
    first: u32,
    last: u32,
}

impl TimeWaitTable {
    /// An empty table of at most `limit` connections.
    pub fn new(limit: u32) -> TimeWaitTable {
        TimeWaitTable {
            entries: Slab::new(limit),
            first: NONE,
            last: NONE,
        }
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Every connection.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.entries.iter().map(|(_, waiting)| waiting)
    }

    /// Puts a connection at the end of the line; `None` when the table is full.
    pub fn insert(
        &mut self,
        tuple: Tuple,
        state: TimeWait,
        reuse: bool,
        timestamps: bool,
        now: Instant,
    ) -> Option<u32> {
        let waiting = Waiting {
            tuple,
            state,
            reuse,
            timestamps,
            since: now,
            next: NONE,
            prev: NONE,
        };
        let index = self.entries.insert(waiting).ok()?;
        self.append(index);
        Some(index)
    }

    /// The connection at `index`.
    pub fn get(&self, index: u32) -> Option<&Waiting> {
        self.entries.get(index)
    }

    /// The connection at `index`, to change. When that moves its deadline, [`TimeWaitTable::renew`] must follow.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Waiting> {
        self.entries.get_mut(index)
    }

    /// Its wait has started over: to the end of the line.
    pub fn renew(&mut self, index: u32) {
        self.detach(index);
        self.append(index);
    }

    /// Takes a connection out.
    pub fn remove(&mut self, index: u32) -> Option<Waiting> {
        self.entries.get(index)?;
        self.detach(index);
        self.entries.remove(index)
    }

    /// Takes the first in line out if its time is over.
    pub fn pop(&mut self, now: Instant) -> Option<Waiting> {
        if self.entries.get(self.first)?.state.deadline() > now {
            return None;
        }
        self.remove(self.first)
    }

    /// When the first in line is done.
    pub fn deadline(&self) -> Option<Instant> {
        self.entries
            .get(self.first)
            .map(|first| first.state.deadline())
    }

    fn append(&mut self, index: u32) {
        let last = self.last;
        if let Some(entry) = self.entries.get_mut(index) {
            (entry.prev, entry.next) = (last, NONE);
        }
        match self.entries.get_mut(last) {
            Some(entry) => entry.next = index,
            None => self.first = index,
        }
        self.last = index;
    }

    fn detach(&mut self, index: u32) {
        let Some((prev, next)) = self
            .entries
            .get(index)
            .map(|entry| (entry.prev, entry.next))
        else {
            return;
        };
        match self.entries.get_mut(prev) {
            Some(entry) => entry.next = next,
            None => self.first = next,
        }
        match self.entries.get_mut(next) {
            Some(entry) => entry.prev = prev,
            None => self.last = prev,
        }
    }
}
