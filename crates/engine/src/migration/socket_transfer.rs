//! Sockets that programs have passed to other programs in messages (SCM_RIGHTS).
//!
//! A program's memory is mapped by that program and the engine alone, so a socket is in the memory of one of the programs that hold it: of the one that has received it, or
//! has called for it, last. It goes there with all that has not been read, and with the connections that wait in its queue. Each of the others keeps a slot, which shows what the
//! socket is ready for and no more ([`Status::ELSEWHERE`]): its program has the socket back when it asks for it ([`millrace_context::Operation::Recall`]), or when the program
//! that has it holds it no more.
//!
//! A socket leaves a slot only while no thread of its program is in the middle of a call on it: the shard takes the slot's locks, and does not wait for them. All slots of
//! one socket are served by one shard, whose connection does not move to another meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{EAGAIN, EBADF, ENFILE, ENOBUFS, ESTALE};
use millrace_context::{Region, SlotRef, Status, lock};
use millrace_shard::{Block, Memory, Owner, SocketId, View};

use crate::peers::Request;
use crate::programs::entry::{AcceptRing, IN_FLIGHT, Process, Waiting};
use crate::requests::serve::{Outcome, done};
use crate::worker::publish::{IN, OUT, PRI, status};
use crate::worker::{ProgramSlot, Worker};

const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;

/// The slots of sockets that several programs hold.
#[derive(Debug, Default)]
pub(crate) struct SharedSockets {
    groups: HashMap<ProgramSlot, u64>,
    places: HashMap<u64, Vec<ProgramSlot>>,
    next: u64,
    /// A program has been served in this round, out of its turn, before a socket went from it.
    busy: bool,
}

impl SharedSockets {
    /// A new round: one program may be served out of its turn.
    pub(crate) fn begin_round(&mut self) {
        self.busy = false;
    }

    /// Whether a slot is one of several of one socket.
    pub(crate) fn know(&self, place: ProgramSlot) -> bool {
        !self.groups.is_empty() && self.groups.contains_key(&place)
    }

    /// All slots of a socket; the last one has it.
    fn of(&self, place: ProgramSlot) -> &[ProgramSlot] {
        let group = self.groups.get(&place);
        let places = group.and_then(|group| self.places.get(group));
        places.map_or(&[], Vec::as_slice)
    }

    /// A socket has gone from one slot to another.
    fn note(&mut self, from: ProgramSlot, to: ProgramSlot) {
        let group = *self.groups.entry(from).or_insert_with(|| {
            self.next += 1;
            self.next
        });
        self.groups.insert(to, group);
        let places = self.places.entry(group).or_insert_with(|| vec![from]);
        places.retain(|place| *place != to);
        places.push(to);
    }

    /// A slot is free.
    fn forget(&mut self, place: ProgramSlot) {
        let Some(group) = self.groups.remove(&place) else {
            return;
        };
        let Some(places) = self.places.get_mut(&group) else {
            return;
        };
        places.retain(|other| *other != place);
        if let [last] = places[..] {
            self.groups.remove(&last);
            self.places.remove(&group);
        }
    }
}

/// Both locks of a slot, until it is dropped.
struct Locks(Option<(Arc<Region>, u32, u32)>);

impl Drop for Locks {
    fn drop(&mut self) {
        if let Some((region, slot, own)) = &self.0
            && let Some(slot) = region.slot(*slot)
        {
            for word in [&slot.app.write_lock, &slot.app.read_lock] {
                // Unless the slot is another socket's by now.
                if lock::holder(word.load(Ordering::Relaxed)) == *own {
                    lock::release(word);
                }
            }
        }
    }
}

impl Worker {
    /// A process of another program has received a socket of this one's: what its program calls it.
    pub(crate) fn transfer(
        &mut self,
        from: u32,
        socket: SlotRef,
        to: u32,
        process: Process,
    ) -> Result<SlotRef, i32> {
        let exists = |program: u32| {
            let program = self.programs.get(program as usize);
            program.is_some_and(Option::is_some)
        };
        if !exists(from) || !exists(to) {
            return Err(ESTALE);
        }
        let place = self.find(from, socket).map_err(|_| ESTALE)?;
        let owners = &self.program(from).entries[place.slot].owners;
        if !owners.holders().contains(&IN_FLIGHT) {
            return Err(ESTALE);
        }
        let places = self.shared_sockets.of(place);
        let at = places.last().copied().unwrap_or(place);
        let known = places.iter().find(|place| place.program == to).copied();
        let place = match known {
            Some(known) if known == at => at,
            Some(known) => self.hand_to(at, known).map(|()| known)?,
            None => self.hand_to_new(at, to)?,
        };
        let program = self.program(to);
        program.entries[place.slot].owners.hold(process);
        let reference = program.reference(place.slot);
        // The slot must say what it is by the time the program looks at it.
        self.publish();
        Ok(reference)
    }

