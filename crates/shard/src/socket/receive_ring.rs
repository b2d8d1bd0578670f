//! The bytes that have come and that the program has not read: a ring in the owner's memory.

use std::ops::Range;

use millrace_tcp::ReceiveBuffer;

use crate::counters::Counters;
use crate::memory::pool::{LOG2_MAX, LOG2_MIN};
use crate::memory::{Block, Lend, Memory, Owner};
use crate::socket::send_ring::whole;

/// So many times the bytes that it stores may a block have, because some of them are out of order.
const THINNEST: u64 = 16;
/// With more ranges out of order than this a block is as long as what it spans.
const FOLDED_RANGES: usize = 32;

/// A power-of-two ring; stream offset `o` is at byte `o & (len - 1)`. Bytes out of order are stored
/// at their place, too: where none is at another's, the ring may be shorter than what it spans
/// (*folded*), so that a byte far ahead takes no more than it needs. It has a block only while it
/// holds bytes, and starts small: the window advertised may be larger than the block. Where memory
/// is plenty it starts as large as it had to be the last time, so that what comes in bulk is not
/// copied from block to block every time that all of it was read.
#[derive(Default)]
pub struct RecvRing {
    /// Where the block is: the low half, and what is above it.
    at: u32,
    at_high: u16,
    /// It has 2^`log2` bytes; 0: there is none.
    log2: u8,
    /// The largest size that it needed since the block exists, or while the last one did: a power
    /// of two, as `log2`.
    most: u8,
    /// Stream bytes below this have been read: low half of an offset, as a ring is smaller than
    /// that.
    consumed: u32,
    /// No byte at or beyond this offset has been stored: low half of an offset.
    end: u32,
}

impl RecvRing {
    /// The block, if there is one.
    pub fn block(&self) -> Option<Block> {
        (self.log2 != 0).then_some(Block {
            at: u64::from(self.at_high) << 32 | u64::from(self.at),
            log2: self.log2,
        })
    }

    #[inline(always)]
    fn put(&mut self, block: Block) {
        debug_assert!(block.at >> 48 == 0);
        (self.at, self.at_high) = (block.at as u32, (block.at >> 32) as u16);
        self.log2 = block.log2;
    }

    /// From what was read to what was stored last, holes included.
    fn span(&self) -> usize {
        (self.end.wrapping_sub(self.consumed) as i32).max(0) as usize
    }

    /// Whether the ring is shorter than what it spans.
    pub fn is_folded(&self) -> bool {
        self.log2 != 0 && self.span() > 1 << self.log2
    }

    /// Stream offset up to which the program has read; `near` is one that is less than 2^31 from
    /// it, as any that concerns the ring is.
    #[inline]
    pub fn consumed(&self, near: u64) -> u64 {
        whole(self.consumed, near)
    }

    /// The low half of that.
    #[inline]
    pub fn mark(&self) -> u32 {
        self.consumed
    }

    /// Stores `data` at stream offset `offset`, growing the ring when needed; false when there is
    /// no memory.
    #[inline(always)]
    pub fn store<M: Memory>(
        &mut self,
        memory: &mut M,
        owner: Owner,
        offset: u64,
        data: &[u8],
    ) -> bool {
        let ahead = (offset as u32).wrapping_sub(self.consumed);
        if (ahead as i32) < 0 {
            return false;
        }
        let end = (offset as u32).wrapping_add(data.len() as u32);
        let needed = u64::from(ahead) + data.len() as u64;
        let block = match self.block() {
            Some(block) if needed <= block.len() as u64 => {
                self.most = self.most.max(log2_of(needed));
                block
            }
            None if needed <= 1 << LOG2_MIN && self.most <= LOG2_MIN => {
                // The most frequent case: a message that fits into the smallest block.
                let Some(block) = memory.allocate(owner, LOG2_MIN) else {
                    return false;
                };
                self.put(block);
                self.most = LOG2_MIN;
                block
            }
            _ => match self.grow(memory, owner, needed) {
                Some(block) => block,
                None => return false,
            },
        };
        let at = offset as usize & (block.len() - 1);
        if data.len() <= block.len() - at {
            memory.write(owner, block, at, data);
        } else {
            let (first, rest) = data.split_at(block.len() - at);
            memory.write(owner, block, at, first);
            memory.write(owner, block, 0, rest);
        }
        if end.wrapping_sub(self.end) as i32 > 0 {
            self.end = end;
        }
        true
    }

