//! Replicas of bound sockets and listeners, which concern every shard.
//!
//! A bound socket belongs to one shard, its home. Each of the others has a *replica*, so every
//! shard knows which addresses are taken and accepts connections for every listener. A shard keeps
//! the connection that it accepts, and hands the slot to the home of the listener, which puts it
//! into the accept queue of the program.
//!
//! Shards are asked in order. If two shards want one address at once, the same one is first
//! everywhere, and the other fails at the first shard that both ask.

use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;

use millrace_context::SlotRef;
use millrace_shard::{AcceptQueue, Error, Flow, How, Opt, Options, Owner, SocketId};

use crate::peers::replica_table::Replica;
use crate::peers::request::{Bind, Request};

/// Ports that a bind without a port tries. Another shard may have connections with the first.
const PORTS_TRIED: usize = 256;

impl ShardServer {
    /// Binds a socket of this shard, with a replica in every other shard.
    pub(crate) fn bind_everywhere(
        &mut self,
        place: ProgramSlot,
        owner: Owner,
        local: SocketAddr,
        bound: Options,
        options: &[Opt],
    ) -> Result<SocketId, Error> {
        let address_only = bound.address_only && local.port() == 0;
        if self.peers.is_none() || address_only {
            return self.bind_here(owner, local, &bound);
        }
        let tries = if local.port() == 0 { PORTS_TRIED } else { 1 };
        let mut outcome = Err(Error::AddressInUse);
        for _ in 0..tries {
            outcome = self.bind_in_shard_order(place, owner, local, bound, options);
            if outcome != Err(Error::AddressInUse) {
                break;
            }
        }
        outcome
    }

    fn bind_in_shard_order(
        &mut self,
        place: ProgramSlot,
        owner: Owner,
        mut local: SocketAddr,
        bound: Options,
        options: &[Opt],
    ) -> Result<SocketId, Error> {
        let mut own = None;
        if local.port() == 0 {
            let id = self.bind_here(owner, local, &bound)?;
            let view = self.shard.view(id).ok_or(Error::NoSocket)?;
            local = view.local;
            own = Some(id);
        }
        let generation = self.program(place.program).entries[place.slot].generation;
        let home = self.own as u16;
        let outcome = self.in_shard_order(|server, shard| match shard {
            None if own.is_some() => Ok(()),
            None => server
                .bind_here(owner, local, &bound)
                .map(|id| own = Some(id)),
            Some(shard) => {
                let bind = Bind {
                    place,
                    generation,
                    owner,
                    local,
                    bound,
                    options: options.to_vec(),
                    home,
                };
                server.ask_peer(shard, |reply| Request::Bind { bind, reply })
            }
        });
        match (outcome, own) {
            (Ok(()), Some(id)) => {
                self.program(place.program).entries[place.slot].replicated = true;
                Ok(id)
            }
            (outcome, own) => {
                // Shards that were not asked have no replica and ignore this.
                self.forget_everywhere(place);
                if let Some(id) = own {
                    let _ = self.shard.close(id, self.now);
                }
                Err(outcome.err().unwrap_or(Error::NoSocket))
            }
        }
    }

    fn bind_here(
        &mut self,
        owner: Owner,
        local: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        self.reserved_ports
            .bind_stream(&mut self.shard, owner, local, options)
    }

    /// Makes a bound socket listen in every shard, or changes its backlog.
    pub(crate) fn listen_everywhere(
        &mut self,
        place: ProgramSlot,
        id: SocketId,
        backlog: u32,
        queue: Option<&AcceptQueue>,
    ) -> Result<(), Error> {
        let entry = &self.program(place.program).entries[place.slot];
        let is_key = |opt: &&Opt| matches!(opt, Opt::FastOpenKeys(_));
        let keys = entry.options().iter().find(is_key).copied();
        let listening = self.in_shard_order(|server, shard| match shard {
            None => server.listen_here(id, backlog, queue.cloned(), keys),
            Some(shard) => server.ask_peer(shard, |reply| Request::Listen {
                place,
                backlog,
                queue: queue.map(|queue| queue.of_shard(shard as u16)),
                keys,
                reply,
            }),
        });
        if listening.is_err() {
            let _ = self.shard.shutdown(id, How::Read, self.now);
            self.stop_accepting_elsewhere(place);
        }
        listening
    }

