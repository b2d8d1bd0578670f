//! The bytes that a program has written and the peer has not acknowledged: a ring in private
//! memory.

use std::ops::Range;

use crate::memory::Owner;
use crate::memory::pool::{LOG2_MAX, LOG2_MIN};
use crate::memory::send_memory::SendMemory;

/// A power-of-two ring; stream offset `o` is at byte `o & (len - 1)`. It has a block only while it
/// holds bytes.
#[derive(Default)]
pub struct SendRing {
    block: Option<Box<[u8]>>,
    /// Stream bytes below this are acknowledged and gone: low half of an offset, as a ring is
    /// smaller than that.
    start: u32,
    /// The low half of the stream offset below which the program has written all bytes.
    end: u32,
}

impl SendRing {
    /// Stream offset of the first byte kept; `near` is one that is less than 2^31 from it, as any
    /// that concerns the ring is.
    #[inline]
    pub fn start(&self, near: u64) -> u64 {
        whole(self.start, near)
    }

    /// Bytes kept.
    pub fn len(&self) -> u64 {
        self.end.wrapping_sub(self.start).into()
    }

    /// Makes room for `len` more bytes, as far as the pool has memory; returns for how many there
    /// is.
    #[inline]
    pub fn reserve(&mut self, len: usize, pool: &mut SendMemory, owner: Owner) -> usize {
        // The most frequent case: a message that fits into the smallest block.
        if self.block.is_none() && len <= 1 << LOG2_MIN {
            self.block = pool.allocate(owner, LOG2_MIN);
            return if self.block.is_some() { len } else { 0 };
        }
        self.grow(len, pool, owner)
    }

    #[inline(never)]
    fn grow(&mut self, len: usize, pool: &mut SendMemory, owner: Owner) -> usize {
        let needed = self.len() as usize + len;
        let size = self.block.as_ref().map_or(0, |block| block.len());
        if needed <= size {
            return len;
        }
        let wanted = (needed.next_power_of_two().trailing_zeros() as u8).clamp(LOG2_MIN, LOG2_MAX);
        // At the limit a smaller block is better than none.
        for log2 in (LOG2_MIN..=wanted).rev() {
            if 1usize << log2 <= size {
                break;
            }
            if let Some(mut block) = pool.allocate(owner, log2) {
                let mask = block.len() - 1;
                let mut at = self.start;
                for part in self.kept() {
                    copy_in(&mut block, mask, at, part);
                    at = at.wrapping_add(part.len() as u32);
                }
                if let Some(old) = self.block.replace(block) {
                    pool.free(owner, old);
                }
                break;
            }
        }
        let size = self.block.as_ref().map_or(0, |block| block.len());
        (size - self.len() as usize).min(len)
    }

    /// Lets `fill` write the next `len` bytes, in at most two pieces; there must be room.
    #[inline]
    pub fn fill(&mut self, len: usize, mut fill: impl FnMut(&mut [u8])) {
        if len == 0 {
            return;
        }
        let block = self.block.as_deref_mut().expect("room is reserved");
        let at = self.end as usize & (block.len() - 1);
        let first = len.min(block.len() - at);
        fill(&mut block[at..at + first]);
        if first < len {
            fill(&mut block[..len - first]);
        }
        self.end = self.end.wrapping_add(len as u32);
    }

    /// As [`SendRing::fill`], for a writer that is shown both pieces and says how many bytes it has
    /// written.
    pub fn fill_some(&mut self, len: usize, fill: impl FnOnce([&mut [u8]; 2]) -> usize) -> usize {
        if self.block.is_none() {
            return 0;
        }
        let written = fill(self.spare(len)).min(len);
        self.end = self.end.wrapping_add(written as u32);
        written
    }

    /// Where the next `len` bytes go, for which there is room; nothing without a block.
    pub fn spare(&mut self, len: usize) -> [&mut [u8]; 2] {
        let Some(block) = self.block.as_deref_mut() else {
            return [&mut [], &mut []];
        };
        let at = self.end as usize & (block.len() - 1);
        let first = len.min(block.len() - at);
        let (start, rest) = block.split_at_mut(at);
        [&mut rest[..first], &mut start[..len - first]]
    }

    /// Gives the block back if nothing was written to it.
    #[inline]
    pub fn trim(&mut self, pool: &mut SendMemory, owner: Owner) {
        if self.start == self.end {
            self.free(pool, owner);
        }
    }

    /// The bytes of `range`, in two pieces because the ring may wrap between them. The range must
    /// be kept.
    #[inline(always)]
    pub fn slices(&self, range: Range<u64>) -> [&[u8]; 2] {
        self.pieces(range.start as u32, (range.end - range.start) as usize)
    }

    /// All that is kept.
    fn kept(&self) -> [&[u8]; 2] {
        self.pieces(self.start, self.len() as usize)
    }