    #[inline(never)]
    fn grow<M: Memory>(&mut self, memory: &mut M, owner: Owner, needed: u64) -> Option<Block> {
        if needed > 1 << LOG2_MAX {
            return None;
        }
        let log2 = log2_of(needed).max(LOG2_MIN);
        let old = self.block();
        let again = (old.is_none() && self.most > log2 && memory.is_plenty(owner))
            .then(|| memory.allocate(owner, self.most));
        let block = match again.flatten() {
            Some(block) => block,
            None => memory.allocate(owner, log2)?,
        };
        self.most = log2;
        if let Some(old) = old {
            // Everything up to the last byte stored, holes included: bytes out of order keep their
            // place.
            let start = u64::from(self.consumed);
            copy_range(
                memory,
                owner,
                (old, block),
                &(start..start + self.span() as u64),
            );
            memory.free(owner, old);
        }
        self.put(block);
        Some(block)
    }

    /// Makes room for `range`, which has a gap before it or bytes behind it: those of `stored`,
    /// beyond the ones in order, which end at `next`.
    ///
    /// # Errors
    /// There is no memory for it, or it is not worth what it would take.
    pub fn reserve<M: Memory>(
        &mut self,
        memory: &mut M,
        owner: Owner,
        next: u64,
        stored: &[Range<u64>],
        range: &Range<u64>,
    ) -> Result<(), NoRoom> {
        let consumed = self.consumed(next);
        let end = stored
            .last()
            .map_or(range.end, |last| last.end.max(range.end));
        let block = self.block();
        if block.is_some_and(|block| end - consumed <= block.len() as u64) {
            return Ok(());
        }
        let layout = Layout {
            unread: consumed..next,
            stored,
            range,
        };
        if block.is_some_and(|block| layout.has_room(block.log2)) {
            return Ok(());
        }
        let log2 = layout.least(self.log2.max(LOG2_MIN), log2_of(end - consumed));
        if log2 > LOG2_MAX {
            return Err(NoRoom::Exhausted);
        }
        let most = layout.bytes().saturating_mul(THINNEST).max(1 << LOG2_MIN);
        if 1 << log2 > most || (range.start > next && memory.is_short(owner)) {
            return Err(NoRoom::Refused);
        }
        let again = (block.is_none() && self.most > log2 && memory.is_plenty(owner))
            .then(|| memory.allocate(owner, self.most));
        let new = match again.flatten() {
            Some(new) => new,
            None => memory.allocate(owner, log2).ok_or(NoRoom::Exhausted)?,
        };
        self.most = log2;
        if let Some(old) = block {
            copy_range(memory, owner, (old, new), &layout.unread);
            stored
                .iter()
                .for_each(|stored| copy_range(memory, owner, (old, new), stored));
            memory.free(owner, old);
        }
        self.put(new);
        Ok(())
    }

    /// Stores `data` at stream offset `offset`, for which [`RecvRing::reserve`] has made room;
    /// false when it has not.
    pub fn fill<M: Memory>(
        &mut self,
        memory: &mut M,
        owner: Owner,
        offset: u64,
        data: &[u8],
    ) -> bool {
        let Some(block) = self.block() else {
            return false;
        };
        let at = offset as usize & (block.len() - 1);
        let (first, rest) = data.split_at(data.len().min(block.len() - at));
        memory.write(owner, block, at, first);
        if !rest.is_empty() {
            memory.write(owner, block, 0, rest);
        }
        let end = (offset as u32).wrapping_add(data.len() as u32);
        if end.wrapping_sub(self.end) as i32 > 0 {
            self.end = end;
        }
        true
    }

    /// Forgets the bytes that were stored beyond `next`. The block goes back when it holds
    /// nothing else.
    pub fn forget_beyond<M: Memory>(&mut self, memory: &mut M, owner: Owner, next: u64) {
        self.end = next as u32;
        if self.end == self.consumed {
            self.free(memory, owner);
        }
    }

