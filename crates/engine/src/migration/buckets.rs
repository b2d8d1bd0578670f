//! Moves buckets and their connections from one shard to another, as the workers do it. `scale`
//! decides which buckets move.
//!
//! The new owner is told first, and keeps the frames that come for the buckets. Then the I/O
//! threads steer the buckets to it. The old owner gives them once three things hold: it has
//! received all that its queues held until then, the shards to which it handed some of that have
//! received it, and the I/O threads have taken all that it sent. The new owner takes the buckets,
//! then the frames that it kept. So no frame overtakes an earlier one.
//!
//! A connection takes its slot along, which keeps its number, and its receive ring, which stays in
//! place. So a shard may serve slots and blocks in other shards' parts of a region. Requests to the
//! old owner are passed on (`misrouted`). A connection that cannot move stays and is pinned: the
//! new owner hands its frames over.

use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::Sender;

use millrace_shard::{FlowBatch, Moved, SocketId};
use millrace_tcp::Duration;

use crate::peers::request::{MovedSlot, Request};

/// How long a shard waits in one round for the I/O threads to take what it has sent.
const LEAVING: std::time::Duration = std::time::Duration::from_millis(1);
/// How long a shard tries. After that the connections stay.
const PATIENCE: Duration = Duration::from_micros(1_000_000);

/// Bursts of requests that are served before connections leave. That is more than the rings hold,
/// unless programs keep writing.
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

    /// Gives the buckets that are to leave, if it is time. Must be called at the end of a round,
    /// when all frames for other shards are committed. Returns whether there may be new requests to
    /// serve.
    pub(crate) fn give_buckets(&mut self) -> bool {
        if !self.has_received_all() {
            return false;
        }
        let Some(mut leaving) = self.bucket_moves.take_leaving() else {
            return false;
        };
        let since = leaving.since(self.now);
        // It does not wait for a device that takes no frames.
        let live = leaving.decision.begin() && self.now - since < PATIENCE;
        let mut chosen = HashMap::new();
        if live {
            let ready = self.shard.is_quiet() && self.is_all_sent();
            if ready {
                chosen = self.choose(&leaving.buckets);
                // From here on programs ask the new owner. Their earlier requests to this shard
                // come first.
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
        // The control thread does not wait any more if that took too long.
        let _ = leaving.given.send(());
        true
    }

    /// Whether this shard, and those to which it handed frames, have received all that came before
    /// the I/O threads moved the buckets.
    fn has_received_all(&mut self) -> bool {
        let (Some(leaving), Some(peers)) = (self.bucket_moves.leaving_mut(), &self.peers) else {
            return false;
        };
        if !self.link.has_received_up_to(&leaving.positions) {
            return false;
        }
        peers.are_read_up_to(leaving.handed(|| peers.positions()))
    }

    /// Whether the I/O threads have taken all that was sent. Waits a little: the I/O threads are
    /// quick, and there is always more to send.
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

    /// Chooses the connections that can move, with their slots, and tells programs which shard to
    /// ask. Connections that no program holds move too.
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
                    // It waits in an accept queue, or other programs hold it too: their slots would
                    // have to move along.
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

    /// Has programs ask this shard for the connections that have not moved after all.
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
            let batch = match live {
                true => self.shard.give(buckets, *to, |id| chosen.contains_key(&id)),
                false => self.shard.give_new(buckets, *to),
            };
            let Some(batch) = batch else {
                continue;
            };
            let slots: Vec<MovedSlot> = batch
                .connections()
                .filter_map(|id| {
                    // The program may have closed it since it was chosen, and the slot may show
                    // another socket.
                    let place = self.slot_of(id)?;
                    let program = self.programs.get_mut(place.program)?;
                    let entry = program.entries.leave(place.slot)?;
                    Some(MovedSlot { id, place, entry })
                })
                .collect();
            let places: Vec<ProgramSlot> = slots.iter().map(|slot| slot.place).collect();
            if let Some(peers) = &self.peers {
                let from = peers.own();
                let take = Request::Take { batch, slots, from };
                peers.tell((*to).into(), take);
            }
            self.record_new_shard(&places, *to);
        }
    }

    /// Records that slots are served by shard `to`, which has been sent them. A request that is
    /// passed on after this reaches `to` after the slots.
    fn record_new_shard(&self, places: &[ProgramSlot], to: u16) {
        for place in places {
            if let Some(program) = self.programs.get(place.program) {
                program.slot_shards.set(place.slot, to);
            }
        }
    }

    /// Takes buckets that have come.
    pub(crate) fn take_flow_batch(&mut self, batch: FlowBatch, slots: Vec<MovedSlot>, from: u16) {
        let buckets = batch.buckets().to_vec();
        let taken = self.shard.take(batch, from, self.now);
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

    /// Takes back connections for which another shard had no room. A connection for which there is
    /// no room here any more is over.
    pub(crate) fn take_back(&mut self, refused: Vec<Moved>, slots: Vec<MovedSlot>) {
        let names: HashMap<SocketId, SocketId> =
            self.shard.put_back(refused, self.now).into_iter().collect();
        for slot in slots {
            let id = names.get(&slot.id).copied().unwrap_or(slot.id);
            self.seat(slot, id);
        }
    }

    /// Installs a connection that has come, with its slot.
    fn seat(&mut self, slot: MovedSlot, id: SocketId) {
        let MovedSlot {
            place, mut entry, ..
        } = slot;
        let Some(program) = self.programs.get_mut(place.program) else {
            // The program has ended. This shard heard of that first.
            let _ = self.shard.abort(id, self.now);
            return;
        };
        for watch in entry.watches.as_mut_slice() {
            // The last hint is in the ring of another shard.
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
