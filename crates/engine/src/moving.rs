//! Buckets on their way from one shard to another, and the connections in them, as the workers see it. `scale` says which are to go.
//!
//! The new owner is told first, and keeps what comes for them. Then the I/O threads take them off the old one, which gives as soon as it has had all that was
//! in its queues until then, whoever it handed some of that to has had it, too, and what it has sent has left its own. The new one takes, and what it has kept it takes in. So
//! nothing overtakes what was received, or sent, before it.
//!
//! A connection takes its slot along, which keeps its number, and its receive ring, which stays where it is: a shard may have slots of other shards' parts of a region, and
//! blocks of their parts of the arena. What a program asks of the old owner is handed on (`strays`). What cannot move stays and is pinned; the new owner hands over what comes
//! for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::sync::mpsc::Sender;

use millrace_shard::{FlowBatch, Moved, SocketId};
use millrace_tcp::{Duration, Instant};

use crate::peers::Request;
use crate::queues::Awaited;
use crate::socket::Entry;
use crate::worker::{Place, Wire, Worker};

/// How long a shard waits in a round for the I/O threads to take what it has sent: they are at it.
const LEAVING: std::time::Duration = std::time::Duration::from_millis(1);
/// How long it tries. After that connections stay.
const PATIENCE: Duration = Duration::from_micros(1_000_000);

/// Bursts of submissions that are served before connections go: more than rings hold, if programs do not write new ones all the time.
const BURSTS: usize = 16;

/// What is on its way to or from a shard.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    arriving: Option<Arriving>,
    leaving: Option<Leaving>,
}

#[derive(Debug)]
struct Arriving {
    parcels: usize,
    taken: Sender<()>,
}

/// Buckets that are to go.
#[derive(Debug)]
pub struct Leaving {
    /// By the shard that gets them.
    pub(crate) buckets: Vec<(u16, Vec<usize>)>,
    /// How far the queue of each I/O thread had been written when it took them off this shard.
    pub(crate) positions: Vec<usize>,
    /// Whether connections may go along.
    pub(crate) order: Order,
    /// Told when they have gone.
    pub(crate) given: Sender<()>,
    /// Of the rings to the other shards, once the queues have come to theirs.
    handed: Option<Vec<usize>>,
    /// Since when it would have been time.
    since: Option<Instant>,
}

impl Leaving {
    pub(crate) fn new(
        buckets: Vec<(u16, Vec<usize>)>,
        positions: Vec<usize>,
        order: Order,
        given: Sender<()>,
    ) -> Leaving {
        Leaving {
            buckets,
            positions,
            order,
            given,
            handed: None,
            since: None,
        }
    }
}

/// Whether connections go along, which whoever comes first decides: the shard that gives, or the control thread that waits no longer. What goes while the control thread waits is on
/// no shard's way of what it tells them next.
#[derive(Clone, Debug, Default)]
pub struct Order(Arc<AtomicU8>);

impl Order {
    const GOES: u8 = 1;
    const LATE: u8 = 2;

    fn settle(&self, decision: u8) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let before = self.0.compare_exchange(0, decision, success, failure);
        before.is_ok() || before == Err(decision)
    }

    /// The shard begins to give: whether connections go along.
    pub(crate) fn begins(&self) -> bool {
        self.settle(Order::GOES)
    }

    /// Nobody waits any longer: whether it has not begun, and they stay.
    pub(crate) fn is_late(&self) -> bool {
        self.settle(Order::LATE)
    }
}

/// What a program knows a connection by, on its way.
#[derive(Debug)]
pub(crate) struct Guest {
    id: SocketId,
    place: Place,
    entry: Entry,
}

impl Moving {
    /// Whether this shard is to give some.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }
}

impl Worker {
    /// Buckets are about to come.
    pub(crate) fn expect_buckets(&mut self, buckets: &[usize], parcels: usize, taken: Sender<()>) {
        self.shard.expect(buckets);
        let steer = self.shard.config().steer.as_ref();
        let of = steer.map_or(0, |steer| steer.groups.buckets());
        if let Some(Wire::Queues(queues)) = &mut self.wire {
            queues.awaited = Some(Box::new(Awaited::new(of, buckets)));
        }
        self.moving.arriving = Some(Arriving { parcels, taken });
    }

    /// Buckets are to go.
    pub(crate) fn leave_buckets(&mut self, leaving: Leaving) {
        self.moving.leaving = Some(leaving);
    }

