//! Datagrams between two sockets of this host that are different shards'.

use std::net::{IpAddr, SocketAddr};

use millrace_wire::record::{LEN, Record};

use super::deliver::Arrived;
use crate::memory::Memory;
use crate::reply::Reply;
use crate::shard::Shard;
use crate::socket::Kind;
use crate::table::Tuple;

/// Datagrams that wait to be handed over; more are dropped.
const CROSSING_MAX: usize = 1024;
/// A record, and the port that it is for.
const HEAD: usize = LEN + 2;

impl<M: Memory> Shard<M> {
    /// The other shard that a datagram between two sockets of this host is for, if it is one: that of the socket that was found.
    pub(super) fn shard_of_datagram(&self, found: Option<u32>) -> Option<u16> {
        match self.sockets.get(found?).map(|socket| &socket.kind) {
            Some(Kind::Datagram(datagram)) => datagram.home,
            _ => None,
        }
    }

    /// Queues a datagram for another shard, or for all others.
    pub(super) fn cross(&mut self, to: Option<u16>, arrived: &Arrived, payload: &[u8]) {
        if self.config.steer.is_none() {
            return;
        }
        if self.udp.crossing.len() >= CROSSING_MAX {
            self.counters.udp_crossing_full += 1;
            return;
        }
        let record = Record {
            payload_len: payload.len() as u32,
            from: arrived.from,
            to: arrived.to.ip(),
            hops: arrived.hops,
            class: arrived.class,
            segment_size: arrived.segment_size,
            dropped: 0,
        };
        let mut bytes = self.replies.buffer();
        bytes.extend_from_slice(&record.emit());
        bytes.extend_from_slice(&arrived.to.port().to_ne_bytes());
        bytes.extend_from_slice(payload);
        self.udp.crossing.push_back((to, bytes));
    }

    /// The next datagram that another shard is to deliver, or with none all others, as [`crate::Arrival::Local`].
    pub fn take_crossing(&mut self) -> Option<(Option<u16>, Vec<u8>)> {
        self.udp.crossing.pop_front()
    }

    /// Takes its buffer back.
    pub fn return_crossing(&mut self, bytes: Vec<u8>) {
        self.replies.recycle(Reply::Packet(bytes));
    }

    /// Delivers a datagram that another shard has handed over.
    pub(crate) fn crossed_input(&mut self, bytes: &[u8]) {
        let Some((head, payload)) = bytes.split_first_chunk::<HEAD>() else {
            return;
        };
        let Some((record, port)) = head.split_first_chunk::<LEN>() else {
            return;
        };
        let record = Record::parse(record);
        let port = u16::from_ne_bytes([port[0], port[1]]);
        let arrived = Arrived {
            from: record.from,
            to: SocketAddr::new(record.to, port),
            hops: record.hops,
            class: record.class,
            segment_size: record.segment_size,
        };
        let several = self.means_several(IpAddr::to_canonical(&record.to));
        if several {
            self.deliver_to_several(&arrived, payload);
            return;
        }
        let found =
            Tuple::new(arrived.to, arrived.from).and_then(|tuple| self.find_datagram(&tuple));
        match found {
            Some(index) if self.shard_of_datagram_is_own(index) => {
                self.store_datagram(index, &arrived, payload);
            }
            _ => self.counters.udp_no_port += 1,
        }
    }

    fn shard_of_datagram_is_own(&self, index: u32) -> bool {
        let socket = self.datagram_of(index);
        socket.is_ok_and(|(_, datagram)| datagram.home.is_none())
    }
}
