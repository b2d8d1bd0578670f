//! Which entry gives way when there is no room: one that nobody uses, or one of whoever has made
//! more than a share.

use millrace_tcp::Instant;

use super::{Neighbour, Neighbours};
use crate::counters::Counters;
use crate::memory::Owner;

/// Entries looked at to find one that can be evicted.
const EVICT_SAMPLE: u32 = 16;
/// Entries looked at to find one of an owner that has more than its share.
const HOG_SAMPLE: u32 = 1024;

impl Neighbours {
    pub(super) fn count(&mut self, maker: Owner) {
        let index = maker.0 as usize;
        if self.made.len() <= index {
            self.made.resize(index + 1, 0);
        }
        self.makers += u32::from(self.made[index] == 0);
        self.made[index] += 1;
    }

    pub(super) fn count_out(&mut self, maker: Owner) {
        let made = &mut self.made[maker.0 as usize];
        *made -= 1;
        self.makers -= u32::from(*made == 0);
    }

    /// Forgets an entry of an owner that has more than its share, also one that sockets wait for,
    /// so that no owner's neighbours give way to what another one has too many of. All have the
    /// same share; `newcomer` wants another entry.
    pub(super) fn evict_of_hog(
        &mut self,
        newcomer: Option<Owner>,
        counters: &mut Counters,
    ) -> bool {
        let made = |owner: Owner| self.made.get(owner.0 as usize).copied().unwrap_or(0);
        let makers = self.makers + u32::from(newcomer.is_some_and(|owner| made(owner) == 0));
        if makers < 2 {
            return false;
        }
        let has_too_many = |owner: Owner| made(owner) as usize * makers as usize > self.limit;
        let len = self.entries.len() as u32;
        let mut places = (1..=HOG_SAMPLE.min(len)).map(|ahead| (self.hand + ahead) % len);
        let is_hogs = |place: &u32| {
            let entry = self.entries.get(*place);
            entry
                .and_then(|entry| entry.maker)
                .is_some_and(has_too_many)
        };
        let Some(place) = places.find(is_hogs) else {
            return false;
        };
        self.hand = place;
        self.release_waiters(place, None);
        self.forget(place);
        counters.neighbours_limited += 1;
        true
    }

    /// Forgets an entry that no socket waits for: the oldest that is not known or that no
    /// connection ever used, else of a sample the one used longest ago.
    pub(super) fn evict(&mut self) -> bool {
        while let Some(handle) = self.doubtful.pop_front() {
            if let Some(entry) = self
                .entries
                .get_of_generation_mut(handle.index, handle.generation)
                && is_doubtful(entry)
            {
                self.release_waiters(handle.index, None);
                self.forget(handle.index);
                return true;
            }
        }
        let len = self.entries.len() as u32;
        let mut victim: Option<(bool, Instant, u32)> = None;
        for _ in 0..EVICT_SAMPLE.min(len) {
            self.hand = (self.hand + 1) % len;
            if let Some(entry) = self.entries.get(self.hand)
                && entry.sockets.is_empty()
            {
                let rank = (entry.state.is_known(), entry.used, self.hand);
                if victim.is_none_or(|best| rank < best) {
                    victim = Some(rank);
                }
            }
        }
        match victim {
            Some((_, _, index)) => {
                self.release_waiters(index, None);
                self.forget(index);
                true
            }
            None => false,
        }
    }
}

/// Anybody on the link could have caused it, and no socket waits for it.
pub(super) fn is_doubtful(entry: &Neighbour) -> bool {
    entry.sockets.is_empty() && !(entry.wanted && entry.state.is_known())
}
