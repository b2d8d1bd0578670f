//! What comes to one shard and is another's: requests for slots that have moved, and what goes home that was used elsewhere.
//!
//! A thread of a program reads in a slot which shard to ask, and may ask the old one long after. That one asks the new one in its stead, and has its answer before it goes on
//! to the next request: so requests keep their order, and who has seen that the old one has taken what it was asked finds it done.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use libc::{EAGAIN, EBADF};
use millrace_context::{Operation, Region, SlotRef, Submission};

use crate::memory::Stranger;
use crate::peers::Request;
use crate::program::Program;
use crate::serve::Outcome;
use crate::socket::Process;
use crate::worker::{Place, Worker};

/// A request for a slot that another shard may serve.
#[derive(Debug)]
pub(crate) struct Stray {
    program: u32,
    /// The program's, by which it is known that it is still that one.
    region: Arc<Region>,
    process: Process,
    submission: Submission,
    /// What was staged with it.
    bytes: Vec<u8>,
    reply: Sender<Outcome>,
}

/// A slot that was freed away from home.
#[derive(Debug)]
pub(crate) struct Freed {
    program: u32,
    region: Arc<Region>,
    slot: SlotRef,
}

impl Worker {
    /// Carries out a submission for a slot that is not here: another shard does, if it has the slot, or this one after all.
    #[cold]
    pub(crate) fn seek(
        &mut self,
        program: u32,
        process: Process,
        submission: &Submission,
        unstage: impl Fn(usize, &mut [u8]),
        staged: [(usize, usize); 2],
    ) -> Outcome {
        let this = self.program(program);
        let Some(to) = this.served_elsewhere(submission.slot.index) else {
            // It may be on its way here: it was sent before anybody was told where to ask.
            self.oblige();
            return self.carry_out(program, process, submission, unstage, staged);
        };
        let region = this.region.clone();
        let mut bytes = vec![0; staged[0].1 + staged[1].1];
        let (first, second) = bytes.split_at_mut(staged[0].1);
        unstage(staged[0].0, first);
        unstage(staged[1].0, second);
        let stray = |reply| {
            Request::Stray(Stray {
                program,
                region,
                process,
                submission: *submission,
                bytes,
                reply,
            })
        };
        self.counters.strays += 1;
        // It has ended: so has what it had.
        self.ask_peer_for(to, stray).unwrap_or(Err(EBADF))
    }

    /// Carries out what another shard was asked for, or hands it on once more.
    pub(crate) fn take_stray_request(&mut self, stray: Stray) {
        let same = |program: &&Program| Arc::ptr_eq(&program.region, &stray.region);
        let known = self.programs.get(stray.program as usize);
        let Some(program) = known.and_then(Option::as_ref).filter(same) else {
            let _ = stray.reply.send(Err(EBADF));
            return;
        };
        if let (Some(to), Some(peers)) = (
            program.served_elsewhere(stray.submission.slot.index),
            &self.peers,
        ) {
            return peers.tell(to, Request::Stray(stray));
        }
        // What other shards stand in for never moves, so nobody asks for it here by mistake; and it might have to ask them.
        // Nor may anything end a socket while this shard asks the others on its behalf.
        let slot = stray.submission.slot.index;
        let here = program.entries.get(slot);
        let place = Place {
            program: stray.program,
            slot,
        };
        if here.is_some_and(|entry| entry.replicated) || self.asking_for.contains(&place) {
            let _ = stray.reply.send(Err(EBADF));
            return;
        }
        let outcome = match stray.submission.operation {
            Operation::Send => {
                let bytes = &stray.bytes;
                let unstage =
                    |at: usize, to: &mut [u8]| to.copy_from_slice(&bytes[at..][..to.len()]);
                let pieces = [(0, bytes.len()), (0, 0)];
                self.send(stray.program, &stray.submission, unstage, pieces)
            }
            // A socket that these are for does not move while its program can ask for them.
            Operation::Bind | Operation::Listen | Operation::Connect => Err(EAGAIN),
            operation if operation.is_staged() => Err(EBADF),
            _ => self.submit(stray.program, stray.process, &stray.submission),
        };
        // The slot must say what the answer says.
        self.publish();
        let _ = stray.reply.send(outcome);
    }

    /// A slot of another shard's part is free again.
    pub(crate) fn send_home(&mut self, place: Place, generation: u32) {
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

    /// A slot of this shard's part is free again that another has served.
    pub(crate) fn come_home(&mut self, freed: &Freed) {
        let own = self.own as u16;
        let program = self.programs.get_mut(freed.program as usize);
        let Some(program) = program
            .and_then(Option::as_mut)
            .filter(|program| Arc::ptr_eq(&program.region, &freed.region))
        else {
            return;
        };
        let SlotRef { index, generation } = freed.slot;
        if program.entries.come_home(index, generation) {
            program.whereabouts.set(index, own);
            program.vacant.push(index);
        }
    }

    /// Blocks of other shards' parts that are free go back to them.
    pub(crate) fn send_strangers_home(&mut self) {
        while let Some((home, stranger)) = self.shard.memory_mut().take_stranger() {
            if let Some(peers) = &self.peers {
                peers.tell(home, Request::Block(stranger));
            }
        }
    }

    /// A block of this shard's part that another has freed.
    pub(crate) fn take_block(&mut self, stranger: &Stranger) {
        self.shard.memory_mut().come_home(stranger);
    }
}
