//! The socket calls of stream sockets.

use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;

use libc::{EINVAL, ENFILE};
use millrace_context::submission::Ask;
use millrace_context::{Address, Submission};
use millrace_shard::{AcceptQueue, Block, Error, Memory, Opt, Options, Owner, SocketId};

use crate::programs::entry::AcceptRing;
use crate::programs::owners::Process;
use crate::requests::options;
use crate::requests::outcome::{Outcome, done, to_outcome};

/// Connections that an accept queue holds. Further connections wait in the shard.
const ACCEPTS_MAX: u32 = 4096;
/// The greatest count of accepted connections that is believed. Counting on from there does not
/// overflow.
const TAKEN_MAX: u64 = 1 << 48;
/// Ports tried for a connection that must be pinned at another shard.
const PORTS_TRIED: usize = 16;

impl ShardServer {
    pub(crate) fn socket(&mut self, program: u32, process: Process) -> Outcome {
        let this = self.program(program);
        let Some(slot) = this.open_slot() else {
            return self.refuse_socket(program);
        };
        this.entries[slot].owners.hold(process);
        let reference = this.reference(slot);
        Ok((0, reference.to_bits().to_ne_bytes().to_vec()))
    }

    /// The program has as many sockets as it may have.
    #[cold]
    pub(crate) fn refuse_socket(&mut self, program: u32) -> Outcome {
        self.counters.sockets_refused += 1;
        self.audit_limit(program, "sockets_refused");
        Err(ENFILE)
    }

    pub(crate) fn bind(&mut self, place: ProgramSlot, submission: &Submission) -> Outcome {
        let [a, b, c, flags, ..] = submission.arguments;
        let address = Address::from_words([a, b, c]);
        if self.program(place.program).entries[place.slot]
            .socket
            .is_some()
        {
            return Err(EINVAL);
        }
        let program = self.program(place.program);
        let generation = program.entries[place.slot].generation;
        let port = SocketAddr::from(address).port();
        self.port_permits.check(place, generation, port)?;
        let program = self.program(place.program);
        let entry = &program.entries[place.slot];
        let (owner, options) = (program.owner, entry.options().to_vec());
        let bound = Options {
            address_only: options.contains(&Opt::AddressOnly(true)),
            ..options::of_bind(flags)
        };
        let id = self
            .bind_everywhere(place, owner, SocketAddr::from(address), bound, &options)
            .map_err(|error| error.errno())?;
        for opt in options {
            // Each option was accepted before. If a bound socket refuses one, nothing depends on it
            // yet.
            let _ = self.shard.set_option(id, opt, self.now);
        }
        self.attach_socket(id, place);
        self.mark_changed(place);
        done()
    }

    pub(crate) fn listen(&mut self, place: ProgramSlot, backlog: u32) -> Outcome {
        let program = self.program(place.program);
        let owner = program.owner;
        let entry = &program.entries[place.slot];
        let socket = entry.socket;
        let options = entry.options().to_vec();
        if entry.accepts().is_some() {
            let id = socket.ok_or(EINVAL)?;
            return to_outcome(self.listen_everywhere(place, id, backlog, None));
        }
        let taken = program
            .slot(place.slot)
            .app
            .consumed
            .load(Ordering::Acquire);
        if taken > TAKEN_MAX {
            return Err(EINVAL);
        }
        let addressed = socket.and_then(|id| Some((id, self.shard.view(id)?.local)));
        let id = match (socket, addressed) {
            // It was bound to an address alone. Now it takes any port.
            (_, Some((id, local))) if local.port() == 0 => {
                let bound = Options {
                    address_only: false,
                    ..self.shard.options(id).unwrap_or_default()
                };
                let _ = self.shard.close(id, self.now);
                let id = self
                    .bind_everywhere(place, owner, local, bound, &options)
                    .map_err(|error| error.errno())?;
                self.attach_socket(id, place);
                id
            }
            (Some(id), _) => id,
            // Listening without a bind takes any port, as on Linux.
            (None, _) => {
                let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
                let id = self
                    .bind_everywhere(place, owner, any, Options::default(), &options)
                    .map_err(|error| error.errno())?;
                self.attach_socket(id, place);
                id
            }
        };
        let entries = backlog
            .saturating_add(1)
            .min(ACCEPTS_MAX)
            .next_power_of_two();
        let log2 = (entries.trailing_zeros() as u8 + 3).max(12);
        let block = self
            .shard
            .memory_mut()
            .allocate(owner, log2)
            .ok_or(libc::ENOBUFS)?;
        let (own, shards) = match &self.peers {
            Some(peers) => (peers.own(), peers.shards().end),
            None => (0, 1),
        };
        let queue = AcceptQueue::new(place.slot, taken, own, shards);
        if let Err(error) = self.listen_everywhere(place, id, backlog, Some(&queue)) {
            self.shard.memory_mut().free(owner, block);
            return Err(error.errno());
        }
        self.program(place.program).entries[place.slot].set_accepts(AcceptRing {
            at: block.at,
            log2,
            pushed: taken,
        });
        self.mark_changed(place);
        done()
    }

