//! Datagrams on their way to the port: as one packet, as fragments, or cut into several datagrams.

use std::net::SocketAddr;

use millrace_tcp::Instant;
use millrace_wire::ethernet::{self, EtherType};
use millrace_wire::offload::Capabilities;

use super::packet::{OutgoingDatagram, To};
use super::state::Udp;
use crate::base::Base;
use crate::connection_table::Tuple;
use crate::link::ethernet::{Egress, send_frame};
use crate::link::neighbour::{Handle, Lookup};
use crate::memory::Memory;
use crate::network::reply_queue::Reply;

/// Datagrams that leave before it is connections' turn.
const TURN: usize = 16;

impl Udp {
    /// Sends datagrams, a turn of them; false when the port is full.
    pub(crate) fn send_datagrams<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
        now: Instant,
    ) -> bool {
        for _ in 0..TURN {
            let Some(mut outgoing) = self.outbox.pop_front() else {
                return true;
            };
            let station = match outgoing.to {
                To::Station(station) => station,
                To::Here => {
                    self.release_sent(base, outgoing);
                    continue;
                }
                To::Hop(hop) => match self.resolve_datagram(base, &mut outgoing, hop, now) {
                    Lookup::Known(station) => station,
                    Lookup::Wait => {
                        self.wait_with_neighbour(base, &outgoing);
                        self.release_sent(base, outgoing);
                        continue;
                    }
                    Lookup::Gone => {
                        base.env.counters.ip_no_route += 1;
                        self.release_sent(base, outgoing);
                        continue;
                    }
                },
            };
            loop {
                let flow_label = self.datagram_label(base, &outgoing);
                let piece = outgoing.next_piece(flow_label, capabilities.tx_checksum, |head| {
                    ethernet::Header {
                        dst: station,
                        src: base.env.config.mac,
                        ethertype: match outgoing.remote {
                            SocketAddr::V4(_) => EtherType::IPV4,
                            SocketAddr::V6(_) => EtherType::IPV6,
                        },
                    }
                    .emit(head);
                });
                let payload = &outgoing.block[piece.from..piece.to];
                let head = &piece.head[..piece.head_len];
                if !send_frame(
                    &mut base.env.counters,
                    egress,
                    head,
                    [payload, &[]],
                    piece.offload,
                ) {
                    self.outbox.push_front(outgoing);
                    return false;
                }
                outgoing.sent = piece.to as u32;
                if piece.to == outgoing.len as usize {
                    break;
                }
            }
            self.release_sent(base, outgoing);
        }
        true
    }

    /// The station that a datagram goes to.
    fn resolve_datagram<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        outgoing: &mut OutgoingDatagram,
        hop: Handle,
        now: Instant,
    ) -> Lookup {
        match base.network.neighbours.resolve(hop, now) {
            Lookup::Gone => {}
            lookup => return lookup,
        }
        let owner = Some(outgoing.owner);
        let found = base
            .network
            .neighbours
            .find(outgoing.next, owner, now, &mut base.env.counters);
        let Some(hop) = found else {
            return Lookup::Gone;
        };
        outgoing.to = To::Hop(hop);
        if let Some(datagram) = base.datagram_mut(outgoing.socket)
            && datagram.remote == Some(outgoing.remote)
        {
            datagram.hop = hop;
        }
        base.network.neighbours.resolve(hop, now)
    }

    /// Leaves a datagram with the neighbour whose station is being asked for: its queue is bounded,
    /// and what is in it leaves or is dropped with the answer.
    fn wait_with_neighbour<M: Memory>(&mut self, base: &mut Base<M>, outgoing: &OutgoingDatagram) {
        let To::Hop(hop) = outgoing.to else {
            return;
        };
        let flow_label = self.datagram_label(base, outgoing);
        let mut at = outgoing.sent as usize;
        loop {
            let piece = outgoing.piece_at(at, flow_label, false, |_| {});
            let mut packet = base.network.replies.buffer();
            packet.extend_from_slice(&piece.head[ethernet::HEADER_LEN..piece.head_len]);
            packet.extend_from_slice(&outgoing.block[piece.from..piece.to]);
            if let Some(oldest) = base
                .network
                .neighbours
                .wait_datagram(hop, Reply::Packet(packet))
            {
                base.env.counters.neighbour_queue_dropped += 1;
                base.network.replies.recycle(oldest);
            }
            at = piece.to;
            if at == outgoing.len as usize {
                return;
            }
        }
    }

    fn datagram_label<M: Memory>(&self, base: &Base<M>, outgoing: &OutgoingDatagram) -> u32 {
        match (outgoing.remote, Tuple::new(outgoing.local, outgoing.remote)) {
            (SocketAddr::V6(_), Some(tuple)) => base.env.secrets.flow_label(&tuple),
            _ => 0,
        }
    }
}