    fn hand_to_new(&mut self, at: ProgramSlot, program: u32) -> Result<ProgramSlot, i32> {
        let slot = self.program(program).open_slot().ok_or(ENFILE)?;
        let place = ProgramSlot { program, slot };
        self.hand_to(at, place)
            .inspect_err(|_| self.program(program).give_back_slot(slot))?;
        Ok(place)
    }

    /// A program wants a socket back that another one has.
    pub(crate) fn recall(&mut self, place: ProgramSlot) -> Outcome {
        let at = self
            .shared_sockets
            .of(place)
            .last()
            .copied()
            .unwrap_or(place);
        if at != place {
            self.hand_to(at, place)?;
        }
        done()
    }

    /// The program of a slot holds its socket no more: one that does gets it.
    pub(crate) fn leave_to_sharers(&mut self, place: ProgramSlot) {
        if !self.shared_sockets.know(place) {
            return;
        }
        let places = self.shared_sockets.of(place).to_vec();
        if let Some((at, others)) = places.split_last()
            && *at == place
        {
            let others = others.iter().rev();
            let outcomes = others.map(|other| self.hand_over_unlocked(place, *other));
            if !outcomes.into_iter().any(|outcome| outcome.is_ok()) {
                self.counters.transfers_failed += 1;
            }
        }
        self.shared_sockets.forget(place);
    }

    /// All that a program has of sockets that others hold, too, goes to those.
    pub(crate) fn leave_all_to_sharers(&mut self, program: u32) {
        let places = self.shared_sockets.groups.keys().copied();
        let its: Vec<ProgramSlot> = places.filter(|place| place.program == program).collect();
        for place in its {
            self.leave_to_sharers(place);
        }
        self.publish();
    }

    /// Of sockets that have changed, the slots of the other programs that hold them have changed, too.
    pub(crate) fn touch_elsewhere(&self, touched: &mut Vec<ProgramSlot>) {
        if self.shared_sockets.groups.is_empty() {
            return;
        }
        for at in 0..touched.len() {
            if let Some((last, others)) = self.shared_sockets.of(touched[at]).split_last()
                && *last == touched[at]
            {
                touched.extend_from_slice(others);
            }
        }
    }

    /// Writes a slot whose socket another program has: what the program can know of it without fetching it.
    pub(crate) fn show_elsewhere(&self, place: ProgramSlot) {
        let of = |place: ProgramSlot| {
            let program = self.programs[place.program as usize].as_ref()?;
            Some((program, program.entries.get(place.slot)?))
        };
        let at = self
            .shared_sockets
            .of(place)
            .last()
            .copied()
            .unwrap_or(place);
        let (Some((program, _)), Some((other, entry))) = (of(place), of(at)) else {
            return;
        };
        let slot = program.slot(place.slot);
        let consumed = slot.app.consumed.load(Ordering::Relaxed);
        let app = &other.slot(at.slot).app;
        let taken = app.consumed.load(Ordering::Relaxed);
        let (received, ready) = match (entry.accepts(), entry.socket) {
            (Some(queue), _) => (queue.pushed, if queue.pushed > taken { IN } else { 0 }),
            (None, Some(id)) => {
                let view = self.shard.view(id);
                let seen = app.error_seen.load(Ordering::Relaxed) == entry.error;
                let failed = entry.error & 0xffff != 0 && !seen;
                view.map_or((0, HUP | ERR), |view| {
                    (view.received, ready(&view, taken, failed))
                })
            }
            (None, None) => (0, OUT | HUP),
        };
        slot.engine.show_elsewhere(consumed, received, ready);
    }

