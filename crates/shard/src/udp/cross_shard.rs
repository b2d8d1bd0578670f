//! Datagrams between two sockets of this host that belong to different shards, and refusals of such
//! datagrams.
//!
//! A datagram for an address without a socket here is for the shard that the tag of its flow names.
//! That shard knows the sockets that were connected without being bound.

use std::net::{IpAddr, SocketAddr};

use millrace_steer::NOBODY;
use millrace_wire::record::{LEN, Record};

use super::errors::QUOTE_MAX;
use super::receive::DatagramInfo;
use super::state::Udp;
use crate::base::Base;
use crate::connection_table::Tuple;
use crate::memory::Memory;
use crate::socket::Kind;
use crate::steering::Flow;

/// Datagrams that wait to be handed over; more are dropped.
const CROSSING_MAX: usize = 1024;
/// A record, the shard that it comes from, and what it is.
const HEAD: usize = LEN + 3;

/// The kinds of messages between shards.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Crossing {
    /// A datagram.
    Datagram = 0,
    /// One that came back, since nobody is where it went.
    Refused = 1,
}

impl Udp {
    /// The other shard that a datagram between two sockets of this host is for, if it is one: that
    /// of the socket that was found.
    pub(super) fn shard_of_datagram<M: Memory>(
        &self,
        base: &Base<M>,
        found: Option<u32>,
    ) -> Option<u16> {
        match base.sockets.get(found?).map(|socket| &socket.kind) {
            Some(Kind::Datagram(datagram)) => datagram.home,
            _ => None,
        }
    }

    /// The other shard that may have a socket for a datagram between two sockets of this host that
    /// is no socket's here.
    pub(super) fn other_shard_for<M: Memory>(
        &self,
        base: &Base<M>,
        receiver: &Tuple,
    ) -> Option<u16> {
        let steer = base.env.config.steer.as_ref()?;
        match steer.owner(receiver) {
            NOBODY => None,
            owner if owner != steer.own => Some(owner),
            _ => base.steering.pins().get(&Flow::datagrams(*receiver)),
        }
    }

    /// Queues a datagram for another shard, or for all others.
    pub(super) fn cross<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        what: Crossing,
        to: Option<u16>,
        arrived: &DatagramInfo,
        payload: &[u8],
    ) {
        let Some(steer) = &base.env.config.steer else {
            return;
        };
        let own = steer.own;
        if self.crossing.len() >= CROSSING_MAX {
            base.env.counters.udp_crossing_full += 1;
            return;
        }
        let record = Record {
            payload_len: payload.len() as u32,
            from: arrived.from,
            to: arrived.to.ip(),
            to_port: arrived.to.port(),
            hops: arrived.hops,
            class: arrived.class,
            segment_size: arrived.segment_size,
            dropped: 0,
        };
        let mut bytes = base.network.replies.buffer();
        bytes.extend_from_slice(&record.emit());
        bytes.extend_from_slice(&own.to_ne_bytes());
        bytes.push(what as u8);
        bytes.extend_from_slice(payload);
        self.crossing.push_back((to, bytes));
    }

    /// The next datagram that another shard is to deliver, or with none all others, as
    /// [`crate::Arrival::Local`].
    pub(crate) fn take_crossing(&mut self) -> Option<(Option<u16>, Vec<u8>)> {
        self.crossing.pop_front()
    }

    /// Takes in what another shard has handed over.
    pub(crate) fn crossed_input<M: Memory>(&mut self, base: &mut Base<M>, bytes: &[u8]) {
        let Some((head, payload)) = bytes.split_first_chunk::<HEAD>() else {
            return;
        };
        let Some((record, &[s, t, what])) = head.split_first_chunk::<LEN>() else {
            return;
        };
        let record = Record::parse(record);
        let origin = u16::from_ne_bytes([s, t]);
        let arrived = DatagramInfo {
            from: record.from,
            to: SocketAddr::new(record.to, record.to_port),
            hops: record.hops,
            class: record.class,
            segment_size: record.segment_size,
        };
        let to_many = base
            .network
            .is_multicast_or_broadcast(IpAddr::to_canonical(&record.to));
        if to_many {
            self.deliver_multicast_or_broadcast(base, &arrived, payload);
            return;
        }
        let Some(tuple) = Tuple::new(arrived.to, arrived.from) else {
            return;
        };
        if what == Crossing::Refused as u8 {
            let sent = tuple.reversed();
            if let Some(index) = self.find_datagram(base, &sent) {
                self.refuse_here(base, index, &sent, payload);
            }
            return;
        }
        match self.find_datagram(base, &tuple) {
            Some(index) => self.store_datagram(base, index, &arrived, payload),
            None if let Some(shard) = base.steering.pins().get(&Flow::datagrams(tuple)) => {
                self.cross(base, Crossing::Datagram, Some(shard), &arrived, payload);
            }
            None => {
                base.env.counters.udp_no_port += 1;
                let quoted = &payload[..payload.len().min(QUOTE_MAX)];
                self.cross(base, Crossing::Refused, Some(origin), &arrived, quoted);
            }
        }
    }
}
