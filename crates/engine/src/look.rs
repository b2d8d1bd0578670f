//! How long a shard's thread looks for the answer of a program that it has woken, before it takes a nap.
//!
//! A program at work answers within microseconds as a rule: sooner than this thread could be put to sleep and woken again from another
//! core. So when naps turn out to be short the thread does without them: it looks for a while first, and lets others have the core between
//! looks. When naps turn out longer it stops looking at once. A program on this thread's own core is not looked for: Linux goes on with a thread
//! that yields for 50 us and more before it turns to another, where a nap hands the core over at once.

/// Naps shorter than this, in microseconds, are not worth it; it looks no longer than that, either.
const WORTH_US: u64 = 50;
/// How long it looks at first.
const FIRST_US: u64 = 12;

/// What recent naps were like.
#[derive(Debug, Default)]
pub(crate) struct Look {
    us: u64,
}

impl Look {
    /// How long to look before the next nap, in microseconds.
    pub(crate) fn for_us(&self) -> u64 {
        self.us
    }

    /// A nap has ended without an answer.
    pub(crate) fn missed(&mut self) {
        self.us = 0;
    }

    /// A nap has ended by an event.
    pub(crate) fn napped(&mut self, us: u64) {
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
        let mut look = Look::default();
        assert_eq!(look.for_us(), 0);
        let looks: Vec<_> = (0..4)
            .map(|_| {
                look.napped(20);
                look.for_us()
            })
            .collect();
        assert_eq!(looks, [12, 24, 48, 50]);
        look.napped(51);
        assert_eq!(look.for_us(), 0);
    }
}
