//! Sockets at every address and port ([`crate::Config::any_address`]), and connections about which
//! the program is asked before they are answered.
//!
//! A program that stands between a network and others needs to know who was meant, and often wants
//! to look for that one before it says that it is there.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;

use millrace_tcp::Instant;

use crate::base::Base;
use crate::connection_table::{Place, Tuple};
use crate::error::Error;
use crate::memory::{Memory, Owner};
use crate::network::reply_queue::Reply;
use crate::socket::local_ports::Near;
use crate::socket::{Backlog, Kind, Listener, Marks, Options, Socket, SocketId};
use crate::tcp::state::Tcp;

/// Where a socket is that is at all addresses and ports.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A connection that somebody asks for. It has got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The address that the peer connects to.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    index: u32,
    generation: NonZeroU32,
}

impl Tcp {
    /// Listens at every address and port that nothing else listens at.
    pub(crate) fn listen_anywhere<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        owner: Owner,
        options: &Options,
        backlog: u32,
        asks: bool,
    ) -> Result<SocketId, Error> {
        if self.catch_all_listener.is_some() {
            return Err(Error::AddressInUse);
        }
        let mut listener = Listener::new(ANYWHERE, Backlog::new(backlog, None));
        listener.asks = asks;
        let options = base.sharing.share(options);
        let index = base.insert_socket(|| Socket {
            owner,
            marks: Marks::empty(),
            options,
            kind: Kind::Listener(listener),
        })?;
        self.catch_all_listener = Some(index);
        Ok(base.id_of(index))
    }

    /// Has the program asked about each connection to a listener before its SYN is answered, or no
    /// longer.
    pub(crate) fn set_asks<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        asks: bool,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        let listener = base.sockets.get_mut(index).and_then(Socket::listener_mut);
        listener.ok_or(Error::Invalid)?.asks = asks;
        Ok(())
    }

    /// The listener of a connection that nobody knows.
    pub(crate) fn listener_for<M: Memory>(&self, base: &Base<M>, tuple: &Tuple) -> Option<u32> {
        // Those with oneself are all the shard's that opened them.
        let steer = base.env.config.steer.as_ref();
        let steer = steer.filter(|_| !base.network.is_local(tuple.remote_ip()));
        let near = steer.map(|steer| Near {
            own: steer.own,
            shards: steer.groups.count(),
        });
        self.ports
            .listener_near(tuple.local(), self.table.hash(tuple), near)
            .or(self.catch_all_listener)
    }

    /// The program of the listener at `index` is to be asked about a connection.
    pub(crate) fn note_request<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        half_open: u32,
    ) {
        let generation = self.half_open.generation(half_open);
        if let Some(listener) = base.sockets.get_mut(index).and_then(Socket::listener_mut) {
            listener.requests.push_back((half_open, generation));
        }
        base.mark_changed(index);
    }

    /// The next connection about which the program is asked; [`Shard::admit`](crate::Shard::admit)
    /// or [`Shard::turn_away`](crate::Shard::turn_away) is the answer.
    pub(crate) fn next_request<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
    ) -> Result<Request, Error> {
        let index = base.check(id)?;
        loop {
            let listener = base
                .sockets
                .get_mut(index)
                .and_then(Socket::listener_mut)
                .ok_or(Error::Invalid)?;
            let (half_open, generation) = listener.requests.pop_front().ok_or(Error::WouldBlock)?;
            // One that was taken back is no request any more.
            if self.half_open.generation(half_open) == generation
                && let Some(pending) = self.half_open.get(half_open)
            {
                return Ok(Request {
                    local: pending.tuple.local(),
                    remote: pending.tuple.remote(),
                    index: half_open,
                    generation,
                });
            }
        }
    }

    /// Answers the SYN.
    pub(crate) fn admit<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        request: &Request,
        now: Instant,
    ) -> Result<(), Error> {
        if self.half_open.generation(request.index) != request.generation {
            return Err(Error::NotConnected);
        }
        let pending = self.half_open.get_mut(request.index);
        let pending = pending.ok_or(Error::NotConnected)?;
        pending.asked = false;
        pending.state.answer_late(&base.env.config.tcp, now);
        let reply = Reply::Segment(pending.tuple, pending.state.reply(now));
        self.half_open.arm(request.index);
        base.network.reply(&mut base.env.counters, reply);
        Ok(())
    }

    /// Refuses the SYN with a reset, as if nobody listened.
    pub(crate) fn turn_away<M: Memory>(&mut self, base: &mut Base<M>, request: &Request) {
        if self.half_open.generation(request.index) != request.generation {
            return;
        }
        let Some(pending) = self.half_open.get(request.index) else {
            return;
        };
        let reply = Reply::Segment(pending.tuple, pending.state.refusal());
        self.forget_half_open(base, request.index);
        base.env.counters.resets_out += 1;
        base.network.reply(&mut base.env.counters, reply);
    }

    /// The connection that was admitted, once its handshake is complete.
    pub(crate) fn accept_requested<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        request: &Request,
    ) -> Result<SocketId, Error> {
        let index = base.check(id)?;
        let tuple = Tuple::new(request.local, request.remote).ok_or(Error::NotConnected)?;
        let listener = base.sockets.get_mut(index).and_then(Socket::listener_mut);
        let listener = listener.ok_or(Error::Invalid)?;
        let found = match self.table.get(&tuple) {
            Some(Place::HalfOpen(_)) => return Err(Error::WouldBlock),
            Some(Place::Stream(stream)) => listener.queue.iter().position(|&it| it == stream),
            _ => None,
        };
        let Some(accepted) = found.and_then(|at| listener.queue.remove(at)) else {
            return Err(Error::NotConnected);
        };
        listener.backlog.hand_over();
        base.mark_changed(index);
        if let Some(socket) = base.sockets.get_mut(accepted) {
            socket.marks.remove(Marks::UNACCEPTED);
        }
        Ok(base.id_of(accepted))
    }
}
