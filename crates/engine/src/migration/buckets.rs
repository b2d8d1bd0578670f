//! Buckets on their way from one shard to another, and the connections in them, as the workers see it. `scale` says which are to go.
//!
//! The new owner is told first, and keeps what comes for them. Then the I/O threads take them off the old one, which gives as soon as it has had all that was
//! in its queues until then, whoever it handed some of that to has had it, too, and what it has sent has left its own. The new one takes, and what it has kept it takes in. So
//! nothing overtakes what was received, or sent, before it.
//!
//! A connection takes its slot along, which keeps its number, and its receive ring, which stays where it is: a shard may have slots of other shards' parts of a region, and
//! blocks of their parts of the arena. What a program asks of the old owner is handed on (`strays`). What cannot move stays and is pinned; the new owner hands over what comes
//! for it.

use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::Sender;

use millrace_shard::{FlowBatch, Moved, SocketId};
use millrace_tcp::Duration;

use crate::peers::request::{MovedSlot, Request};

/// How long a shard waits in a round for the I/O threads to take what it has sent: they are at it.
const LEAVING: std::time::Duration = std::time::Duration::from_millis(1);
/// How long it tries. After that connections stay.
const PATIENCE: Duration = Duration::from_micros(1_000_000);

/// Bursts of submissions that are served before connections go: more than rings hold, if programs do not write new ones all the time.
const BURSTS: usize = 16;

impl ShardServer {
    /// Buckets are about to come.
    pub(crate) fn expect_buckets(&mut self, buckets: &[usize], batches: usize, taken: Sender<()>) {
        self.shard.expect(buckets);
        let steer = self.shard.config().steer.as_ref();
        let count = steer.map_or(0, |steer| steer.groups.buckets());
        self.link.hold_frames_of(buckets, count);
        self.bucket_moves.expect(batches, taken);
    }

