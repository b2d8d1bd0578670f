//! Which buckets are to move for load alone, from look to look.
//!
//! [`plan()`](crate::plan) shares everything out anew; here as little as does any good moves, and
//! only for what lasts: a group must have been too busy in several looks, a few buckets move at
//! once, and one that has moved stays for a while. A bucket moves only where it leaves the group
//! that gives it at least as loaded as the one that gets it, so nothing goes to and fro.

use crate::balance::Move;
use crate::groups::Groups;

/// Looks in a row at which a group must have been too busy.
const LASTING: u8 = 3;
/// It is if it has more than this many quarters of the mean.
const TOO_BUSY: u64 = 5;
/// The last look is this part of what a bucket is said to have: what comes and goes from one to the
/// next is not taken for load that stays.
const MEMORY: u64 = 8;
/// Buckets that move at once, at most.
const MOVES_MAX: usize = 64;
/// Looks for which a bucket stays where it has come.
const REST: u8 = 8;
/// A bucket that is less than this part of what is to be evened out is not worth its way.
const TRIFLE: u64 = 256;
/// Nor are all that could move, if the busiest loses less than this part of what it has too much.
const WORTH: u64 = 4;

/// What it has seen so far. One look follows the other in equal times.
#[derive(Clone, Debug)]
pub struct Balancer {
    /// This bucket never moves.
    fixed: usize,
    /// Less than this in a look is no load worth a move, whoever has it.
    idle: u64,
    /// What each bucket had had at the last look.
    totals: Vec<u64>,
    /// What it has had in a look lately.
    lately: Vec<u64>,
    /// Looks for which it is to stay.
    resting: Vec<u8>,
    /// Looks in a row that were uneven.
    uneven: u8,
}

impl Balancer {
    /// Nothing seen so far. `fixed` never moves; groups that have had less than `idle` in a look
    /// are left alone.
    pub fn new(fixed: usize, idle: u64) -> Balancer {
        Balancer {
            fixed,
            idle,
            totals: Vec::new(),
            lately: Vec::new(),
            resting: Vec::new(),
            uneven: 0,
        }
    }

    /// One more look: what each bucket has had since the start, in any unit. Which buckets are to
    /// move now between the first `count` groups; whoever asks has them moved before the next look,
    /// or none of them.
    pub fn look(&mut self, groups: &Groups, totals: &[u64], count: u16) -> Vec<Move> {
        if self.totals.len() != totals.len() {
            self.totals = totals.to_vec();
            self.lately = vec![0; totals.len()];
            self.resting = vec![0; totals.len()];
            return Vec::new();
        }
        for (bucket, total) in totals.iter().enumerate() {
            let now = total.saturating_sub(self.totals[bucket]);
            self.lately[bucket] = (self.lately[bucket] * (MEMORY - 1) + now) / MEMORY;
            self.resting[bucket] = self.resting[bucket].saturating_sub(1);
        }
        self.totals.copy_from_slice(totals);
        let mut sums = vec![0u64; count.max(1).into()];
        for (bucket, load) in self.lately.iter().enumerate() {
            let group = groups.of_bucket(bucket).map_or(0, usize::from);
            if let Some(sum) = sums.get_mut(group) {
                *sum += load;
            }
        }
        let mean = sums.iter().sum::<u64>() / sums.len() as u64;
        let most = sums.iter().copied().max().unwrap_or(0);
        if most < self.idle || most <= mean / 4 * TOO_BUSY {
            self.uneven = 0;
            return Vec::new();
        }
        self.uneven += 1;
        if self.uneven < LASTING {
            return Vec::new();
        }
        // What comes of it is seen before there are more.
        self.uneven = 0;
        self.moves(groups, sums, mean)
    }

