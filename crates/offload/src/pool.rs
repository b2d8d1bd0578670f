//! Buffers into which frames are received, and a descriptor of what each holds. All are made at the
//! start.

use millrace_wire::checksum::Sum;
use millrace_wire::tcp::{Flags, Seq, Timestamps};

/// No buffer, no flow.
pub(crate) const NONE: u32 = u32::MAX;

/// What is held in a buffer: one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// The next one of the flow, or of the free list; [`NONE`] at the end.
    pub(crate) next: u32,
    /// Where the frame starts in the buffer.
    pub(crate) frame_at: u16,
    /// Where IP header, TCP header and the end of that are, from the start of the frame.
    pub(crate) ip_at: u16,
    pub(crate) tcp_at: u16,
    pub(crate) headers_len: u16,
    /// Where the payload that is left of it starts, from the start of the frame, and how long it
    /// is.
    pub(crate) payload_at: u16,
    pub(crate) len: u16,
    pub(crate) window: u16,
    pub(crate) flags: Flags,
    pub(crate) timestamps_at: u8,
    /// Whether it can stand in a unit behind the one that it was put behind.
    pub(crate) follows: bool,
    /// The number of the first byte that is left.
    pub(crate) seq: Seq,
    pub(crate) ack: Seq,
    pub(crate) timestamps: Option<Timestamps>,
    /// The sum of the payload that is left, when it is known.
    pub(crate) sum: Option<Sum>,
}

const EMPTY: Item = Item {
    next: NONE,
    frame_at: 0,
    ip_at: 0,
    tcp_at: 0,
    headers_len: 0,
    payload_at: 0,
    len: 0,
    window: 0,
    flags: Flags::empty(),
    timestamps_at: 0,
    follows: false,
    seq: Seq(0),
    ack: Seq(0),
    timestamps: None,
    sum: None,
};

impl Item {
    /// The number after its last byte.
    pub(crate) fn end(&self) -> Seq {
        self.seq + u32::from(self.len)
    }
}

/// The buffers.
#[derive(Debug)]
pub(crate) struct Pool {
    bytes: Vec<u8>,
    buffer_len: usize,
    items: Vec<Item>,
    /// The buffer that the next frame is received into; [`NONE`] when all are taken.
    next: u32,
    /// Last in, first out: the buffer that was free last is warm.
    free: u32,
    free_count: usize,
}

impl Pool {
    pub(crate) fn new(count: usize, buffer_len: usize) -> Pool {
        let last = count as u32 - 1;
        let items = (0..=last).map(|index| Item {
            next: if index == last { NONE } else { index + 1 },
            ..EMPTY
        });
        Pool {
            bytes: vec![0; count * buffer_len],
            buffer_len,
            items: items.collect(),
            next: 0,
            free: if last == 0 { NONE } else { 1 },
            free_count: count,
        }
    }

    /// How many are free.
    pub(crate) fn free_count(&self) -> usize {
        self.free_count
    }

    /// The buffer that is taken next, and that no other takes the place of until then; [`NONE`]
    /// when none is free.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Takes the next one, with what it holds.
    pub(crate) fn take(&mut self, item: Item) -> u32 {
        let index = std::mem::replace(&mut self.next, self.free);
        if self.next != NONE {
            self.free = self.item(self.next).next;
        }
        self.free_count -= 1;
        self.items[index as usize] = Item { next: NONE, ..item };
        index
    }

    /// Gives one back, and says which came after it.
    pub(crate) fn put(&mut self, index: u32) -> u32 {
        let item = &mut self.items[index as usize];
        let after = item.next;
        if self.next == NONE {
            self.next = index;
        } else {
            item.next = self.free;
            self.free = index;
        }
        self.free_count += 1;
        after
    }

    pub(crate) fn item(&self, index: u32) -> &Item {
        &self.items[index as usize]
    }

    pub(crate) fn item_mut(&mut self, index: u32) -> &mut Item {
        &mut self.items[index as usize]
    }

    pub(crate) fn buffer(&self, index: u32) -> &[u8] {
        let at = index as usize * self.buffer_len;
        &self.bytes[at..at + self.buffer_len]
    }

    pub(crate) fn buffer_mut(&mut self, index: u32) -> &mut [u8] {
        let at = index as usize * self.buffer_len;
        &mut self.bytes[at..at + self.buffer_len]
    }

    /// The headers of the frame in a buffer, Ethernet's first.
    pub(crate) fn headers(&self, index: u32) -> &[u8] {
        let item = self.item(index);
        let at = usize::from(item.frame_at);
        &self.buffer(index)[at..at + usize::from(item.headers_len)]
    }

    /// The payload in a buffer that is left.
    pub(crate) fn payload(&self, index: u32) -> &[u8] {
        let item = self.item(index);
        let at = usize::from(item.frame_at) + usize::from(item.payload_at);
        &self.buffer(index)[at..at + usize::from(item.len)]
    }
}