    /// Copies bytes from the start of the unread ones, which reach to `received`, into `out`;
    /// returns how many. They stay unread.
    #[inline(always)]
    pub fn peek<M: Memory>(
        &self,
        memory: &M,
        owner: Owner,
        received: u64,
        out: &mut [u8],
    ) -> usize {
        let unread = (received as u32).wrapping_sub(self.consumed);
        let len = out.len().min(unread as usize);
        self.copy_out(memory, owner, self.consumed.into(), &mut out[..len]);
        if self.log2 != 0 { len } else { 0 }
    }

    /// Copies the bytes from stream offset `from` on, all of which were stored and not read, into
    /// `out`.
    #[inline(always)]
    pub fn copy_out<M: Memory>(&self, memory: &M, owner: Owner, from: u64, out: &mut [u8]) {
        let Some(block) = self.block() else { return };
        let at = from as usize & (block.len() - 1);
        if out.len() <= block.len() - at {
            return memory.read(owner, block, at, out);
        }
        let (start, rest) = out.split_at_mut(block.len() - at);
        memory.read(owner, block, at, start);
        memory.read(owner, block, 0, rest);
    }

    /// The unread bytes, which reach to `received`, in two pieces because the ring may wrap between
    /// them.
    pub fn pieces<'m, M: Lend>(&self, memory: &'m M, owner: Owner, received: u64) -> [&'m [u8]; 2] {
        let Some(block) = self.block() else {
            return [&[], &[]];
        };
        let bytes = memory.lend(owner, block);
        let len = (received as u32).wrapping_sub(self.consumed) as usize;
        let at = self.consumed as usize & (bytes.len() - 1);
        let first = len.min(bytes.len() - at);
        [&bytes[at..at + first], &bytes[..len - first]]
    }

    /// The program has read up to `upto`, the low half of an offset that is not beyond `received`.
    /// The block goes back when it holds nothing.
    pub fn consume<M: Memory>(&mut self, memory: &mut M, owner: Owner, upto: u32) {
        self.consumed = upto;
        if self.end.wrapping_sub(self.consumed) as i32 <= 0 {
            self.free(memory, owner);
        }
    }

    /// Takes out the bytes that were not read, up to the last that has come, holes included, and
    /// gives the block back: to be stored again elsewhere, from [`RecvRing::consumed`] on.
    pub fn take_bytes<M: Memory>(&mut self, memory: &mut M, owner: Owner) -> Vec<u8> {
        let mut bytes = vec![0; if self.log2 != 0 { self.span() } else { 0 }];
        self.copy_out(memory, owner, self.consumed.into(), &mut bytes);
        self.free(memory, owner);
        bytes
    }

    /// Goes with all that it holds to the memory of another owner; false, and nothing has changed,
    /// when that has no more.
    pub fn change_owner<M: Memory>(&mut self, memory: &mut M, from: Owner, to: Owner) -> bool {
        let Some(old) = self.block() else {
            return true;
        };
        let Some(block) = memory.allocate(to, old.log2) else {
            return false;
        };
        let mut bytes = vec![0; self.span()];
        self.copy_out(memory, from, self.consumed.into(), &mut bytes);
        memory.free(from, old);
        self.put(block);
        let at = self.consumed as usize & (block.len() - 1);
        let (first, rest) = bytes.split_at(bytes.len().min(block.len() - at));
        memory.write(to, block, at, first);
        memory.write(to, block, 0, rest);
        true
    }

    /// Gives the block back, whatever it holds.
    #[inline(always)]
    pub fn free<M: Memory>(&mut self, memory: &mut M, owner: Owner) {
        if let Some(block) = self.block() {
            self.log2 = 0;
            memory.free(owner, block);
        }
    }
}

/// Why there is no room for bytes out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The owner has no more memory.
    Exhausted,
    /// They would take much more than they bring, or memory is so short that it is for bytes in
    /// order.
    Refused,
}

