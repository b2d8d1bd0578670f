//! Datagrams on their way to the port: as one packet, as fragments, or cut into several datagrams.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use millrace_tcp::Instant;
use millrace_wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ipv6::Fragment;
use millrace_wire::offload::{Capabilities, Offload};
use millrace_wire::{ipv4, ipv6, udp};

use crate::connection_table::Tuple;
use crate::link::ethernet::{Egress, send_frame};
use crate::link::neighbour::{Handle, Lookup};
use crate::memory::{Memory, Owner};
use crate::output::reply_queue::Reply;
use crate::shard::Shard;

/// All headers, at most.
const HEAD_MAX: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + Fragment::LEN + udp::HEADER_LEN;
/// Datagrams that leave before it is connections' turn.
const TURN: usize = 16;

/// A datagram that has been given to send.
pub(crate) struct OutgoingDatagram {
    pub socket: u32,
    pub generation: NonZeroU32,
    /// The socket's.
    pub owner: Owner,
    /// Its payload is the first `len` bytes.
    pub block: Box<[u8]>,
    pub len: u32,
    /// The room that it takes in its socket's send buffer, in bytes.
    pub charge: u64,
    /// Bytes that are out already.
    pub sent: u32,
    /// Bytes in each of the datagrams that it is cut into; 0: it is one.
    pub segment: u16,
    /// The largest packet on the way.
    pub mtu: u16,
    pub to: To,
    /// The neighbour's address.
    pub next: IpAddr,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub hops: u8,
    pub class: u8,
    /// Routers may not fragment it, if it leaves in one piece.
    pub whole: bool,
    /// It may not be fragmented here.
    pub refuses: bool,
    /// Names its fragments.
    pub id: u32,
}

/// Where a datagram goes on the link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    /// To a socket of this host.
    Here,
    /// To a neighbour.
    Hop(Handle),
    /// To a group of stations.
    Station(Mac),
}

/// One packet of a datagram.
struct Piece {
    head: [u8; HEAD_MAX],
    head_len: usize,
    /// Of the payload, from where to where.
    from: usize,
    to: usize,
    offload: Offload,
}

