//! The indirection table: from a tag to the group that serves it.

/// Buckets that a table has at least.
const BUCKETS_MIN: usize = 1024;

/// No group: the bucket is on its way from one to another.
pub const NOBODY: u16 = u16::MAX;

/// The groups of flows that the shards serve: shard `n` serves group `n`. A tag is in the bucket
/// that its remainder names, and a bucket is one group's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    count: u16,
    /// The group of each bucket.
    buckets: Box<[u16]>,
}

impl Groups {
    /// `count` groups (1 at least) that share all tags evenly: a tag's group is its remainder
    /// modulo their number.
    pub fn even(count: u16) -> Groups {
        let count = count.max(1);
        let buckets = BUCKETS_MIN.next_multiple_of(count.into());
        Groups {
            count,
            buckets: (0..buckets)
                .map(|bucket| (bucket % usize::from(count)) as u16)
                .collect(),
        }
    }

    /// As many groups as the buckets name, each with the buckets that name it. None: there are no
    /// buckets, or one is in [`NOBODY`].
    pub fn of_buckets(buckets: &[u16]) -> Option<Groups> {
        let last = buckets.iter().max()?;
        Some(Groups {
            count: last.checked_add(1)?,
            buckets: buckets.into(),
        })
    }

    /// How many groups there are.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// How many buckets there are.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// The bucket that a tag is in.
    #[inline]
    pub fn bucket(&self, tag: u32) -> usize {
        tag as usize % self.buckets.len()
    }

    /// The group that a tag is in; [`NOBODY`] while that is not known.
    #[inline]
    pub fn of(&self, tag: u32) -> u16 {
        self.buckets[self.bucket(tag)]
    }

    /// The group that a bucket is in; none for a bucket that there is not.
    pub fn of_bucket(&self, bucket: usize) -> Option<u16> {
        self.buckets.get(bucket).copied()
    }

    /// Puts a bucket into another group, which may be a new one. What is no bucket stays none.
    pub fn assign(&mut self, bucket: usize, group: u16) {
        if let Some(at) = self.buckets.get_mut(bucket) {
            *at = group;
            self.count = self.count.max(group.saturating_add(1));
        }
    }

    /// Whether a group has a bucket.
    pub fn has(&self, group: u16) -> bool {
        self.buckets.contains(&group)
    }

    /// Forgets the last groups if they have no bucket any more: as many groups are left as the
    /// buckets name.
    pub fn recount(&mut self) {
        let named = self.buckets.iter().filter(|group| **group != NOBODY);
        self.count = named.max().map_or(1, |last| last + 1);
    }

    /// Takes a bucket out of its group, to be assigned again.
    pub fn release(&mut self, bucket: usize) {
        if let Some(at) = self.buckets.get_mut(bucket) {
            *at = NOBODY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenly_shared_tags_go_by_their_remainder() {
        for count in 1..=64u16 {
            let groups = Groups::even(count);
            assert_eq!(groups.count(), count);
            for tag in (0..5000).chain(u32::MAX - 5000..=u32::MAX) {
                let whole = tag as usize % groups.buckets() % usize::from(count);
                assert_eq!(usize::from(groups.of(tag)), whole);
            }
            for tag in 0..1024 {
                assert_eq!(u32::from(groups.of(tag)), tag % u32::from(count));
            }
        }
    }

    #[test]
    fn buckets_move_flows_between_groups() {
        assert!(Groups::of_buckets(&[]).is_none());
        assert!(Groups::of_buckets(&[u16::MAX]).is_none());
        let mut groups = Groups::of_buckets(&[0, 1, 1, 1]).unwrap();
        assert_eq!(groups.count(), 2);
        let of: Vec<u16> = (0..8).map(|tag| groups.of(tag)).collect();
        assert_eq!(of, [0, 1, 1, 1, 0, 1, 1, 1]);
        groups.assign(2, 2);
        groups.assign(4, 3);
        assert_eq!((groups.count(), groups.of(6), groups.of(4)), (3, 2, 0));
        assert_eq!((groups.of_bucket(2), groups.of_bucket(4)), (Some(2), None));
        groups.release(1);
        assert_eq!((groups.count(), groups.of(1)), (3, NOBODY));
        assert!(groups.has(2) && !groups.has(3));
        groups.assign(2, 0);
        groups.recount();
        assert_eq!((groups.count(), groups.has(2)), (2, false));
    }
}
