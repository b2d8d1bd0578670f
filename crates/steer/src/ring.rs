//! The ring by which one thread hands frames and small messages to another: one writer, one reader,
//! records in order.
//!
//! A record is a descriptor of 16 bytes with its body behind it, in units of 16 bytes, never in two
//! pieces: so a short frame takes as much as it needs, and a long one is not cut. What was written
//! is the reader's once it has been committed, which is done once for a batch. A record for which
//! there is no room is not written; the writer counts it. Each end remembers where the other was,
//! and looks again only when that does not suffice.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::Arc;

use crate::sync::{AtomicUsize, Ordering, Uses};

/// Bytes that a ring has at least: two of the largest frames; for the checker of interleavings, two
/// small records.
pub const SIZE_MIN: usize = if cfg!(millrace_loom) { 64 } else { 1 << 18 };
/// Units of a record's length.
const UNIT: usize = 16;
/// The length in a head that fills the ring up to its end.
const FILLER: u32 = u32::MAX;

/// A position, alone on its cache line.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Position(AtomicUsize);

/// What both ends share. Positions count bytes since the start and are read modulo the size.
#[derive(Debug)]
struct Ring {
    /// Their number is a power of two.
    bytes: Box<[UnsafeCell<u8>]>,
    uses: Uses,
    /// Written up to here.
    tail: Position,
    /// Read up to here.
    head: Position,
}

// SAFETY: bytes from head to tail are the reader's, the others the writer's; each end is used by
// one thread, and hands them over with release and acquire on the positions.
unsafe impl Sync for Ring {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Ring {}

/// The writer's end. Ends are made side by side and used by different threads: each is alone on its
/// cache line.
#[repr(align(64))]
#[derive(Debug)]
pub struct Writer {
    ring: Arc<Ring>,
    /// Written up to here, committed or not.
    tail: usize,
    /// The reader's position when it was last looked at.
    head: usize,
}

/// The reader's end of a ring.
#[repr(align(64))]
#[derive(Debug)]
pub struct Reader {
    ring: Arc<Ring>,
    head: usize,
    /// The writer's position when it was last looked at.
    tail: usize,
    /// Bytes of the record that was returned last.
    taken: usize,
}

/// A ring's two ends. It has `size` bytes, or the next power of two and [`SIZE_MIN`] at least;
/// memory is taken as they are first used, and all of it once so many bytes have passed.
pub fn ring(size: usize) -> (Writer, Reader) {
    let size = size.max(SIZE_MIN).next_power_of_two();
    let bytes = Box::into_raw(vec![0u8; size].into_boxed_slice());
    let ring = Arc::new(Ring {
        // SAFETY: an UnsafeCell<u8> is laid out as a u8, and the box is ours alone.
        bytes: unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) },
        uses: Uses::of(size, UNIT),
        tail: Position::default(),
        head: Position::default(),
    });
    let writer = Writer {
        ring: ring.clone(),
        tail: 0,
        head: 0,
    };
    let reader = Reader {
        ring,
        head: 0,
        tail: 0,
        taken: 0,
    };
    (writer, reader)
}

impl Ring {
    fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes from `position` to where the ring begins anew.
    fn to_end(&self, position: usize) -> usize {
        self.size() - (position & (self.size() - 1))
    }

    /// Where `len` bytes at `position` are.
    fn at(&self, position: usize, len: usize) -> *mut u8 {
        let at = position & (self.size() - 1);
        assert!(at + len <= self.size(), "a record is in one piece");
        self.bytes[at..].as_ptr().cast_mut().cast()
    }

    /// Writes a head: a length in bytes, and a word of the writer's.
    ///
    /// # Safety
    /// The unit at `position` is the writer's.
    unsafe fn write_head(&self, position: usize, len: u32, word: u64) {
        self.uses.writes(position, UNIT);
        let mut head = [0; UNIT];
        head[..4].copy_from_slice(&len.to_ne_bytes());
        head[8..].copy_from_slice(&word.to_ne_bytes());
        // SAFETY: in bounds by `at`; the caller's promise.
        unsafe {
            self.at(position, UNIT)
                .copy_from_nonoverlapping(head.as_ptr(), UNIT);
        }
    }
}

fn record_len(body: usize) -> usize {
    UNIT + body.next_multiple_of(UNIT)
}

impl Writer {
    /// Whether there is room for a record with a body of `len` bytes.
    pub fn has_room(&mut self, len: usize) -> bool {
        let needed = self.needed(record_len(len));
        if self.ring.size() - (self.tail - self.head) < needed {
            self.head = self.ring.head.0.load(Ordering::Acquire);
        }
        self.ring.size() - (self.tail - self.head) >= needed
    }

    /// What a record of `len` bytes takes, with what is left unused at the ring's end.
    fn needed(&self, len: usize) -> usize {
        let to_end = self.ring.to_end(self.tail);
        if len <= to_end { len } else { to_end + len }
    }

