//! Moves sockets between programs that share them (SCM_RIGHTS).
//!
//! Only a program and the engine map the program's region, so a shared socket is in the region of
//! one of its programs: the one that received it or recalled it last. The socket moves with all
//! unread data and with the connections in its accept queue. Each of the other programs keeps a
//! slot that only shows what the socket is ready for ([`millrace_context::Status::ELSEWHERE`]).
//! Such a program gets the socket back when it recalls it
//! ([`millrace_context::Operation::Recall`]), or when the program that has it releases it.
//!
//! A socket leaves a slot only while no thread of the program is in a call on it: the shard takes
//! the locks of the slot, and does not wait for them. One shard serves all slots of a shared
//! socket, and the connection does not move to another shard meanwhile.

use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{EAGAIN, EBADF, ENFILE, ENOBUFS, ESTALE};
use millrace_context::{Region, SlotRef, lock};
use millrace_shard::{Block, Memory, Owner, SocketId};

use crate::peers::request::Request;
use crate::programs::entry::AcceptRing;
use crate::programs::owners::{IN_FLIGHT, Process, Waiting};
use crate::requests::outcome::{Outcome, done};

/// Holds both locks of a slot until it is dropped.
struct Locks(Option<(Arc<Region>, u32, u32)>);

impl Drop for Locks {
    fn drop(&mut self) {
        if let Some((region, slot, own)) = &self.0
            && let Some(slot) = region.slot(*slot)
        {
            for word in [&slot.app.write_lock, &slot.app.read_lock] {
                // The slot may show another socket by now.
                if lock::holder(word.load(Ordering::Relaxed)) == *own {
                    lock::release(word);
                }
            }
        }
    }
}

impl ShardServer {
    /// Moves a socket to a program that has received it. Returns the slot in that program.
    pub(crate) fn transfer(
        &mut self,
        from: u32,
        socket: SlotRef,
        to: u32,
        process: Process,
    ) -> Result<SlotRef, i32> {
        if !self.programs.has(from) || !self.programs.has(to) {
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
        // The slot must be published before the program reads it.
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

    /// Moves a socket back to a program that asks for it.
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

    /// A program releases its slot. The socket moves to another program that holds it.
    pub(crate) fn leave_to_sharers(&mut self, place: ProgramSlot) {
        if !self.shared_sockets.contains(place) {
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

    /// Moves all shared sockets of a program to the other programs that hold them.
    pub(crate) fn leave_all_to_sharers(&mut self, program: u32) {
        for place in self.shared_sockets.slots_of(program) {
            self.leave_to_sharers(place);
        }
        self.publish();
    }

    /// Moves a socket from the slot that has it to another of its slots.
    fn hand_to(&mut self, from: ProgramSlot, to: ProgramSlot) -> Result<(), i32> {
        // Recalls must not nest. A program that recalls again and again gets one turn of others in
        // a round.
        if !self.shared_sockets.may_move() {
            return Err(EAGAIN);
        }
        let _locks = self.lock(from)?;
        let generation = self.program(from.program).entries[from.slot].generation;
        // The earlier requests of the program for the socket come first. Its threads are locked
        // out, so no further request comes.
        self.shared_sockets.begin_move();
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

    /// Locks the threads of a program out of a socket, unless one is in a call. No thread can reach
    /// a socket that only messages hold.
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
            self.publisher.note_slot(id, to);
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
            self.fill_accept_ring(to);
        }
        Ok(())
    }

    /// Moves the state of the slot from one program to another.
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

    /// Moves the accept queue of a listener, of which its program has taken `taken` connections, to
    /// another program. Returns the number of connections that the other program counts as taken.
    fn hand_over_queue(
        &mut self,
        (from, to): (ProgramSlot, ProgramSlot),
        (queue, taken): (AcceptRing, u64),
        block: Block,
        replicated: bool,
    ) -> u64 {
        let waiting = self.read_queue(from, queue, taken);
        let peers = self.peers.as_mut();
        let late = peers.map_or_else(Vec::new, |peers| peers.backlog.take_late(from));
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
        // First in the order of the queue, then connections of other shards that this one has not
        // heard of.
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
            peers.backlog.rename_stuck(from, to);
            peers.backlog.set_late(to, rest);
        }
        start
    }

    /// Reads the connections that wait in an accept queue. The program may have overwritten them,
    /// so each is checked later.
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

    /// Moves connections that this shard has accepted for a listener to slots of another program:
    /// those in `queue`, and those that no process has claimed.
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

    /// Moves one such connection. None: the other program has no room, and the connection was
    /// reset.
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
            // The home of the listener gives it a position.
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

    /// Renames the replicas of a socket in the other shards.
    fn rename_elsewhere(
        &mut self,
        from: ProgramSlot,
        to: ProgramSlot,
        queue: &Arc<HashSet<u64>>,
    ) -> Vec<(SlotRef, SlotRef)> {
        let generation = self.program(to.program).entries[to.slot].generation;
        let mut renamed = Vec::new();
        let _ = self.in_shard_order(|server, shard| {
            let Some(shard) = shard else {
                return Ok(());
            };
            let answer = server.ask_peer_for(shard, |reply| Request::Rename {
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
