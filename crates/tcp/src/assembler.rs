//! Ranges of out-of-order bytes that have been stored.

use std::ops::Range;

/// Ranges that changed last, which are reported first (RFC 2018 4). More may change in one batch of
/// segments than fit into one acknowledgement.
const RECENT: usize = 16;
/// Blocks in a SACK option.
const BLOCKS: usize = 4;

/// Disjoint, non-adjacent ranges of stream offsets in ascending order, all beyond the next byte
/// expected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assembler {
    ranges: Vec<Range<u64>>,
    /// An offset in each of the ranges that changed last, newest first.
    recent: [u64; RECENT],
    recent_len: u8,
    /// How many of them, from the newest, were not reported since they changed.
    news: u8,
}

impl Assembler {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, in ascending order.
    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The bytes in all ranges.
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|held| held.end - held.start).sum()
    }

    /// End of the highest range; 0 if there is none.
    pub(crate) fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.end)
    }

    /// Whether `range` would make one range more than `limit`.
    pub(crate) fn is_full_for(&self, range: &Range<u64>, limit: usize) -> bool {
        self.ranges.len() >= limit && {
            let (first, last) = self.touched(range);
            first == last
        }
    }

    /// The parts of `range` that are not stored yet, in order.
    pub(crate) fn missing(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.ranges.partition_point(|held| held.end <= range.start);
        let mut at = range.start;
        let mut held = self.ranges[first..].iter();
        std::iter::from_fn(move || {
            while at < range.end {
                let Some(next) = held.next() else {
                    let gap = at..range.end;
                    at = range.end;
                    return Some(gap);
                };
                let gap = at..next.start.min(range.end);
                at = next.end.max(at);
                if gap.start < gap.end {
                    return Some(gap);
                }
            }
            None
        })
    }

    /// Adds a range that is not empty, joined with those that it overlaps or touches.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        let (first, last) = self.touched(&range);
        let joined = if first == last {
            self.ranges.insert(first, range.clone());
            range
        } else {
            let joined =
                range.start.min(self.ranges[first].start)..range.end.max(self.ranges[last - 1].end);
            self.ranges[first] = joined.clone();
            self.ranges.drain(first + 1..last);
            joined
        };
        self.remember(&joined);
    }

    /// The next byte expected is now `next`: forgets what lies before it. Returns the end of the
    /// range that begins at or before `next`, or `next`.
    pub(crate) fn advance(&mut self, next: u64) -> u64 {
        let passed = self.ranges.partition_point(|held| held.start <= next);
        let end = if passed == 0 {
            next
        } else {
            next.max(self.ranges[passed - 1].end)
        };
        self.ranges.drain(..passed);
        end
    }

    /// Up to `room` ranges to report: those that changed last first, then others in order (RFC 2018
    /// 4). If more have changed than there is room for, the oldest changes go now, as if each
    /// segment had been acknowledged when it came. The newer ones go with the next acknowledgement.
    pub(crate) fn report(&mut self, room: usize) -> [Option<Range<u64>>; BLOCKS] {
        let room = room.min(BLOCKS);
        let mut blocks = [const { None }; BLOCKS];
        let mut picked = [usize::MAX; BLOCKS];
        let mut count = 0;
        let skipped = usize::from(self.news).saturating_sub(room);
        let recent = self.recent[skipped..usize::from(self.recent_len)].iter();
        let recent = recent.filter_map(|offset| self.index_of(*offset));
        for index in recent.chain(0..self.ranges.len()) {
            if count == room {
                break;
            }
            if !picked[..count].contains(&index) {
                picked[count] = index;
                blocks[count] = Some(self.ranges[index].clone());
                count += 1;
            }
        }
        self.news = skipped as u8;
        blocks
    }

    /// Whether ranges have changed and were not reported since.
    pub(crate) fn has_news(&self) -> bool {
        self.news > 0
    }

    /// The stored range that contains all of `range`, if there is one.
    pub(crate) fn covering(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let index = self.ranges.partition_point(|held| held.end <= range.start);
        self.ranges
            .get(index)
            .filter(|held| held.start <= range.start && range.end <= held.end)
            .cloned()
    }

    /// Makes the range that contains `range` the first to be reported.
    pub(crate) fn touch(&mut self, range: &Range<u64>) {
        self.remember(range);
    }

    /// Indices of the ranges that `range` overlaps or touches: from the first up to, but not
    /// including, the last.
    fn touched(&self, range: &Range<u64>) -> (usize, usize) {
        let first = self.ranges.partition_point(|held| held.end < range.start);
        let last = first + self.ranges[first..].partition_point(|held| held.start <= range.end);
        (first, last)
    }

    /// Index of the range that contains `offset`.
    fn index_of(&self, offset: u64) -> Option<usize> {
        let index = self.ranges.partition_point(|held| held.end <= offset);
        self.ranges
            .get(index)
            .filter(|held| held.contains(&offset))
            .map(|_| index)
    }

    fn remember(&mut self, joined: &Range<u64>) {
        let old = self.recent;
        let mut len = 1;
        let mut news = 1;
        self.recent[0] = joined.start;
        for (i, &offset) in old[..usize::from(self.recent_len)].iter().enumerate() {
            if !joined.contains(&offset) && len < RECENT {
                self.recent[len] = offset;
                len += 1;
                news += u8::from(i < usize::from(self.news));
            }
        }
        self.recent_len = len as u8;
        self.news = news;
    }
}

#[cfg(test)]
#[path = "assembler/tests.rs"]
mod tests;