    /// Writes a record, to be committed: a word and a body of so many slices in a row. False if
    /// there is no room for it.
    pub fn write<const N: usize>(&mut self, word: u64, body: [&[u8]; N]) -> bool {
        let body_len = body.iter().map(|slice| slice.len()).sum();
        if !self.has_room(body_len) {
            return false;
        }
        let len = record_len(body_len);
        let to_end = self.ring.to_end(self.tail);
        // SAFETY: the reader has read all that is needed from the tail on, and looks at none of it
        // before the commit.
        unsafe {
            if len > to_end {
                self.ring.write_head(self.tail, FILLER, 0);
                self.tail += to_end;
            }
            self.ring.write_head(self.tail, body_len as u32, word);
            let mut at = self.ring.at(self.tail + UNIT, body_len);
            self.ring.uses.writes(self.tail + UNIT, body_len);
            for slice in body {
                at.copy_from_nonoverlapping(slice.as_ptr(), slice.len());
                at = at.add(slice.len());
            }
        }
        self.tail += len;
        true
    }

    /// Where the ring has been written up to: to be compared with how far it has been read.
    pub fn position(&self) -> usize {
        self.tail
    }

    /// Whether all has been read, and given back, that was written before this position.
    pub fn is_read_up_to(&self, position: usize) -> bool {
        self.ring.head.0.load(Ordering::Acquire) >= position
    }

    /// Gives the reader what was written.
    pub fn commit(&mut self) {
        self.ring.tail.0.store(self.tail, Ordering::Release);
    }
}

impl Reader {
    /// The next record: its word and its body. It is given back with the next call.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator's items outlive its next step"
    )]
    pub fn next(&mut self) -> Option<(u64, &[u8])> {
        self.give_back();
        loop {
            if self.is_empty() {
                return None;
            }
            self.ring.uses.reads(self.head, UNIT);
            let mut head = [0; UNIT];
            // SAFETY: between head and tail all is the reader's; a record begins here, in one
            // piece.
            unsafe {
                self.ring
                    .at(self.head, UNIT)
                    .copy_to_nonoverlapping(head.as_mut_ptr(), UNIT);
            }
            let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
            if len == FILLER {
                self.head += self.ring.to_end(self.head);
                continue;
            }
            let word = u64::from_ne_bytes(head[8..].try_into().unwrap_or_default());
            let len = len as usize;
            self.taken = record_len(len);
            // SAFETY: as above; the writer leaves it alone until the next call moves the head,
            // which the borrow outlasts.
            let body =
                unsafe { std::slice::from_raw_parts(self.ring.at(self.head + UNIT, len), len) };
            return Some((word, body));
        }
    }

    /// Gives back the record that was returned last, and returns no other.
    pub fn give_back(&mut self) {
        if self.taken != 0 {
            self.ring.uses.reads(self.head, self.taken);
            self.head += self.taken;
            self.taken = 0;
            self.ring.head.0.store(self.head, Ordering::Release);
        }
    }

    /// Has the record that was returned last returned once more by the next call.
    pub fn again(&mut self) {
        self.taken = 0;
    }

    /// Whether all has been returned that was written before this position of the writer's.
    pub fn has_passed(&self, position: usize) -> bool {
        self.head + self.taken >= position
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&mut self) -> bool {
        let start = self.head + self.taken;
        if start == self.tail {
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
        }
        start == self.tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in_and_when_committed() {
        let (mut writer, mut reader) = ring(1 << 20);
        assert!(writer.write(7, [b"se", b"", b"ven"]) && writer.write(8, []));
        assert!(reader.next().is_none());
        writer.commit();
        assert_eq!(reader.next(), Some((7, &b"seven"[..])));
        assert_eq!(reader.next(), Some((8, &b""[..])));
        assert!(reader.next().is_none() && reader.is_empty());
    }

    #[test]
    fn positions_say_how_far_it_was_read() {
        let (mut writer, mut reader) = ring(1 << 20);
        assert!(reader.has_passed(writer.position()) && writer.is_read_up_to(writer.position()));
        assert!(writer.write(7, [b"seven"]));
        writer.commit();
        let position = writer.position();
        assert!(!reader.has_passed(position));
        assert!(writer.write(8, [b"eight"]));
        writer.commit();
        assert!(reader.next().is_some());
        assert!(reader.has_passed(position), "it was returned");
        assert!(!writer.is_read_up_to(position), "and is still in use");
        assert!(reader.next().is_some());
        assert!(writer.is_read_up_to(position) && !reader.has_passed(writer.position() + 1));
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let (mut writer, mut reader) = ring(1 << 20);
        let body = vec![3; 60_000];
        let mut written = 0;
        while writer.write(written, [&body]) {
            written += 1;
        }
        assert_eq!(written, 17);
        writer.commit();
        assert_eq!(reader.next(), Some((0, &body[..])));
        assert!(!writer.write(written, [&body]), "still being read");
        reader.again();
        assert_eq!(reader.next(), Some((0, &body[..])), "as before");
        assert_eq!(reader.next().map(|(word, _)| word), Some(1));
        assert!(writer.write(written, [&body]));
    }
}
