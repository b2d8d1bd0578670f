//! Whose turn it is: flows that have a unit to be handed on, one after the other.

use std::collections::VecDeque;

/// What a flow may be owed, in bytes, to be among the brief.
const BRIEF: u32 = 4096;

/// Flows in line, each once. Those that have little, a message, go before those that have much, but
/// only every second time: neither keeps the other waiting for more than one unit of its own.
#[derive(Debug)]
pub(crate) struct Turns {
    brief: VecDeque<u32>,
    bulk: VecDeque<u32>,
    /// Whether the last one was brief.
    was_brief: bool,
}

impl Turns {
    /// With room for so many flows.
    pub(crate) fn new(flows: usize) -> Turns {
        Turns {
            brief: VecDeque::with_capacity(flows),
            bulk: VecDeque::with_capacity(flows),
            was_brief: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.brief.is_empty() && self.bulk.is_empty()
    }

    /// Puts a flow that is owed so many bytes at the end of its line.
    pub(crate) fn add(&mut self, index: u32, owed: u32) {
        if owed <= BRIEF {
            self.brief.push_back(index);
        } else {
            self.bulk.push_back(index);
        }
    }

    /// The next one, which leaves its line.
    pub(crate) fn next(&mut self) -> Option<u32> {
        let bulk = self.was_brief && !self.bulk.is_empty() || self.brief.is_empty();
        self.was_brief = !bulk;
        if bulk {
            self.bulk.pop_front()
        } else {
            self.brief.pop_front()
        }
    }

    /// Takes a flow out of line.
    pub(crate) fn forget(&mut self, index: u32) {
        self.brief.retain(|&other| other != index);
        self.bulk.retain(|&other| other != index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_little_waits_for_one_who_has_much_at_most() {
        let mut turns = Turns::new(8);
        for index in 0..3 {
            turns.add(index, 60_000);
        }
        turns.add(9, 64);
        assert_eq!(turns.next(), Some(9));
        turns.add(8, 64);
        turns.add(7, 64);
        let order: Vec<u32> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(order, [0, 8, 1, 7, 2]);
        assert!(turns.is_empty());
    }

    #[test]
    fn a_flow_that_is_gone_has_no_turn() {
        let mut turns = Turns::new(8);
        turns.add(1, 64);
        turns.add(2, 60_000);
        turns.add(3, 60_000);
        turns.forget(1);
        turns.forget(2);
        assert_eq!(turns.next(), Some(3));
        assert_eq!(turns.next(), None);
    }
}
