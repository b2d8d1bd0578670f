//! The socket calls of datagram sockets.
//!
//! A datagram socket belongs to one shard. A bound socket has a replica in each of the other
//! shards, as listeners have, which hands its datagrams over. A socket whose port was chosen at
//! connect needs no replica: the flow of that port comes to its own shard.

use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;
use std::net::{Ipv6Addr, SocketAddr};

use libc::{EINVAL, ENOTCONN};
use millrace_context::reply::Failure;
use millrace_context::submission::{Ask, SendTo};
use millrace_context::{Address, Submission};
use millrace_shard::{Error, Options, SocketId};

use crate::peers::request::{Bind, Request};
use crate::programs::owners::Process;
use crate::requests::options;
use crate::requests::outcome::{Outcome, done, to_outcome};

/// Ports that a bind without a port tries. Another shard may have a connected socket at the first.
const PORTS_TRIED: usize = 256;

impl ShardServer {
    pub(crate) fn datagram(&mut self, program: u32, process: Process) -> Outcome {
        let this = self.program(program);
        let Some(slot) = this.open_slot() else {
            return self.refuse_socket(program);
        };
        let owner = this.owner;
        let id = match self.shard.datagram(owner, &Options::default(), slot) {
            Ok(id) => id,
            Err(error) => {
                self.program(program).give_back_slot(slot);
                return Err(error.errno());
            }
        };
        let place = ProgramSlot { program, slot };
        self.attach_socket(id, place);
        self.mark_changed(place);
        let this = self.program(program);
        let entry = &mut this.entries[slot];
        entry.datagrams = true;
        entry.owners.hold(process);
        Ok((0, this.reference(slot).to_bits().to_ne_bytes().to_vec()))
    }

    fn datagram_id(&mut self, place: ProgramSlot) -> Result<SocketId, i32> {
        let entry = &self.program(place.program).entries[place.slot];
        entry.socket.ok_or(ENOTCONN)
    }

    pub(crate) fn bind_datagram(&mut self, place: ProgramSlot, submission: &Submission) -> Outcome {
        let [a, b, c, flags, ..] = submission.arguments;
        let local = SocketAddr::from(Address::from_words([a, b, c]));
        let bound = options::of_bind(flags);
        let id = self.datagram_id(place)?;
        let generation = self.program(place.program).entries[place.slot].generation;
        self.port_permits.check(place, generation, local.port())?;
        let mut outcome = Err(Error::AddressInUse);
        let tries = if local.port() == 0 { PORTS_TRIED } else { 1 };
        for _ in 0..tries {
            outcome = self.bind_datagram_in_shard_order(place, id, local, bound);
            if outcome != Err(Error::AddressInUse) {
                break;
            }
        }
        self.mark_changed(place);
        outcome.map_or_else(|error| Err(error.errno()), |()| done())
    }

    fn bind_datagram_here(
        &mut self,
        id: SocketId,
        local: SocketAddr,
        options: &Options,
    ) -> Result<(), Error> {
        self.reserved_ports
            .bind_datagram(&mut self.shard, id, local, options)
    }

    fn bind_datagram_in_shard_order(
        &mut self,
        place: ProgramSlot,
        id: SocketId,
        mut local: SocketAddr,
        bound: Options,
    ) -> Result<(), Error> {
        if self.peers.is_none() {
            return self.bind_datagram_here(id, local, &bound);
        }
        let program = self.program(place.program);
        let owner = program.owner;
        let generation = program.entries[place.slot].generation;
        let home = program.home_of(place.slot) as u16;
        let any_port = local.port() == 0;
        if any_port {
            self.bind_datagram_here(id, local, &bound)?;
            local = self.shard.view(id).ok_or(Error::NoSocket)?.local;
        }
        let outcome = self.in_shard_order(|server, shard| match shard {
            None if any_port => Ok(()),
            None => server.bind_datagram_here(id, local, &bound),
            Some(shard) => {
                let bind = Bind {
                    place,
                    generation,
                    owner,
                    local,
                    bound,
                    options: Vec::new(),
                    home,
                };
                server.ask_peer(shard, |reply| Request::BindDatagram { bind, reply })
            }
        });
        match outcome {
            Ok(()) => self.program(place.program).entries[place.slot].replicated = true,
            Err(_) => {
                self.forget_everywhere(place);
                self.shard.unbind_datagram(id);
            }
        }
        outcome
    }

