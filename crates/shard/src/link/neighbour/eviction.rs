//! Which entry gives way when there is no room: one that nobody uses, or one of whoever has made
//! more than a share.

use millrace_tcp::Instant;

use super::entry::Neighbour;
use crate::memory::Owner;
use crate::slab::Slab;

/// Entries looked at to find one that can be evicted.
const EVICT_SAMPLE: u32 = 16;
/// Entries looked at to find one of an owner that has more than its share.
const HOG_SAMPLE: u32 = 1024;

/// How many entries each owner has made.
#[derive(Default)]
pub struct Makers {
    made: Vec<u32>,
    /// Owners that have made some.
    count: u32,
}

impl Makers {
    /// An owner has made an entry.
    pub fn add(&mut self, maker: Owner) {
        let index = maker.0 as usize;
        if self.made.len() <= index {
            self.made.resize(index + 1, 0);
        }
        self.count += u32::from(self.made[index] == 0);
        self.made[index] += 1;
    }

    /// An entry of an owner is gone.
    pub fn remove(&mut self, maker: Owner) {
        let made = &mut self.made[maker.0 as usize];
        *made -= 1;
        self.count -= u32::from(*made == 0);
    }

    fn made_by(&self, owner: Owner) -> u32 {
        self.made.get(owner.0 as usize).copied().unwrap_or(0)
    }
}

/// The place at which entries were looked at last.
#[derive(Default)]
pub struct Hand(u32);

impl Hand {
    /// An entry of an owner that has more than its share of `limit`, also one that sockets wait
    /// for, so that no owner's neighbours give way to what another one has too many of. All have
    /// the same share; `newcomer` wants another entry.
    pub fn find_of_hog(
        &mut self,
        entries: &Slab<Neighbour>,
        makers: &Makers,
        limit: usize,
        newcomer: Option<Owner>,
    ) -> Option<u32> {
        let is_new = newcomer.is_some_and(|owner| makers.made_by(owner) == 0);
        let owners = makers.count + u32::from(is_new);
        if owners < 2 {
            return None;
        }
        let has_too_many = |owner| makers.made_by(owner) as usize * owners as usize > limit;
        let len = entries.len() as u32;
        let mut places = (1..=HOG_SAMPLE.min(len)).map(|ahead| (self.0 + ahead) % len);
        let is_hogs = |place: &u32| {
            let maker = entries.get(*place).and_then(|entry| entry.maker);
            maker.is_some_and(has_too_many)
        };
        let place = places.find(is_hogs)?;
        self.0 = place;
        Some(place)
    }

    /// An entry that no socket waits for: of a sample one that is not known, else the one used
    /// longest ago.
    pub fn find_unused(&mut self, entries: &Slab<Neighbour>) -> Option<u32> {
        let len = entries.len() as u32;
        let mut victim: Option<(bool, Instant, u32)> = None;
        for _ in 0..EVICT_SAMPLE.min(len) {
            self.0 = (self.0 + 1) % len;
            if let Some(entry) = entries.get(self.0)
                && entry.sockets.is_empty()
            {
                let rank = (entry.state.is_known(), entry.used, self.0);
                if victim.is_none_or(|best| rank < best) {
                    victim = Some(rank);
                }
            }
        }
        victim.map(|(_, _, index)| index)
    }
}