impl<M: Memory> Shard<M> {
    /// Sends datagrams, a turn of them; false when the port is full.
    pub(crate) fn send_datagrams(
        &mut self,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
        now: Instant,
    ) -> bool {
        for _ in 0..TURN {
            let Some(mut outgoing) = self.udp.outbox.pop_front() else {
                return true;
            };
            let station = match outgoing.to {
                To::Station(station) => station,
                To::Here => {
                    self.release_sent(outgoing);
                    continue;
                }
                To::Hop(hop) => match self.resolve_datagram(&mut outgoing, hop, now) {
                    Lookup::Known(station) => station,
                    Lookup::Wait => {
                        self.wait_with_neighbour(&outgoing);
                        self.release_sent(outgoing);
                        continue;
                    }
                    Lookup::Gone => {
                        self.env.counters.ip_no_route += 1;
                        self.release_sent(outgoing);
                        continue;
                    }
                },
            };
            loop {
                let flow_label = self.datagram_label(&outgoing);
                let piece = outgoing.next_piece(flow_label, capabilities.tx_checksum, |head| {
                    ethernet::Header {
                        dst: station,
                        src: self.env.config.mac,
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
                    &mut self.env.counters,
                    egress,
                    head,
                    [payload, &[]],
                    piece.offload,
                ) {
                    self.udp.outbox.push_front(outgoing);
                    return false;
                }
                outgoing.sent = piece.to as u32;
                if piece.to == outgoing.len as usize {
                    break;
                }
            }
            self.release_sent(outgoing);
        }
        true
    }

    /// The station that a datagram goes to.
    fn resolve_datagram(
        &mut self,
        outgoing: &mut OutgoingDatagram,
        hop: Handle,
        now: Instant,
    ) -> Lookup {
        match self.network.neighbours.resolve(hop, now) {
            Lookup::Gone => {}
            lookup => return lookup,
        }
        let owner = Some(outgoing.owner);
        let found = self
            .network
            .neighbours
            .find(outgoing.next, owner, now, &mut self.env.counters);
        let Some(hop) = found else {
            return Lookup::Gone;
        };
        outgoing.to = To::Hop(hop);
        if let Some(datagram) = self.datagram_mut(outgoing.socket)
            && datagram.remote == Some(outgoing.remote)
        {
            datagram.hop = hop;
        }
        self.network.neighbours.resolve(hop, now)
    }

    /// Leaves a datagram with the neighbour whose station is being asked for: its queue is bounded,
    /// and what is in it leaves or is dropped with the answer.
    fn wait_with_neighbour(&mut self, outgoing: &OutgoingDatagram) {
        let To::Hop(hop) = outgoing.to else {
            return;
        };
        let flow_label = self.datagram_label(outgoing);
        let mut at = outgoing.sent as usize;
        loop {
            let piece = outgoing.piece_at(at, flow_label, false, |_| {});
            let mut packet = self.network.replies.buffer();
            packet.extend_from_slice(&piece.head[ethernet::HEADER_LEN..piece.head_len]);
            packet.extend_from_slice(&outgoing.block[piece.from..piece.to]);
            if let Some(oldest) = self
                .network
                .neighbours
                .wait_datagram(hop, Reply::Packet(packet))
            {
                self.env.counters.neighbour_queue_dropped += 1;
                self.network.replies.recycle(oldest);
            }
            at = piece.to;
            if at == outgoing.len as usize {
                return;
            }
        }
    }

    fn datagram_label(&self, outgoing: &OutgoingDatagram) -> u32 {
        match (outgoing.remote, Tuple::new(outgoing.local, outgoing.remote)) {
            (SocketAddr::V6(_), Some(tuple)) => self.env.secrets.flow_label(&tuple),
            _ => 0,
        }
    }
}

impl OutgoingDatagram {
    fn next_piece(&self, flow_label: u32, port_sums: bool, link: impl FnOnce(&mut [u8])) -> Piece {
        self.piece_at(self.sent as usize, flow_label, port_sums, link)
    }

    /// The packet with the payload from byte `at` on. `port_sums`: the port computes checksums.
    /// `link` writes the Ethernet header.
    fn piece_at(
        &self,
        at: usize,
        flow_label: u32,
        port_sums: bool,
        link: impl FnOnce(&mut [u8]),
    ) -> Piece {
        let (len, mtu) = (self.len as usize, usize::from(self.mtu));
        let ip_len = match self.remote {
            SocketAddr::V4(_) => ipv4::HEADER_LEN,
            SocketAddr::V6(_) => ipv6::HEADER_LEN,
        };
        let size = usize::from(self.segment);
        let cut = size != 0 && len > size;
        if cut || ip_len + udp::HEADER_LEN + len <= mtu {
            let end = if cut { (at + size).min(len) } else { len };
            return self.datagram_piece(at, end, flow_label, port_sums, link);
        }
        self.fragment_piece(at, ip_len, flow_label, link)
    }

    /// A packet that is a datagram.
    fn datagram_piece(
        &self,
        from: usize,
        to: usize,
        flow_label: u32,
        port_sums: bool,
        link: impl FnOnce(&mut [u8]),
    ) -> Piece {
        let mut head = [0; HEAD_MAX];
        link(&mut head);
        let udp_len = udp::HEADER_LEN + to - from;
        let start = self.ip_head(&mut head, udp_len, flow_label, None);
        let pseudo = self.udp_head(&mut head[start..], to - from);
        let (sum, offload) = if port_sums {
            let (start, offset) = (start as u16, udp::CHECKSUM_OFFSET as u16);
            (pseudo.fold(), Offload::Checksum { start, offset })
        } else {
            let header = Sum::of(&head[start..start + udp::HEADER_LEN]);
            let sum = pseudo + header + Sum::of(&self.block[from..to]);
            (udp::checksum_to_send(sum.finish()), Offload::None)
        };
        let at = start + udp::CHECKSUM_OFFSET;
        head[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        Piece {
            head,
            head_len: start + udp::HEADER_LEN,
            from,
            to,
            offload,
        }
    }

    /// A packet that is a fragment. The first one has the UDP header.
    fn fragment_piece(
        &self,
        from: usize,
        ip_len: usize,
        flow_label: u32,
        link: impl FnOnce(&mut [u8]),
    ) -> Piece {
        let len = self.len as usize;
        let extension = match self.remote {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(_) => Fragment::LEN,
        };
        let unit = (usize::from(self.mtu) - ip_len - extension) / 8 * 8;
        let first = from == 0;
        let room = if first { unit - udp::HEADER_LEN } else { unit };
        let offset = if first { 0 } else { from + udp::HEADER_LEN };
        let to = (from + room).min(len);
        let part = to - from + if first { udp::HEADER_LEN } else { 0 };
        let mut head = [0; HEAD_MAX];
        link(&mut head);
        let fragment = Fragment {
            id: self.id,
            offset: offset as u16,
            more: to < len,
        };
        let start = self.ip_head(&mut head, part, flow_label, Some(fragment));
        let mut head_len = start;
        if first {
            let pseudo = self.udp_head(&mut head[start..], len);
            let header = Sum::of(&head[start..start + udp::HEADER_LEN]);
            let sum = pseudo + header + Sum::of(&self.block[..len]);
            let sum = udp::checksum_to_send(sum.finish());
            let at = start + udp::CHECKSUM_OFFSET;
            head[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            head_len += udp::HEADER_LEN;
        }
        Piece {
            head,
            head_len,
            from,
            to,
            offload: Offload::None,
        }
    }

    /// Writes the IP header of a packet with `payload_len` bytes behind it (and behind the fragment
    /// header); returns where they begin.
    fn ip_head(
        &self,
        head: &mut [u8; HEAD_MAX],
        payload_len: usize,
        flow_label: u32,
        fragment: Option<Fragment>,
    ) -> usize {
        let out = &mut head[ethernet::HEADER_LEN..];
        match (self.local.ip(), self.remote.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let dont_fragment = self.whole && fragment.is_none();
                ipv4::Header {
                    src,
                    dst,
                    protocol: udp::PROTOCOL,
                    ttl: self.hops,
                    tos: self.class,
                    // RFC 6864: it means something only if the packet may be cut.
                    id: if dont_fragment { 0 } else { self.id as u16 },
                    dont_fragment,
                    more_fragments: fragment.is_some_and(|fragment| fragment.more),
                    fragment_offset: fragment.map_or(0, |fragment| fragment.offset),
                    payload_len: payload_len as u16,
                }
                .emit(out);
                ethernet::HEADER_LEN + ipv4::HEADER_LEN
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let extension = if fragment.is_some() { Fragment::LEN } else { 0 };
                ipv6::Header {
                    src,
                    dst,
                    next_header: match fragment {
                        Some(_) => Fragment::PROTOCOL,
                        None => udp::PROTOCOL,
                    },
                    hop_limit: self.hops,
                    traffic_class: self.class,
                    flow_label,
                    payload_len: (extension + payload_len) as u16,
                }
                .emit(out);
                if let Some(fragment) = fragment {
                    fragment.emit(udp::PROTOCOL, &mut out[ipv6::HEADER_LEN..]);
                }
                ethernet::HEADER_LEN + ipv6::HEADER_LEN + extension
            }
            // Both ends are of one family, see `Shard::datagram_endpoints`.
            _ => ethernet::HEADER_LEN,
        }
    }

    /// Writes the UDP header, with a checksum of 0; returns the sum of the pseudo-header.
    fn udp_head(&self, out: &mut [u8], payload_len: usize) -> Sum {
        udp::Header {
            src_port: self.local.port(),
            dst_port: self.remote.port(),
            payload_len: payload_len as u16,
        }
        .emit(out);
        let len = udp::HEADER_LEN + payload_len;
        match (self.local.ip(), self.remote.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => pseudo_v4(src, dst, udp::PROTOCOL, len as u16),
            (IpAddr::V6(src), IpAddr::V6(dst)) => pseudo_v6(src, dst, udp::PROTOCOL, len as u32),
            _ => Sum::ZERO,
        }
    }
}
