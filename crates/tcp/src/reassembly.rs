//! Payload that arrived beyond a gap, and duplicates to report (RFC 9293 3.10.7.4, RFC 2018, RFC
//! 2883).

use std::ops::Range;

use millrace_wire::tcp::{Options, Seq};

use crate::assembler::Assembler;

/// Where received payload goes. Offsets are stream offsets: 0 is the first byte after SYN.
pub trait ReceiveBuffer {
    /// Stores `data` at `offset`. All of it lies within the window: at most `receive_limit` bytes
    /// beyond the last `consumed`. Bytes may come out of order, but no byte is stored twice.
    /// Returns `false` without memory; the bytes are then not acknowledged.
    fn store(&mut self, offset: u64, data: &[u8]) -> bool;

    /// Makes room for `range`, which has a gap before it or bytes behind it. The bytes before
    /// `next` are in order; those of `held` are stored beyond it. Returns `false` without room;
    /// nothing of the range is stored then.
    fn reserve(&mut self, next: u64, held: &[Range<u64>], range: &Range<u64>) -> bool {
        let _ = (next, held, range);
        true
    }

    /// Stores `data` at `offset`, within the range that was reserved last. Returns `false` without
    /// memory.
    fn fill(&mut self, offset: u64, data: &[u8]) -> bool {
        self.store(offset, data)
    }

    /// Discards the `bytes` bytes stored beyond `next`: the peer sends them again.
    fn forget_beyond(&mut self, next: u64, bytes: u64) {
        let _ = (next, bytes);
    }
}

/// What became of payload with a gap before it or bytes behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored {
    /// There was no room; nothing of it is stored.
    Refused,
    /// It is stored beyond a gap.
    BeyondGap,
    /// It had been stored beyond a gap before.
    Duplicate,
    /// It filled a gap: RCV.NXT advances to this offset.
    Advanced(u64),
}

/// What lies beyond RCV.NXT, and what was received twice. It takes no memory while there is
/// neither.
#[derive(Debug, Default)]
pub(crate) struct Reassembly(Option<Box<Held>>);

#[derive(Debug, Default)]
struct Held {
    ranges: Assembler,
    /// Bytes received twice, for the next SACK option (RFC 2883).
    duplicate: Option<(Seq, Seq)>,
}

impl Reassembly {
    /// Whether bytes are stored beyond a gap.
    #[inline(always)]
    pub(crate) fn has_gaps(&self) -> bool {
        self.0.as_ref().is_some_and(|held| !held.ranges.is_empty())
    }

    /// Whether the next acknowledgement has a range to report.
    #[inline(always)]
    pub(crate) fn has_reports(&self) -> bool {
        self.0.is_some()
    }

    /// End of the highest byte stored beyond a gap, if there is one.
    pub(crate) fn end(&self) -> Option<u64> {
        let held = self.0.as_ref().filter(|held| !held.ranges.is_empty())?;
        Some(held.ranges.end())
    }

    /// Stores `part`, which begins at `from`. `next` is RCV.NXT, and `limit` the most ranges to
    /// keep. Each byte is stored once: what has been reported as received never changes.
    pub(crate) fn store(
        &mut self,
        next: u64,
        limit: usize,
        from: u64,
        part: &[u8],
        buffer: &mut impl ReceiveBuffer,
    ) -> Stored {
        let stored = self
            .0
            .get_or_insert_default()
            .store(next, limit, from, part, buffer);
        self.release();
        stored
    }

    /// Forgets what lies beyond a gap. Returns the bytes that lay there.
    pub(crate) fn drop_gaps(&mut self) -> u64 {
        let Some(held) = &mut self.0 else {
            return 0;
        };
        let bytes = std::mem::take(&mut held.ranges).bytes();
        self.release();
        bytes
    }

    /// The bytes from `start` to `end` were received twice.
    pub(crate) fn on_duplicate(&mut self, start: Seq, end: Seq) {
        self.0.get_or_insert_default().duplicate = Some((start, end));
    }

    /// Writes the SACK option: the duplicate first (RFC 2883 4), then what lies beyond a gap (RFC
    /// 2018 4), as far as `room` blocks go. `base` is the sequence number of offset 0. Returns
    /// whether another acknowledgement has to report more.
    #[cold]
    pub(crate) fn report(
        &mut self,
        options: &mut Options,
        mut room: usize,
        sack: bool,
        base: Seq,
    ) -> bool {
        let Some(held) = &mut self.0 else {
            return false;
        };
        if let Some((start, end)) = held.duplicate.take() {
            options.sack.push(start, end);
            room -= 1;
        }
        if sack {
            for range in held.ranges.report(room).into_iter().flatten() {
                options
                    .sack
                    .push(base + range.start as u32, base + range.end as u32);
            }
        }
        let more = sack && held.ranges.has_news();
        self.release();
        more
    }

    /// Gives the memory back if it holds nothing.
    fn release(&mut self) {
        if let Some(held) = &self.0
            && held.ranges.is_empty()
            && held.duplicate.is_none()
        {
            self.0 = None;
        }
    }
}

impl Held {
    fn store(
        &mut self,
        next: u64,
        limit: usize,
        from: u64,
        part: &[u8],
        buffer: &mut impl ReceiveBuffer,
    ) -> Stored {
        let ranges = &mut self.ranges;
        let range = from..from + part.len() as u64;
        let known = ranges.covering(&range).is_some();
        if !known && from > next && ranges.is_full_for(&range, limit) {
            return Stored::Refused;
        }
        let room = known || buffer.reserve(next, ranges.ranges(), &range);
        let stored = room
            && ranges.missing(range.clone()).all(|missing| {
                let bytes = &part[(missing.start - from) as usize..(missing.end - from) as usize];
                buffer.fill(missing.start, bytes)
            });
        if !stored {
            return Stored::Refused;
        }
        if from <= next {
            return Stored::Advanced(ranges.advance(range.end));
        }
        if known {
            ranges.touch(&range);
            return Stored::Duplicate;
        }
        ranges.insert(range);
        Stored::BeyondGap
    }
}
