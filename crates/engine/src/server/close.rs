//! Closes sockets: when a process releases one, when a process or a program has ended.

use std::sync::atomic::Ordering;

use millrace_context::futex;
use millrace_shard::{Block, Memory};

use crate::programs::owners::Process;
use crate::programs::slot::ProgramSlot;
use crate::programs::watches::Watches;
use crate::server::ShardServer;

impl ShardServer {
    /// Releases one hold of a process on a socket. The last release closes it.
    pub(crate) fn release(&mut self, place: ProgramSlot, process: Process) {
        let entry = &mut self.program(place.program).entries[place.slot];
        if entry.owners.release(process) && entry.owners.holders().is_empty() {
            self.close(place);
        }
    }

    /// Closes the socket of a slot and frees the slot.
    pub(crate) fn close(&mut self, place: ProgramSlot) {
        self.leave_to_sharers(place);
        let program = self.program(place.program);
        let owner = program.owner;
        let entry = &mut program.entries[place.slot];
        entry.open = false;
        let (socket, accepts) = (entry.socket.take(), entry.take_accepts());
        let replicated = std::mem::take(&mut entry.replicated);
        entry.watches = Watches::None;
        let generation = entry.generation;
        let home = program.entries.is_own(place.slot);
        if home {
            program.vacant.push(place.slot);
        } else {
            program.entries.leave(place.slot);
        }
        let slot = program.slot(place.slot);
        let consumed = slot.app.consumed.load(Ordering::Acquire);
        // An epoll set that processes share keeps its registrations of the socket. They match no
        // socket from here on.
        slot.engine.generation.store(0, Ordering::Release);
        slot.engine
            .status
            .store(millrace_context::Status::DEAD.bits(), Ordering::Release);
        if accepts.is_some() {
            slot.engine.end_queue();
        }
        futex::change(&slot.engine.sequence, &slot.app.waiters);
        if let Some(id) = socket {
            if accepts.is_none() {
                // Unread data makes this a reset, so the last read counts.
                let _ = self.shard.consumed(id, consumed, self.now);
            }
            let _ = self.shard.close(id, self.now);
        }
        if let Some(ring) = accepts {
            let block = Block {
                at: ring.at,
                log2: ring.log2,
            };
            self.shard.memory_mut().free(owner, block);
            self.reset_waiting(place, u64::MAX);
        }
        if replicated {
            self.forget_everywhere(place);
        }
        if !home {
            self.send_home(place, generation);
        }
    }

    /// Resets connections in an accept queue below `position`, which no process will take. A living
    /// process keeps the connection that it has claimed: its request may be in a ring.
    pub(crate) fn reset_waiting(&mut self, listener: ProgramSlot, position: u64) {
        let program = self.program(listener.program);
        let lost: Vec<u32> = program
            .entries
            .numbers()
            .filter(|slot| {
                let entry = &program.entries[*slot];
                entry.open
                    && entry.owners.waiting().is_some_and(|waiting| {
                        waiting.listener == listener.slot && waiting.position < position
                    })
                    && !program.is_claimed(*slot)
            })
            .collect();
        self.reset(listener.program, &lost);
    }

    /// Resets connections that no process has taken.
    fn reset(&mut self, program: u32, slots: &[u32]) {
        for slot in slots {
            let entry = &mut self.program(program).entries[*slot];
            entry.owners.take_waiting();
            if let Some(id) = entry.socket.take() {
                let _ = self.shard.abort(id, self.now);
            }
            self.close(ProgramSlot {
                program,
                slot: *slot,
            });
        }
    }

    /// A process has ended. Closes what it alone held, and resets connections that it claimed and
    /// did not accept.
    pub(crate) fn process_gone(&mut self, program: u32, process: Process) {
        let Some(this) = self.programs.get_mut(program) else {
            return;
        };
        // Their listeners may be closed by now.
        let claimed = this.claimed_by(process);
        this.abandon_contexts(process);
        this.forget_process(process);
        let held: Vec<u32> = this.held_by(process).collect();
        let listeners: Vec<(u32, u64)> = held
            .iter()
            .filter(|slot| this.entries[**slot].accepts().is_some())
            .map(|slot| (*slot, this.slot(*slot).app.consumed.load(Ordering::Acquire)))
            .collect();
        self.reset(program, &claimed);
        for (slot, consumed) in listeners {
            self.reset_waiting(ProgramSlot { program, slot }, consumed);
        }
        for slot in held {
            self.release_wholly(ProgramSlot { program, slot }, process);
        }
    }

    /// Closes the sockets of a program that has ended, as the kernel does at exit.
    pub(crate) fn remove_program(&mut self, program: u32) {
        let Some(this) = self.programs.get_mut(program) else {
            return;
        };
        this.contexts.clear();
        // Replicas go first, so that no connection is accepted for listeners of other shards.
        self.forget_replicas_of(program);
        let this = self.program(program);
        let numbers = this.entries.numbers();
        let (waiting, open): (Vec<u32>, Vec<u32>) = numbers
            .filter(|slot| this.entries[*slot].open)
            .partition(|slot| this.entries[*slot].owners.waiting().is_some());
        for slot in waiting.into_iter().chain(open) {
            let entry = self.program(program).entries.get(slot);
            if entry.is_some_and(|entry| entry.open) {
                self.close(ProgramSlot { program, slot });
            }
        }
        self.publish();
        let owner = self.program(program).owner;
        self.programs.remove(program);
        self.audit.forget(program);
        // Orphans keep their send rings, which belong to the shard. Their receive rings went with
        // the close.
        self.shard.memory_mut().remove(owner);
    }
}
