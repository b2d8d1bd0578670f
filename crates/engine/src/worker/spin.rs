//! How long a shard's thread spins for the answer of a program that it has woken, before it sleeps.
//!
//! A busy program usually answers within microseconds: sooner than this thread could sleep and be
//! woken from another core. So while waits are short the thread spins first, and yields its core
//! between polls. After a long wait it stops spinning at once.
//!
//! It does not spin for a program on its own core: Linux goes on with a thread that yields for 50
//! us or more, where a sleep hands the core over at once. Under bulk it always spins: the next
//! frame comes before the answer of the program, and the program moves from core to core, so that a
//! sleep costs a wake-up for nothing.

/// Waits shorter than this, in microseconds, are not worth a sleep. It is also the longest spin.
const WORTH_US: u64 = 50;
/// The first spin, in microseconds.
const FIRST_US: u64 = 12;

/// The rate of bulk, in bytes per microsecond: 2 Gbit/s. Short messages are below that as long as
/// the thread sleeps at all: 400,000 messages of 64 bytes a second and their answers are 104.
const BULK: u64 = 256;
/// The shortest time, in microseconds, over which the rate is measured.
const SPAN_US: u64 = 1000;

/// How long recent waits were, and how much traffic there was.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    us: u64,
    /// Whether the last measurement found bulk.
    bulk: bool,
    /// When the last measurement was, in microseconds, and the total bytes until then.
    measured: (u64, u64),
}

impl Spin {
    /// How long to spin before the next wait, in microseconds.
    pub(crate) fn duration_us(&self) -> u64 {
        self.us
    }

    /// Whether traffic is bulk. `carried` is the total bytes until `now`, in microseconds. Must be
    /// called before each wait.
    pub(crate) fn is_bulk(&mut self, now: u64, carried: u64) -> bool {
        let (then, before) = self.measured;
        let span = now.saturating_sub(then);
        if span >= SPAN_US {
            self.bulk = carried.saturating_sub(before) >= BULK * span;
            self.measured = (now, carried);
        }
        self.bulk
    }

    /// A wait has ended without an event.
    pub(crate) fn wait_timed_out(&mut self) {
        self.us = 0;
    }

    /// A wait has ended with an event after `us` microseconds.
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
        // 400,000 messages of 64 bytes a second and their answers, with headers.
        for _ in 0..100 {
            (now, carried) = (now + 160, carried + 64 * 2 * 130);
            assert!(!spin.is_bulk(now, carried));
        }
        // 20 Gbit/s in units of 64 KB, with acknowledgements in between.
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
