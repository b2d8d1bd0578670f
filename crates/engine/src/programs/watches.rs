//! The pollers that watch a slot.

use std::slice;

/// epoll's EPOLLEXCLUSIVE.
const EXCLUSIVE: u32 = 1 << 28;
/// EPOLLEXCLUSIVE in [`Watch::mask`].
const EXCLUSIVE_BIT: u16 = 1 << 15;

/// A poller that watches a socket.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Index of the poller.
    pub poller: u32,
    /// Number of the latest request for it, in `App::watch_order`.
    order: u32,
    /// Position of its last hint for this socket in the poller's ring.
    hint: u32,
    /// The epoll bits that it watches: the lower 15 as in epoll, and [`EXCLUSIVE_BIT`].
    mask: u16,
    has_hint: bool,
}

impl Watch {
    fn new(poller: u32, mask: u32, order: u32) -> Watch {
        Watch {
            poller,
            order,
            hint: 0,
            mask: pack(mask),
            has_hint: false,
        }
    }

    /// Whether it watches any of these epoll bits.
    #[inline]
    pub fn wants(&self, bits: u32) -> bool {
        u32::from(self.mask & !EXCLUSIVE_BIT) & bits != 0
    }

    /// Whether one of several such watches is enough (EPOLLEXCLUSIVE).
    #[inline]
    pub fn is_exclusive(&self) -> bool {
        self.mask & EXCLUSIVE_BIT != 0
    }

    /// Position of its last hint for this socket in the poller's ring.
    #[inline]
    pub fn hint(&self) -> Option<u32> {
        self.has_hint.then_some(self.hint)
    }

    /// Notes the position of a new hint.
    #[inline]
    pub fn hinted_at(&mut self, position: u32) {
        (self.hint, self.has_hint) = (position, true);
    }

    /// The last hint is in the ring of another shard and counts no more.
    pub fn forget_hint(&mut self) {
        self.has_hint = false;
    }
}

/// All epoll bits of sockets are below bit 15, except EPOLLEXCLUSIVE.
fn pack(mask: u32) -> u16 {
    let low = mask as u16 & !EXCLUSIVE_BIT;
    if mask & EXCLUSIVE != 0 {
        low | EXCLUSIVE_BIT
    } else {
        low
    }
}