    /// Gives them if it is time; at the end of a round, when what others are to have of it is theirs. Whether there may be something to do again: what programs asked for until then.
    pub(crate) fn give_buckets(&mut self) -> bool {
        if !self.has_received_all() {
            return false;
        }
        let Some(mut leaving) = self.bucket_moves.take_leaving() else {
            return false;
        };
        let since = leaving.since(self.now);
        // A device that takes nothing is not waited for.
        let live = leaving.decision.begin() && self.now - since < PATIENCE;
        let mut chosen = HashMap::new();
        if live {
            let ready = self.shard.is_quiet() && self.is_all_sent();
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
                self.bucket_moves.set_leaving(leaving);
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
    fn has_received_all(&mut self) -> bool {
        let (Some(leaving), Some(peers)) = (self.bucket_moves.leaving_mut(), &self.peers) else {
            return false;
        };
        if !self.link.has_received_up_to(&leaving.positions) {
            return false;
        }
        peers.are_read_up_to(leaving.handed(|| peers.positions()))
    }

    /// Whether the I/O threads have taken all that was sent. It waits for that a little: they are
    /// quick, and there is always more.
    fn is_all_sent(&self) -> bool {
        let start = std::time::Instant::now();
        while !self.link.is_drained() {
            if start.elapsed() > LEAVING {
                return false;
            }
            rustix::thread::sched_yield();
        }
        true
    }

    /// The connections that can go, and where their programs know them; programs are told whom to ask. Those that nobody has any more go, too.
    fn choose(&self, buckets: &[(u16, Vec<usize>)]) -> HashMap<SocketId, Option<ProgramSlot>> {
        let mut chosen = HashMap::new();
        for (to, buckets) in buckets {
            for id in self.shard.movable(buckets) {
                let place = self.slot_of(id);
                let known = place.and_then(|place| {
                    let program = self.programs.get(place.program)?;
                    let entry = program.entries.get(place.slot)?;
                    Some((program.slot(place.slot), entry))
                });
                if let Some((slot, entry)) = known {
                    // It is in a queue of a listener's.
                    // Or other programs hold it, too: their slots would have to go along.
                    let shared = place.is_some_and(|place| self.shared_sockets.contains(place));
                    if entry.owners.waiting().is_some() || shared {
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
    fn keep(&self, chosen: &HashMap<SocketId, Option<ProgramSlot>>) {
        for (id, place) in chosen {
            let Some(place) = place.filter(|place| self.slot_of(*id) == Some(*place)) else {
                continue;
            };
            let program = self.programs.get(place.program);
            if let Some(slot) = program.and_then(|program| program.region.slot(place.slot)) {
                slot.engine.shard.store(self.own, Ordering::Relaxed);
            }
        }
    }

    fn give(
        &mut self,
        buckets: &[(u16, Vec<usize>)],
        chosen: &HashMap<SocketId, Option<ProgramSlot>>,
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
            let slots: Vec<MovedSlot> = parcel
                .connections()
                .filter_map(|id| {
                    // Its program may have closed it since it was chosen, and its slot be another's.
                    let place = self.slot_of(id)?;
                    let program = self.programs.get_mut(place.program)?;
                    let entry = program.entries.leave(place.slot)?;
                    Some(MovedSlot { id, place, entry })
                })
                .collect();
            let places: Vec<ProgramSlot> = slots.iter().map(|slot| slot.place).collect();
            if let Some(peers) = &self.peers {
                let from = peers.own();
                let take = Request::Take {
                    parcel,
                    slots,
                    from,
                };
                peers.tell((*to).into(), take);
            }
            self.record_new_shard(&places, *to);
        }
    }

    /// Slots are on their way to another shard, which has been told: what it is asked for after this it is asked for after that.
    fn record_new_shard(&self, places: &[ProgramSlot], to: u16) {
        for place in places {
            if let Some(program) = self.programs.get(place.program) {
                program.slot_shards.set(place.slot, to);
            }
        }
    }

    /// Buckets have come.
    pub(crate) fn take_flow_batch(&mut self, parcel: FlowBatch, slots: Vec<MovedSlot>, from: u16) {
        let buckets = parcel.buckets().to_vec();
        let taken = self.shard.take(parcel, from, self.now);
        let mut slots: HashMap<SocketId, MovedSlot> =
            slots.into_iter().map(|slot| (slot.id, slot)).collect();
        for (old, new) in taken.moved {
            if let Some(slot) = slots.remove(&old) {
                self.seat(slot, new);
            }
        }
        if !taken.refused.is_empty()
            && let Some(peers) = &self.peers
        {
            let slots: Vec<MovedSlot> = slots.into_values().collect();
            let places: Vec<ProgramSlot> = slots.iter().map(|slot| slot.place).collect();
            let refused = taken.refused;
            peers.tell(from.into(), Request::Back { refused, slots });
            self.record_new_shard(&places, from);
        }
        if let Some(peers) = &mut self.peers {
            let shard = &mut self.shard;
            peers.retry_unpin(|flow, pinned_to| {
                let here = !shard.is_awaited(flow);
                if here {
                    shard.unpin(flow, pinned_to);
                }
                here
            });
        }
        let done = self.bucket_moves.count_batch();
        self.take_kept(&buckets, done);
        self.take_awaited();
        if done {
            self.bucket_moves.end_arrival();
        }
    }

    /// What another shard had no room for is back. One that there is no room for here, either, any more, is over.
    pub(crate) fn take_back(&mut self, refused: Vec<Moved>, slots: Vec<MovedSlot>) {
        let names: HashMap<SocketId, SocketId> =
            self.shard.put_back(refused, self.now).into_iter().collect();
        for slot in slots {
            let id = names.get(&slot.id).copied().unwrap_or(slot.id);
            self.seat(slot, id);
        }
    }

    /// A connection is here, and its program finds it here.
    fn seat(&mut self, slot: MovedSlot, id: SocketId) {
        let MovedSlot {
            place, mut entry, ..
        } = slot;
        let Some(program) = self.programs.get_mut(place.program) else {
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
        self.publisher.note_slot(id, place);
        if self.shard.view(id).is_some() {
            self.take_consumed(place);
        }
        self.mark_changed(place);
    }
}