    /// Ends the accept queue of a listener. Connections that the program has not taken are reset.
    pub(crate) fn stop_accepting(&mut self, place: ProgramSlot) {
        let program = self.program(place.program);
        let owner = program.owner;
        let entry = &mut program.entries[place.slot];
        let replicated = entry.replicated;
        let Some(ring) = entry.take_accepts() else {
            return;
        };
        let block = Block {
            at: ring.at,
            log2: ring.log2,
        };
        self.program(place.program)
            .slot(place.slot)
            .engine
            .end_queue();
        self.shard.memory_mut().free(owner, block);
        self.reset_waiting(place, u64::MAX);
        if replicated {
            self.stop_accepting_elsewhere(place);
        }
    }

    pub(crate) fn connect(&mut self, place: ProgramSlot, submission: &Submission) -> Outcome {
        let [a, b, c, fast, ..] = submission.arguments;
        let remote = SocketAddr::from(Address::from_words([a, b, c]));
        let buffers = self.shard.config().buffers;
        let program = self.program(place.program);
        let entry = &program.entries[place.slot];
        let (owner, socket) = (program.owner, entry.socket);
        let options = options::collect(entry.options(), &buffers);
        let result = match socket {
            Some(id) => self.connect_bound(id, remote),
            None => self
                .connect_unbound(owner, remote, &options)
                .map(|id| self.attach_socket(id, place)),
        };
        self.mark_changed(place);
        if let Err(error) = result {
            if !submission.ask.contains(Ask::REPLY) {
                self.fail(place, error);
            }
            return Err(error.errno());
        }
        let socket = self.program(place.program).entries[place.slot].socket;
        match socket.filter(|_| fast != 0) {
            Some(id) => {
                let room = self.shard.open_fast(id, self.now);
                Ok((room.map_err(|error| error.errno())?.into(), Vec::new()))
            }
            None => done(),
        }
    }

    /// Opens a connection from a port of the engine's choice. A shard without buckets may choose
    /// one that is in use at another shard.
    fn connect_unbound(
        &mut self,
        owner: Owner,
        remote: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        let mut outcome = Err(Error::AddressNotAvailable);
        for _ in 0..PORTS_TRIED {
            let id = self.shard.connect(owner, None, remote, options, self.now)?;
            match self.pin_if_elsewhere(id) {
                Ok(()) => return Ok(id),
                Err(error) => {
                    outcome = Err(error);
                    let _ = self.shard.abort(id, self.now);
                }
            }
        }
        outcome
    }

    pub(crate) fn accepted(&mut self, place: ProgramSlot, process: Process) -> Outcome {
        let entry = &mut self.program(place.program).entries[place.slot];
        let Some(waiting) = entry.owners.take_waiting() else {
            return Err(EINVAL);
        };
        entry.owners.hold(process);
        let listener = ProgramSlot {
            program: place.program,
            slot: waiting.listener,
        };
        // The accept queue of the listener has room again.
        self.make_room(listener);
        done()
    }

    pub(crate) fn watch(&mut self, place: ProgramSlot, submission: &Submission) -> Outcome {
        let (poller, [mask, sequence, order, ..]) = (submission.parameter, submission.arguments);
        let (mask, own) = (mask as u32, self.own);
        let program = self.program(place.program);
        let Some(Some(entry)) = program.pollers.get_mut(poller as usize) else {
            return Err(EINVAL);
        };
        let (Some(slot), Some((shared, hints))) = (
            program.region.slot(place.slot),
            program.region.poller(poller),
        ) else {
            return Err(EINVAL);
        };
        let watches = &mut program.entries[place.slot].watches;
        let watch = watches.watch(poller, mask, order as u32);
        // A change between the program's last check and this request has been hinted to no poller.
        let is_wanted = watch.wants(u32::MAX);
        if is_wanted && slot.engine.sequence.load(Ordering::Relaxed) != sequence as u32 {
            watch.hinted_at(shared.push(hints, own, &mut entry.tail, place.slot));
            entry.touched = true;
            self.mark_changed(place);
        }
        done()
    }

    pub(crate) fn disconnect(&mut self, place: ProgramSlot) -> Outcome {
        let program = self.program(place.program);
        let entry = &mut program.entries[place.slot];
        let replicated = std::mem::take(&mut entry.replicated);
        if let Some(id) = entry.socket.take() {
            let _ = self.shard.abort(id, self.now);
        }
        if replicated {
            self.forget_everywhere(place);
        }
        self.mark_changed(place);
        done()
    }
}