    /// A socket goes from the slot that has it to another of one of its programs.
    fn hand_to(&mut self, from: ProgramSlot, to: ProgramSlot) -> Result<(), i32> {
        // A program that is being served may ask for a socket of one that is served for that; and whoever asks again and again gets no more than one turn for others.
        if self.shared_sockets.busy {
            return Err(EAGAIN);
        }
        let _locks = self.lock(from)?;
        let generation = self.program(from.program).entries[from.slot].generation;
        // What the program has asked for of it comes first. Nothing more does: its threads are kept out.
        self.shared_sockets.busy = true;
        if !self.serve_before(from.program) {
            return Err(EAGAIN);
        }
        let last = self.shared_sockets.of(from).last().copied();
        let entry = self.program(from.program).entries.get(from.slot);
        let stays = entry.is_some_and(|entry| entry.open && entry.generation == generation);
        match stays && last.unwrap_or(from) == from {
            true => self.hand_over_unlocked(from, to),
            false => Err(EAGAIN),
        }
    }

    /// Keeps the threads of a program out of a socket, unless one is in the middle of a call. What no process holds but a message none of them can reach.
    fn lock(&mut self, place: ProgramSlot) -> Result<Locks, i32> {
        let program = self.program(place.program);
        let holders = program.entries[place.slot].owners.holders();
        if holders.iter().all(|holder| *holder == IN_FLIGHT) {
            return Ok(Locks(None));
        }
        let region = program.region.clone();
        let app = &region.slot(place.slot).ok_or(EBADF)?.app;
        let own = rustix::thread::gettid().as_raw_pid() as u32;
        if !lock::take_free(&app.read_lock, own) {
            return Err(EAGAIN);
        }
        if !lock::take_free(&app.write_lock, own) {
            lock::release(&app.read_lock);
            return Err(EAGAIN);
        }
        Ok(Locks(Some((region, place.slot, own))))
    }

    fn hand_over_unlocked(&mut self, from: ProgramSlot, to: ProgramSlot) -> Result<(), i32> {
        self.take_consumed(from);
        let entry = &self.program(from.program).entries[from.slot];
        let (socket, queue, replicated) =
            (entry.socket, entry.accepts().copied(), entry.replicated);
        let taken = self.program(from.program).slot(from.slot);
        let taken = taken.app.consumed.load(Ordering::Acquire);
        let (mut consumed, mut queued) = (taken, 0);
        let block = queue.map(|queue| self.queue_for(to, queue)).transpose()?;
        if let Some(id) = socket {
            let owner = Owner(to.program);
            let changed = self.shard.change_owner(id, owner, to.slot, self.now);
            if let Err(error) = changed {
                if let Some(block) = block {
                    self.shard.memory_mut().free(owner, block);
                }
                return Err(error.errno());
            }
            if let Some(view) = self.shard.view(id).filter(|_| queue.is_none()) {
                (consumed, queued) = (view.consumed, view.queued);
            }
            self.places.note(id, to);
        }
        if let (Some(queue), Some(block)) = (queue, block) {
            consumed = self.hand_over_queue((from, to), (queue, taken), block, replicated);
        } else if replicated {
            self.rename_elsewhere(from, to, &Arc::default());
        }
        self.seat_transferred((from, to), socket, (consumed, queued));
        self.shared_sockets.note(from, to);
        self.counters.transfers += 1;
        self.mark_changed(from);
        self.mark_changed(to);
        if queue.is_some() {
            let mut touched = std::mem::take(&mut self.touched);
            self.fill_accept_ring(to, &mut touched);
            self.touched = touched;
        }
        Ok(())
    }

    /// The entries and slots of a socket that goes from one program to another.
    fn seat_transferred(
        &mut self,
        (from, to): (ProgramSlot, ProgramSlot),
        socket: Option<SocketId>,
        (consumed, queued): (u64, u64),
    ) {
        let mut entry = std::mem::take(&mut self.program(to.program).entries[to.slot]);
        let left = &mut self.program(from.program).entries[from.slot];
        left.leave_for(&mut entry);
        entry.socket = socket;
        self.program(to.program).entries[to.slot] = entry;
        let old = self.program(from.program).region.clone();
        if let Some(old) = old.slot(from.slot) {
            let new = self.program(to.program).slot(to.slot);
            new.take_over(old, consumed, queued);
        }
    }

    fn queue_for(&mut self, to: ProgramSlot, queue: AcceptRing) -> Result<Block, i32> {
        let memory = self.shard.memory_mut();
        memory
            .allocate(Owner(to.program), queue.log2)
            .ok_or(ENOBUFS)
    }

