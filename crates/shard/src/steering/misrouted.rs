//! Frames and flows that are another shard's, where several share one address.
//!
//! What the connection table knows is this shard's, wherever its frames arrive. What it does not know belongs to the shard that the tag names
//! ([`crate::steering`]): that one has the listeners' part of it, or knows to whom the flow is pinned. So a frame is handed over once as a rule, twice
//! at most.

use std::net::SocketAddr;

use millrace_steer::NOBODY;
use millrace_tcp::Instant;
use millrace_wire::ethernet;
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
        self.arrival = arrival;
        match arrival {
            Arrival::Local => self.crossed_input(frame.bytes),
            _ => self.input(frame, now),
        }
        self.arrival = Arrival::Link;
    }

    /// What else is to be done with the frame that was taken in last; once. To be asked after each one if there are other shards. With it a frame to
    /// hand over in its place, if it was the last fragment of a packet. The transport checksum has been verified.
    pub fn take_misrouted(&mut self) -> Option<(Misrouted, Option<Vec<u8>>)> {
        let misrouted = self.misrouted.take()?;
        Some((misrouted, self.whole.take()))
    }

    /// A packet has been put together: if it is another shard's, that one is to have it whole.
    pub(crate) fn hand_over_reassembled(
        &mut self,
        link: &ethernet::Header,
        header_len: usize,
        payload: &[u8],
        emit: impl FnOnce(&mut [u8]),
    ) {
        if self.misrouted.is_none() {
            return;
        }
        let mut frame = vec![0; ethernet::HEADER_LEN + header_len];
        link.emit(&mut frame);
        emit(&mut frame[ethernet::HEADER_LEN..]);
        frame.extend_from_slice(payload);
        self.whole = Some(frame);
    }

    /// Whether a frame for `tuple`, which the table does not know, is another shard's; noted if so.
    #[cold]
    pub(crate) fn is_misrouted(&mut self, tuple: &Tuple) -> bool {
        let Some(steer) = &self.config.steer else {
            return false;
        };
        let owner = steer.owner(tuple);
        let to = match self.arrival {
            Arrival::Link | Arrival::ByTag if owner == NOBODY => {
                self.misrouted = Some(Misrouted::Awaited);
                return true;
            }
            // Who handed it over by its tag may not know yet that the flow has gone on.
            Arrival::Link | Arrival::ByTag if owner != steer.own => Some((owner, Arrival::ByTag)),
            Arrival::Link | Arrival::ByTag => {
                let shard = self.pins.get(&Flow::stream(*tuple));
                shard.map(|shard| (shard, Arrival::ByPin))
            }
            // Over here, which the owner will hear of; it may be the first of another with the same ends.
            Arrival::ByPin if owner != steer.own && owner != NOBODY => Some((owner, Arrival::Back)),
            Arrival::Back => {
                self.pins.forget(&Flow::stream(*tuple));
                None
            }
            Arrival::ByPin | Arrival::Copy | Arrival::Local => None,
        };
        let Some((shard, arrival)) = to else {
            return false;
        };
        self.counters.frames_misrouted += 1;
        self.misrouted = Some(Misrouted::Shard(shard, arrival));
        true
    }

    /// What a frame from the link says of neighbours or routers concerns every shard.
    pub(crate) fn copy_to_all_shards(&mut self) {
        if self.config.steer.is_some() && self.arrival == Arrival::Link {
            self.misrouted = Some(Misrouted::AllShards);
        }
    }

    /// The flow that [`Shard::connect_bound`] would begin, and the shard that it belongs to by its tag, if that is another: the flow must be pinned there
    /// before. None too for what it would refuse.
    pub fn must_pin(&self, id: SocketId, remote: SocketAddr) -> Option<(u16, Flow)> {
        let steer = self.config.steer.as_ref()?;
        let (local, remote, _) = self.endpoints(self.check(id).ok()?, remote).ok()?;
        let tuple = Tuple::new(local, remote)?;
        let owner = steer.owner(&tuple);
        let elsewhere = owner != steer.own && owner != NOBODY;
        (local.port() != 0 && elsewhere).then_some((owner, Flow::stream(tuple)))
    }

    /// The flow of a connection that was just opened, or of a socket for datagrams that was just connected, by a shard without buckets: before it sends anything it is to be pinned
    /// at this other shard.
    pub fn opened_elsewhere(&self, id: SocketId) -> Option<(u16, Flow)> {
        let steer = self.config.steer.as_ref()?;
        if !steer.has_none() {
            return None;
        }
        let socket = self.sockets.get(self.check(id).ok()?)?;
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

    /// Whose a flow is by its tag, as far as is known here: another shard that should know of it. None if that is this one, or nobody yet.
    pub fn owner_elsewhere(&self, flow: &Flow) -> Option<u16> {
        let steer = self.config.steer.as_ref()?;
        let owner = steer.owner(&flow.tuple);
        (owner != NOBODY && owner != steer.own).then_some(owner)
    }

    /// Whether a flow's bucket is on its way here.
    pub fn is_awaited(&self, flow: &Flow) -> bool {
        let steer = self.config.steer.as_ref();
        steer.is_some_and(|steer| steer.is_awaited(&flow.tuple))
    }

    /// Whether answers to the connection that [`Shard::connect_bound`] would begin come to another shard, which knows nothing of it unless the flow is pinned there. What
    /// this host says to itself stays in the shard.
    pub fn leads_elsewhere(&self, id: SocketId, remote: SocketAddr) -> bool {
        let endpoints = self
            .check(id)
            .and_then(|index| self.endpoints(index, remote));
        let local = endpoints.is_ok_and(|(_, _, route)| route == Some(Route::Local));
        !local && self.must_pin(id, remote).is_some()
    }

    /// Frames of a flow that belongs to this shard go to `shard` from now on: it opens the connection, with a port that the program chose.
    ///
    /// # Errors
    /// [`Error::AddressNotAvailable`] when there is such a connection already, or may be for all that is known yet, [`Error::NoMemory`] with as many pins as there may be sockets.
    pub fn pin(&mut self, flow: Flow, shard: u16) -> Result<(), Error> {
        let awaited = |steer: &Steer| steer.is_awaited(&flow.tuple);
        if self.config.steer.as_ref().is_some_and(awaited) {
            return Err(Error::AddressNotAvailable);
        }
        let table = match flow.datagrams {
            false => &self.table,
            true => &self.udp.table,
        };
        if table.get(&flow.tuple).is_some() || self.pins.get(&flow).is_some_and(|at| at != shard) {
            return Err(Error::AddressNotAvailable);
        }
        let limit = self.config.limits.sockets as usize;
        if self.pins.insert(flow, shard, limit) {
            Ok(())
        } else {
            Err(Error::NoMemory)
        }
    }

    /// Undoes [`Shard::pin`].
    pub fn unpin(&mut self, flow: &Flow, shard: u16) {
        self.pins.remove(flow, shard);
    }

    /// Flows that belong to another shard by their tag and are over here: what was pinned there for them can go.
    pub fn take_unpinned(&mut self) -> Vec<Flow> {
        let mut over = std::mem::take(&mut self.unpinned);
        // One in TIME-WAIT may have begun anew, with the same ends.
        over.retain(|flow| {
            let table = match flow.datagrams {
                false => &self.table,
                true => &self.udp.table,
            };
            table.get(&flow.tuple).is_none()
        });
        over
    }
}
