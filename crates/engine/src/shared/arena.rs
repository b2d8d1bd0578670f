//! Allocates blocks of a region's arena, in powers of two.
//!
//! The state of the allocator is in the engine's private memory. Freed blocks of a size are used
//! again last in, first out, so that busy connections share a few warm blocks. A thread of the
//! program may still copy out of a freed block, so it rests until the slots that named it have been
//! published again ([`Arena::settle`]). Blocks that stay free are merged and given back to the
//! machine ([`Arena::review`], [`Arena::give_back`]).

/// Sizes are 2^12 to 2^24 bytes.
const LOG2_MIN: u8 = 12;
const SIZES: usize = 13;
/// Bytes of free memory that are always kept.
const KEEP: u64 = 8 << 20;

/// A range of free bytes.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: u64,
    len: u64,
    /// The first `warm` bytes have not been given back.
    warm: u64,
}

/// The allocator of one arena.
#[derive(Debug)]
pub struct Arena {
    start: u64,
    len: u64,
    end: u64,
    /// No block ends beyond here yet.
    top: u64,
    free: [Vec<u64>; SIZES],
    resting: Vec<(u64, u8)>,
    in_use: u64,
    /// Bytes in free blocks that may have memory behind them.
    warm: u64,
    /// The least value of `warm` since the last review.
    spare: u64,
    /// Free pieces that are given back before they become blocks again.
    cooling: Vec<Piece>,
    failures: u64,
    /// `failures` at the last review.
    reviewed: u64,
}

impl Arena {
    /// An arena of the `len` bytes from `start` on.
    pub fn new(start: u64, len: u64) -> Arena {
        Arena {
            start,
            len,
            end: start + len,
            top: start,
            free: Default::default(),
            resting: Vec::new(),
            in_use: 0,
            warm: 0,
            spare: 0,
            cooling: Vec::new(),
            failures: 0,
            reviewed: 0,
        }
    }

    /// Bytes in use.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// How often there was no block.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Allocates a block of 2^`log2` bytes, aligned to 4 KB. Returns its offset.
    pub fn allocate(&mut self, log2: u8) -> Option<u64> {
        let class = usize::from(log2.checked_sub(LOG2_MIN)?);
        if class >= SIZES {
            return None;
        }
        let block = self
            .reuse(class)
            .or_else(|| self.extend(log2))
            .or_else(|| self.split(class))
            .or_else(|| self.thaw(class));
        match block {
            Some(_) => self.in_use += 1 << log2,
            None => self.failures += 1,
        }
        block
    }

    fn reuse(&mut self, class: usize) -> Option<u64> {
        let block = self.free[class].pop()?;
        self.warm = self.warm.saturating_sub(1 << (class as u8 + LOG2_MIN));
        self.spare = self.spare.min(self.warm);
        Some(block)
    }

    fn extend(&mut self, log2: u8) -> Option<u64> {
        let at = self.top;
        let end = at.checked_add(1 << log2)?;
        (end <= self.end).then(|| {
            self.top = end;
            at
        })
    }

    /// Splits a larger free block. The pieces are merged again when they have been free for a
    /// while.
    fn split(&mut self, class: usize) -> Option<u64> {
        let from = (class + 1..SIZES).find(|larger| !self.free[*larger].is_empty())?;
        let at = self.reuse(from)?;
        for smaller in class..from {
            self.free[smaller].push(at + (1 << (smaller + usize::from(LOG2_MIN))));
        }
        Some(at)
    }

    /// Takes a block of a piece that was about to be given back, when there is no other.
    #[cold]
    fn thaw(&mut self, class: usize) -> Option<u64> {
        while let Some(piece) = self.cooling.pop() {
            self.warm += piece.warm;
            self.cut(piece.at, piece.len);
            if let Some(block) = self.reuse(class).or_else(|| self.split(class)) {
                return Some(block);
            }
        }
        None
    }

