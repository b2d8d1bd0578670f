//! Sockets on their way from one process to another in messages (SCM_RIGHTS).
//!
//! The descriptor of a millrace socket means nothing to the kernel. The engine makes a stand-in,
//! one end of a pair of Unix sockets, and the message carries that. While the stand-in is open
//! anywhere, even in a message that nobody reads, the engine holds the socket. When the kernel
//! closes it, the engine sees that at its own end. (A process that shuts the stand-in down gives
//! the socket up.)
//!
//! A process that has received the stand-in shows it to the engine, and then holds the socket. A
//! process that cannot show it gets nothing. A program without millrace sees a socket whose peer
//! has closed it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use millrace_context::SlotRef;
use millrace_context::protocol::{CLAIMED_MAX, Descriptors, PASSED_MAX};
use millrace_shard::Owner;

use super::in_flight::Passed;
use super::{Control, words};
use crate::control::command::Command;
use crate::programs::owners::{IN_FLIGHT, Process};

/// The words and descriptors of an answer.
type Words = Result<([u64; 8], Vec<Arc<OwnedFd>>), i32>;

impl Control {
    /// The process of a client, if it lives. Another process may have its pid when its last request
    /// is read.
    fn living_member(&self, number: u64) -> Result<(u32, Process), i32> {
        let (index, process) = self.member(number)?;
        let program = self.programs[index as usize].as_ref();
        let member = program.and_then(|program| program.members.get(&process));
        let pid = self.clients.get(number).map(|client| client.pid);
        match member.map(|member| member.pid) == pid {
            true => Ok((index, process)),
            false => Err(libc::ESRCH),
        }
    }

    /// A process is about to send sockets: makes a stand-in for each.
    pub(super) fn pass(&mut self, number: u64, payload: &[u8]) -> Words {
        let (index, process) = self.living_member(number)?;
        let sockets: Vec<SlotRef> = payload
            .chunks_exact(8)
            .map(|word| SlotRef::from_bits(u64::from_ne_bytes(word.try_into().unwrap_or_default())))
            .collect();
        if sockets.is_empty() || sockets.len() > PASSED_MAX {
            return Err(libc::EINVAL);
        }
        self.messages_gone();
        if !self.in_flight.has_room(index, sockets.len()) {
            return Err(libc::ETOOMANYREFS);
        }
        let held = self.share(index, &sockets, process, IN_FLIGHT)?;
        let mut outcome = match held.contains(&false) {
            true => Err(libc::EBADF),
            false => Ok(Vec::new()),
        };
        for (socket, _) in sockets.iter().zip(held).filter(|(_, held)| *held) {
            if let Ok(descriptors) = &mut outcome {
                match self.in_flight.add(index, *socket) {
                    Ok((descriptor, gone)) => {
                        self.arrived(gone);
                        descriptors.push(Arc::new(descriptor));
                        continue;
                    }
                    Err(error) => outcome = Err(error.raw_os_error().unwrap_or(libc::EIO)),
                }
            }
            self.release_passed(index, *socket);
        }
        // If this fails, dropping the stand-ins releases the sockets.
        Ok((words(&[]), outcome?))
    }

    /// A process shows the stand-ins that it has received. The answer has a word for each.
    pub(super) fn claim(&mut self, number: u64, came: &Descriptors) -> Words {
        let (index, process) = self.living_member(number)?;
        if came.is_empty() || came.len() > CLAIMED_MAX {
            return Err(libc::EINVAL);
        }
        let mut answer = [0; CLAIMED_MAX];
        for (at, word) in answer.iter_mut().enumerate().take(came.len()) {
            let outcome = match came.get(at) {
                Some(shown) => self.claim_one(index, process, shown),
                None => Err(libc::EBADF),
            };
            let refused = |errno: i32| SlotRef {
                index: errno as u32,
                generation: 0,
            };
            *word = outcome.unwrap_or_else(refused).to_bits();
        }
        Ok((answer, Vec::new()))
    }

    fn claim_one(&mut self, index: u32, process: Process, shown: &OwnedFd) -> Result<SlotRef, i32> {
        let (cookie, program, socket) = self.in_flight.find(shown).ok_or(libc::ESTALE)?;
        if program != index {
            let socket = self.transfer((program, socket), (index, process))?;
            self.in_flight.counters.foreign += 1;
            return Ok(self.in_flight.note_claimed(cookie, socket));
        }
        if self.share(index, &[socket], IN_FLIGHT, process)? != [true] {
            return Err(libc::ESTALE);
        }
        Ok(self.in_flight.note_claimed(cookie, socket))
    }

    /// Moves a socket that a message holds to another program, which has received it.
    fn transfer(
        &self,
        (program, socket): (u32, SlotRef),
        (to, process): (u32, Process),
    ) -> Result<SlotRef, i32> {
        let from = self.programs[program as usize].as_ref();
        let from = from.ok_or(libc::ESTALE)?;
        let shard = from.slot_shards.shard_of(socket.index, &from.region);
        self.workers
            .ask_shard(shard as u16, |done| Command::Transfer {
                from: Owner(program),
                socket,
                to: Owner(to),
                process,
                done,
            })?
    }

    /// Releases the sockets whose stand-ins the kernel has closed.
    pub(super) fn messages_gone(&mut self) {
        let gone = self.in_flight.take_gone(None);
        self.arrived(gone);
    }

    fn arrived(&self, gone: Vec<Passed>) {
        for passed in gone {
            self.release_passed(passed.program, passed.socket);
        }
    }

    /// Releases one hold of [`IN_FLIGHT`] on a socket. The socket has not changed its shard: the
    /// control thread waits for moves to end.
    fn release_passed(&self, index: u32, socket: SlotRef) {
        if let Some(program) = &self.programs[index as usize] {
            let shard = program.slot_shards.shard_of(socket.index, &program.region);
            let owner = Owner(index);
            let command = Command::Arrived { owner, socket };
            self.workers.send_to(shard as u16, command);
        }
    }

    /// Has `to` hold the sockets that `from` holds. Returns for each, in order, whether it does.
    fn share(
        &self,
        index: u32,
        sockets: &[SlotRef],
        from: Process,
        to: Process,
    ) -> Result<Vec<bool>, i32> {
        let program = self.programs[index as usize].as_ref().ok_or(libc::EIO)?;
        let shard_of = |socket: &SlotRef| {
            let shard = program.slot_shards.shard_of(socket.index, &program.region);
            shard as u16
        };
        let mut shards: Vec<u16> = sockets.iter().map(shard_of).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut outcome = vec![false; sockets.len()];
        for shard in shards {
            let its = |at: &usize| shard_of(&sockets[*at]) == shard;
            let places: Vec<usize> = (0..sockets.len()).filter(its).collect();
            let held = self.workers.ask_shard(shard, |done| Command::Share {
                owner: Owner(index),
                sockets: places.iter().map(|at| sockets[*at]).collect(),
                from,
                to,
                done,
            })?;
            for (at, held) in places.into_iter().zip(held) {
                outcome[at] = held;
            }
        }
        Ok(outcome)
    }
}