    /// The connections of a listener's queue, of which the program has taken `taken`, go to another program's; how many of its own that one has taken.
    fn hand_over_queue(
        &mut self,
        (from, to): (ProgramSlot, ProgramSlot),
        (queue, taken): (AcceptRing, u64),
        block: Block,
        replicated: bool,
    ) -> u64 {
        let waiting = self.read_queue(from, queue, taken);
        let peers = self.peers.as_mut();
        let late = peers.and_then(|peers| peers.late.remove(&from));
        let late: Vec<SlotRef> = late.into_iter().flatten().collect();
        let all = waiting.iter().chain(&late);
        let listed: Arc<HashSet<u64>> = Arc::new(all.map(|slot| slot.to_bits()).collect());
        let mut renamed: Vec<(SlotRef, SlotRef)> = self.move_waiting(from, to, &listed);
        if replicated {
            renamed.extend(self.rename_elsewhere(from, to, &listed));
        }
        let (memory, left) = (self.shard.memory_mut(), Owner(from.program));
        let old = Block {
            at: queue.at,
            log2: queue.log2,
        };
        memory.free(left, old);
        self.program(from.program).entries[from.slot].take_accepts();
        // In their order; then those of other shards of which this one has not heard yet.
        let mut names: HashMap<u64, SlotRef> = renamed
            .iter()
            .map(|(old, new)| (old.to_bits(), *new))
            .collect();
        let take = |slot: &SlotRef| names.remove(&slot.to_bits());
        let first: Vec<SlotRef> = waiting.iter().filter_map(take).collect();
        let mut rest: Vec<SlotRef> = late
            .iter()
            .filter_map(|slot| names.remove(&slot.to_bits()))
            .collect();
        rest.extend(names.into_values());
        let start = queue.pushed - first.len() as u64;
        let program = self.program(to.program);
        program.entries[to.slot].set_accepts(AcceptRing {
            at: block.at,
            log2: block.log2,
            pushed: start,
        });
        for (position, slot) in (start..).zip(first) {
            program.append_accepted(to.slot, slot);
            if let Some(entry) = program.entries.get_mut(slot.index) {
                entry.owners = Waiting {
                    listener: to.slot,
                    position,
                }
                .into();
            }
        }
        if let Some(peers) = &mut self.peers {
            for stuck in peers.stuck.iter_mut().filter(|stuck| **stuck == from) {
                *stuck = to;
            }
            if !rest.is_empty() {
                peers.late.insert(to, rest.into());
                peers.note_stuck(to);
            }
        }
        start
    }

    /// What waits in a listener's queue, as far as what the program may have written there is believed.
    fn read_queue(&mut self, listener: ProgramSlot, queue: AcceptRing, taken: u64) -> Vec<SlotRef> {
        let region = &self.program(listener.program).region;
        let least = queue.pushed.saturating_sub(queue.capacity());
        let positions = taken.clamp(least, queue.pushed)..queue.pushed;
        let read = |position: u64| {
            let mut word = [0; 8];
            let at = queue.at + ((position * 8) & ((1 << queue.log2) - 1));
            region.read_arena(at, &mut word);
            SlotRef::from_bits(u64::from_ne_bytes(word))
        };
        positions.map(read).collect()
    }

    /// Connections that this shard has accepted for a listener get slots of another program: those of `queue`, and those that nobody has claimed.
    pub(crate) fn move_waiting(
        &mut self,
        from: ProgramSlot,
        to: ProgramSlot,
        queue: &HashSet<u64>,
    ) -> Vec<(SlotRef, SlotRef)> {
        let program = self.program(from.program);
        let waits = |slot: &u32| {
            let entry = &program.entries[*slot];
            let waiting = entry.owners.waiting();
            let its = waiting.is_some_and(|waiting| waiting.listener == from.slot);
            let listed = || queue.contains(&program.reference(*slot).to_bits());
            entry.open && its && (listed() || !program.is_claimed(*slot))
        };
        let waiting: Vec<u32> = program.entries.numbers().filter(waits).collect();
        let mut renamed = Vec::with_capacity(waiting.len());
        for slot in waiting {
            let old = self.program(from.program).reference(slot);
            let place = ProgramSlot {
                program: from.program,
                slot,
            };
            if let Some(new) = self.move_one_waiting(place, to) {
                renamed.push((old, new));
            }
        }
        renamed
    }