    /// Cuts a piece into free blocks, as large as possible.
    fn cut(&mut self, mut at: u64, mut len: u64) {
        while len > 0 {
            let log2 = (len.ilog2() as u8).min(LOG2_MIN + SIZES as u8 - 1);
            self.free[usize::from(log2 - LOG2_MIN)].push(at);
            at += 1 << log2;
            len -= 1 << log2;
        }
    }

    /// Frees a block. It is not used again before [`Arena::settle`].
    pub fn free(&mut self, at: u64, log2: u8) {
        self.in_use = self.in_use.saturating_sub(1 << log2);
        self.resting.push((at, log2));
    }

    /// Another shard takes care of a block in use, until [`Arena::come_home`].
    pub fn part_with(&mut self, log2: u8) {
        self.in_use = self.in_use.saturating_sub(1 << log2);
    }

    /// This shard takes care of the block again.
    pub fn come_home(&mut self, log2: u8) {
        self.in_use += 1 << log2;
    }

    /// The slots have been published, so resting blocks are free.
    pub fn settle(&mut self) {
        while let Some((at, log2)) = self.resting.pop() {
            self.warm += 1 << log2;
            self.free[usize::from(log2 - LOG2_MIN)].push(at);
        }
    }

    /// Whether a review may find something to give back.
    pub fn has_spare(&self) -> bool {
        self.warm > KEEP || self.owes()
    }

    /// Whether less than an eighth is left.
    pub fn is_short(&self) -> bool {
        self.in_use > self.len / 8 * 7
    }

    /// Must be called from time to time. If more was free since the last review than is worth
    /// keeping, or an allocation failed, free blocks are merged to be given back.
    pub fn review(&mut self) {
        let crumbled = self.failures != self.reviewed && self.warm > 0;
        self.reviewed = self.failures;
        if self.spare > KEEP || crumbled {
            self.gather();
        }
        self.spare = self.warm;
    }

    /// Merges all free blocks into pieces without gaps. It takes one pass over a bitmap of 4 KB
    /// pages, a millisecond for an arena of a gigabyte.
    fn gather(&mut self) {
        let pages = ((self.top - self.start) >> LOG2_MIN) as usize;
        let mut map = vec![0u64; pages.div_ceil(64)];
        let mut mark = |at: u64, len: u64| {
            let first = ((at - self.start) >> LOG2_MIN) as usize;
            for page in first..first + (len >> LOG2_MIN) as usize {
                map[page / 64] |= 1 << (page % 64);
            }
        };
        for (class, blocks) in self.free.iter_mut().enumerate() {
            let len = 1 << (class + usize::from(LOG2_MIN));
            std::mem::take(blocks).iter().for_each(|at| mark(*at, len));
        }
        std::mem::take(&mut self.cooling)
            .iter()
            .for_each(|piece| mark(piece.at, piece.len));
        let mut page = 0;
        while page < pages {
            let is_free = |page: usize| page < pages && map[page / 64] >> (page % 64) & 1 != 0;
            if !is_free(page) {
                page += 1;
                continue;
            }
            let first = page;
            while is_free(page) {
                page += 1;
            }
            let at = self.start + ((first as u64) << LOG2_MIN);
            let len = ((page - first) as u64) << LOG2_MIN;
            self.cooling.push(Piece { at, len, warm: len });
        }
        self.warm = 0;
    }

    /// Gives about `budget` bytes of what a review found back through `release`, from the end.
    /// Returns how many.
    pub fn give_back(&mut self, budget: u64, mut release: impl FnMut(u64, usize)) -> u64 {
        let mut given = 0;
        while given < budget
            && let Some(piece) = self.cooling.last_mut()
        {
            let part = piece.warm.min(budget - given);
            piece.warm -= part;
            release(piece.at + piece.warm, part as usize);
            given += part;
            let Piece { at, len, warm } = *piece;
            if warm > 0 {
                break;
            }
            self.cooling.pop();
            if at + len == self.top {
                self.top = at;
            } else {
                self.cut(at, len);
            }
        }
        given
    }

    /// Whether pieces are left to give back.
    pub fn owes(&self) -> bool {
        !self.cooling.is_empty()
    }