/// The bytes that a ring has to hold.
struct Layout<'a> {
    /// In order.
    unread: Range<u64>,
    /// Beyond a gap.
    stored: &'a [Range<u64>],
    /// The bytes that have come now; some of them may be stored already.
    range: &'a Range<u64>,
}

impl Layout<'_> {
    fn bytes(&self) -> u64 {
        let len = |range: &Range<u64>| range.end - range.start;
        let stored: u64 = self.stored.iter().map(len).sum();
        len(&self.unread) + stored + len(self.range)
    }

    /// Whether what has come finds room beside the others, which have it, in 2^`log2` bytes.
    fn has_room(&self, log2: u8) -> bool {
        self.stored.len() <= FOLDED_RANGES
            && are_apart(&self.unread, self.range, log2)
            && self
                .stored
                .iter()
                .all(|stored| are_apart(stored, self.range, log2))
    }

    /// The least power of two from `least` on in which no two bytes are at one place; `span` is
    /// one.
    fn least(&self, least: u8, span: u8) -> u8 {
        let span = span.max(LOG2_MIN);
        let fits = |log2: &u8| {
            let stored = self.stored.iter().enumerate();
            self.has_room(*log2)
                && stored.clone().all(|(at, one)| {
                    are_apart(&self.unread, one, *log2)
                        && self.stored[..at]
                            .iter()
                            .all(|other| are_apart(other, one, *log2))
                })
        };
        match self.stored.len() <= FOLDED_RANGES {
            true => (least..span).find(fits).unwrap_or(span),
            false => span,
        }
    }
}

/// Whether no byte of one range is at the place of another byte of the other one in a ring of
/// 2^`log2` bytes.
fn are_apart(a: &Range<u64>, b: &Range<u64>, log2: u8) -> bool {
    let size = 1u64 << log2;
    let (a_len, b_len) = (a.end - a.start, b.end - b.start);
    if a.start < b.end && b.start < a.end {
        return a.end.max(b.end) - a.start.min(b.start) <= size;
    }
    let ahead = b.start.wrapping_sub(a.start) & (size - 1);
    let fit = a_len <= size && b_len <= size;
    fit && (a_len == 0 || b_len == 0 || (ahead >= a_len && size - ahead >= b_len))
}

/// Copies stream bytes from their places in one block to those in another.
fn copy_range<M: Memory>(
    memory: &mut M,
    owner: Owner,
    (old, new): (Block, Block),
    range: &Range<u64>,
) {
    let mut at = range.start;
    while at < range.end {
        let from = at as usize & (old.len() - 1);
        let to = at as usize & (new.len() - 1);
        let rest = (range.end - at) as usize;
        let len = rest.min(old.len() - from).min(new.len() - to);
        memory.copy(owner, (old, from), (new, to), len);
        at += len as u64;
    }
}

/// The power of two that is not below `bytes`, which are 1 at least.
fn log2_of(bytes: u64) -> u8 {
    (u64::BITS - (bytes.max(1) - 1).leading_zeros()) as u8
}

/// A ring with what it needs to take bytes: what a connection writes to.
pub struct Sink<'a, M> {
    /// The ring.
    pub ring: &'a mut RecvRing,
    /// Where it lives.
    pub memory: &'a mut M,
    /// Its owner.
    pub owner: Owner,
    /// Whether anybody is there to read; otherwise nothing is stored.
    pub open: bool,
    /// Counts segments that could not be stored.
    pub counters: &'a mut Counters,
}

