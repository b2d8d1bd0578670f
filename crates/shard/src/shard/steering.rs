//! Several shards of one address: frames that are handed over, and flows that are pinned.

use std::net::SocketAddr;

use millrace_steer::NOBODY;
use millrace_tcp::Instant;
use millrace_wire::offload::Frame;

use crate::connection_table::Tuple;
use crate::error::Error;
use crate::ip::route::Route;
use crate::memory::Memory;
use crate::shard::Shard;
use crate::socket::{Kind, SocketId};
use crate::steering::{Arrival, Flow, Misrouted, Steer};

impl<M: Memory> Shard<M> {
    /// As [`Shard::input`], for a frame that another shard has handed over.
    pub fn input_handed(&mut self, frame: &Frame<'_>, arrival: Arrival, now: Instant) {
        self.base.steering.set_arrival(arrival);
        match arrival {
            Arrival::Local => self.udp.crossed_input(&mut self.base, frame.bytes),
            _ => self.input(frame, now),
        }
        self.base.steering.set_arrival(Arrival::Link);
    }

    /// How to handle the last frame further; once. Must be asked after each frame if there are
    /// other shards. If the frame was the last fragment of a packet, a frame with the whole packet
    /// comes with it, to hand over in its place. The transport checksum has been verified.
    pub fn take_misrouted(&mut self) -> Option<(Misrouted, Option<Vec<u8>>)> {
        self.base.steering.take_misrouted()
    }

    /// The flow that [`Shard::connect_bound`] would begin, and the shard that it belongs to by its
    /// tag, if that is another: the flow must be pinned there before. None too for what it would
    /// refuse.
    pub fn must_pin(&self, id: SocketId, remote: SocketAddr) -> Option<(u16, Flow)> {
        let steer = self.base.env.config.steer.as_ref()?;
        let (local, remote, _) = self
            .tcp
            .endpoints(&self.base, self.base.check(id).ok()?, remote)
            .ok()?;
        let tuple = Tuple::new(local, remote)?;
        let owner = steer.owner(&tuple);
        let elsewhere = owner != steer.own && owner != NOBODY;
        (local.port() != 0 && elsewhere).then_some((owner, Flow::stream(tuple)))
    }

    /// The flow of a connection that was just opened, or of a socket for datagrams that was just
    /// connected, by a shard without buckets: before it sends anything it is to be pinned at this
    /// other shard.
    pub fn opened_elsewhere(&self, id: SocketId) -> Option<(u16, Flow)> {
        let steer = self.base.env.config.steer.as_ref()?;
        if !steer.has_none() {
            return None;
        }
        let socket = self.base.sockets.get(self.base.check(id).ok()?)?;
        let flow = match &socket.kind {
            Kind::Stream(stream) => Flow::stream(stream.endpoints.tuple()),
            Kind::Datagram(datagram) if datagram.is_only_here() => {
                Flow::datagrams(Tuple::new(datagram.local, datagram.remote?)?)
            }
            _ => return None,
        };
        let owner = steer.owner(&flow.tuple);
        (owner != NOBODY && owner != steer.own).then_some((owner, flow))
    }

    /// The shard that owns a flow by its tag, as far as this shard knows; `None` if that is this
    /// one, or none yet.
    pub fn owner_elsewhere(&self, flow: &Flow) -> Option<u16> {
        let steer = self.base.env.config.steer.as_ref()?;
        let owner = steer.owner(&flow.tuple);
        (owner != NOBODY && owner != steer.own).then_some(owner)
    }

    /// Whether a flow's bucket is on its way here.
    pub fn is_awaited(&self, flow: &Flow) -> bool {
        let steer = self.base.env.config.steer.as_ref();
        steer.is_some_and(|steer| steer.is_awaited(&flow.tuple))
    }

    /// Whether answers to the connection that [`Shard::connect_bound`] would begin come to another
    /// shard, which knows nothing of it unless the flow is pinned there. What this host says to
    /// itself stays in the shard.
    pub fn leads_elsewhere(&self, id: SocketId, remote: SocketAddr) -> bool {
        let endpoints = self
            .base
            .check(id)
            .and_then(|index| self.tcp.endpoints(&self.base, index, remote));
        let local = endpoints.is_ok_and(|(_, _, route)| route == Some(Route::Local));
        !local && self.must_pin(id, remote).is_some()
    }

    /// Frames of a flow that belongs to this shard go to `shard` from now on: it opens the
    /// connection, with a port that the program chose.
    ///
    /// # Errors
    /// [`Error::AddressNotAvailable`] when there is such a connection already, or may be for all
    /// that is known yet, [`Error::NoMemory`] with as many pins as there may be sockets.
    pub fn pin(&mut self, flow: Flow, shard: u16) -> Result<(), Error> {
        let awaited = |steer: &Steer| steer.is_awaited(&flow.tuple);
        if self.base.env.config.steer.as_ref().is_some_and(awaited) {
            return Err(Error::AddressNotAvailable);
        }
        let is_taken = self.is_flow_known(&flow)
            || self
                .base
                .steering
                .pins()
                .get(&flow)
                .is_some_and(|at| at != shard);
        if is_taken {
            return Err(Error::AddressNotAvailable);
        }
        let limit = self.base.env.config.limits.sockets as usize;
        if self.base.steering.pins_mut().insert(flow, shard, limit) {
            Ok(())
        } else {
            Err(Error::NoMemory)
        }
    }

    /// Undoes [`Shard::pin`].
    pub fn unpin(&mut self, flow: &Flow, shard: u16) {
        self.base.steering.pins_mut().remove(flow, shard);
    }

    /// Flows that belong to another shard by their tag and are over here: what was pinned there for
    /// them can go.
    pub fn take_unpinned(&mut self) -> Vec<Flow> {
        let (streams, datagrams) = (self.tcp.table(), self.udp.table());
        self.base
            .steering
            .take_unpinned(|flow| match flow.datagrams {
                false => streams.get(&flow.tuple).is_some(),
                true => datagrams.get(&flow.tuple).is_some(),
            })
    }

    /// Whether a socket or connection of this shard has the flow.
    fn is_flow_known(&self, flow: &Flow) -> bool {
        let table = match flow.datagrams {
            false => self.tcp.table(),
            true => self.udp.table(),
        };
        table.get(&flow.tuple).is_some()
    }
}
