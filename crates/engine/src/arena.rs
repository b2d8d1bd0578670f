//! Blocks of a region's arena, in powers of two.
//!
//! What the allocator knows is in the engine's private memory. Freed blocks of a size are used again last in, first out, so that busy
//! connections share a few warm blocks. A block that is freed while a thread of the program may still copy out of it rests until the
//! slots that named it have been published anew ([`Arena::settle`]).

/// Sizes are 2^12 to 2^24 bytes.
const LOG2_MIN: u8 = 12;
const SIZES: usize = 13;
/// Free memory of more than this many bytes in blocks of 64 KB and more is given back to the machine.
const KEEP: u64 = 32 << 20;

/// The allocator of one arena.
#[derive(Debug)]
pub struct Arena {
    end: u64,
    /// Never given out beyond here.
    top: u64,
    free: [Vec<u64>; SIZES],
    resting: Vec<(u64, u8)>,
    in_use: u64,
    /// Bytes in free blocks of 64 KB and more that still have memory behind them.
    warm: u64,
    failures: u64,
}

impl Arena {
    /// An arena of the `len` bytes from `start` on.
    pub fn new(start: u64, len: u64) -> Arena {
        Arena {
            end: start + len,
            top: start,
            free: Default::default(),
            resting: Vec::new(),
            in_use: 0,
            warm: 0,
            failures: 0,
        }
    }

    /// Bytes given out.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// How often there was nothing to give.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// A block of 2^`log2` bytes, aligned to 4 KB: its offset.
    pub fn allocate(&mut self, log2: u8) -> Option<u64> {
        let class = usize::from(log2.checked_sub(LOG2_MIN)?);
        if class >= SIZES {
            return None;
        }
        let block = self
            .reuse(class)
            .or_else(|| self.extend(log2))
            .or_else(|| self.split(class));
        match block {
            Some(_) => self.in_use += 1 << log2,
            None => self.failures += 1,
        }
        block
    }

    fn reuse(&mut self, class: usize) -> Option<u64> {
        let block = self.free[class].pop()?;
        if class >= 4 {
            self.warm = self.warm.saturating_sub(1 << (class as u8 + LOG2_MIN));
        }
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

    /// Cuts a larger free block; the pieces do not grow together again, which a mixed load bears because sizes come back.
    fn split(&mut self, class: usize) -> Option<u64> {
        let from = (class + 1..SIZES).find(|larger| !self.free[*larger].is_empty())?;
        let at = self.reuse(from)?;
        for smaller in class..from {
            self.free[smaller].push(at + (1 << (smaller + usize::from(LOG2_MIN))));
        }
        Some(at)
    }

    /// Takes a block back; it is not given out again before [`Arena::settle`].
    pub fn free(&mut self, at: u64, log2: u8) {
        self.in_use = self.in_use.saturating_sub(1 << log2);
        self.resting.push((at, log2));
    }

    /// A block that was given out is another shard's to look after, until [`Arena::come_home`] or [`Arena::free`] behind that.
    pub fn part_with(&mut self, log2: u8) {
        self.in_use = self.in_use.saturating_sub(1 << log2);
    }

    /// It is this one's again.
    pub fn come_home(&mut self, log2: u8) {
        self.in_use += 1 << log2;
    }

    /// The slots have been published: what rested is free. Calls `release` for blocks whose memory is not worth keeping.
    pub fn settle(&mut self, mut release: impl FnMut(u64, usize)) {
        while let Some((at, log2)) = self.resting.pop() {
            let class = usize::from(log2 - LOG2_MIN);
            if class >= 4 {
                self.warm += 1 << log2;
                if self.warm > KEEP {
                    self.warm -= 1 << log2;
                    release(at, 1 << log2);
                }
            }
            self.free[class].push(at);
        }
    }

    /// Whether blocks rest.
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
        arena.settle(|_, _| ());
        assert_eq!(arena.allocate(12), Some(a));
    }

    #[test]
    fn an_exhausted_arena_refuses_and_recovers() {
        let mut arena = Arena::new(0, 1 << 16);
        let all = arena.allocate(16).unwrap();
        assert_eq!(arena.allocate(12), None);
        assert_eq!(arena.failures(), 1);
        arena.free(all, 16);
        arena.settle(|_, _| ());
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

    #[test]
    fn much_free_memory_goes_back_to_the_machine() {
        let mut arena = Arena::new(0, 1 << 30);
        let blocks: Vec<u64> = (0..20).map(|_| arena.allocate(22).unwrap()).collect();
        for block in blocks {
            arena.free(block, 22);
        }
        let mut released = 0;
        arena.settle(|_, len| released += len as u64);
        assert_eq!(released, (20 << 22) - KEEP);
    }
}
