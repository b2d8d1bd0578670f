//! Requests and blocks that reach a shard and belong to another.
//!
//! A thread of a program reads in a slot which shard to ask, and may ask that shard after the slot
//! has moved. The old shard then asks the new one, and has its answer before it serves the next
//! request. So requests keep their order, and a request that the old shard has taken is carried
//! out.

use crate::peers::request::{Freed, MisroutedRequest};
use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;
use std::sync::Arc;

use libc::{EAGAIN, EBADF};
use millrace_context::{Operation, SlotRef, Submission};

use crate::peers::request::Request;
use crate::programs::owners::Process;
use crate::programs::program::Program;
use crate::requests::outcome::Outcome;
use crate::shared::arenas::ForeignBlock;

impl ShardServer {
    /// Carries out a request for a slot that is not here. The shard that has the slot does it, or
    /// this shard if the slot has arrived meanwhile.
    #[cold]
    pub(crate) fn forward_request(
        &mut self,
        program: u32,
        process: Process,
        submission: &Submission,
        unstage: impl Fn(usize, &mut [u8]),
        staged: [(usize, usize); 2],
    ) -> Outcome {
        let this = self.program(program);
        let Some(to) = this.served_elsewhere(submission.slot.index) else {
            // The slot may be on its way here: it was sent before programs were told.
            self.drain_requests();
            return self.carry_out(program, process, submission, unstage, staged);
        };
        let region = this.region.clone();
        let mut bytes = vec![0; staged[0].1 + staged[1].1];
        let (first, second) = bytes.split_at_mut(staged[0].1);
        unstage(staged[0].0, first);
        unstage(staged[1].0, second);
        let misrouted = |reply| {
            Request::Misrouted(MisroutedRequest {
                program,
                region,
                process,
                submission: *submission,
                bytes,
                reply,
            })
        };
        self.counters.misrouted += 1;
        // The other shard has ended, and its sockets with it.
        self.ask_peer_for(to, misrouted).unwrap_or(Err(EBADF))
    }

    /// Carries out a request that another shard passed on, or passes it on again.
    pub(crate) fn serve_misrouted(&mut self, misrouted: MisroutedRequest) {
        let same = |program: &&Program| Arc::ptr_eq(&program.region, &misrouted.region);
        let known = self.programs.get(misrouted.program);
        let Some(program) = known.filter(same) else {
            let _ = misrouted.reply.send(Err(EBADF));
            return;
        };
        if let (Some(to), Some(peers)) = (
            program.served_elsewhere(misrouted.submission.slot.index),
            &self.peers,
        ) {
            return peers.tell(to, Request::Misrouted(misrouted));
        }
        // A replicated socket never moves, so no program asks for it here by mistake, and the
        // request might have to ask other shards. Nor may a request end a socket for which this
        // shard asks the others now.
        let slot = misrouted.submission.slot.index;
        let here = program.entries.get(slot);
        let place = ProgramSlot {
            program: misrouted.program,
            slot,
        };
        if here.is_some_and(|entry| entry.replicated) || self.asking_for.contains(&place) {
            let _ = misrouted.reply.send(Err(EBADF));
            return;
        }
        let outcome = match misrouted.submission.operation {
            Operation::Send => {
                let bytes = &misrouted.bytes;
                let unstage =
                    |at: usize, to: &mut [u8]| to.copy_from_slice(&bytes[at..][..to.len()]);
                let pieces = [(0, bytes.len()), (0, 0)];
                self.send(misrouted.program, &misrouted.submission, unstage, pieces)
            }
            // A socket does not move while its program can ask for these.
            Operation::Bind | Operation::Listen | Operation::Connect => Err(EAGAIN),
            operation if operation.is_staged() => Err(EBADF),
            _ => self.submit(misrouted.program, misrouted.process, &misrouted.submission),
        };
        // The slot must be published before the reply is read.
        self.publish();
        let _ = misrouted.reply.send(outcome);
    }

    /// Returns a free slot to the shard whose part of the region it is in.
    pub(crate) fn send_home(&mut self, place: ProgramSlot, generation: u32) {
        let program = self.program(place.program);
        let (home, region) = (program.home_of(place.slot), program.region.clone());
        let slot = SlotRef {
            index: place.slot,
            generation,
        };
        if let Some(peers) = &self.peers {
            let freed = Freed {
                program: place.program,
                region,
                slot,
            };
            peers.tell(home, Request::Freed(freed));
        }
    }

    /// Takes back a slot of this shard's part that another shard has freed.
    pub(crate) fn come_home(&mut self, freed: &Freed) {
        let own = self.own as u16;
        let program = self.programs.get_mut(freed.program);
        let Some(program) = program.filter(|program| Arc::ptr_eq(&program.region, &freed.region))
        else {
            return;
        };
        let SlotRef { index, generation } = freed.slot;
        if program.entries.come_home(index, generation) {
            program.slot_shards.set(index, own);
            program.vacant.push(index);
        }
    }

    /// Returns free blocks to the shards whose parts of the arena they are in.
    pub(crate) fn return_foreign_blocks(&mut self) {
        while let Some((home, foreign)) = self.shard.memory_mut().take_foreign_block() {
            if let Some(peers) = &self.peers {
                peers.tell(home, Request::Block(foreign));
            }
        }
    }

    /// Takes back a block of this shard's part that another shard has freed.
    pub(crate) fn take_block(&mut self, foreign: &ForeignBlock) {
        self.shard.memory_mut().come_home(foreign);
    }
}
