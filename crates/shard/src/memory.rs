//! Where receive rings live: memory that the shard writes and the socket's owner reads.

pub mod pool;
pub mod reclaim;
pub mod send_memory;
pub mod shares;

use crate::memory::pool::{LOG2_MIN, Pool};

/// The program that a socket belongs to. Accepted sockets inherit their listener's owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner(pub u32);

/// A block of an owner's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Less than 2^48, and opaque to the shard: for the engine the offset in the owner's region.
    pub at: u64,
    /// The block has 2^`log2` bytes.
    pub log2: u8,
}

impl Block {
    /// Bytes in the block.
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(self) -> usize {
        1 << self.log2
    }
}

/// A supplier of receive rings. `at + len` never exceeds the block in any call, and no range wraps.
pub trait Memory {
    /// A block of 2^`log2` bytes (12..=24) of `owner`'s memory, or `None` when there is no more.
    fn allocate(&mut self, owner: Owner, log2: u8) -> Option<Block>;
    /// Gives a block back.
    fn free(&mut self, owner: Owner, block: Block);
    /// Writes `data` at byte `at`.
    fn write(&mut self, owner: Owner, block: Block, at: usize, data: &[u8]);
    /// Copies `len` bytes between two different blocks of the same owner.
    fn copy(&mut self, owner: Owner, from: (Block, usize), to: (Block, usize), len: usize);
    /// Whether so much of the owner's memory is left that a block may be larger than it has to be.
    fn is_plenty(&self, _owner: Owner) -> bool {
        false
    }
    /// Whether so little of the owner's memory is left that it is for bytes in order alone: less
    /// than an eighth.
    fn is_short(&self, _owner: Owner) -> bool {
        false
    }
    /// How far the owner says that it has read the ring of the socket that it calls `label`: asked
    /// when a datagram finds the ring full, or a connection the backlog. Not to be believed beyond
    /// what the ring holds.
    fn read_upto(&self, _owner: Owner, _label: u32) -> u64 {
        0
    }
    /// Whether so much is free that [`Memory::review`] may find something to give back.
    fn has_spare(&self) -> bool {
        false
    }
    /// Marks memory that was free all the time since the last review, but for a reserve, to be
    /// given back.
    fn review(&mut self) {}
    /// Gives about `budget` bytes of that back to the machine. How many it gave, and whether there
    /// is more.
    fn give_back(&mut self, _budget: u64) -> (u64, bool) {
        (0, false)
    }
    /// Reads into `out` from byte `at`.
    fn read(&self, owner: Owner, block: Block, at: usize, out: &mut [u8]);
    /// A connection goes to another shard. True: its block moves with it, where it is, and is given
    /// back there; the other shard's memory must know all that this one hands out. False: what is
    /// in it is copied.
    fn hand_over(&mut self, _owner: Owner, _block: Block) -> bool {
        false
    }
    /// A block has come with a connection, from where [`Memory::hand_over`] was true; or it comes
    /// back.
    fn adopt(&mut self, _owner: Owner, _block: Block) {}
}

/// Memory whose bytes the shard's owner may look at where they are.
pub trait Lend: Memory {
    /// The bytes of a block.
    fn lend(&self, owner: Owner, block: Block) -> &[u8];
}

/// Private memory, for simulation and for programs that have the stack inside themselves.
pub struct HeapMemory {
    pool: Pool,
    /// By `Block::at`; `None` where free.
    blocks: Vec<Option<Box<[u8]>>>,
    vacant: Vec<u32>,
    /// Smallest blocks that came back and stay in their places: what was used last goes first,
    /// while it is in the caches.
    resting: Vec<u32>,
}

/// So many of the smallest blocks rest at most: 16 MB.
const RESTING_MAX: usize = 4096;

impl HeapMemory {
    /// Memory that hands out at most `limit` bytes at a time, to all owners together.
    pub fn new(limit: u64) -> HeapMemory {
        HeapMemory {
            pool: Pool::new(limit),
            blocks: Vec::new(),
            vacant: Vec::new(),
            resting: Vec::with_capacity(RESTING_MAX),
        }
    }

    /// Bytes handed out.
    pub fn in_use(&self) -> u64 {
        self.pool.in_use()
    }

    /// Finds a place for a block of the pool's.
    fn place(&mut self, log2: u8) -> Option<Block> {
        let bytes = self.pool.allocate(log2)?;
        let at = match self.vacant.pop() {
            Some(at) => at,
            None => {
                self.blocks.push(None);
                self.blocks.len() as u32 - 1
            }
        };
        self.blocks[at as usize] = Some(bytes);
        Some(Block {
            at: u64::from(at),
            log2,
        })
    }

    /// Gives a block back to the pool.
    fn vacate(&mut self, block: Block) {
        let bytes = self.blocks[block.at as usize]
            .take()
            .expect("block is allocated");
        self.vacant.push(block.at as u32);
        self.pool.free(bytes);
    }

    #[inline]
    fn block(&self, block: Block) -> &[u8] {
        self.blocks[block.at as usize]
            .as_deref()
            .expect("block is allocated")
    }

    #[inline]
    fn block_mut(&mut self, block: Block) -> &mut [u8] {
        self.blocks[block.at as usize]
            .as_deref_mut()
            .expect("block is allocated")
    }
}

impl Memory for HeapMemory {
    #[inline]
    fn allocate(&mut self, _owner: Owner, log2: u8) -> Option<Block> {
        if log2 == LOG2_MIN
            && let Some(at) = self.resting.pop()
        {
            let at = u64::from(at);
            if self.pool.reclaim(log2) {
                return Some(Block { at, log2 });
            }
            self.resting.push(at as u32);
            return None;
        }
        self.place(log2)
    }

    #[inline]
    fn free(&mut self, _owner: Owner, block: Block) {
        if block.log2 == LOG2_MIN && self.resting.len() < RESTING_MAX {
            self.pool.let_go(block.len());
            self.resting.push(block.at as u32);
        } else {
            self.vacate(block);
        }
    }

    fn is_plenty(&self, _owner: Owner) -> bool {
        self.pool.is_plenty()
    }

    fn is_short(&self, _owner: Owner) -> bool {
        self.pool.is_short()
    }

    fn has_spare(&self) -> bool {
        self.pool.has_spare()
    }

    fn review(&mut self) {
        self.pool.review();
    }

    fn give_back(&mut self, budget: u64) -> (u64, bool) {
        let given = self.pool.give_back(budget);
        (given, self.pool.owes())
    }

    fn write(&mut self, _owner: Owner, block: Block, at: usize, data: &[u8]) {
        self.block_mut(block)[at..at + data.len()].copy_from_slice(data);
    }

    fn copy(&mut self, _owner: Owner, from: (Block, usize), to: (Block, usize), len: usize) {
        let mut target = self.blocks[to.0.at as usize]
            .take()
            .expect("block is allocated");
        target[to.1..to.1 + len].copy_from_slice(&self.block(from.0)[from.1..from.1 + len]);
        self.blocks[to.0.at as usize] = Some(target);
    }

    fn read(&self, _owner: Owner, block: Block, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.block(block)[at..at + out.len()]);
    }
}

impl Lend for HeapMemory {
    fn lend(&self, _owner: Owner, block: Block) -> &[u8] {
        self.block(block)
    }
}