    /// Gives them if it is time; at the end of a round, when what others are to have of it is theirs. Whether there may be something to do again: what programs asked for until then.
    pub(crate) fn give_buckets(&mut self) -> bool {
        if !self.has_had_its_own() {
            return false;
        }
        let Some(mut leaving) = self.moving.leaving.take() else {
            return false;
        };
        let since = *leaving.since.get_or_insert(self.now);
        // A device that takes nothing is not waited for.
        let live = leaving.order.begins() && self.now - since < PATIENCE;
        let mut chosen = HashMap::new();
        if live {
            let ready = self.shard.is_quiet() && self.all_has_left();
            if ready {
                chosen = self.choose(&leaving.buckets);
                // Programs ask the new owner from here on: what they have asked of this shard comes first.
                fence(Ordering::SeqCst);
                let mut bursts = 0;
                while bursts < BURSTS && self.serve() > 0 {
                    bursts += 1;
                }
            }
            if !ready || !self.shard.is_quiet() {
                self.keep(&chosen);
                self.moving.leaving = Some(leaving);
                return ready;
            }
        }
        self.give(&leaving.buckets, &chosen, live);
        self.keep(&chosen);
        // Nobody waits any more if that took too long.
        let _ = leaving.given.send(());
        true
    }

    /// Whether all has been taken in that came before the buckets were taken off this shard, here and by those to whom some of it was handed.
    fn has_had_its_own(&mut self) -> bool {
        let (Some(leaving), Some(peers)) = (&mut self.moving.leaving, &self.peers) else {
            return false;
        };
        let passed = match &self.wire {
            Some(Wire::Queues(queues)) => queues.side.inbound.has_passed(&leaving.positions),
            _ => true,
        };
        if !passed {
            return false;
        }
        let handed = leaving.handed.get_or_insert_with(|| peers.positions());
        peers.are_read_up_to(handed)
    }

    /// Whether the I/O threads have taken what was sent; it is waited for a little, since they are quick and there is always more.
    fn all_has_left(&self) -> bool {
        let Some(Wire::Queues(queues)) = &self.wire else {
            return true;
        };
        let start = std::time::Instant::now();
        while !queues.side.outbound.is_read() {
            if start.elapsed() > LEAVING {
                return false;
            }
            rustix::thread::sched_yield();
        }
        true
    }

    /// The connections that can go, and where their programs know them; programs are told whom to ask. Those that nobody has any more go, too.
    fn choose(&self, buckets: &[(u16, Vec<usize>)]) -> HashMap<SocketId, Option<Place>> {
        let mut chosen = HashMap::new();
        for (to, buckets) in buckets {
            for id in self.shard.movable(buckets) {
                let place = self.place(id);
                let known = place.and_then(|place| {
                    let program = self.programs[place.program as usize].as_ref()?;
                    let entry = program.entries.get(place.slot)?;
                    Some((program.slot(place.slot), entry))
                });
                if let Some((slot, entry)) = known {
                    // It is in a queue of a listener's.
                    // Or other programs hold it, too: their slots would have to go along.
                    let shared = place.is_some_and(|place| self.sharers.know(place));
                    if entry.keepers.waiting().is_some() || shared {
                        continue;
                    }
                    slot.engine.shard.store((*to).into(), Ordering::Relaxed);
                }
                chosen.insert(id, place);
            }
        }
        chosen
    }

    /// What has not gone after all is asked for here.
    fn keep(&self, chosen: &HashMap<SocketId, Option<Place>>) {
        for (id, place) in chosen {
            let Some(place) = place.filter(|place| self.place(*id) == Some(*place)) else {
                continue;
            };
            let program = self.programs[place.program as usize].as_ref();
            if let Some(slot) = program.and_then(|program| program.region.slot(place.slot)) {
                slot.engine.shard.store(self.own, Ordering::Relaxed);
            }
        }
    }

    fn give(
        &mut self,
        buckets: &[(u16, Vec<usize>)],
        chosen: &HashMap<SocketId, Option<Place>>,
        live: bool,
    ) {
        for (to, buckets) in buckets {
            let parcel = match live {
                true => self.shard.give(buckets, *to, |id| chosen.contains_key(&id)),
                false => self.shard.give_new(buckets, *to),
            };
            let Some(parcel) = parcel else {
                continue;
            };
            let guests: Vec<Guest> = parcel
                .connections()
                .filter_map(|id| {
                    // Its program may have closed it since it was chosen, and its slot be another's.
                    let place = self.place(id)?;
                    let program = self.programs[place.program as usize].as_mut()?;
                    let entry = program.entries.leave(place.slot)?;
                    Some(Guest { id, place, entry })
                })
                .collect();
            let places: Vec<Place> = guests.iter().map(|guest| guest.place).collect();
            if let Some(peers) = &self.peers {
                let from = peers.own;
                let take = Request::Take {
                    parcel,
                    guests,
                    from,
                };
                peers.tell((*to).into(), take);
            }
            self.say_where(&places, *to);
        }
    }