/// Whether request `a` was made after `b`. Numbers wrap; requests that are under way at once have
/// close numbers.
fn is_later(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// The watches of a slot. Most slots have one, which needs no allocation.
#[derive(Debug, Default)]
pub enum Watches {
    /// No watch.
    #[default]
    None,
    /// One watch.
    One(Watch),
    /// Several watches. Few slots have them, and a box takes one word where a list takes three.
    #[allow(clippy::box_collection, reason = "a box takes one word, a list three")]
    Many(Box<Vec<Watch>>),
}

impl Watches {
    /// All watches.
    #[inline]
    pub fn as_slice(&self) -> &[Watch] {
        match self {
            Watches::None => &[],
            Watches::One(watch) => slice::from_ref(watch),
            Watches::Many(watches) => watches,
        }
    }

    /// All watches, to change them.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [Watch] {
        match self {
            Watches::None => &mut [],
            Watches::One(watch) => slice::from_mut(watch),
            Watches::Many(watches) => watches,
        }
    }

    /// A poller watches the slot, by request number `order`. Returns its watch. An earlier request
    /// than the last one changes nothing.
    pub fn watch(&mut self, poller: u32, mask: u32, order: u32) -> &mut Watch {
        let found = self.as_slice().iter().position(|it| it.poller == poller);
        let index = found.unwrap_or_else(|| {
            self.push(Watch::new(poller, mask, order));
            self.as_slice().len() - 1
        });
        let watch = &mut self.as_mut_slice()[index];
        if is_later(order, watch.order) {
            (watch.mask, watch.order) = (pack(mask), order);
        }
        watch
    }

    /// A poller watches the slot no more, by request number `order`. A later request to watch may
    /// have come first; then this changes nothing. The entry stays, with an empty mask, until the
    /// poller or the slot is gone: an earlier request to watch may still come.
    pub fn unwatch(&mut self, poller: u32, order: u32) {
        self.watch(poller, 0, order);
    }

    /// Hints each poller that watches any of these bits. Of the exclusive watches, one whose
    /// program `sleeps` is enough. If others were passed over for it, it is returned, and
    /// [`Watches::hint_rest`] is due if it has left before it could see the hint. If none of them
    /// sleeps, all are hinted, and the first to check has it.
    #[inline]
    pub fn hint<P>(
        &mut self,
        bits: u32,
        pollers: &mut P,
        sleeps: impl Fn(&P, u32) -> bool,
        mut hint: impl FnMut(&mut P, &mut Watch),
    ) -> Option<u32> {
        let watches = self.as_mut_slice();
        let of_one = |watch: &Watch| watch.is_exclusive() && watch.wants(bits);
        let chosen = watches
            .iter()
            .position(|watch| of_one(watch) && sleeps(pollers, watch.poller));
        for (index, watch) in watches.iter_mut().enumerate() {
            if watch.wants(bits)
                && (!watch.is_exclusive() || chosen.is_none_or(|chosen| chosen == index))
            {
                hint(pollers, watch);
            }
        }
        let chosen = watches[chosen?].poller;
        let passed_over = watches.iter().filter(|watch| of_one(watch)).count() > 1;
        watches.rotate_left(1);
        passed_over.then_some(chosen)
    }

    /// Hints the watches that were passed over for `chosen`, which sleeps no more and may not have
    /// seen its hint.
    #[cold]
    pub fn hint_rest(&mut self, bits: u32, chosen: u32, mut hint: impl FnMut(&mut Watch)) {
        for watch in self.as_mut_slice() {
            if watch.is_exclusive() && watch.wants(bits) && watch.poller != chosen {
                hint(watch);
            }
        }
    }

    /// Adds a watch.
    fn push(&mut self, watch: Watch) {
        match self {
            Watches::None => *self = Watches::One(watch),
            Watches::One(first) => *self = Watches::Many(Box::new(vec![*first, watch])),
            Watches::Many(watches) => watches.push(watch),
        }
    }

    /// The poller is gone.
    pub fn forget_poller(&mut self, poller: u32) {
        match self {
            Watches::None => {}
            Watches::One(watch) if watch.poller == poller => *self = Watches::None,
            Watches::One(_) => {}
            Watches::Many(watches) => watches.retain(|watch| watch.poller != poller),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pollers(watches: &Watches) -> Vec<u32> {
        let all = watches.as_slice().iter();
        all.filter(|watch| watch.mask != 0)
            .map(|watch| watch.poller)
            .collect()
    }

    #[test]
    fn who_has_come_and_not_gone_is_there() {
        let mut watches = Watches::default();
        for poller in 1..5 {
            assert_eq!(pollers(&watches), Vec::from_iter(1..poller));
            watches.watch(poller, 1, poller);
        }
        watches.as_mut_slice()[1].hinted_at(u32::MAX);
        watches.unwatch(3, 5);
        watches.forget_poller(7);
        assert_eq!(pollers(&watches), [1, 2, 4]);
        assert_eq!(watches.as_slice()[1].hint(), Some(u32::MAX));
        for poller in [2, 4, 1] {
            watches.forget_poller(poller);
        }
        assert!(pollers(&watches).is_empty());
    }

    #[test]
    fn in_and_out_takes_no_more_than_one_place() {
        let mut watches = Watches::default();
        for order in 0..10 {
            watches.watch(9, 1, 2 * order);
            assert_eq!(pollers(&watches), [9]);
            watches.unwatch(9, 2 * order + 1);
            assert!(pollers(&watches).is_empty() && watches.as_slice().len() == 1);
        }
        watches.forget_poller(9);
        assert!(watches.as_slice().is_empty() && watches.as_mut_slice().is_empty());
    }

    /// In whatever order the shard serves them.
    #[test]
    fn the_last_of_four_requests_counts_in_every_order() {
        for first in [1, u32::MAX - 2] {
            let flags = [0, 1, 2, 3].map(|by| first.wrapping_add(by));
            for number in 0..4 * 4 * 4 * 4 {
                let turn = [number & 3, number >> 2 & 3, number >> 4 & 3, number >> 6];
                if (0..4).any(|it| !turn.contains(&it)) {
                    continue;
                }
                for starts_in in [false, true] {
                    let mut watches = Watches::default();
                    if starts_in {
                        watches.watch(7, 2, first.wrapping_sub(1));
                    }
                    for at in turn {
                        // It is watched and unwatched in turn.
                        match (at % 2 == 0) != starts_in {
                            true => {
                                watches.watch(7, 1, flags[at]);
                            }
                            false => watches.unwatch(7, flags[at]),
                        }
                    }
                    let there: &[u32] = if starts_in { &[7] } else { &[] };
                    assert_eq!(pollers(&watches), there, "{turn:?}");
                }
            }
        }
    }

    #[test]
    fn the_later_of_two_requests_counts_in_whatever_order_they_come() {
        for first in [1, u32::MAX - 1, u32::MAX, i32::MAX as u32] {
            let [add, delete, again] = [0, 1, 2].map(|by| first.wrapping_add(by));
            for others in 0..2 {
                let mut watches = Watches::default();
                for other in 0..others {
                    watches.watch(100 + other, 1, add);
                }
                watches.watch(7, 1, add);
                // One thread deletes, another adds again, and the shard serves the second request
                // first.
                watches.watch(7, 4 | EXCLUSIVE, again);
                watches.unwatch(7, delete);
                let watch = *watches.as_slice().last().unwrap();
                assert_eq!(watch.poller, 7, "{first} {others}");
                assert!(watch.wants(4) && !watch.wants(1) && watch.is_exclusive());
                // An older mask does not come back.
                watches.watch(7, 1, delete);
                assert!(watches.as_slice().last().unwrap().wants(4));
                watches.unwatch(7, again.wrapping_add(1));
                assert_eq!(pollers(&watches).len(), others as usize);
            }
        }
    }

    #[test]
    fn of_those_who_watch_exclusively_one_that_sleeps_and_wants_it_is_hinted() {
        let (mut watches, mut hinted) = (Watches::default(), Vec::new());
        let hint = |hinted: &mut Vec<u32>, watch: &mut Watch| hinted.push(watch.poller);
        let take = |hinted: &mut Vec<u32>| {
            hinted.sort_unstable();
            std::mem::take(hinted)
        };
        watches.watch(0, 7, 1);
        for poller in 1..4 {
            watches.watch(poller, 1 | EXCLUSIVE, 1 + poller);
        }
        watches.watch(4, 4 | EXCLUSIVE, 5);
        let chosen = watches.hint(1, &mut hinted, |_, poller| poller > 1, hint);
        assert_eq!((chosen, take(&mut hinted)), (Some(2), vec![0, 2]));
        watches.hint_rest(1, 2, |watch| hinted.push(watch.poller));
        assert_eq!(take(&mut hinted), [1, 3], "it had left");
        let chosen = watches.hint(1, &mut hinted, |_, poller| poller == 4, hint);
        assert_eq!(chosen, None);
        assert_eq!(
            take(&mut hinted),
            [0, 1, 2, 3],
            "nobody sleeps that wants it"
        );
        let chosen = watches.hint(4, &mut hinted, |_, _| true, hint);
        assert_eq!(
            (chosen, take(&mut hinted)),
            (None, vec![0, 4]),
            "nobody was passed over"
        );
        let chosen = watches.hint(2, &mut hinted, |_, _| true, hint);
        assert_eq!((chosen, take(&mut hinted)), (None, vec![0]));
    }

    #[test]
    fn every_bit_that_a_socket_has_is_kept() {
        for bit in 0..32 {
            let watch = Watch::new(1, 1 << bit, 0);
            assert_eq!(watch.wants(1 << bit), bit < 15);
            assert_eq!(watch.is_exclusive(), 1 << bit == EXCLUSIVE);
        }
    }

    #[test]
    fn one_takes_no_more_than_itself() {
        assert_eq!(size_of::<Watches>(), size_of::<Watch>());
    }
}