    /// Calls `each` for every shard in order, with None for this shard, until a call fails.
    pub(crate) fn in_shard_order(
        &mut self,
        mut each: impl FnMut(&mut ShardServer, Option<u32>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(peers) = &self.peers else {
            return each(self, None);
        };
        let (shards, own) = (peers.shards(), u32::from(peers.own()));
        for shard in shards {
            each(self, (shard != own).then_some(shard))?;
        }
        Ok(())
    }

    /// Removes the replicas of a bound socket that is gone.
    pub(crate) fn forget_everywhere(&mut self, place: ProgramSlot) {
        if let Some(peers) = &mut self.peers {
            peers.backlog.forget(place);
            peers.backlog.forget_stuck(place);
            peers.tell_all(|| Request::Forget { place });
        }
    }

    fn listen_here(
        &mut self,
        id: SocketId,
        backlog: u32,
        queue: Option<AcceptQueue>,
        keys: Option<Opt>,
    ) -> Result<(), Error> {
        self.shard.listen_bound(id, backlog, queue)?;
        keys.map_or(Ok(()), |keys| self.shard.set_option(id, keys, self.now))
    }

    /// Makes the replicas of a listener stop listening. When this returns, no connection is left
    /// that others had accepted for it, and it may listen again.
    pub(crate) fn stop_accepting_elsewhere(&mut self, place: ProgramSlot) {
        let Some(peers) = &mut self.peers else {
            return;
        };
        peers.backlog.forget(place);
        peers.backlog.forget_stuck(place);
        // A replica cannot refuse this.
        let _ = self.in_shard_order(|server, shard| match shard {
            None => Ok(()),
            Some(shard) => server.ask_peer(shard, |reply| Request::StopListening { place, reply }),
        });
    }

    /// Sets an option of a bound socket in its replicas.
    pub(crate) fn set_option_elsewhere(&mut self, place: ProgramSlot, opt: Opt) {
        // All shards refuse the same options.
        let _ = self.in_shard_order(|server, shard| match shard {
            None => Ok(()),
            Some(shard) => server.ask_peer(shard, |reply| Request::SetOption { place, opt, reply }),
        });
    }

    /// Connects a bound socket. The program chose the port, so the tag of the flow may name another
    /// shard. That shard must know of the flow first.
    pub(crate) fn connect_bound(&mut self, id: SocketId, remote: SocketAddr) -> Result<(), Error> {
        let pinned = self.shard.must_pin(id, remote);
        let own = self.peers.as_ref().map_or(0, |peers| peers.own());
        if let Some((owner, flow)) = pinned {
            self.ask_peer(owner.into(), |reply| Request::Pin {
                flow,
                shard: own,
                reply,
            })?;
        }
        let outcome = self.shard.connect_bound(id, remote, self.now);
        let outcome = outcome.and_then(|()| match pinned {
            Some(_) => Ok(()),
            None => self.pin_if_elsewhere(id),
        });
        if let (Err(_), Some((owner, flow)), Some(peers)) = (&outcome, pinned, &self.peers) {
            peers.tell(owner.into(), Request::Unpin { flow, shard: own });
        }
        outcome
    }

    /// Unpins the flows of this shard that are over.
    pub(crate) fn unpin(&mut self) {
        let Some(peers) = &self.peers else {
            return;
        };
        let shard = peers.own();
        for flow in self.shard.take_unpinned() {
            // If the bucket is on its way to this shard, the pin ends here too.
            if let Some(owner) = self.shard.owner_elsewhere(&flow) {
                peers.tell(owner.into(), Request::Unpin { flow, shard });
            }
        }
    }

    /// Serves a request of another worker.
    pub(crate) fn serve_peer_request(&mut self, request: Request) {
        match request {
            Request::Bind { bind, reply } => {
                let _ = reply.send(self.replicate(bind));
            }
            Request::BindDatagram { bind, reply } => {
                let _ = reply.send(self.replicate_datagram(&bind));
            }
            Request::ConnectDatagram {
                place,
                remote,
                reply,
            } => drop(reply.send(self.connect_replica(place, remote))),
            Request::Listen {
                place,
                backlog,
                queue,
                keys,
                reply,
            } => {
                let outcome = match self.replica(place) {
                    Some(replica) => self.listen_here(replica.id, backlog, queue, keys),
                    None => Err(Error::NoSocket),
                };
                let _ = reply.send(outcome);
            }
            Request::SetOption { place, opt, reply } => {
                let outcome = match self.replica(place) {
                    Some(replica) => self.shard.set_option(replica.id, opt, self.now),
                    None => Err(Error::NoSocket),
                };
                let _ = reply.send(outcome);
            }
            Request::StopListening { place, reply } => {
                if let Some(peers) = &mut self.peers {
                    peers.backlog.forget_stuck(place);
                }
                if let Some(replica) = self.replica(place) {
                    let _ = self.shard.shutdown(replica.id, How::Read, self.now);
                    self.reset_waiting(place, u64::MAX);
                }
                let _ = reply.send(Ok(()));
            }
            Request::Rename {
                from,
                to,
                generation,
                queue,
                reply,
            } => {
                let renamed = self.rename_replica(from, to, generation, &queue);
                // The slots must be published before any program is told of them.
                self.publish();
                let _ = reply.send(renamed);
            }
            Request::Forget { place } => {
                self.forget_replica(place);
                if self.programs.has(place.program) {
                    self.reset_waiting(place, u64::MAX);
                }
            }
            Request::Pin { flow, shard, reply } => self.pin_for(flow, shard, reply),
            Request::Unpin { flow, shard } => self.unpin_for(flow, shard),
            Request::Take { batch, slots, from } => self.take_flow_batch(batch, slots, from),
            Request::Back { refused, slots } => self.take_back(refused, slots),
            Request::Misrouted(request) => self.serve_misrouted(request),
            Request::Freed(freed) => self.come_home(&freed),
            Request::Block(foreign) => self.take_block(&foreign),
        }
    }

    /// Makes a replica of another shard's stream socket.
    fn replicate(&mut self, bind: Bind) -> Result<(), Error> {
        let id = self.bind_here(bind.owner, bind.local, &bind.bound)?;
        let replica = bind.replica(id);
        if let Some(peers) = &mut self.peers {
            for opt in bind.options {
                // The original has taken or refused it in the same way.
                let _ = self.shard.set_option(id, opt, self.now);
            }
            peers.replicas.insert(bind.place, replica);
        }
        Ok(())
    }

    /// Connects the replica of a datagram socket, or disconnects it.
    fn connect_replica(
        &mut self,
        place: ProgramSlot,
        remote: Option<SocketAddr>,
    ) -> Result<(), Error> {
        let id = self.replica(place).ok_or(Error::NoSocket)?.id;
        match remote {
            Some(remote) => self.shard.connect_datagram(id, remote),
            None => self.shard.disconnect_datagram(id),
        }
    }

    /// Pins a flow to another shard, or passes the request on to the shard that has its bucket.
    fn pin_for(&mut self, flow: Flow, shard: u16, reply: Sender<Result<(), Error>>) {
        match self.shard.owner_elsewhere(&flow) {
            // The bucket may have gone to the asking shard.
            Some(owner) if owner == shard => drop(reply.send(Ok(()))),
            Some(owner) => self.pass_request(owner, Request::Pin { flow, shard, reply }),
            None => drop(reply.send(self.shard.pin(flow, shard))),
        }
    }

    /// A flow that was pinned to another shard is over.
    fn unpin_for(&mut self, flow: Flow, shard: u16) {
        match self.shard.owner_elsewhere(&flow) {
            Some(owner) if owner == shard => {}
            Some(owner) => self.pass_request(owner, Request::Unpin { flow, shard }),
            None if self.shard.is_awaited(&flow) => {
                if let Some(peers) = &mut self.peers {
                    peers.defer_unpin(flow, shard);
                }
            }
            None => self.shard.unpin(&flow, shard),
        }
    }

    fn pass_request(&self, to: u16, request: Request) {
        if let Some(peers) = &self.peers {
            peers.tell(to.into(), request);
        }
    }

    /// Pins a connection that was just opened, if its tag names another shard because this one has
    /// no buckets. Must be called before anything is sent.
    pub(crate) fn pin_if_elsewhere(&mut self, id: SocketId) -> Result<(), Error> {
        let Some((owner, flow)) = self.shard.opened_elsewhere(id) else {
            return Ok(());
        };
        let shard = self.peers.as_ref().map_or(0, |peers| peers.own());
        self.ask_peer(owner.into(), |reply| Request::Pin { flow, shard, reply })
    }

    fn replica(&self, place: ProgramSlot) -> Option<Replica> {
        self.peers.as_ref()?.replicas.get(place)
    }

    /// Gives a replica, and the connections that it has accepted, to another program.
    fn rename_replica(
        &mut self,
        from: ProgramSlot,
        to: ProgramSlot,
        generation: u32,
        queue: &HashSet<u64>,
    ) -> Vec<(SlotRef, SlotRef)> {
        let Some(peers) = &mut self.peers else {
            return Vec::new();
        };
        peers.backlog.rename_stuck(from, to);
        if let Some(replica) = peers.replicas.rename(from, to, generation) {
            let owner = Owner(to.program);
            // A replica holds no memory, so the new owner has enough.
            let _ = self
                .shard
                .change_owner(replica.id, owner, to.slot, self.now);
        }
        self.move_waiting(from, to, queue)
    }

    fn forget_replica(&mut self, place: ProgramSlot) {
        let Some(peers) = &mut self.peers else {
            return;
        };
        peers.backlog.forget_stuck(place);
        if let Some(replica) = peers.replicas.remove(place) {
            let _ = self.shard.close(replica.id, self.now);
        }
    }

    /// Removes the replicas of a program that has ended.
    pub(crate) fn forget_replicas_of(&mut self, program: u32) {
        let peers = self.peers.as_ref();
        let of_program = peers.map_or_else(Vec::new, |peers| peers.replicas.slots_of(program));
        for place in of_program {
            self.forget_replica(place);
        }
    }
}
