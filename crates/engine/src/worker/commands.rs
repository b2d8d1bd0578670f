//! Who holds what, and what is closed when a holder is gone.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use millrace_context::{SlotRef, futex};
use millrace_shard::{Block, Memory};

use crate::control::command::Command;
use crate::programs::entry::Process;
use crate::programs::program::{ContextEntry, PollerEntry, ProcessEntry, Program};
use crate::programs::watches::Watches;
use crate::worker::{ProgramSlot, Worker};

impl Worker {
    /// A process holds a socket no more. The last one closes it.
    pub(crate) fn release(&mut self, place: ProgramSlot, process: Process) {
        let entry = &mut self.program(place.program).entries[place.slot];
        if entry.owners.release(process) && entry.owners.holders().is_empty() {
            self.close(place);
        }
    }

    /// Closes a slot's socket and frees the slot.
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
        // An epoll set that processes share keeps its registrations of the socket: they match no socket from here on.
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
                // What was read last decides whether unread data makes this a reset.
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

    /// Resets connections that wait in a listener's queue below `position`: nobody will take them. One that a living process has claimed is
    /// its own: the submission that says so may be on its way.
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

    /// Resets connections that nobody has taken.
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

    /// A process is gone: what it alone held is closed, and what it took from a queue and did not own up to is reset.
    pub(crate) fn process_gone(&mut self, program: u32, process: Process) {
        let Some(this) = self
            .programs
            .get_mut(program as usize)
            .and_then(Option::as_mut)
        else {
            return;
        };
        // What it had claimed from a queue, whether or not the listener is still there.
        let claimed: Vec<u32> = this
            .entries
            .numbers()
            .filter(|slot| {
                let entry = &this.entries[*slot];
                let claim = this.slot(*slot).app.claimed_by();
                let mut contexts = this.contexts.iter();
                entry.open
                    && entry.owners.waiting().is_some()
                    && contexts
                        .any(|context| context.process == process && context.index + 1 == claim)
            })
            .collect();
        for context in this.contexts.iter().filter(|it| it.process == process) {
            if let Some((shared, _)) = this.region.context(context.index) {
                shared.abandon();
            }
        }
        this.contexts.retain(|context| context.process != process);
        this.processes.retain(|entry| entry.process != process);
        let held: Vec<u32> = this
            .entries
            .numbers()
            .filter(|slot| this.entries[*slot].owners.holders().contains(&process))
            .collect();
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

    /// Carries out a command of the control thread; what it comes after has been served.
    pub(crate) fn execute(&mut self, command: Command) {
        // What others have given is here before anything that the control thread has said since.
        self.drain_requests();
        match command {
            Command::AddProgram {
                owner,
                region,
                slot_shards,
                doorbell,
            } => {
                let index = owner.0 as usize;
                if self.programs.len() <= index {
                    self.programs.resize_with(index + 1, || None);
                }
                self.shard.memory_mut().insert(owner, region.clone());
                self.watch_doorbell(&doorbell);
                let program = Program::new(owner, region, slot_shards, doorbell, self.own);
                self.default_route.tell(&program);
                self.programs[index] = Some(program);
            }
            Command::RemoveProgram { owner } => self.remove_program(owner.0),
            Command::AddProcess {
                owner,
                process,
                pid,
                contexts,
                done,
            } => {
                if let Some(program) = self
                    .programs
                    .get_mut(owner.0 as usize)
                    .and_then(Option::as_mut)
                {
                    program
                        .contexts
                        .retain(|context| context.process != process);
                    program.processes.retain(|entry| entry.process != process);
                    program.processes.push(ProcessEntry { process, pid });
                    for index in contexts {
                        if let Some((shared, _)) = program.region.context(index) {
                            shared.reset();
                            program.contexts.push(ContextEntry {
                                index,
                                process,
                                cursor: Default::default(),
                            });
                        }
                    }
                }
                // Nobody waits any more if the process died meanwhile.
                let _ = done.send(());
            }
            // It has waited for that.
            Command::Serve { done, .. } => drop(done.send(())),
            Command::Fork {
                owner,
                parent,
                child,
                done,
            } => {
                if let Some(program) = self
                    .programs
                    .get_mut(owner.0 as usize)
                    .and_then(Option::as_mut)
                {
                    for entry in program
                        .entries
                        .iter_mut()
                        .filter(|entry| entry.open && entry.owners.holders().contains(&parent))
                    {
                        entry.owners.hold(child);
                    }
                    program.processes.push(ProcessEntry {
                        process: child,
                        pid: 0,
                    });
                }
                let _ = done.send(());
            }
            Command::Holds {
                owner,
                process,
                sockets,
                more,
                done,
            } => {
                if more {
                    self.take_hold(owner.0, process, &sockets);
                }
                let lost: Vec<u32> = self
                    .programs
                    .get(owner.0 as usize)
                    .and_then(Option::as_ref)
                    .map_or_else(Vec::new, |program| {
                        // A program may have as many sockets as a list has room for: each is looked up at once.
                        let found = sockets.iter().filter_map(|held| program.find(*held));
                        let kept: HashSet<u32> = found.collect();
                        program
                            .entries
                            .numbers()
                            .filter(|slot| {
                                program.entries[*slot].owners.holders().contains(&process)
                                    && !kept.contains(slot)
                            })
                            .collect()
                    });
                for slot in lost {
                    self.release_wholly(
                        ProgramSlot {
                            program: owner.0,
                            slot,
                        },
                        process,
                    );
                }
                let _ = done.send(());
            }
            Command::Share {
                owner,
                sockets,
                from,
                to,
                done,
            } => drop(done.send(self.share(owner.0, &sockets, from, to))),
            Command::Transfer {
                from,
                socket,
                to,
                process,
                done,
            } => drop(done.send(self.transfer(from.0, socket, to.0, process))),
            Command::LeaveToSharers { owner, done } => {
                self.leave_all_to_sharers(owner.0);
                let _ = done.send(());
            }
            Command::Permit {
                owner,
                socket,
                port,
                done,
            } => {
                self.permit(owner.0, socket, port);
                let _ = done.send(());
            }
            Command::Arrived { owner, socket } => self.arrived(owner.0, socket),
            Command::ProcessGone { owner, process } => self.process_gone(owner.0, process),
            Command::AddPoller {
                owner,
                poller,
                doorbell,
                done,
            } => {
                if let Some(program) = self
                    .programs
                    .get_mut(owner.0 as usize)
                    .and_then(Option::as_mut)
                {
                    let index = poller as usize;
                    if program.pollers.len() <= index {
                        program.pollers.resize_with(index + 1, || None);
                    }
                    program.pollers[index] = Some(PollerEntry {
                        doorbell,
                        tail: 0,
                        touched: false,
                    });
                }
                let _ = done.send(());
            }
            Command::RemovePoller { owner, poller } => {
                if let Some(program) = self
                    .programs
                    .get_mut(owner.0 as usize)
                    .and_then(Option::as_mut)
                {
                    if let Some(entry) = program.pollers.get_mut(poller as usize) {
                        *entry = None;
                    }
                    for entry in program.entries.iter_mut() {
                        entry.watches.forget_poller(poller);
                    }
                }
            }
            Command::Expect {
                buckets,
                batches,
                taken,
                done,
            } => {
                self.expect_buckets(&buckets, batches, taken);
                let _ = done.send(());
            }
            Command::Give(leaving) => self.leave_buckets(leaving),
            Command::Assign { moves } => {
                for step in moves.iter() {
                    self.shard.assign(&[step.bucket], step.to);
                }
            }
            Command::Renumber { network, done } => {
                self.shard.renumber(network, self.now);
                let _ = done.send(());
            }
            Command::Sockets { reply } => drop(reply.send(self.socket_rows())),
            Command::Describe { reply } => drop(reply.send(self.describe_json())),
            Command::Drain { .. } => {}
        }
    }

    /// A process takes hold of sockets that it has without having been announced: the child of a fork that the shim did not see.
    fn take_hold(&mut self, program: u32, process: Process, sockets: &[SlotRef]) {
        let Some(this) = self
            .programs
            .get_mut(program as usize)
            .and_then(Option::as_mut)
        else {
            return;
        };
        for socket in sockets {
            if this.find(*socket).is_none() {
                continue;
            }
            let owners = &mut this.entries[socket.index].owners;
            if owners.waiting().is_none() && !owners.holders().contains(&process) {
                owners.hold(process);
            }
        }
    }

    /// Closes what is left of a program, as the kernel closes what an exiting process leaves open.
    fn remove_program(&mut self, program: u32) {
        let Some(this) = self
            .programs
            .get_mut(program as usize)
            .and_then(Option::as_mut)
        else {
            return;
        };
        this.contexts.clear();
        // The program may still have it open.
        let doorbell = this.doorbell.clone();
        self.unwatch_doorbell(&doorbell);
        // First, so that nothing is accepted any more for listeners of other shards.
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
        self.programs[program as usize] = None;
        self.audit.forget(program);
        // Orphans keep their send rings, which are the shard's own; their receive rings went with the close.
        self.shard.memory_mut().remove(owner);
    }
}
