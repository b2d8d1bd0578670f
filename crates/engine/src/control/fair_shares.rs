//! Fair shares in a supply that all programs and users use.

use std::collections::HashMap;
use std::hash::Hash;

/// A supply that is divided by one rule: no holder may have more than is left. A lone holder gets
/// half, two get a third each, and a new holder always finds as much as the largest holder has (the
/// dynamic threshold of Choudhury and Hahne, which switches use for packet buffers).
#[derive(Debug)]
pub(crate) struct FairShares<Holder> {
    supply: u64,
    used: u64,
    in_use: HashMap<Holder, u64>,
    refused: u64,
}

impl<Holder: Copy + Eq + Hash> FairShares<Holder> {
    pub(crate) fn new(supply: u64) -> FairShares<Holder> {
        FairShares {
            supply,
            used: 0,
            in_use: HashMap::new(),
            refused: 0,
        }
    }

    /// Takes one unit, if `holder` may have one more.
    pub(crate) fn take(&mut self, holder: Holder) -> bool {
        let held = self.in_use.get(&holder).copied().unwrap_or(0);
        if held + 1 > self.supply.saturating_sub(self.used) {
            self.refused += 1;
            return false;
        }
        self.in_use.insert(holder, held + 1);
        self.used += 1;
        true
    }

    /// Gives one unit back.
    pub(crate) fn give(&mut self, holder: Holder) {
        let Some(held) = self.in_use.get_mut(&holder) else {
            return;
        };
        *held -= 1;
        self.used -= 1;
        if *held == 0 {
            self.in_use.remove(&holder);
        }
    }

    /// How often [`FairShares::take`] has refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &mut FairShares<u32>, holder: u32) -> u64 {
        (0..1_000_000).take_while(|_| shares.take(holder)).count() as u64
    }

    #[test]
    fn who_takes_all_that_it_can_leaves_as_much_to_the_next() {
        let mut shares = FairShares::new(1000);
        assert_eq!(take_all(&mut shares, 1), 500);
        assert_eq!(take_all(&mut shares, 2), 250);
        assert_eq!(take_all(&mut shares, 3), 125);
        assert_eq!(shares.refused(), 3);
        for _ in 0..500 {
            shares.give(1);
        }
        assert_eq!(take_all(&mut shares, 2), 188, "until it holds what is left");
    }

    #[test]
    fn what_nobody_holds_cannot_be_given_back() {
        let mut shares = FairShares::new(2);
        shares.give(1);
        assert!(shares.take(1));
        shares.give(1);
        shares.give(1);
        assert!(shares.take(2));
        assert_eq!(shares.used, 1);
    }
}
