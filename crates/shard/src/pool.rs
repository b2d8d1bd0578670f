//! Byte blocks of powers of two, recycled by size class under one limit. What a ring lives in.

/// Smallest block: 2^12 = 4 KB.
pub const LOG2_MIN: u8 = 12;
/// Largest block: 2^24 = 16 MB.
pub const LOG2_MAX: u8 = 24;
const CLASSES: usize = (LOG2_MAX - LOG2_MIN + 1) as usize;
/// Bytes of free blocks that are kept for reuse in any case; beyond that as many as were in use at once: what so many connections needed they need again with
/// their next message, and a fresh block is cleared first.
const CACHE: u64 = 32 << 20;
/// After how many blocks that came back a part of that is forgotten.
const LATELY: u32 = 1 << 22;

/// A pool of blocks with a limit on the bytes handed out.
pub struct Pool {
    free: [Vec<Box<[u8]>>; CLASSES],
    limit: u64,
    in_use: u64,
    cached: u64,
    /// Bytes of free blocks that are kept.
    keep: u64,
    /// Blocks that came back.
    returned: u32,
}

impl Pool {
    /// A pool that hands out at most `limit` bytes at a time.
    pub fn new(limit: u64) -> Pool {
        Pool {
            free: Default::default(),
            limit,
            in_use: 0,
            cached: 0,
            keep: CACHE,
            returned: 0,
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
                Some(block)
            }
            None => Some(self.fresh(size as usize)),
        }
    }

    #[cold]
    fn fresh(&mut self, size: usize) -> Box<[u8]> {
        self.keep = self.keep.max(self.in_use);
        vec![0; size].into_boxed_slice()
    }

    /// Takes a block back.
    #[inline(always)]
    pub fn free(&mut self, block: Box<[u8]>) {
        let size = block.len() as u64;
        self.in_use -= size;
        self.returned += 1;
        if self.returned == LATELY {
            self.forget();
        }
        if self.cached + size <= self.keep {
            self.cached += size;
            self.free[(size.trailing_zeros() - u32::from(LOG2_MIN)) as usize].push(block);
        }
    }

    /// Less is kept, if less was in use of late.
    #[cold]
    fn forget(&mut self) {
        self.returned = 0;
        self.keep = CACHE.max(self.keep - self.keep / 8);
    }

    /// As many bytes as a block of 2^`log2` has are in use again, if the limit allows: what holds the block has kept it.
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

    /// So many bytes that another pool has handed out are this one's. They are in use already, so the limit does not refuse them.
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
    fn what_was_in_use_at_once_is_kept_until_less_is_for_long() {
        let mut pool = Pool::new(1 << 30);
        let many = (CACHE as usize >> LOG2_MIN) + 1000;
        wave(&mut pool, many);
        let kept = (many as u64) << LOG2_MIN;
        assert_eq!(pool.cached, kept);
        for _ in 0..=LATELY / 1000 {
            wave(&mut pool, 1001);
        }
        assert!(pool.cached <= CACHE, "{}", pool.cached);
    }
}
