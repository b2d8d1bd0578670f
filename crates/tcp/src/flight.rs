//! When what is in flight was sent: a short log that never allocates.

use millrace_wire::tcp::Seq;

use crate::time::Instant;

const ENTRIES: usize = 6;

/// Transmissions of new data, oldest first. When it is full, neighbours are joined under the later one's time, so a long
/// flight is known in steps of a sixth to a third of itself, and never as older than it is: what judges losses by
/// age (RFC 8985) may wait a little too long, but is never too hasty.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlightLog {
    entries: [Entry; ENTRIES],
    len: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// End of the transmission: low half of a stream offset.
    end: u32,
    /// Its time: low half of a microsecond count.
    at: u32,
}

impl FlightLog {
    /// New data up to offset `end` leaves now.
    #[inline]
    pub(crate) fn sent(&mut self, end: u64, now: Instant) {
        let entry = Entry {
            end: end as u32,
            at: now.as_micros() as u32,
        };
        let len = usize::from(self.len);
        if len > 0 && self.entries[len - 1].at == entry.at {
            self.entries[len - 1].end = entry.end;
            return;
        }
        if len == ENTRIES {
            self.halve();
        }
        self.entries[usize::from(self.len)] = entry;
        self.len += 1;
    }

    /// Everything before offset `una` is acknowledged: forgets it, and tells when the byte before `una` was sent (its
    /// time, modulo 2^32 microseconds).
    #[inline]
    pub(crate) fn acked(&mut self, una: u64) -> Option<u32> {
        let una = Seq(una as u32);
        let len = usize::from(self.len);
        let mut gone = 0;
        while gone < len && Seq(self.entries[gone].end).before(una) {
            gone += 1;
        }
        let last = self.entries.get(gone).filter(|_| gone < len);
        let sent = last.or(self.entries[..len].last()).map(|entry| entry.at);
        if last.is_some_and(|entry| entry.end == una.0) {
            gone += 1;
        }
        if gone > 0 {
            for i in gone..len {
                self.entries[i - gone] = self.entries[i];
            }
            self.len -= gone as u8;
        }
        sent
    }

    /// The transmissions, oldest first: end (modulo 2^32) and time.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.entries[..usize::from(self.len)]
            .iter()
            .map(|entry| (entry.end, entry.at))
    }

    fn halve(&mut self) {
        for pair in 0..ENTRIES / 2 {
            self.entries[pair] = self.entries[2 * pair + 1];
        }
        self.len = (ENTRIES / 2) as u8;
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
        let mut log = FlightLog::default();
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
        let mut log = FlightLog::default();
        for i in 0..100u64 {
            log.sent((i + 1) * 10, at(i * 7));
        }
        assert!(log.iter().count() <= ENTRIES);
        for i in 0..100u64 {
            let sent = log.acked((i + 1) * 10).expect("in flight");
            assert!(u64::from(sent) >= i * 7);
        }
    }

    #[test]
    fn d4_offsets_past_4_gib() {
        let mut log = FlightLog::default();
        let base = (1u64 << 32) - 5;
        log.sent(base, at(1));
        log.sent(base + 10, at(2));
        assert_eq!(log.acked(base + 1), Some(2));
        assert_eq!(log.acked(base + 10), Some(2));
    }
}
