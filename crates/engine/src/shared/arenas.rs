//! The arenas of all programs, as the shard's [`Memory`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_context::Region;
use millrace_shard::{Block, Memory, Owner};

use crate::programs::program::Part;
use crate::shared::arena::Arena;

/// One program's arena, and its region.
#[derive(Debug)]
pub struct Share {
    region: Arc<Region>,
    arena: Arena,
    part: Part,
    /// Bytes in blocks of other shards' parts, which connections have brought along.
    foreign_bytes: u64,
    /// Freed blocks of other shards' parts, until the slots have been published again.
    resting: Vec<Block>,
}

impl Share {
    fn own(&self, block: Block) -> bool {
        block.at.wrapping_sub(self.part.start) < self.part.len
    }
}

/// A free block, on its way back to the shard that owns its part of the region.
#[derive(Debug)]
pub(crate) struct ForeignBlock {
    pub(crate) owner: Owner,
    /// The region of the program, which tells it from a later program of the same number.
    pub(crate) region: Arc<Region>,
    pub(crate) block: Block,
}

/// The arenas of all programs, by number.
#[derive(Debug)]
pub struct Arenas {
    shares: Vec<Option<Share>>,
    /// Free blocks of other shards' parts.
    foreign_blocks: Vec<ForeignBlock>,
    /// The shard that owns these parts.
    own: u32,
    /// Whether an arena has much free memory.
    has_spare: bool,
}

impl Arenas {
    /// No arenas. Shard `own` owns its part of each arena to come.
    pub fn new(own: u32) -> Arenas {
        Arenas {
            shares: Vec::new(),
            foreign_blocks: Vec::new(),
            own,
            has_spare: false,
        }
    }

    /// Adds the arena of a program.
    pub fn insert(&mut self, owner: Owner, region: Arc<Region>) {
        let index = owner.0 as usize;
        if self.shares.len() <= index {
            self.shares.resize_with(index + 1, || None);
        }
        let part = Part::of(region.geometry().arena, self.own, &region);
        let arena = Arena::new(part.start, part.len);
        self.shares[index] = Some(Share {
            region,
            arena,
            part,
            foreign_bytes: 0,
            resting: Vec::new(),
        });
    }

    /// Forgets the arena of a program, with the blocks in use.
    pub fn remove(&mut self, owner: Owner) {
        if let Some(share) = self.shares.get_mut(owner.0 as usize) {
            *share = None;
        }
    }

    fn share(&mut self, owner: Owner) -> Option<&mut Share> {
        self.shares.get_mut(owner.0 as usize)?.as_mut()
    }

    /// Bytes that a program's sockets hold, and how often there was no block.
    pub fn usage(&self, owner: Owner) -> (u64, u64) {
        let share = self.shares.get(owner.0 as usize).and_then(Option::as_ref);
        share.map_or((0, 0), |share| {
            let in_use = share.arena.in_use() + share.foreign_bytes;
            (in_use, share.arena.failures())
        })
    }

    /// Takes a free block of another shard's part, with that shard.
    pub(crate) fn take_foreign_block(&mut self) -> Option<(u32, ForeignBlock)> {
        let foreign = self.foreign_blocks.pop()?;
        // All parts have the same size.
        let size = Part::of(foreign.region.geometry().arena, 0, &foreign.region).len;
        Some(((foreign.block.at / size.max(1)) as u32, foreign))
    }

    /// Takes back a block of this shard's part that another shard has freed.
    pub(crate) fn come_home(&mut self, foreign: &ForeignBlock) {
        let share = self.share(foreign.owner);
        if let Some(share) = share.filter(|share| Arc::ptr_eq(&share.region, &foreign.region)) {
            share.arena.come_home(foreign.block.log2);
            share.arena.free(foreign.block.at, foreign.block.log2);
        }
    }

    /// The slots have been published, so freed blocks may be used again.
    pub fn settle(&mut self) {
        for (index, share) in self.shares.iter_mut().enumerate() {
            let Some(share) = share.as_mut() else {
                continue;
            };
            let foreign_blocks = share.resting.drain(..).map(|block| ForeignBlock {
                owner: Owner(index as u32),
                region: share.region.clone(),
                block,
            });
            self.foreign_blocks.extend(foreign_blocks);
            if share.arena.unsettled() {
                share.arena.settle();
                self.has_spare |= share.arena.has_spare();
            }
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
            if share.own(block) {
                share.arena.free(block.at, block.log2);
            } else {
                share.foreign_bytes = share.foreign_bytes.saturating_sub(block.len() as u64);
                share.resting.push(block);
            }
        }
    }

