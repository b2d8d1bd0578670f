//! The scoreboard of RFC 6675 3: marks of the bytes in flight. It exists only while a byte has a
//! mark.

use std::collections::VecDeque;
use std::ops::Range;

use crate::recovery::sent_log::SentLog;

/// Marks of a run of bytes.
mod mark {
    /// Selectively acknowledged.
    pub(super) const SACKED: u8 = 1;
    /// Marked lost.
    pub(super) const LOST: u8 = 1 << 1;
    /// Sent again since it was marked lost.
    pub(super) const RESENT: u8 = 1 << 2;
    /// Sent more than once, ever.
    pub(super) const AMBIGUOUS: u8 = 1 << 3;
}

/// The flight as runs of bytes with equal marks, from the first unacknowledged byte to the last one
/// sent.
#[derive(Clone, Debug)]
pub(crate) struct Scoreboard {
    start: u64,
    runs: VecDeque<Run>,
    /// The most runs that selective acknowledgements may split the flight into.
    limit: usize,
    /// Bytes by mark. `resent` counts bytes that are lost and were sent again.
    sacked: u32,
    lost: u32,
    resent: u32,
    /// HighRxt of RFC 6675: all lost bytes below this offset have been sent again.
    resent_below: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    end: u64,
    /// When it was last sent, in microseconds modulo 2^32.
    at: u32,
    marks: u8,
}

/// What one acknowledgement delivered, cumulatively or selectively.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Delivered {
    /// Bytes that no acknowledgement before it delivered.
    pub(crate) bytes: u32,
    /// Some bytes had been sent more than once.
    pub(crate) ambiguous: bool,
    /// The delivered run that was sent last: the time it was sent, in microseconds modulo 2^32; its
    /// end, modulo 2^32; and whether it had been sent more than once.
    pub(crate) latest: Option<(u32, u32, bool)>,
    /// Some bytes had been marked lost and were not sent again.
    pub(crate) original: bool,
    /// Some bytes were overtaken by bytes that were sent after them: the path reorders.
    pub(crate) reordered: bool,
}

impl Delivered {
    /// Adds the delivery of another part of the same acknowledgement.
    pub(crate) fn join(&mut self, other: Delivered) {
        self.bytes += other.bytes;
        self.ambiguous |= other.ambiguous;
        self.reordered |= other.reordered;
        self.original |= other.original;
        self.latest = match (self.latest, other.latest) {
            (Some(a), Some(b)) => Some(if sent_after(b.0, b.1, a.0, a.1) { b } else { a }),
            (a, b) => a.or(b),
        };
    }

    fn add(&mut self, start: u64, run: &Run, highest: u64) {
        self.bytes += (run.end - start) as u32;
        let ambiguous = run.marks & mark::AMBIGUOUS != 0;
        self.ambiguous |= ambiguous;
        self.original |= run.marks & (mark::LOST | mark::AMBIGUOUS) == mark::LOST;
        self.reordered |= !ambiguous && run.end < highest;
        let later = self
            .latest
            .is_none_or(|(at, end, _)| sent_after(run.at, run.end as u32, at, end));
        if later {
            self.latest = Some((run.at, run.end as u32, ambiguous));
        }
    }
}

/// RACK_sent_after of RFC 8985 6.2: whether a run that was sent at `at` and ends at `end` left
/// after another run.
pub(crate) fn sent_after(at: u32, end: u32, other_at: u32, other_end: u32) -> bool {
    match at.wrapping_sub(other_at) as i32 {
        0 => end.wrapping_sub(other_end) as i32 > 0,
        later => later > 0,
    }
}

impl Scoreboard {
    /// The scoreboard of the flight `una..nxt`, with the times from `log` and `limit` runs at most.
    pub(crate) fn new(una: u64, nxt: u64, log: &SentLog, limit: usize) -> Scoreboard {
        let mut runs = VecDeque::new();
        let mut from = una;
        let mut last_at = 0;
        for (end, at) in log.iter() {
            let end = from + u64::from(end.wrapping_sub(from as u32));
            last_at = at;
            if end > from && end <= nxt {
                runs.push_back(Run { end, at, marks: 0 });
                from = end;
            }
        }
        if from < nxt {
            runs.push_back(Run {
                end: nxt,
                at: last_at,
                marks: 0,
            });
        }
        Scoreboard {
            start: una,
            runs,
            limit,
            sacked: 0,
            lost: 0,
            resent: 0,
            resent_below: una,
        }
    }