    /// Slots are on their way to another shard, which has been told: what it is asked for after this it is asked for after that.
    fn say_where(&self, places: &[Place], to: u16) {
        for place in places {
            if let Some(program) = &self.programs[place.program as usize] {
                program.whereabouts.set(place.slot, to);
            }
        }
    }

    /// Buckets have come.
    pub(crate) fn take_parcel(&mut self, parcel: FlowBatch, guests: Vec<Guest>, from: u16) {
        let buckets = parcel.buckets().to_vec();
        let taken = self.shard.take(parcel, from, self.now);
        let mut guests: HashMap<SocketId, Guest> =
            guests.into_iter().map(|guest| (guest.id, guest)).collect();
        for (old, new) in taken.moved {
            if let Some(guest) = guests.remove(&old) {
                self.seat(guest, new);
            }
        }
        if !taken.refused.is_empty()
            && let Some(peers) = &self.peers
        {
            let guests: Vec<Guest> = guests.into_values().collect();
            let places: Vec<Place> = guests.iter().map(|guest| guest.place).collect();
            let refused = taken.refused;
            peers.tell(from.into(), Request::Back { refused, guests });
            self.say_where(&places, from);
        }
        if let Some(peers) = &mut self.peers {
            let unpinned = std::mem::take(&mut peers.unpinned);
            for (flow, shard) in unpinned {
                match self.shard.is_awaited(&flow) {
                    true => peers.unpinned.push((flow, shard)),
                    false => self.shard.unpin(&flow, shard),
                }
            }
        }
        let mut done = false;
        if let Some(arriving) = &mut self.moving.arriving {
            arriving.parcels = arriving.parcels.saturating_sub(1);
            done = arriving.parcels == 0;
        }
        self.take_kept(&buckets, done);
        self.take_awaited();
        if done && let Some(arriving) = self.moving.arriving.take() {
            // Nobody waits any more if that took too long.
            let _ = arriving.taken.send(());
        }
    }

    /// What another shard had no room for is back. One that there is no room for here, either, any more, is over.
    pub(crate) fn take_back(&mut self, refused: Vec<Moved>, guests: Vec<Guest>) {
        let names: HashMap<SocketId, SocketId> =
            self.shard.put_back(refused, self.now).into_iter().collect();
        for guest in guests {
            let id = names.get(&guest.id).copied().unwrap_or(guest.id);
            self.seat(guest, id);
        }
    }

    /// A connection is here, and its program finds it here.
    fn seat(&mut self, guest: Guest, id: SocketId) {
        let Guest {
            place, mut entry, ..
        } = guest;
        let program = self.programs.get_mut(place.program as usize);
        let Some(program) = program.and_then(Option::as_mut) else {
            // It is over, which this shard has heard first.
            let _ = self.shard.abort(id, self.now);
            return;
        };
        for watch in entry.watches.as_mut_slice() {
            // Where the last one stands in another shard's ring.
            watch.forget_hint();
        }
        entry.socket = Some(id);
        program.entries.seat(place.slot, entry);
        let slot = program.slot(place.slot);
        slot.engine.shard.store(self.own, Ordering::Relaxed);
        self.places.note(id, place);
        if self.shard.view(id).is_some() {
            self.take_consumed(place);
        }
        self.touch(place);
    }

    /// Takes in what was kept for buckets that have come; nothing is kept any more after the last of them.
    fn take_kept(&mut self, buckets: &[usize], last: bool) {
        let Some(Wire::Queues(queues)) = &mut self.wire else {
            return;
        };
        let Some(awaited) = &mut queues.awaited else {
            return;
        };
        awaited.arrived(buckets);
        let (shard, peers) = (&mut self.shard, &mut self.peers);
        let (counters, now) = (&mut self.counters, self.now);
        awaited.take(|frame| {
            shard.input(frame, now);
            counters.frames_in += 1;
            if let Some(peers) = peers
                && let Some((stray, whole)) = shard.take_misrouted()
            {
                peers.pass(stray, frame, whole.as_deref(), counters);
            }
        });
        if last {
            queues.awaited = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_first_decides_whether_connections_go_along() {
        let order = Order::default();
        assert!(order.begins() && order.begins());
        assert!(!order.is_late());
        let order = Order::default();
        assert!(order.is_late());
        assert!(!order.begins());
    }
}
