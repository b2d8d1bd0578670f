//! How long a shard's thread looks for the answer of a program that it has woken, before it takes a nap.
//!
//! A program at work answers within microseconds as a rule: sooner than this thread could be put to sleep and woken again from another
//! core. So when naps turn out to be short the thread does without them: it looks for a while first, and lets others have the core between
//! looks. When naps turn out longer it stops looking at once. A program on this thread's own core is not looked for: Linux goes on with a thread
//! that yields for 50 us and more before it turns to another, where a nap hands the core over at once. Under bulk it is all the same: there the next frame comes before the program's
//! answer, and the program goes from core to core, so that a nap is a wake-up for nothing.

/// Naps shorter than this, in microseconds, are not worth it; it looks no longer than that, either.
const WORTH_US: u64 = 50;
/// How long it looks at first.
const FIRST_US: u64 = 12;

/// What makes bulk, in bytes a microsecond: 2 Gbit/s. Short messages are less as long as a thread sleeps at all: 400,000 of 64 bytes a second there and back are 104.
const BULK: u64 = 256;
/// Over how long that is measured at least, in microseconds.
const SPAN_US: u64 = 1000;

/// What recent naps were like, and what there was to do between them.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    us: u64,
    /// Whether it was bulk when it was measured last.
    bulk: bool,
    /// When that was, in microseconds, and how many bytes had come and gone by then.
    measured: (u64, u64),
}

impl Spin {
    /// How long to look before the next nap, in microseconds.
    pub(crate) fn duration_us(&self) -> u64 {
        self.us
    }

    /// Whether it is bulk what comes and goes, at a time in microseconds by when so many bytes have done so in all; to be asked where it would nap.
    pub(crate) fn is_bulk(&mut self, now: u64, carried: u64) -> bool {
        let (then, before) = self.measured;
        let span = now.saturating_sub(then);
        if span >= SPAN_US {
            self.bulk = carried.saturating_sub(before) >= BULK * span;
            self.measured = (now, carried);
        }
        self.bulk
    }

    /// A nap has ended without an answer.
    pub(crate) fn wait_timed_out(&mut self) {
        self.us = 0;
    }

    /// A nap has ended by an event.
    pub(crate) fn wait_ended(&mut self, us: u64) {
        self.us = if us <= WORTH_US {
            (self.us * 2).clamp(FIRST_US, WORTH_US)
        } else {
            0
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_longer_while_naps_are_short_and_not_at_all_after_a_long_one() {
        let mut spin = Spin::default();
        assert_eq!(spin.duration_us(), 0);
        let looks: Vec<_> = (0..4)
            .map(|_| {
                spin.wait_ended(20);
                spin.duration_us()
            })
            .collect();
        assert_eq!(looks, [12, 24, 48, 50]);
        spin.wait_ended(51);
        assert_eq!(spin.duration_us(), 0);
    }

    #[test]
    fn what_fills_a_link_is_bulk_and_many_messages_are_not() {
        let mut spin = Spin::default();
        let (mut now, mut carried) = (0, 0);
        // 400,000 messages of 64 bytes a second there and back, with their headers.
        for _ in 0..100 {
            (now, carried) = (now + 160, carried + 64 * 2 * 130);
            assert!(!spin.is_bulk(now, carried));
        }
        // 20 Gbit/s by units of 64 KB, and acknowledgements in between.
        for round in 0..100 {
            (now, carried) = (now + 26, carried + 65_000);
            let bulk = spin.is_bulk(now, carried);
            assert!(bulk || round < 50);
            (now, carried) = (now + 1, carried + 66);
            assert_eq!(spin.is_bulk(now, carried), bulk);
        }
        assert!(!spin.is_bulk(now + 1_000_000, carried), "long ago");
        assert!(!spin.is_bulk(now + 2_000_000, 0), "another link");
    }
}
