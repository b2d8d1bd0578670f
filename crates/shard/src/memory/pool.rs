//! Byte blocks of powers of two, recycled by size class under one limit. Rings live in them.

/// Smallest block: 2^12 = 4 KB.
pub const LOG2_MIN: u8 = 12;
/// Largest block: 2^24 = 16 MB.
pub const LOG2_MAX: u8 = 24;
const CLASSES: usize = (LOG2_MAX - LOG2_MIN + 1) as usize;
/// Bytes of free blocks that are kept for reuse in any case.
const CACHE: u64 = 16 << 20;

/// A pool of blocks with a limit on the bytes handed out, which holds for those handed out and
/// those kept free together. Free blocks that nobody has wanted for a while are given back
/// ([`Pool::review`], [`Pool::give_back`]): what many connections needed they need again with their
/// next message, and a fresh block is cleared first.
pub struct Pool {
    free: [Vec<Box<[u8]>>; CLASSES],
    limit: u64,
    in_use: u64,
    cached: u64,
    /// The least that was cached since the last review.
    spare: u64,
    /// Bytes to be given back.
    owed: u64,
}

impl Pool {
    /// A pool that hands out at most `limit` bytes at a time.
    pub fn new(limit: u64) -> Pool {
        Pool {
            free: Default::default(),
            limit,
            in_use: 0,
            cached: 0,
            spare: 0,
            owed: 0,
        }
    }

    /// A block of 2^`log2` bytes with arbitrary content, or `None` at the limit.
    #[inline]
    pub fn allocate(&mut self, log2: u8) -> Option<Box<[u8]>> {
        debug_assert!((LOG2_MIN..=LOG2_MAX).contains(&log2));
        let size = 1u64 << log2;
        if self.in_use + size > self.limit {
            return None;
        }
        self.in_use += size;
        match self.free[(log2 - LOG2_MIN) as usize].pop() {
            Some(block) => {
                self.cached -= size;
                self.spare = self.spare.min(self.cached);
                Some(block)
            }
            None => Some(self.fresh(size as usize)),
        }
    }

    #[cold]
    fn fresh(&mut self, size: usize) -> Box<[u8]> {
        // Free blocks of other sizes give way.
        let excess = (self.in_use + self.cached).saturating_sub(self.limit);
        self.drop_free(excess);
        vec![0; size].into_boxed_slice()
    }

    /// Takes a block back.
    #[inline(always)]
    pub fn free(&mut self, block: Box<[u8]>) {
        let size = block.len() as u64;
        self.in_use -= size;
        self.cached += size;
        self.free[(size.trailing_zeros() - u32::from(LOG2_MIN)) as usize].push(block);
    }

    /// Drops at least so many bytes of free blocks, the largest blocks first, if there are as many.
    /// How many it dropped.
    fn drop_free(&mut self, bytes: u64) -> u64 {
        let mut dropped = 0;
        for free in self.free.iter_mut().rev() {
            while dropped < bytes
                && let Some(block) = free.pop()
            {
                dropped += block.len() as u64;
            }
        }
        self.cached -= dropped;
        self.spare = self.spare.min(self.cached);
        dropped
    }

    /// Whether there is more than it keeps in any case.
    #[inline]
    pub fn has_spare(&self) -> bool {
        self.cached > CACHE
    }

    /// Memory that was free all the time since the last review, but for a reserve, is owed to the
    /// machine.
    pub fn review(&mut self) {
        self.owed = self.spare.saturating_sub(CACHE);
        self.spare = self.cached;
    }

    /// Gives about `budget` bytes back of what is owed. How many it gave.
    pub fn give_back(&mut self, budget: u64) -> u64 {
        let bytes = budget.min(self.owed).min(self.cached);
        let given = self.drop_free(bytes);
        self.owed = self.owed.min(self.cached).saturating_sub(given);
        if self.owed == 0 {
            // As vectors, the lists have room for all that was ever free.
            self.free
                .iter_mut()
                .for_each(|free| free.shrink_to(2 * free.len()));
        }
        given
    }

    /// Whether anything is owed.
    pub fn owes(&self) -> bool {
        self.owed > 0
    }

    /// As many bytes as a block of 2^`log2` has are in use again, if the limit allows: what holds
    /// the block has kept it.
    #[inline]
    pub fn reclaim(&mut self, log2: u8) -> bool {
        let size = 1u64 << log2;
        let fits = self.in_use + size <= self.limit;
        if fits {
            self.in_use += size;
        }
        fits
    }

    /// So many bytes that were handed out are another pool's from now on.
    pub fn let_go(&mut self, bytes: usize) {
        self.in_use -= bytes as u64;
    }

    /// So many bytes that another pool has handed out are this one's. They are in use already, so
    /// the limit does not refuse them.
    pub fn adopt(&mut self, bytes: usize) {
        self.in_use += bytes as u64;
    }

    /// Whether little is left: less than an eighth of the limit.
    pub fn is_short(&self) -> bool {
        self.in_use > self.limit - self.limit / 8
    }

    /// Whether much is left: three quarters of the limit.
    pub fn is_plenty(&self) -> bool {
        self.in_use < self.limit / 4
    }

    /// Bytes handed out.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_recycled_and_limited() {
        let mut pool = Pool::new(3 << 12);
        let mut a = pool.allocate(12).unwrap();
        let b = pool.allocate(13).unwrap();
        assert!(pool.allocate(12).is_none());
        a[7] = 77;
        pool.free(a);
        assert_eq!(pool.allocate(12).unwrap()[7], 77);
        pool.free(b);
        assert_eq!(pool.in_use(), 1 << 12);
    }

    /// Takes and gives back so many of the smallest blocks at once.
    fn wave(pool: &mut Pool, blocks: usize) {
        let taken: Vec<_> = (0..blocks)
            .filter_map(|_| pool.allocate(LOG2_MIN))
            .collect();
        taken.into_iter().for_each(|block| pool.free(block));
    }

    #[test]
    fn what_nobody_wants_for_a_while_is_given_back() {
        let mut pool = Pool::new(1 << 30);
        let many = (CACHE as usize >> LOG2_MIN) + 1000;
        wave(&mut pool, many);
        let kept = (many as u64) << LOG2_MIN;
        assert_eq!((pool.cached, pool.has_spare()), (kept, true));
        // Waves that come again and again find their blocks.
        for _ in 0..3 {
            pool.review();
            wave(&mut pool, many);
            assert_eq!(pool.give_back(u64::MAX), 0);
        }
        pool.review();
        pool.review();
        assert_eq!(pool.give_back(10 << LOG2_MIN), 10 << LOG2_MIN, "in steps");
        assert!(pool.owes());
        while pool.owes() {
            assert!(pool.give_back(100 << LOG2_MIN) > 0);
        }
        assert_eq!((pool.cached, pool.has_spare()), (CACHE, false));
    }

    #[test]
    fn blocks_in_use_and_blocks_kept_stay_within_the_limit_together() {
        let limit = 1000 << LOG2_MIN;
        let mut pool = Pool::new(limit);
        wave(&mut pool, 1000);
        let large = pool.allocate(LOG2_MIN + 8).unwrap();
        assert!(pool.in_use + pool.cached <= limit, "{} cached", pool.cached);
        assert_eq!(pool.cached, limit - large.len() as u64);
    }
}
