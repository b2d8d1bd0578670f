//! Moves connections from the shard to the accept queue that their program reads.

use std::sync::atomic::Ordering;

use millrace_context::{SlotRef, Status};
use millrace_shard::SocketId;

use crate::peers::Accepted;
use crate::programs::owners::Owners;
use crate::programs::owners::Waiting;
use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;

impl ShardServer {
    /// Moves established connections of a listener from the shard to its accept queue, as far as
    /// there is room.
    pub(crate) fn fill_accept_ring(&mut self, place: ProgramSlot) {
        if self.peers.is_some() && !self.fill_accept_ring_from_peers(place) {
            return;
        }
        let Some(program) = self.programs.get_mut(place.program) else {
            return;
        };
        let Some(listener) = program.entries[place.slot].socket else {
            return;
        };
        let mut moved = false;
        while self
            .shard
            .view(listener)
            .is_some_and(|view| view.pending_accepts > 0)
        {
            let Some(queue) = program.entries[place.slot].accepts().copied() else {
                return;
            };
            if !program.has_room(place.slot) {
                if let Some(peers) = &mut self.peers {
                    peers.backlog.note_stuck(place);
                }
                break;
            }
            let Some(slot) = program.open_slot() else {
                self.counters.slots_exhausted += 1;
                self.audit_limit(place.program, "slots_exhausted");
                break;
            };
            let Ok(id) = self.shard.accept(listener) else {
                program.give_back_slot(slot);
                break;
            };
            let entry = &mut program.entries[slot];
            entry.owners = Owners::from(Waiting {
                listener: place.slot,
                position: queue.pushed,
            });
            entry.socket = Some(id);
            program.append_accepted(place.slot, program.reference(slot));
            let accepted = ProgramSlot {
                program: place.program,
                slot,
            };
            self.publisher.note_slot(id, accepted);
            self.publisher.mark(accepted);
            moved = true;
        }
        if moved {
            self.publisher.mark(place);
        }
    }

    /// Relays the connections that a replica has accepted.
    pub(crate) fn relay_accepted(&mut self, id: SocketId) {
        let peers = self.peers.as_ref();
        if let Some(place) = peers.and_then(|peers| peers.replicas.original_of(id)) {
            self.relay_accepted_to(place);
        }
    }

    /// Hands the connections that this shard has accepted to the home of their listener.
    pub(crate) fn relay_accepted_to(&mut self, place: ProgramSlot) {
        let peers = self.peers.as_ref();
        let Some(replica) = peers.and_then(|peers| peers.replicas.get(place)) else {
            return;
        };
        let Some(program) = self.programs.get_mut(place.program) else {
            return;
        };
        let home = u32::from(replica.home);
        let listener = SlotRef {
            index: place.slot,
            generation: replica.generation,
        };
        while self
            .shard
            .view(replica.id)
            .is_some_and(|view| view.pending_accepts > 0)
        {
            let Some(peers) = &mut self.peers else {
                return;
            };
            if !peers.has_room(home) {
                return peers.backlog.note_stuck(place);
            }
            let Some(slot) = program.open_slot() else {
                self.counters.slots_exhausted += 1;
                peers.backlog.note_stuck(place);
                return self.audit_limit(place.program, "slots_exhausted");
            };
            let Ok(id) = self.shard.accept(replica.id) else {
                program.give_back_slot(slot);
                return;
            };
            let entry = &mut program.entries[slot];
            entry.socket = Some(id);
            entry.owners = Owners::from(Waiting {
                listener: place.slot,
                // It has a position only at the home of the listener.
                position: 0,
            });
            let accepted = ProgramSlot {
                program: place.program,
                slot,
            };
            // It is published before the other shard reads this.
            peers.hand_accepted(
                home,
                &Accepted {
                    program: place.program,
                    listener,
                    slot: program.reference(slot),
                },
            );
            self.publisher.note_slot(id, accepted);
            self.publisher.mark(accepted);
        }
    }

    /// Another shard has accepted a connection for a listener of this one. If the listener is gone,
    /// the other shard hears of that too.
    pub(crate) fn queue_accepted_elsewhere(&mut self, accepted: &Accepted) {
        let program = self.programs.get(accepted.program);
        let listens = program.is_some_and(|program| {
            // An earlier use of the listener may have accepted it, and reset it when it ended.
            let waits = program
                .region
                .slot(accepted.slot.index)
                .is_some_and(|slot| {
                    slot.engine.generation.load(Ordering::Acquire) == accepted.slot.generation
                        && slot.engine.status().contains(Status::OPEN)
                });
            program
                .find(accepted.listener)
                .is_some_and(|slot| waits && program.entries[slot].accepts().is_some())
        });
        let Some(peers) = self.peers.as_mut().filter(|_| listens) else {
            return;
        };
        let place = ProgramSlot {
            program: accepted.program,
            slot: accepted.listener.index,
        };
        peers.backlog.push(place, accepted.slot);
        self.fill_accept_ring(place);
    }

    /// Moves connections that other shards accepted into the accept queue, as far as there is room.
    /// Returns whether none is left.
    pub(crate) fn fill_accept_ring_from_peers(&mut self, place: ProgramSlot) -> bool {
        let Some(peers) = &mut self.peers else {
            return true;
        };
        let Some(program) = self.programs.get_mut(place.program) else {
            return true;
        };
        let (moved, done) = peers.backlog.drain_into(place, |reference| {
            let room = program.has_room(place.slot);
            if room {
                program.append_accepted(place.slot, reference);
            }
            room
        });
        if moved > 0 {
            self.publisher.mark(place);
        }
        done
    }

    /// Tries the listeners again whose accept queue was full.
    pub(crate) fn retry_stuck(&mut self) {
        let peers = self.peers.as_mut();
        let Some(peers) = peers.filter(|peers| peers.backlog.has_stuck()) else {
            return;
        };
        for place in peers.backlog.take_stuck() {
            self.make_room(place);
        }
    }

    /// The accept queue of a listener may have room again.
    pub(crate) fn make_room(&mut self, listener: ProgramSlot) {
        let program = self.programs.get(listener.program);
        let home = program.is_some_and(|program| program.entries.get(listener.slot).is_some());
        if home {
            self.fill_accept_ring(listener);
        } else {
            self.relay_accepted_to(listener);
        }
    }
}