    fn hand_over(&mut self, owner: Owner, block: Block) -> bool {
        let Some(share) = self.share(owner) else {
            return false;
        };
        if share.own(block) {
            share.arena.part_with(block.log2);
        } else {
            share.foreign_bytes = share.foreign_bytes.saturating_sub(block.len() as u64);
        }
        true
    }

    fn adopt(&mut self, owner: Owner, block: Block) {
        let Some(share) = self.share(owner) else {
            return;
        };
        if share.own(block) {
            share.arena.come_home(block.log2);
        } else {
            share.foreign_bytes += block.len() as u64;
        }
    }

    fn is_short(&self, owner: Owner) -> bool {
        let share = self.shares.get(owner.0 as usize).and_then(Option::as_ref);
        share.is_some_and(|share| share.arena.is_short())
    }

    fn has_spare(&self) -> bool {
        self.has_spare
    }

    fn review(&mut self) {
        let arenas = self.shares.iter_mut().flatten();
        self.has_spare = false;
        for share in arenas {
            share.arena.review();
            self.has_spare |= share.arena.has_spare();
        }
    }

    fn give_back(&mut self, budget: u64) -> (u64, bool) {
        let (mut given, mut more) = (0, false);
        for share in self.shares.iter_mut().flatten() {
            let region = &share.region;
            // After a failure the memory stays with this process, which does no other harm.
            given += share
                .arena
                .give_back(budget.saturating_sub(given), |at, len| {
                    drop(region.release_arena(at, len));
                });
            more |= share.arena.owes();
        }
        (given, more)
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use millrace_context::layout::Geometry;
    use millrace_context::region;

    use super::*;

    const OWNER: Owner = Owner(0);

    fn region() -> Arc<Region> {
        let geometry = Geometry {
            slots: 8,
            contexts: 1,
            pollers: 1,
            shards: 2,
            arena: 2 << 16,
        };
        let file = region::create(&geometry).unwrap();
        Arc::new(Region::map(file.as_fd(), geometry).unwrap())
    }

    /// A block that moves along is read and freed by another shard. Its own shard allocates it
    /// again once the slots have been published there.
    #[test]
    fn a_block_goes_to_another_shard_and_comes_home_when_it_is_free() {
        let region = region();
        let (mut home, mut other) = (Arenas::new(0), Arenas::new(1));
        home.insert(OWNER, region.clone());
        other.insert(OWNER, region.clone());
        let block = home.allocate(OWNER, 16).unwrap();
        home.write(OWNER, block, 5, b"unread");
        assert!(home.hand_over(OWNER, block));
        other.adopt(OWNER, block);
        assert_eq!((home.usage(OWNER).0, other.usage(OWNER).0), (0, 1 << 16));
        let mut read = [0; 6];
        other.read(OWNER, block, 5, &mut read);
        assert_eq!(&read, b"unread");
        assert!(home.allocate(OWNER, 12).is_none(), "it is in use");
        other.free(OWNER, block);
        assert_eq!(other.usage(OWNER).0, 0);
        assert!(
            other.take_foreign_block().is_none(),
            "somebody may be reading it"
        );
        other.settle();
        let (shard, foreign) = other.take_foreign_block().unwrap();
        assert_eq!((shard, other.take_foreign_block().is_none()), (0, true));
        home.come_home(&foreign);
        home.settle();
        assert_eq!(home.allocate(OWNER, 16), Some(block));
        assert_eq!(home.usage(OWNER).0, 1 << 16);
    }

    #[test]
    fn a_block_that_comes_back_in_use_is_the_own_one_again() {
        let region = region();
        let mut home = Arenas::new(0);
        home.insert(OWNER, region);
        let block = home.allocate(OWNER, 16).unwrap();
        assert!(home.hand_over(OWNER, block));
        home.adopt(OWNER, block);
        assert_eq!(home.usage(OWNER).0, 1 << 16);
        home.free(OWNER, block);
        home.settle();
        assert!(home.take_foreign_block().is_none());
        assert_eq!(home.allocate(OWNER, 16), Some(block));
    }

    /// The numbers of programs are used again.
    #[test]
    fn a_block_of_a_program_that_is_over_comes_home_to_nobody() {
        let (old, new) = (region(), region());
        let (mut home, mut other) = (Arenas::new(0), Arenas::new(1));
        home.insert(OWNER, old.clone());
        other.insert(OWNER, old);
        let block = home.allocate(OWNER, 16).unwrap();
        assert!(home.hand_over(OWNER, block));
        other.adopt(OWNER, block);
        other.free(OWNER, block);
        other.settle();
        let (_, foreign) = other.take_foreign_block().unwrap();
        home.remove(OWNER);
        home.insert(OWNER, new);
        let all = home.allocate(OWNER, 16).unwrap();
        home.come_home(&foreign);
        home.settle();
        assert_eq!((all, home.allocate(OWNER, 12)), (block, None));
    }
}
