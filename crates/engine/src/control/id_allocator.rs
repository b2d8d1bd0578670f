//! Allocates small numbers: contexts, pollers, process slots.

use std::collections::VecDeque;

/// How many other pollers are released before a poller index is used again. A shard that is behind
/// may still pass on a request for the earlier poller.
pub(crate) const POLLERS_REST: usize = 64;

/// Allocates small numbers. A released number is used again when more than `rest` numbers are free;
/// the number that was free longest comes first.
#[derive(Debug)]
pub(crate) struct IdAllocator {
    limit: u32,
    next: u32,
    rest: usize,
    free: VecDeque<u32>,
}

impl IdAllocator {
    /// An allocator that uses a released number next.
    pub(crate) fn new(limit: u32) -> IdAllocator {
        IdAllocator::resting(limit, 0)
    }

    /// An allocator that uses a released number only after `rest` others were released, unless
    /// there is no other number. A reader that is behind then hears of the release before the next
    /// use.
    pub(crate) fn resting(limit: u32, rest: usize) -> IdAllocator {
        IdAllocator {
            limit,
            next: 0,
            rest,
            free: VecDeque::new(),
        }
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.free.len() > self.rest || self.next == self.limit {
            return self.free.pop_front();
        }
        self.next += 1;
        Some(self.next - 1)
    }

    pub(crate) fn give(&mut self, number: u32) {
        self.free.push_back(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_rests_before_its_next_use() {
        let mut numbers = IdAllocator::resting(8, 2);
        let mut last_given = Vec::new();
        for _ in 0..20 {
            let number = numbers.take().unwrap();
            assert!(!last_given.iter().rev().take(2).any(|it| *it == number));
            numbers.give(number);
            last_given.push(number);
        }
        assert!(
            last_given.iter().all(|number| *number < 3),
            "no more than need be"
        );
    }

    #[test]
    fn all_of_them_can_be_had() {
        for rest in [0, 2, 10] {
            let mut numbers = IdAllocator::resting(4, rest);
            let mut all: Vec<u32> = std::iter::from_fn(|| numbers.take()).collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3]);
            numbers.give(2);
            assert_eq!((numbers.take(), numbers.take()), (Some(2), None));
        }
    }
}