impl<M: Memory> ReceiveBuffer for Sink<'_, M> {
    #[inline(always)]
    fn store(&mut self, offset: u64, data: &[u8]) -> bool {
        if !self.open {
            return false;
        }
        let stored = self.ring.store(self.memory, self.owner, offset, data);
        self.counters.receive_memory_exhausted += u64::from(!stored);
        stored
    }

    fn reserve(&mut self, next: u64, stored: &[Range<u64>], range: &Range<u64>) -> bool {
        if !self.open {
            return false;
        }
        let room = self
            .ring
            .reserve(self.memory, self.owner, next, stored, range);
        match room {
            Ok(()) => {}
            Err(NoRoom::Exhausted) => self.counters.receive_memory_exhausted += 1,
            Err(NoRoom::Refused) => self.counters.out_of_order_refused += 1,
        }
        room.is_ok()
    }

    fn fill(&mut self, offset: u64, data: &[u8]) -> bool {
        self.ring.fill(self.memory, self.owner, offset, data)
    }

    fn forget_beyond(&mut self, next: u64, _bytes: u64) {
        self.ring.forget_beyond(self.memory, self.owner, next);
        self.counters.out_of_order_pruned += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HeapMemory;

    const OWNER: Owner = Owner(1);

    fn byte(offset: u64) -> u8 {
        (offset * 13 % 251) as u8
    }

    fn bytes(from: u64, to: u64) -> Vec<u8> {
        (from..to).map(byte).collect()
    }

    #[test]
    fn bytes_out_of_order_keep_their_place_when_the_ring_grows() {
        let mut memory = HeapMemory::new(1 << 20);
        let mut ring = RecvRing::default();
        assert!(ring.store(&mut memory, OWNER, 0, &bytes(0, 4000)));
        ring.consume(&mut memory, OWNER, 3500);
        assert!(ring.store(&mut memory, OWNER, 5000, &bytes(5000, 7000)));
        assert_eq!(ring.block().unwrap().log2, 12);
        assert!(ring.store(&mut memory, OWNER, 9000, &bytes(9000, 30_000)));
        assert_eq!(ring.block().unwrap().log2, 15);
        assert!(ring.store(&mut memory, OWNER, 4000, &bytes(4000, 5000)));
        assert!(ring.store(&mut memory, OWNER, 7000, &bytes(7000, 9000)));
        let mut out = vec![0; 40_000];
        assert_eq!(ring.peek(&memory, OWNER, 30_000, &mut out), 26_500);
        assert_eq!(out[..26_500], bytes(3500, 30_000));
        ring.consume(&mut memory, OWNER, 30_000);
        assert_eq!((ring.block(), memory.in_use()), (None, 0));
    }

    #[test]
    fn it_starts_as_large_as_it_was_while_memory_is_plenty() {
        let mut memory = HeapMemory::new(1 << 20);
        let mut ring = RecvRing::default();
        let fill = |memory: &mut HeapMemory, ring: &mut RecvRing, len: u64| {
            let at = ring.consumed(0);
            let mut sizes = Vec::new();
            for from in (at..at + len).step_by(5000) {
                let to = (at + len).min(from + 5000);
                assert!(ring.store(memory, OWNER, from, &bytes(from, to)));
                sizes.push(ring.block().expect("bytes are there").log2);
            }
            let mut out = vec![0; len as usize];
            assert_eq!(ring.peek(memory, OWNER, at + len, &mut out), out.len());
            assert!(out == bytes(at, at + len));
            ring.consume(memory, OWNER, (at + len) as u32);
            assert_eq!((ring.block(), memory.in_use()), (None, 0));
            sizes
        };
        assert_eq!(fill(&mut memory, &mut ring, 20_000), [13, 14, 14, 15]);
        assert_eq!(fill(&mut memory, &mut ring, 20_000), [15; 4]);
        // A connection that needs less starts as large once more, and then with the size it needs.
        assert_eq!(fill(&mut memory, &mut ring, 300), [15]);
        assert_eq!(fill(&mut memory, &mut ring, 300), [12]);
        // A quarter of the memory is in use: it starts small.
        fill(&mut memory, &mut ring, 20_000);
        let other = memory.allocate(OWNER, 18).expect("room");
        let at = ring.consumed(0);
        assert!(ring.store(&mut memory, OWNER, at, &[1; 10]));
        assert_eq!(ring.block().expect("a byte is there").log2, 12);
        memory.free(OWNER, other);
    }

    /// Bytes that came out of order, as a connection knows of them.
    fn put(
        memory: &mut HeapMemory,
        ring: &mut RecvRing,
        stored: &mut Vec<Range<u64>>,
        range: Range<u64>,
    ) -> Result<(), NoRoom> {
        ring.reserve(memory, OWNER, 0, stored, &range)?;
        assert!(ring.fill(memory, OWNER, range.start, &bytes(range.start, range.end)));
        stored.push(range);
        Ok(())
    }

    #[test]
    fn a_byte_far_ahead_takes_the_smallest_block() {
        let mut memory = HeapMemory::new(1 << 20);
        let (mut ring, mut stored) = (RecvRing::default(), Vec::new());
        for range in [60_000..60_001, 60_500..61_960, 62_500..62_501] {
            assert_eq!(put(&mut memory, &mut ring, &mut stored, range), Ok(()));
        }
        assert_eq!((ring.block().unwrap().log2, ring.is_folded()), (12, true));
        // Bytes in order make it grow, and earlier bytes keep their place.
        let mut next = 0;
        while next < 60_000 {
            let to = (next + 1460).min(60_000);
            let range = next..to;
            assert_eq!(
                ring.reserve(&mut memory, OWNER, next, &stored, &range),
                Ok(())
            );
            assert!(ring.fill(&mut memory, OWNER, next, &bytes(next, to)));
            next = to;
            if next == 1460 * 3 {
                let mut out = vec![0; 1460 * 3];
                assert_eq!(ring.peek(&memory, OWNER, next, &mut out), out.len());
                assert!(out == bytes(0, next));
            }
        }
        let mut out = vec![0; 60_001];
        assert_eq!(ring.peek(&memory, OWNER, 60_001, &mut out), out.len());
        assert!(out == bytes(0, 60_001));
        let mut far = vec![0; 1460];
        ring.copy_out(&memory, OWNER, 60_500, &mut far);
        assert!(far == bytes(60_500, 61_960));
        ring.forget_beyond(&mut memory, OWNER, 60_001);
        ring.consume(&mut memory, OWNER, 60_001);
        assert_eq!((ring.block(), memory.in_use()), (None, 0));
    }

    #[test]
    fn bytes_that_would_take_much_more_than_they_are_worth_are_refused() {
        let mut memory = HeapMemory::new(1 << 20);
        let (mut ring, mut stored) = (RecvRing::default(), Vec::new());
        // All of them at one place of any ring that is shorter than what they span.
        assert_eq!(put(&mut memory, &mut ring, &mut stored, 4096..4097), Ok(()));
        assert_eq!(
            put(&mut memory, &mut ring, &mut stored, 8192..8193),
            Err(NoRoom::Refused)
        );
        // Many small ones are as little worth.
        for at in 2..200 {
            let _ = put(
                &mut memory,
                &mut ring,
                &mut stored,
                4096 + 300 * at..4097 + 300 * at,
            );
        }
        assert_eq!(memory.in_use(), 1 << 12);
        // A segment is worth a larger ring.
        assert_eq!(
            ring.reserve(&mut memory, OWNER, 0, &stored[..1], &(12_288..13_748)),
            Ok(())
        );
        assert_eq!(memory.in_use(), 1 << 14);
    }

    /// RFC 9293 3.10.7.4: segments with higher sequence numbers SHOULD be held; where memory is
    /// short those in order come first.
    #[test]
    fn the_last_eighth_of_memory_is_for_bytes_in_order() {
        let mut memory = HeapMemory::new(1 << 16);
        let _others = memory.allocate(OWNER, 15).unwrap();
        let _more = memory.allocate(OWNER, 14).unwrap();
        let _most = memory.allocate(OWNER, 13).unwrap();
        let _last = memory.allocate(OWNER, 12).unwrap();
        let (mut ring, mut stored) = (RecvRing::default(), Vec::new());
        assert_eq!(
            put(&mut memory, &mut ring, &mut stored, 100..200),
            Err(NoRoom::Refused)
        );
        assert!(ring.store(&mut memory, OWNER, 0, &bytes(0, 100)));
    }

    #[test]
    fn without_memory_nothing_is_stored() {
        let mut memory = HeapMemory::new(4096);
        let mut ring = RecvRing::default();
        assert!(ring.store(&mut memory, OWNER, 0, &[1; 4096]));
        assert!(!ring.store(&mut memory, OWNER, 4096, &[1; 10]));
        ring.consume(&mut memory, OWNER, 2048);
        assert!(ring.store(&mut memory, OWNER, 4096, &[1; 10]));
    }
}