    /// The first byte that is not acknowledged.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Bytes selectively acknowledged.
    pub(crate) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Bytes marked lost, whether sent again or not.
    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }

    /// Bytes sent again that are neither acknowledged nor lost since.
    pub(crate) fn resent(&self) -> u32 {
        self.resent
    }

    /// Whether no byte is selectively acknowledged or lost.
    pub(crate) fn is_clean(&self) -> bool {
        self.sacked == 0 && self.lost == 0
    }

    /// New data up to `end` was sent.
    pub(crate) fn sent(&mut self, end: u64, at: u32) {
        match self.runs.back_mut() {
            Some(last) if last.marks == 0 && last.at == at => last.end = end,
            _ => self.runs.push_back(Run { end, at, marks: 0 }),
        }
    }

    /// Everything before `una` is acknowledged. Bytes that were selectively acknowledged before are
    /// not delivered again. `highest` is the value of [`Scoreboard::highest_sacked`] before this
    /// segment.
    pub(crate) fn acked(&mut self, una: u64, highest: u64) -> Delivered {
        let mut delivered = Delivered::default();
        while self.start < una {
            let Some(&run) = self.runs.front() else {
                self.start = una;
                break;
            };
            let gone = Run {
                end: run.end.min(una),
                ..run
            };
            self.uncount(&gone, (gone.end - self.start) as u32);
            if run.marks & mark::SACKED == 0 {
                delivered.add(self.start, &gone, highest);
            }
            self.start = gone.end;
            if gone.end == run.end {
                self.runs.pop_front();
            }
        }
        self.resent_below = self.resent_below.max(una);
        delivered
    }

    /// The peer holds `range`, which lies within the flight. At the limit of runs the rest of the
    /// range is ignored, as RFC 2018 8 allows. `highest` is as for [`Scoreboard::acked`].
    pub(crate) fn sack(&mut self, range: Range<u64>, highest: u64) -> Delivered {
        let mut delivered = Delivered::default();
        let mut index = self.index_of(range.start);
        let mut start = self.start_of(index);
        while start < range.end && index < self.runs.len() {
            let run = self.runs[index];
            if run.marks & mark::SACKED != 0 {
                start = run.end;
                index += 1;
                continue;
            }
            if self.runs.len() + 2 > self.limit {
                break;
            }
            (index, start) = self.isolate(index, start, &range);
            let taken = self.runs[index];
            delivered.add(start, &taken, highest);
            let len = (taken.end - start) as u32;
            self.uncount(&taken, len);
            self.sacked += len;
            self.runs[index].marks = mark::SACKED | (taken.marks & mark::AMBIGUOUS);
            index = self.join(index);
            start = self.runs[index].end;
            index += 1;
        }
        delivered
    }

    /// IsLost of RFC 6675 4: a byte is lost if `reordering` separate runs above it are selectively
    /// acknowledged, or more than `reordering - 1` segments' worth of bytes, and it was not sent
    /// again. Returns the bytes newly lost.
    pub(crate) fn mark_lost(&mut self, reordering: u32, mss: u32) -> u32 {
        let mut above = 0;
        let mut separate = 0;
        let mut index = self.runs.len();
        let mut in_sacked = false;
        while index > 0 {
            let run = &self.runs[index - 1];
            if run.marks & mark::SACKED == 0 {
                in_sacked = false;
                if separate >= reordering || above > (reordering - 1) * mss {
                    break;
                }
            } else {
                above += (run.end - self.start_of(index - 1)) as u32;
                separate += u32::from(!in_sacked);
                in_sacked = true;
            }
            index -= 1;
        }
        self.lose_where(index, |run| run.marks & (mark::SACKED | mark::LOST) == 0)
    }

    /// RFC 8985 6.2, step 5: a run is lost if it was sent before the delivered run `(at, end)`, and
    /// at `deadline` or earlier (in microseconds modulo 2^32). Returns the bytes newly lost, and
    /// the latest time of transmission among the runs that may be lost soon.
    pub(crate) fn mark_lost_by_age(
        &mut self,
        at: u32,
        end: u32,
        deadline: u32,
    ) -> (u32, Option<u32>) {
        let mut soon: Option<u32> = None;
        let count = self.runs.len();
        let lost = self.lose_where(count, |run| {
            let outstanding = run.marks & mark::SACKED == 0
                && run.marks & (mark::LOST | mark::RESENT) != mark::LOST;
            if !outstanding || !sent_after(at, end, run.at, run.end as u32) {
                return false;
            }
            if run.at.wrapping_sub(deadline) as i32 <= 0 {
                return true;
            }
            if soon.is_none_or(|latest| run.at.wrapping_sub(latest) as i32 > 0) {
                soon = Some(run.at);
            }
            false
        });
        (lost, soon)
    }

    /// The first unacknowledged segment is lost (RFC 6582 3.2, RFC 6675 5 step 4.3), unless it is
    /// marked already. Returns the bytes newly lost.
    pub(crate) fn mark_head_lost(&mut self, mss: u32) -> u32 {
        let segment_end = self.start + u64::from(mss);
        if self
            .runs
            .front()
            .is_none_or(|head| head.marks & (mark::SACKED | mark::LOST) != 0)
        {
            return 0;
        }
        self.split(segment_end);
        self.lose_where(self.index_of(segment_end), |run| {
            run.marks & (mark::SACKED | mark::LOST) == 0
        })
    }

    /// A time-out: marks the first segment lost, and every run that is not selectively acknowledged
    /// and was last sent at `deadline` or earlier, in microseconds modulo 2^32 (RFC 8985 6.3).
    /// Without a deadline all such runs are lost (RFC 6675 5.1).
    ///
    /// If the first byte is selectively acknowledged, but in all this time was not acknowledged,
    /// the peer has reneged, and no such mark counts (RFC 2018 8).
    pub(crate) fn mark_timed_out(&mut self, mss: u32, deadline: Option<u32>) {
        let reneged = self
            .runs
            .front()
            .is_some_and(|head| head.marks & mark::SACKED != 0);
        let deadline = deadline.filter(|_| !reneged);
        let head_end = self.start + u64::from(mss);
        if deadline.is_some() {
            self.split(head_end);
        }
        (self.sacked, self.lost, self.resent) = (0, 0, 0);
        let mut start = self.start;
        for run in &mut self.runs {
            let len = (run.end - start) as u32;
            let head = start < head_end;
            start = run.end;
            if run.marks & mark::SACKED != 0 && !reneged {
                self.sacked += len;
                continue;
            }
            if head || deadline.is_none_or(|deadline| run.at.wrapping_sub(deadline) as i32 <= 0) {
                run.marks = mark::LOST | (run.marks & mark::AMBIGUOUS);
            }
            if run.marks & mark::LOST != 0 {
                self.lost += len;
            }
            if run.marks & mark::RESENT != 0 {
                self.resent += len;
            }
        }
        if !self.runs.is_empty() {
            self.join(0);
        }
        self.resent_below = self.start;
    }

    /// The first run that is lost and was not sent again since.
    pub(crate) fn next_lost(&self) -> Option<Range<u64>> {
        if self.lost == self.resent {
            return None;
        }
        let mut index = self.index_of(self.resent_below);
        let mut start = self.start_of(index);
        while let Some(run) = self.runs.get(index) {
            if run.marks & (mark::LOST | mark::RESENT) == mark::LOST {
                return Some(start..run.end);
            }
            start = run.end;
            index += 1;
        }
        None
    }

    /// The highest bytes in flight that are not selectively acknowledged, at most `len` of them: a
    /// rescue retransmission (RFC 6675 4, rule 4) or a tail loss probe.
    pub(crate) fn highest_unsacked(&self, len: u64) -> Option<Range<u64>> {
        let index = self
            .runs
            .iter()
            .rposition(|run| run.marks & mark::SACKED == 0)?;
        let end = self.runs[index].end;
        Some(self.start_of(index).max(end.saturating_sub(len))..end)
    }

    /// `range` was sent again at `at`. It begins with a lost run, or is a tail.
    pub(crate) fn resend(&mut self, range: Range<u64>, at: u32) {
        if self
            .next_lost()
            .is_some_and(|lost| lost.start == range.start)
        {
            self.resent_below = range.end;
        }
        let mut index = self.index_of(range.start);
        let mut start = self.start_of(index);
        while start < range.end && index < self.runs.len() {
            (index, start) = self.isolate(index, start, &range);
            let again = &mut self.runs[index];
            let len = (again.end - start) as u32;
            if again.marks & mark::SACKED == 0 {
                again.at = at;
                if again.marks & (mark::LOST | mark::RESENT) == mark::LOST {
                    again.marks |= mark::RESENT;
                    self.resent += len;
                }
                again.marks |= mark::AMBIGUOUS;
            }
            index = self.join(index);
            start = self.runs[index].end;
            index += 1;
        }
    }

    /// The losses were spurious: lost bytes count as in flight again.
    pub(crate) fn forgive(&mut self) {
        for run in &mut self.runs {
            run.marks &= !(mark::LOST | mark::RESENT);
        }
        (self.lost, self.resent) = (0, 0);
    }

    /// Bytes in flight that have been sent more than once.
    pub(crate) fn ambiguous(&self) -> u32 {
        let mut start = self.start;
        let lengths = self.runs.iter().map(|run| {
            let len = (run.end - std::mem::replace(&mut start, run.end)) as u32;
            if run.marks & mark::AMBIGUOUS != 0 {
                len
            } else {
                0
            }
        });
        lengths.sum()
    }

    /// Highest byte selectively acknowledged; the start of the flight if there is none.
    pub(crate) fn highest_sacked(&self) -> u64 {
        self.runs
            .iter()
            .rev()
            .find(|run| run.marks & mark::SACKED != 0)
            .map_or(self.start, |run| run.end)
    }

    /// Marks those of the first `count` runs as lost that `condition` selects. Returns the bytes
    /// newly lost.
    fn lose_where(&mut self, count: usize, mut condition: impl FnMut(&Run) -> bool) -> u32 {
        let mut newly = 0;
        let mut start = self.start;
        for run in self.runs.iter_mut().take(count) {
            let len = (run.end - start) as u32;
            let run_start = start;
            start = run.end;
            if !condition(run) {
                continue;
            }
            if run.marks & mark::LOST == 0 {
                self.lost += len;
            }
            if run.marks & mark::RESENT != 0 {
                self.resent -= len;
            }
            run.marks = (run.marks & mark::AMBIGUOUS) | mark::LOST;
            newly += len;
            self.resent_below = self.resent_below.min(run_start);
        }
        newly
    }

    /// Subtracts a run's bytes from the counts.
    fn uncount(&mut self, run: &Run, len: u32) {
        if run.marks & mark::SACKED != 0 {
            self.sacked -= len;
        }
        if run.marks & mark::LOST != 0 {
            self.lost -= len;
        }
        if run.marks & mark::RESENT != 0 {
            self.resent -= len;
        }
    }

    /// Joins the run at `index` with neighbours that are alike, and returns its index. The time of
    /// a run no longer matters once it is selectively acknowledged.
    fn join(&mut self, mut index: usize) -> usize {
        fn alike(a: &Run, b: &Run) -> bool {
            a.marks == b.marks && (a.at == b.at || a.marks & mark::SACKED != 0)
        }
        if index + 1 < self.runs.len() && alike(&self.runs[index], &self.runs[index + 1]) {
            self.runs.remove(index);
        }
        if index > 0 && alike(&self.runs[index - 1], &self.runs[index]) {
            self.runs.remove(index - 1);
            index -= 1;
        }
        index
    }

    /// Splits the run at `index`, which begins at `start`, so that its part in `range` is a run of
    /// its own. Returns the index and the start of that run.
    fn isolate(&mut self, mut index: usize, start: u64, range: &Range<u64>) -> (usize, u64) {
        let run = self.runs[index];
        if start < range.start {
            self.runs[index].end = range.start;
            index += 1;
            self.runs.insert(index, run);
        }
        if run.end > range.end {
            let end = range.end;
            self.runs.insert(index, Run { end, ..run });
        }
        (index, start.max(range.start))
    }

    /// Splits the flight at `offset`, if that lies within it.
    fn split(&mut self, offset: u64) {
        let index = self.index_of(offset);
        if index < self.runs.len() && self.start_of(index) < offset {
            let run = self.runs[index];
            self.runs.insert(index, Run { end: offset, ..run });
        }
    }

    /// The run that contains `offset`.
    fn index_of(&self, offset: u64) -> usize {
        self.runs.partition_point(|run| run.end <= offset)
    }

    fn start_of(&self, index: usize) -> u64 {
        if index == 0 {
            self.start
        } else {
            self.runs[index - 1].end
        }
    }
}

#[cfg(test)]
#[path = "scoreboard/tests.rs"]
mod tests;
