//! Small numbers given out and taken back: contexts, pollers, process slots.

use std::collections::VecDeque;

/// How many pollers are given back before the index of one is given out again: a shard that is behind may still pass on what was asked for the last one.
pub(crate) const POLLERS_REST: usize = 64;

/// Small numbers given out: free ones again, if more than `rest` are free, the one first that has been free for longest.
#[derive(Debug)]
pub(crate) struct IdAllocator {
    limit: u32,
    next: u32,
    rest: usize,
    free: VecDeque<u32>,
}

impl IdAllocator {
    /// A number that is given back is given out next.
    pub(crate) fn new(limit: u32) -> IdAllocator {
        IdAllocator::resting(limit, 0)
    }

    /// A number that is given back rests until `rest` others have been given back, unless there are no more: whoever has heard of its last use only will have heard of its
    /// end by the time of the next one.
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
