//! The packets of a datagram: one, its fragments, or those that it is cut into.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use millrace_wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use millrace_wire::ethernet::{self, Mac};
use millrace_wire::ipv6::Fragment;
use millrace_wire::offload::Offload;
use millrace_wire::{ipv4, ipv6, udp};

use crate::error::Error;
use crate::link::neighbour::Handle;
use crate::memory::Owner;

/// All headers, at most.
const HEAD_MAX: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + Fragment::LEN + udp::HEADER_LEN;
/// The most that a datagram of each family carries.
const PAYLOAD_MAX_V4: usize = 65_535 - ipv4::HEADER_LEN - udp::HEADER_LEN;
const PAYLOAD_MAX_V6: usize = 65_535 - udp::HEADER_LEN;
/// Datagrams that one call may be cut into (Linux's `UDP_MAX_SEGMENTS`).
const PIECES_MAX: usize = 128;

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
pub(super) struct Piece {
    pub head: [u8; HEAD_MAX],
    pub head_len: usize,
    /// Of the payload, from where to where.
    pub from: usize,
    pub to: usize,
    pub offload: Offload,
}

impl OutgoingDatagram {
    pub(super) fn next_piece(
        &self,
        flow_label: u32,
        port_sums: bool,
        link: impl FnOnce(&mut [u8]),
    ) -> Piece {
        self.piece_at(self.sent as usize, flow_label, port_sums, link)
    }

    /// The packet with the payload from byte `at` on. `port_sums`: the port computes checksums.
    /// `link` writes the Ethernet header.
    pub(super) fn piece_at(
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

    /// Whether it can be sent with so much payload.
    pub(super) fn check(&self, len: usize) -> Result<(), Error> {
        let (most, header_len) = match self.remote {
            SocketAddr::V4(_) => (PAYLOAD_MAX_V4, ipv4::HEADER_LEN),
            SocketAddr::V6(_) => (PAYLOAD_MAX_V6, ipv6::HEADER_LEN),
        };
        let fits = usize::from(self.mtu) - header_len - udp::HEADER_LEN;
        let size = usize::from(self.segment);
        if len > most {
            return Err(Error::MessageSize);
        }
        if size != 0 && (size > fits || len > size * PIECES_MAX) {
            return Err(Error::Invalid);
        }
        if size == 0 && self.refuses && len > fits {
            return Err(Error::MessageSize);
        }
        Ok(())
    }
}
