//! Which buckets are to move when loads, or the number of groups, have changed.

use crate::groups::Groups;

/// A bucket that is to go to another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which bucket.
    pub bucket: usize,
    /// The group that has it.
    pub from: u16,
    /// The group that is to have it.
    pub to: u16,
}

/// The moves after which `count` groups (1 at least) share the load about evenly: there is no
/// bucket left that is at most half of what the most loaded group has more than the least loaded
/// one. So what moves never makes the one that gets it the more loaded of the two, and nothing
/// moves to and fro. `load` is what each bucket had lately, in any unit; that it is there counts
/// for something, too, so that idle buckets are shared out as well. A group that is to go keeps
/// nothing.
pub fn plan(groups: &Groups, load: &[u64], count: u16) -> Vec<Move> {
    let count = count.max(1);
    let idle = idle(groups, load);
    let weight = |bucket: usize| load.get(bucket).copied().unwrap_or(0).saturating_add(idle);
    let mut owned: Vec<Vec<usize>> = vec![Vec::new(); count.into()];
    let mut sums = vec![0u64; count.into()];
    let mut homeless = Vec::new();
    let from = |bucket| groups.of_bucket(bucket).unwrap_or(0);
    for bucket in 0..groups.buckets() {
        let group = usize::from(from(bucket));
        match owned.get_mut(group) {
            Some(buckets) => {
                buckets.push(bucket);
                sums[group] += weight(bucket);
            }
            None => homeless.push(bucket),
        }
    }
    let mut moves = Vec::new();
    let least = |sums: &[u64]| (0..sums.len()).min_by_key(|at| sums[*at]).unwrap_or(0);
    homeless.sort_by_key(|bucket| std::cmp::Reverse(weight(*bucket)));
    for bucket in homeless {
        let to = least(&sums);
        sums[to] += weight(bucket);
        owned[to].push(bucket);
        moves.push(Move {
            bucket,
            from: from(bucket),
            to: to as u16,
        });
    }
    for buckets in &mut owned {
        buckets.sort_by_key(|bucket| weight(*bucket));
    }
    loop {
        let (to, most) = (least(&sums), (0..sums.len()).max_by_key(|at| sums[*at]));
        let most = most.unwrap_or(0);
        let gap = sums[most] - sums[to];
        // The largest that leaves the one at least as loaded as the other.
        let fits = owned[most].partition_point(|bucket| weight(*bucket) <= gap / 2);
        let Some(at) = fits.checked_sub(1) else {
            break;
        };
        let bucket = owned[most].remove(at);
        let place = owned[to].partition_point(|other| weight(*other) < weight(bucket));
        owned[to].insert(place, bucket);
        sums[most] -= weight(bucket);
        sums[to] += weight(bucket);
        moves.push(Move {
            bucket,
            from: from(bucket),
            to: to as u16,
        });
    }
    // One that came back, or went on, moves once or not at all.
    let mut last = vec![None; groups.buckets()];
    for step in moves {
        last[step.bucket] = Some(step);
    }
    let moved = |step: &Move| step.from != step.to;
    last.into_iter().flatten().filter(moved).collect()
}

/// What a bucket counts for beside its load: a sixteenth of the mean.
fn idle(groups: &Groups, load: &[u64]) -> u64 {
    load.iter().sum::<u64>() / (16 * groups.buckets() as u64) + 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn carried_out(groups: &Groups, moves: &[Move]) -> Groups {
        let mut groups = groups.clone();
        for step in moves {
            assert_eq!(groups.of_bucket(step.bucket), Some(step.from));
            groups.assign(step.bucket, step.to);
        }
        groups
    }

    fn sums(groups: &Groups, load: &[u64], count: u16) -> Vec<u64> {
        let idle = idle(groups, load);
        let mut sums = vec![0; count.into()];
        for (bucket, load) in load.iter().enumerate() {
            sums[usize::from(groups.of_bucket(bucket).unwrap())] += load + idle;
        }
        sums
    }

    #[test]
    fn what_is_even_stays() {
        let groups = Groups::even(4);
        assert_eq!(plan(&groups, &vec![7; groups.buckets()], 4), []);
        assert_eq!(plan(&groups, &[], 4), []);
    }

    #[test]
    fn a_new_group_gets_its_share_and_nothing_moves_between_the_others() {
        let groups = Groups::even(2);
        let moves = plan(&groups, &vec![100; groups.buckets()], 3);
        assert!(moves.iter().all(|step| step.to == 2));
        assert!(moves.len().abs_diff(groups.buckets() / 3) <= 2);
    }

    #[test]
    fn a_group_that_goes_keeps_nothing() {
        let groups = Groups::even(4);
        let after = carried_out(&groups, &plan(&groups, &[], 3));
        for bucket in 0..after.buckets() {
            assert!(after.of_bucket(bucket).unwrap() < 3);
        }
    }

    #[test]
    fn one_bucket_with_all_the_load_is_left_alone_with_it() {
        let groups = Groups::even(2);
        let mut load = vec![0; groups.buckets()];
        load[6] = 1_000_000;
        let after = carried_out(&groups, &plan(&groups, &load, 2));
        assert_eq!(after.of_bucket(6), Some(0), "moving it would help nobody");
    }

    proptest! {
        #[test]
        fn groups_come_as_near_to_each_other_as_buckets_are_large(
            before in 1..9u16,
            count in 1..9u16,
            load in proptest::collection::vec(0..1000u64, 1024),
        ) {
            let groups = Groups::even(before);
            let moves = plan(&groups, &load, count);
            let after = carried_out(&groups, &moves);
            let mut moved: Vec<usize> = moves.iter().map(|step| step.bucket).collect();
            moved.dedup();
            prop_assert_eq!(moved.len(), moves.len(), "each moves once");
            let sums = sums(&after, &load, count);
            let (least, most) = (sums.iter().min().unwrap(), sums.iter().max().unwrap());
            // Each has a bucket of no more than twice the mean.
            prop_assert!(most - least <= 2000, "{sums:?}");
        }
    }
}