    #[inline(always)]
    fn pieces(&self, start: u32, len: usize) -> [&[u8]; 2] {
        let Some(block) = self.block.as_deref() else {
            return [&[], &[]];
        };
        let at = start as usize & (block.len() - 1);
        let first = len.min(block.len() - at);
        [&block[at..at + first], &block[..len - first]]
    }

    /// Forgets the bytes below `upto`; returns whether any were. The block goes back when nothing
    /// is left.
    #[inline(always)]
    pub fn release(&mut self, upto: u64, pool: &mut SendMemory, owner: Owner) -> bool {
        let ahead = (upto as u32).wrapping_sub(self.start);
        if ahead as i32 <= 0 {
            return false;
        }
        self.start = self
            .start
            .wrapping_add(ahead.min(self.end.wrapping_sub(self.start)));
        if self.start == self.end {
            self.free(pool, owner);
        }
        true
    }

    /// Gives the block back and forgets what it held.
    #[inline]
    pub fn free(&mut self, pool: &mut SendMemory, owner: Owner) {
        self.start = self.end;
        if let Some(block) = self.block.take() {
            pool.free(owner, block);
        }
    }

    /// The block goes with its bytes to another shard, which counts it from now on
    /// ([`SendRing::join`]).
    pub fn leave(&mut self, pool: &mut SendMemory, owner: Owner) {
        pool.let_go(owner, self.block.as_deref().map_or(0, <[u8]>::len));
    }

    /// The block came with its bytes from another shard.
    pub fn join(&mut self, pool: &mut SendMemory, owner: Owner) {
        pool.adopt(owner, self.block.as_deref().map_or(0, <[u8]>::len));
    }

    /// Takes the block out while its bytes are lent to somebody else; [`SendRing::put_back`]
    /// returns it.
    pub fn lend(&mut self) -> SendRing {
        SendRing {
            block: self.block.take(),
            start: self.start,
            end: self.end,
        }
    }

    /// Returns what [`SendRing::lend`] took. Bytes acknowledged in the meantime are released.
    pub fn put_back(&mut self, lent: SendRing, pool: &mut SendMemory, owner: Owner) {
        match lent.block {
            Some(block) if self.start != self.end && self.block.is_none() => {
                self.block = Some(block);
            }
            Some(block) => pool.free(owner, block),
            None => {}
        }
    }
}

/// The offset with this low half that is nearest to another one.
#[inline]
pub fn whole(low: u32, near: u64) -> u64 {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.wrapping_add_signed(ahead.into())
}

fn copy_in(block: &mut [u8], mask: usize, offset: u32, bytes: &[u8]) {
    let at = offset as usize & mask;
    let first = bytes.len().min(block.len() - at);
    block[at..at + first].copy_from_slice(&bytes[..first]);
    block[..bytes.len() - first].copy_from_slice(&bytes[first..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(ring: &mut SendRing, pool: &mut SendMemory, bytes: &[u8]) -> usize {
        let room = ring.reserve(bytes.len(), pool, Owner(0));
        let mut rest = &bytes[..room];
        ring.fill(room, |piece| {
            piece.copy_from_slice(&rest[..piece.len()]);
            rest = &rest[piece.len()..];
        });
        room
    }

    #[test]
    fn bytes_survive_wrap_and_growth() {
        let mut pool = SendMemory::new(1 << 20, false);
        // The low halves of offsets come round.
        let mut written = (1u64 << 33) - 5_000;
        let mut ring = SendRing {
            start: written as u32,
            end: written as u32,
            ..SendRing::default()
        };
        let byte = |offset: u64| (offset * 7 % 251) as u8;
        for step in [3000u64, 900, 4096, 1, 20_000, 333] {
            let bytes: Vec<u8> = (written..written + step).map(byte).collect();
            assert_eq!(write(&mut ring, &mut pool, &bytes), step as usize);
            written += step;
            // Keep a tail so that the ring wraps.
            ring.release(written - step / 2 - 1, &mut pool, Owner(0));
            let start = ring.start(written);
            assert_eq!(
                (start, start + ring.len()),
                (written - step / 2 - 1, written)
            );
            let kept: Vec<u8> = ring.slices(start..written).concat();
            assert!(
                kept.iter()
                    .enumerate()
                    .all(|(i, &b)| b == byte(start + i as u64))
            );
        }
        ring.release(written, &mut pool, Owner(0));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn at_the_limit_the_write_is_cut_short() {
        let mut pool = SendMemory::new(8 << 10, false);
        let mut ring = SendRing::default();
        assert_eq!(write(&mut ring, &mut pool, &[1; 3000]), 3000);
        // 8 KB more do not fit beside the 4 KB block that has to be copied.
        assert_eq!(write(&mut ring, &mut pool, &[2; 3000]), 1096);
        assert_eq!(ring.len(), 4096);
    }
}
