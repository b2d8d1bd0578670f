//! The programs' arenas as the shard's [`Memory`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_context::Region;
use millrace_shard::{Block, Memory, Owner};

use crate::arena::Arena;
use crate::program::Part;

/// One program's arena and where it is mapped.
#[derive(Debug)]
pub struct Share {
    region: Arc<Region>,
    arena: Arena,
}

/// All programs' arenas, by owner.
#[derive(Debug)]
pub struct Arenas {
    shares: Vec<Option<Share>>,
    /// The shard whose parts they are.
    own: u32,
}

impl Arenas {
    /// No program's yet; shard `own`'s part of each to come.
    pub fn new(own: u32) -> Arenas {
        Arenas {
            shares: Vec::new(),
            own,
        }
    }

    /// Adds a program's.
    pub fn insert(&mut self, owner: Owner, region: Arc<Region>) {
        let index = owner.0 as usize;
        if self.shares.len() <= index {
            self.shares.resize_with(index + 1, || None);
        }
        let part = Part::of(region.geometry().arena, self.own, &region);
        let arena = Arena::new(part.start, part.len);
        self.shares[index] = Some(Share { region, arena });
    }

    /// Forgets a program's. Blocks that sockets still hold go with it.
    pub fn remove(&mut self, owner: Owner) {
        if let Some(share) = self.shares.get_mut(owner.0 as usize) {
            *share = None;
        }
    }

    fn share(&mut self, owner: Owner) -> Option<&mut Share> {
        self.shares.get_mut(owner.0 as usize)?.as_mut()
    }

    /// Bytes that a program's sockets hold, and how often there was no more to give.
    pub fn usage(&self, owner: Owner) -> (u64, u64) {
        let share = self.shares.get(owner.0 as usize).and_then(Option::as_ref);
        share.map_or((0, 0), |share| {
            (share.arena.in_use(), share.arena.failures())
        })
    }

    /// All slots have been published: freed blocks may be given out again.
    pub fn settle(&mut self) {
        for share in self
            .shares
            .iter_mut()
            .flatten()
            .filter(|share| share.arena.unsettled())
        {
            let region = &share.region;
            // A failure leaves the memory with us, which costs memory and nothing else.
            share
                .arena
                .settle(|at, len| drop(region.release_arena(at, len)));
        }
    }
}

impl Memory for Arenas {
    fn allocate(&mut self, owner: Owner, log2: u8) -> Option<Block> {
        let at = self.share(owner)?.arena.allocate(log2)?;
        Some(Block { at, log2 })
    }

    fn free(&mut self, owner: Owner, block: Block) {
        if let Some(share) = self.share(owner) {
            share.arena.free(block.at, block.log2);
        }
    }

    fn write(&mut self, owner: Owner, block: Block, at: usize, data: &[u8]) {
        if let Some(share) = self.share(owner) {
            share.region.write_arena(block.at + at as u64, data);
        }
    }

    fn copy(&mut self, owner: Owner, from: (Block, usize), to: (Block, usize), len: usize) {
        if let Some(share) = self.share(owner) {
            share
                .region
                .copy_arena(from.0.at + from.1 as u64, to.0.at + to.1 as u64, len);
        }
    }

    fn read_upto(&self, owner: Owner, label: u32) -> u64 {
        let share = self.shares.get(owner.0 as usize).and_then(Option::as_ref);
        let slot = share.and_then(|share| share.region.slot(label));
        slot.map_or(0, |slot| slot.app.consumed.load(Ordering::Acquire))
    }

    fn read(&self, owner: Owner, block: Block, at: usize, out: &mut [u8]) {
        if let Some(share) = self.shares.get(owner.0 as usize).and_then(Option::as_ref) {
            share.region.read_arena(block.at + at as u64, out);
        }
    }
}
