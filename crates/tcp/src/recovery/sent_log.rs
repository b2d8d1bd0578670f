//! A log of when the bytes in flight were sent. It is short while the flight is.

use millrace_wire::tcp::Seq;

use crate::time::Instant;

/// Entries that are kept without memory of their own.
const SHORT: usize = 4;
/// Entries that are kept with it; a power of two.
const LONG: usize = 32;
/// A long flight is known at least in steps of this fraction of its size.
const STEPS: u32 = 12;

/// Transmissions of new data, oldest first.
///
/// Many entries have memory of their own until the flight ends. When they exceed that, neighbours
/// are joined under the later one's time. The time of an entry is thus that of its last byte, and
/// no byte counts as older than it is: detection by age (RFC 8985) may wait a little too long, but
/// never acts too early.
#[derive(Clone, Debug)]
pub(crate) enum SentLog {
    Short { len: u8, entries: [Entry; SHORT] },
    Long(Box<Long>),
}

impl Default for SentLog {
    fn default() -> SentLog {
        SentLog::Short {
            len: 0,
            entries: [Entry::default(); SHORT],
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// End of the transmission: low half of a stream offset.
    end: u32,
    /// When its last byte was sent: low half of a microsecond count.
    at: u32,
}

impl SentLog {
    /// New data up to offset `end` leaves now.
    #[inline(always)]
    pub(crate) fn sent(&mut self, end: u64, now: Instant) {
        let entry = Entry {
            end: end as u32,
            at: now.as_micros() as u32,
        };
        let (count, entries) = match self {
            SentLog::Short { len, entries } => (len, entries),
            SentLog::Long(long) => return long.sent(entry),
        };
        let len = usize::from(*count);
        if len > 0 && entries[len - 1].at == entry.at {
            entries[len - 1].end = entry.end;
            return;
        }
        if len == SHORT {
            let mut long = Box::new(Long::of(entries));
            long.sent(entry);
            *self = SentLog::Long(long);
            return;
        }
        entries[len] = entry;
        *count += 1;
    }

    /// Everything before offset `una` is acknowledged: forgets it. Returns when the byte before
    /// `una` was sent, in microseconds modulo 2^32. A long flight knows that for the ends of its
    /// entries only, so that a round trip is never measured too short.
    #[inline(always)]
    pub(crate) fn acked(&mut self, una: u64) -> Option<u32> {
        let una = Seq(una as u32);
        let (count, entries) = match self {
            SentLog::Short { len, entries } => (len, entries),
            SentLog::Long(long) => {
                let sent = long.acked(una);
                if long.len == 0 {
                    *self = SentLog::default();
                }
                return sent;
            }
        };
        let len = usize::from(*count);
        let mut gone = 0;
        while gone < len && Seq(entries[gone].end).before(una) {
            gone += 1;
        }
        let last = entries.get(gone).filter(|_| gone < len);
        let sent = last.or(entries[..len].last()).map(|entry| entry.at);
        if last.is_some_and(|entry| entry.end == una.0) {
            gone += 1;
        }
        if gone > 0 {
            for i in gone..len {
                entries[i - gone] = entries[i];
            }
            *count -= gone as u8;
        }
        sent
    }

    /// The transmissions, oldest first: the end and the time of each, modulo 2^32.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (short, long) = match self {
            SentLog::Short { len, entries } => (&entries[..usize::from(*len)], None),
            SentLog::Long(long) => (&[][..], Some(long)),
        };
        let long = long.into_iter().flat_map(|long| long.iter());
        let entries = short.iter().copied().chain(long);
        entries.map(|entry| (entry.end, entry.at))
    }
}

/// The log of a long flight, as a ring.
#[derive(Clone, Debug)]
pub(crate) struct Long {
    entries: [Entry; LONG],
    head: u8,
    len: u8,
    /// Where the first entry begins.
    start: u32,
}

impl Long {
    fn of(entries: &[Entry]) -> Long {
        let mut long = Long {
            entries: [Entry::default(); LONG],
            head: 0,
            len: entries.len() as u8,
            start: entries[0].end,
        };
        long.entries[..entries.len()].copy_from_slice(entries);
        long
    }

    fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..self.len).map(|i| self.entries[self.place(i)])
    }

    fn place(&self, index: u8) -> usize {
        usize::from(self.head.wrapping_add(index)) % LONG
    }

    fn sent(&mut self, entry: Entry) {
        let last = self.place(self.len - 1);
        if self.entries[last].at == entry.at {
            self.entries[last].end = entry.end;
            return;
        }
        if usize::from(self.len) == LONG {
            self.thin();
        }
        let free = self.place(self.len);
        self.entries[free] = entry;
        self.len += 1;
    }

    fn acked(&mut self, una: Seq) -> Option<u32> {
        let mut sent = None;
        while self.len > 0 {
            let first = self.entries[usize::from(self.head)];
            if Seq(first.end).after(una) {
                break;
            }
            sent = Some(first.at);
            self.head = (self.head + 1) % LONG as u8;
            self.len -= 1;
        }
        self.start = una.0;
        sent
    }

    /// Joins neighbours that together are at most a step long. Two that remain are longer, so that
    /// fewer than two remain for each step. The first entry stays: it might otherwise be joined for
    /// ever, and never yield a time.
    fn thin(&mut self) {
        let last = self.entries[self.place(self.len - 1)];
        let step = last.end.wrapping_sub(self.start) / STEPS;
        let mut kept = [Entry::default(); LONG];
        let mut len = 0;
        let mut start = self.start;
        for entry in self.iter() {
            if len > 1 && entry.end.wrapping_sub(start) <= step {
                kept[len - 1] = entry;
                continue;
            }
            if len > 0 {
                start = kept[len - 1].end;
            }
            kept[len] = entry;
            len += 1;
        }
        (self.entries, self.head, self.len) = (kept, 0, len as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    #[test]
    fn an_acknowledged_byte_has_the_time_of_its_transmission() {
        let mut log = SentLog::default();
        log.sent(100, at(10));
        log.sent(200, at(20));
        log.sent(300, at(20));
        log.sent(400, at(30));
        assert_eq!(log.acked(50), Some(10));
        assert_eq!(log.acked(100), Some(10));
        assert_eq!(log.acked(300), Some(20));
        assert_eq!(log.acked(400), Some(30));
        assert_eq!(log.acked(400), None);
    }

    #[test]
    fn a_long_flight_is_never_known_as_older_than_it_is() {
        let mut log = SentLog::default();
        for i in 0..1_000u64 {
            log.sent((i + 1) * 10, at(i * 7));
        }
        assert!(log.iter().count() <= LONG);
        let mut known = 0;
        let mut from = 0;
        for (end, sent) in log.clone().iter() {
            assert_eq!(sent, (end / 10 - 1) * 7);
            assert!(end - from <= 10_000 / STEPS + 10, "{from}..{end}");
            from = end;
        }
        for i in 0..1_000u64 {
            if let Some(sent) = log.acked((i + 1) * 10) {
                assert_eq!(u64::from(sent), i * 7);
                known += 1;
            }
        }
        assert!(known > STEPS, "{known}");
        assert!(
            matches!(log, SentLog::Short { .. }),
            "no memory without a flight"
        );
    }

    /// In an endless flight each acknowledgement allows one more transmission.
    #[test]
    fn rfc6298_3_a_round_trip_is_measured_however_long_the_flight() {
        let mut log = SentLog::default();
        for i in 1..=1_000u64 {
            log.sent(i * 1_448, at(i * 10));
        }
        let mut samples = 0;
        for i in 1_001..=10_000u64 {
            if let Some(sent) = log.acked((i - 1_000) * 1_448) {
                assert_eq!(i * 10 - u64::from(sent), 10_000);
                samples += 1;
            }
            log.sent(i * 1_448, at(i * 10));
        }
        assert!(samples > 9 * 10, "{samples} in nine round trips");
    }

    #[test]
    fn d4_offsets_past_4_gib() {
        let mut log = SentLog::default();
        let base = (1u64 << 32) - 5;
        log.sent(base, at(1));
        log.sent(base + 10, at(2));
        assert_eq!(log.acked(base + 1), Some(2));
        assert_eq!(log.acked(base + 10), Some(2));
    }
}