    /// Whether freed blocks rest.
    pub fn unsettled(&self) -> bool {
        !self.resting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_come_back() {
        let mut arena = Arena::new(1 << 30, 1 << 20);
        let a = arena.allocate(12).unwrap();
        let b = arena.allocate(16).unwrap();
        assert!(a + (1 << 12) <= b || b + (1 << 16) <= a);
        assert!(a.min(b) >= 1 << 30, "before its start");
        arena.free(a, 12);
        assert_ne!(
            arena.allocate(12),
            Some(a),
            "it rests until the slots are published"
        );
        arena.settle();
        assert_eq!(arena.allocate(12), Some(a));
    }

    #[test]
    fn an_exhausted_arena_refuses_and_recovers() {
        let mut arena = Arena::new(0, 1 << 16);
        let all = arena.allocate(16).unwrap();
        assert_eq!(arena.allocate(12), None);
        assert_eq!(arena.failures(), 1);
        arena.free(all, 16);
        arena.settle();
        let pieces: Vec<u64> = std::iter::from_fn(|| arena.allocate(12)).collect();
        assert_eq!(pieces.len(), 16, "a larger block is cut");
        let mut sorted = pieces;
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 16);
        assert_eq!(arena.in_use(), 1 << 16);
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        let mut arena = Arena::new(0, 1 << 30);
        assert_eq!(arena.allocate(11), None);
        assert_eq!(arena.allocate(25), None);
    }

    /// Reviews until nothing more is given back. Returns the bytes given back.
    fn tend(arena: &mut Arena) -> u64 {
        let mut released = 0;
        for _ in 0..2 {
            arena.review();
            while arena.owes() {
                let before = released;
                let given = arena.give_back(1 << 20, |_, len| released += len as u64);
                assert_eq!(released - before, given);
                assert!((1..=1 << 20).contains(&given), "in steps");
            }
        }
        released
    }

    #[test]
    fn what_is_free_for_a_while_goes_back_to_the_machine_and_grows_together() {
        const LEN: u64 = 64 << 20;
        let mut arena = Arena::new(1 << 30, LEN);
        let small: Vec<u64> = std::iter::from_fn(|| arena.allocate(12)).collect();
        assert_eq!(small.len() as u64, LEN >> 12);
        assert!(arena.is_short());
        let (kept, freed): (Vec<u64>, Vec<u64>) =
            small.iter().partition(|at| **at == (1 << 30) + (40 << 20));
        freed.iter().for_each(|at| arena.free(*at, 12));
        arena.settle();
        assert_eq!(tend(&mut arena), LEN - 4096);
        assert!(!arena.has_spare());
        let large: Vec<u64> = std::iter::from_fn(|| arena.allocate(24)).collect();
        assert_eq!(
            large.len(),
            3,
            "two before the block in use and one behind it"
        );
        assert!(
            large
                .iter()
                .all(|at| kept[0] < *at || kept[0] >= at + (1 << 24))
        );
    }

    #[test]
    fn what_is_used_again_and_again_is_kept() {
        let mut arena = Arena::new(0, 1 << 30);
        for _ in 0..5 {
            let blocks: Vec<u64> = (0..20).map(|_| arena.allocate(22).unwrap()).collect();
            blocks.iter().for_each(|block| arena.free(*block, 22));
            arena.settle();
            arena.review();
            assert!(!arena.owes());
        }
    }

    /// An allocation succeeds while memory is given back.
    #[test]
    fn what_is_about_to_go_back_is_given_out_if_there_is_nothing_else() {
        let mut arena = Arena::new(0, 32 << 20);
        let all: Vec<u64> = std::iter::from_fn(|| arena.allocate(20)).collect();
        all.iter().for_each(|block| arena.free(*block, 20));
        arena.settle();
        arena.review();
        arena.review();
        assert_eq!(arena.give_back(1 << 20, |_, _| ()), 1 << 20);
        let again: Vec<u64> = std::iter::from_fn(|| arena.allocate(20)).collect();
        assert_eq!((again.len(), arena.failures()), (32, 2));
    }
}
