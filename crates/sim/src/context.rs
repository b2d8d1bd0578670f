//! What a program sees of its host.

use std::collections::{BTreeMap, BTreeSet};

use millrace_shard::{HeapMemory, Shard, SocketId};
use millrace_tcp::Instant;

use crate::rng::Rng;

/// What a program sees of its host.
pub struct Context<'a> {
    /// The stack.
    pub stack: &'a mut Shard<HeapMemory>,
    /// The time.
    pub now: Instant,
    /// Chance.
    pub rng: &'a mut Rng,
    pub(crate) program: usize,
    pub(crate) owners: &'a mut BTreeMap<SocketId, usize>,
    pub(crate) wakes: &'a mut BTreeSet<(Instant, usize)>,
}

impl Context<'_> {
    /// From now on this program is told when the socket changes.
    pub fn adopt(&mut self, id: SocketId) {
        self.owners.insert(id, self.program);
    }

    /// The program is woken at this time.
    pub fn wake_at(&mut self, at: Instant) {
        self.wakes.insert((at, self.program));
    }

    /// A number that tells this program from the others of its host.
    pub fn program(&self) -> usize {
        self.program
    }
}