    fn moves(&mut self, groups: &Groups, mut sums: Vec<u64>, mean: u64) -> Vec<Move> {
        let mut owned: Vec<Vec<usize>> = vec![Vec::new(); sums.len()];
        for (bucket, load) in self.lately.iter().enumerate() {
            let may = *load > 0 && self.resting[bucket] == 0 && bucket != self.fixed;
            let group = groups.of_bucket(bucket).map_or(0, usize::from);
            if let Some(own) = owned.get_mut(group).filter(|_| may) {
                own.push(bucket);
            }
        }
        for own in &mut owned {
            own.sort_by_key(|bucket| self.lately[*bucket]);
        }
        let before = sums.iter().copied().max().unwrap_or(0);
        let mut moves = Vec::new();
        while moves.len() < MOVES_MAX {
            let by_load = |at: &usize| sums[*at];
            let from = (0..sums.len()).max_by_key(by_load).unwrap_or(0);
            let to = (0..sums.len()).min_by_key(by_load).unwrap_or(0);
            // Well below what is too busy: what is even once is not uneven again for a trifle.
            if sums[from] <= mean + mean / 16 {
                break;
            }
            let gap = sums[from] - sums[to];
            // The heaviest that leaves the one at least as loaded as the other.
            let fits = owned[from].partition_point(|bucket| self.lately[*bucket] <= gap / 2);
            let Some(at) = fits.checked_sub(1) else {
                break;
            };
            let load = self.lately[owned[from][at]];
            if load < gap / TRIFLE {
                break;
            }
            let bucket = owned[from].remove(at);
            sums[from] -= load;
            sums[to] += load;
            moves.push(Move {
                bucket,
                from: from as u16,
                to: to as u16,
            });
        }
        let after = sums.iter().copied().max().unwrap_or(0);
        if before - after < (before - mean) / WORTH {
            return Vec::new();
        }
        for step in &moves {
            self.resting[step.bucket] = REST;
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIXED: usize = 0;
    const IDLE: u64 = 1000;

    /// Groups with load that comes at a rate.
    struct Engine {
        groups: Groups,
        count: u16,
        totals: Vec<u64>,
        balancer: Balancer,
        moved: usize,
    }

    impl Engine {
        fn new(count: u16) -> Engine {
            let groups = Groups::even(count);
            let totals = vec![0; groups.buckets()];
            let mut balancer = Balancer::new(FIXED, IDLE);
            assert_eq!(balancer.look(&groups, &totals, count), []);
            Engine {
                groups,
                count,
                totals,
                balancer,
                moved: 0,
            }
        }

        /// So much of each bucket, and a look; how many moved.
        fn look(&mut self, load: impl Fn(usize) -> u64) -> usize {
            for (bucket, total) in self.totals.iter_mut().enumerate() {
                *total += load(bucket);
            }
            let moves = self.balancer.look(&self.groups, &self.totals, self.count);
            for step in &moves {
                assert_eq!(self.groups.of_bucket(step.bucket), Some(step.from));
                assert!(step.from != step.to && step.to < self.count);
                assert_ne!(step.bucket, FIXED);
                self.groups.assign(step.bucket, step.to);
            }
            assert!(moves.len() <= MOVES_MAX);
            self.moved += moves.len();
            moves.len()
        }

        fn sums(&self, load: impl Fn(usize) -> u64) -> Vec<u64> {
            let mut sums = vec![0; self.count.into()];
            for bucket in 0..self.groups.buckets() {
                let group = self.groups.of_bucket(bucket).unwrap();
                sums[usize::from(group)] += load(bucket);
            }
            sums
        }
    }

    #[test]
    fn even_load_moves_nothing() {
        let mut engine = Engine::new(4);
        for _ in 0..20 {
            assert_eq!(engine.look(|_| 1000), 0);
        }
    }

    #[test]
    fn what_is_idle_moves_nothing() {
        let mut engine = Engine::new(2);
        for _ in 0..20 {
            assert_eq!(engine.look(|bucket| u64::from(bucket == 2) * (IDLE - 1)), 0);
        }
    }

    #[test]
    fn a_burst_moves_nothing_and_what_lasts_does() {
        let mut engine = Engine::new(2);
        let uneven = |bucket: usize| if bucket % 4 == 2 { 10_000 } else { 10 };
        assert_eq!(engine.look(uneven), 0);
        for _ in 0..10 {
            assert_eq!(engine.look(|_| 5000), 0, "it was a burst");
        }
        let looks = (0..10).take_while(|_| engine.look(uneven) == 0).count();
        assert!((2..6).contains(&looks), "{looks}");
    }

    #[test]
    fn two_busy_buckets_of_one_group_part() {
        let mut engine = Engine::new(2);
        let load = |bucket: usize| u64::from(bucket == 2 || bucket == 6) * 1_000_000;
        for _ in 0..30 {
            engine.look(load);
        }
        assert_eq!(engine.moved, 1);
        assert_eq!(engine.sums(load), [1_000_000, 1_000_000]);
    }

    #[test]
    fn one_busy_bucket_stays_and_the_others_leave_it() {
        let mut engine = Engine::new(2);
        let load = |bucket: usize| match bucket {
            2 => 1_000_000,
            4 | 6 | 8 => 100_000,
            _ => 0,
        };
        for _ in 0..30 {
            engine.look(load);
        }
        assert_eq!(engine.groups.of_bucket(2), Some(0));
        assert_eq!(engine.sums(load), [1_000_000, 300_000]);
        assert_eq!(engine.moved, 3);
    }

    #[test]
    fn what_is_fixed_never_moves() {
        let mut engine = Engine::new(2);
        let load = |bucket: usize| u64::from(bucket == FIXED || bucket == 2) * 1_000_000;
        for _ in 0..30 {
            engine.look(load);
        }
        assert_eq!(engine.groups.of_bucket(FIXED), Some(0));
        assert_eq!(engine.groups.of_bucket(2), Some(1));
    }

    /// Load that jumps from bucket to bucket faster than anything lasts.
    #[test]
    fn load_that_does_not_last_anywhere_moves_nothing() {
        let mut engine = Engine::new(2);
        for look in 0..60 {
            let group = look / 2 % 2;
            let moved = engine.look(|bucket| if bucket % 2 == group { 3000 } else { 2000 });
            assert_eq!(moved, 0, "look {look}");
        }
    }

    fn load(exponent: u32) -> u64 {
        if exponent == 0 {
            0
        } else {
            1 << (exponent / 2 + 4)
        }
    }

    /// A thousand looks at such rates, with noise from look to look; in how many of them something
    /// moved.
    fn noisy_looks(engine: &mut Engine, rates: &[u32], noise: &[u64]) -> usize {
        let noisy = |bucket: usize, look: usize| {
            let rate = rates.get(bucket).copied().unwrap_or(0);
            load(rate) * (68 + noise[(bucket * 7 + look * 13) % noise.len()]) / 100
        };
        (0..1000)
            .filter(|look| engine.look(|bucket| noisy(bucket, *look)) > 0)
            .count()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Many flows, as uneven as flows are: it hardly ever moves anything, and then no group is
        /// too busy.
        #[test]
        fn many_flows_come_to_rest_evenly(
            count in 2..9u16,
            rates in proptest::collection::vec(0..20u32, 1024),
            noise in proptest::collection::vec(0..64u64, 1024),
        ) {
            let mut engine = Engine::new(count);
            prop_assert!(noisy_looks(&mut engine, &rates, &noise) <= 6);
            let sums = engine.sums(|bucket| load(rates.get(bucket).copied().unwrap_or(0)));
            let mean = sums.iter().sum::<u64>() / u64::from(count);
            prop_assert!(sums.iter().all(|sum| *sum <= mean * 11 / 8), "{:?}", sums);
        }

        /// A few flows, which no partition makes even: what comes and goes from look to look does
        /// not send them to and fro.
        #[test]
        fn few_flows_come_to_rest(
            count in 2..9u16,
            rates in proptest::collection::vec(prop_oneof![30 => Just(0u32), 1 => 0..24u32], 1024),
            noise in proptest::collection::vec(0..64u64, 1024),
        ) {
            let mut engine = Engine::new(count);
            prop_assert!(noisy_looks(&mut engine, &rates, &noise) <= 12);
        }

        /// Whatever comes, what moves leaves the giving group at least as loaded as the getting
        /// one, so that the largest never grows.
        #[test]
        fn no_group_becomes_the_busiest_by_what_it_is_given(
            count in 2..5u16,
            load in proptest::collection::vec(0..100_000u64, 1024),
        ) {
            let mut engine = Engine::new(count);
            let rate = |bucket: usize| {
                let many = load.get(bucket).copied().unwrap_or(0);
                if bucket.is_multiple_of(usize::from(count)) { many * 4 } else { many }
            };
            let mut most = u64::MAX;
            for _ in 0..60 {
                engine.look(rate);
                let now = *engine.sums(rate).iter().max().unwrap();
                prop_assert!(now <= most);
                most = now;
            }
        }
    }
}