    /// One of them; none if it has been reset, since the other program has no room for it.
    fn move_one_waiting(&mut self, place: ProgramSlot, listener: ProgramSlot) -> Option<SlotRef> {
        let (owner, now) = (Owner(listener.program), self.now);
        let entry = &mut self.program(place.program).entries[place.slot];
        entry.owners.take_waiting();
        let id = entry.socket.take();
        let slot = self.program(listener.program).open_slot();
        let moved = id.zip(slot).filter(|(id, slot)| {
            let changed = self.shard.change_owner(*id, owner, *slot, now);
            changed.is_ok()
        });
        self.close(place);
        let Some((id, slot)) = moved else {
            if let Some(slot) = slot {
                self.program(listener.program).give_back_slot(slot);
            }
            if let Some(id) = id {
                self.counters.transfers_failed += 1;
                let _ = self.shard.abort(id, now);
            }
            return None;
        };
        let program = self.program(listener.program);
        program.entries[slot].owners = Waiting {
            listener: listener.slot,
            // It has one at the listener's home only, which gives it that.
            position: 0,
        }
        .into();
        let reference = program.reference(slot);
        let place = ProgramSlot {
            program: listener.program,
            slot,
        };
        self.attach_socket(id, place);
        self.mark_changed(place);
        Some(reference)
    }

    /// What other shards stand in for is another program's.
    fn rename_elsewhere(
        &mut self,
        from: ProgramSlot,
        to: ProgramSlot,
        queue: &Arc<HashSet<u64>>,
    ) -> Vec<(SlotRef, SlotRef)> {
        let generation = self.program(to.program).entries[to.slot].generation;
        let mut renamed = Vec::new();
        let _ = self.in_shard_order(|worker, shard| {
            let Some(shard) = shard else {
                return Ok(());
            };
            let answer = worker.ask_peer_for(shard, |reply| Request::Rename {
                from,
                to,
                generation,
                queue: queue.clone(),
                reply,
            });
            renamed.extend(answer.unwrap_or_default());
            Ok(())
        });
        renamed
    }
}

/// What a socket is ready for of which `taken` has been read: Linux's `tcp_poll` and `udp_poll`. What is not so is corrected when the program has fetched it.
fn ready(view: &View, taken: u64, failed: bool) -> u32 {
    let status = status(view);
    let dead = status.contains(Status::DEAD);
    let fresh = !status
        .intersects(Status::CONNECTING | Status::CONNECTED | Status::DATAGRAM | Status::DEAD);
    let read_closed = dead || status.contains(Status::READ_CLOSED);
    let write_closed = dead || status.contains(Status::WRITE_CLOSED);
    let room = (view.queued - view.acked) * 3 <= u64::from(view.send_limit) * 2;
    let mut ready = 0;
    let mut set = |holds: bool, bits: u32| ready |= if holds { bits } else { 0 };
    set(view.received > taken, IN & !RDHUP);
    set(read_closed, IN);
    set(fresh || read_closed && write_closed, HUP);
    set(status.contains(Status::URGENT), PRI);
    let connecting = status.contains(Status::CONNECTING);
    set(fresh || write_closed || room && !connecting, OUT);
    let datagrams = status.contains(Status::DATAGRAM);
    set(failed && (dead || fresh || datagrams), ERR);
    set(status.contains(Status::FAILURES), ERR);
    ready
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_where_it_went_last() {
        let place = |program| ProgramSlot { program, slot: 7 };
        let mut shared_sockets = SharedSockets::default();
        assert!(!shared_sockets.know(place(1)) && shared_sockets.of(place(1)).is_empty());
        shared_sockets.note(place(1), place(2));
        shared_sockets.note(place(2), place(3));
        shared_sockets.note(place(3), place(1));
        for program in 1..=3 {
            assert_eq!(
                shared_sockets.of(place(program)),
                [place(2), place(3), place(1)]
            );
        }
        shared_sockets.forget(place(3));
        assert_eq!(shared_sockets.of(place(1)), [place(2), place(1)]);
        shared_sockets.forget(place(1));
        assert!(!shared_sockets.know(place(1)) && !shared_sockets.know(place(2)));
    }
}
