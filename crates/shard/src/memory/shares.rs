//! Fair shares of a table's places among the owners of sockets.

use crate::memory::Owner;

/// A supply that is divided by one rule: where owners are strangers to each other, nobody holds
/// more than `generosity` times what is left for all (Choudhury and Hahne's dynamic threshold). One
/// alone gets a large part, and a newcomer always finds some.
#[derive(Default)]
pub struct Shares {
    supply: u32,
    /// 0: no owner is held back before the supply is used up.
    generosity: u32,
    used: u32,
    /// By owner.
    taken: Vec<u32>,
}

impl Shares {
    /// A supply for all owners.
    pub fn new(supply: u32, shared: bool, generosity: u32) -> Shares {
        Shares {
            supply,
            generosity: if shared { generosity } else { 0 },
            ..Shares::default()
        }
    }

    /// Whether nothing is left for anybody.
    #[inline]
    pub fn is_used_up(&self) -> bool {
        self.used >= self.supply
    }

    /// Whether `owner` may have one more.
    #[inline]
    pub fn allows(&self, owner: Owner) -> bool {
        let left = self.supply.saturating_sub(self.used);
        if self.generosity == 0 {
            return left > 0;
        }
        let taken = self.taken.get(owner.0 as usize).copied().unwrap_or(0);
        left > 0 && taken < left.saturating_mul(self.generosity)
    }

    /// `owner` has one more, whether it may or not.
    #[inline]
    pub fn take(&mut self, owner: Owner) {
        self.used += 1;
        // Where nobody is held back, nobody's are counted.
        if self.generosity != 0 {
            self.count(owner);
        }
    }

    fn count(&mut self, owner: Owner) {
        let index = owner.0 as usize;
        if self.taken.len() <= index {
            self.taken.resize(index + 1, 0);
        }
        self.taken[index] += 1;
    }

    /// `owner` has one less.
    #[inline]
    pub fn give(&mut self, owner: Owner) {
        if self.generosity == 0 {
            self.used = self.used.saturating_sub(1);
        } else if let Some(taken) = self
            .taken
            .get_mut(owner.0 as usize)
            .filter(|taken| **taken > 0)
        {
            *taken -= 1;
            self.used -= 1;
        }
    }

    /// How many all have.
    pub fn used(&self) -> u32 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &mut Shares, owner: Owner) -> u32 {
        let mut taken = 0;
        while shares.allows(owner) {
            shares.take(owner);
            taken += 1;
        }
        taken
    }

    #[test]
    fn who_takes_all_that_it_can_leaves_some_to_the_next() {
        let mut shares = Shares::new(900, true, 2);
        assert_eq!(take_all(&mut shares, Owner(0)), 600);
        assert_eq!(take_all(&mut shares, Owner(5)), 200);
        assert!(!shares.is_used_up() && shares.allows(Owner(1)));
        (0..600).for_each(|_| shares.give(Owner(0)));
        assert_eq!(shares.used(), 200);
        assert_eq!(take_all(&mut Shares::new(900, false, 2), Owner(0)), 900);
    }
}