    /// Makes a replica of another shard's datagram socket.
    pub(crate) fn replicate_datagram(&mut self, bind: &Bind) -> Result<(), Error> {
        let id = self.shard.stand_in_datagram(
            bind.owner,
            &bind.bound,
            (bind.home, bind.place.slot),
            bind.local,
        )?;
        if let Some(peers) = &mut self.peers {
            peers.replicas.insert(bind.place, bind.replica(id));
        }
        Ok(())
    }

    pub(crate) fn connect_datagram(
        &mut self,
        place: ProgramSlot,
        submission: &Submission,
    ) -> Outcome {
        let [a, b, c, ..] = submission.arguments;
        let remote = SocketAddr::from(Address::from_words([a, b, c]));
        let id = self.datagram_id(place)?;
        self.mark_changed(place);
        self.shard
            .connect_datagram(id, remote)
            .map_err(|error| error.errno())?;
        if let Err(error) = self.pin_if_elsewhere(id) {
            let _ = self.shard.disconnect_datagram(id);
            return Err(error.errno());
        }
        to_outcome(self.tell_of_peer(place, Some(remote)))
    }

    pub(crate) fn disconnect_datagram(&mut self, place: ProgramSlot) -> Outcome {
        let id = self.datagram_id(place)?;
        self.mark_changed(place);
        self.shard
            .disconnect_datagram(id)
            .map_err(|error| error.errno())?;
        to_outcome(self.tell_of_peer(place, None))
    }

    /// Tells the replicas of a socket its peer before the program goes on. A socket that the
    /// program binds to the same port next gets the datagrams of other peers.
    fn tell_of_peer(
        &mut self,
        place: ProgramSlot,
        remote: Option<SocketAddr>,
    ) -> Result<(), Error> {
        if !self.program(place.program).entries[place.slot].replicated {
            return Ok(());
        }
        self.in_shard_order(|server, shard| match shard {
            None => Ok(()),
            Some(shard) => server.ask_peer(shard, |reply| Request::ConnectDatagram {
                place,
                remote,
                reply,
            }),
        })
    }

    pub(crate) fn send_to(
        &mut self,
        program: u32,
        submission: &Submission,
        unstage: impl Fn(usize, &mut [u8]),
        staged: [(usize, usize); 2],
    ) -> Outcome {
        let place = self.find(program, submission.slot)?;
        let entry = &self.program(program).entries[place.slot];
        let id = entry.socket.filter(|_| entry.datagrams).ok_or(EINVAL)?;
        let what = SendTo::from_words(submission.arguments);
        let from = Ipv6Addr::from(what.from);
        let what = millrace_shard::SendTo {
            to: what.to.map(SocketAddr::from),
            from: (!from.is_unspecified()).then(|| from.to_canonical()),
            hops: what.hops,
            class: what.class,
            segment: what.segment,
            more: submission.ask.contains(Ask::MORE),
        };
        let len = submission.parameter as usize;
        let [(first_at, first_len), (second_at, _)] = staged;
        let fill = |to: &mut [u8]| {
            let (first, second) = to.split_at_mut(first_len.min(to.len()));
            unstage(first_at, first);
            unstage(second_at, second);
        };
        let sent = self.shard.send_to(id, &what, len, fill, self.now);
        if let Err(error) = sent {
            // The program was told that the datagram is sent, and counts it. So it counts as sent.
            self.shard.lose_datagram(id, len);
            if error == Error::WouldBlock {
                self.counters.overruns += 1;
                self.audit_limit(place.program, "overruns");
            }
            self.mark_changed(place);
            return Err(error.errno());
        }
        done()
    }

    pub(crate) fn membership(&mut self, place: ProgramSlot, submission: &Submission) -> Outcome {
        let [a, b, c, ..] = submission.arguments;
        let group = SocketAddr::from(Address::from_words([a, b, c])).ip();
        let id = self.datagram_id(place)?;
        let changed = if submission.parameter != 0 {
            self.shard.join(id, group, self.now)
        } else {
            self.shard.leave(id, group, self.now)
        };
        changed.map_or_else(|error| Err(error.errno()), |()| done())
    }

    pub(crate) fn take_failure(&mut self, place: ProgramSlot) -> Outcome {
        let id = self.datagram_id(place)?;
        let report = self.shard.take_report(id).map_err(|error| error.errno())?;
        self.mark_changed(place);
        let offender = SocketAddr::new(report.offender, 0);
        let failure = Failure {
            errno: report.errno as u32,
            info: report.info,
            kind: report.kind,
            code: report.code,
            offender: Address::from(offender).ip,
            to: report.to.into(),
        };
        let mut data = failure.emit().to_vec();
        data.extend_from_slice(&report.payload);
        Ok((0, data))
    }
}
