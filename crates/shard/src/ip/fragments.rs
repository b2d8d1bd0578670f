//! Fragments of both families: what can be said of one alone, the way of what they were parts of, and answers that need several.

use millrace_tcp::Instant;
use millrace_wire::ipv6::{Content, Fragment, parameter};
use millrace_wire::{ethernet, icmpv6, ipv4, ipv6, tcp, udp};

use crate::ip::reassembly::{LEN_MAX, Name, Outcome, Part, Whole};
use crate::ip::v4::icmp::QUOTE_MAX;
use crate::ip::v6::icmp::{Icmpv6Error, QUOTE_MAX as QUOTE_MAX_V6};
use crate::ip::{Received, is_marked};
use crate::memory::Memory;
use crate::output::reply_queue::Reply;
use crate::shard::Shard;

/// Congestion experienced, in type of service and traffic class.
const CONGESTED: u8 = 3;

impl<M: Memory> Shard<M> {
    pub(crate) fn fragment_v4_input(
        &mut self,
        link: &ethernet::Header,
        header: &ipv4::Header,
        payload: &[u8],
        packet: &[u8],
        now: Instant,
    ) {
        self.counters.ip_fragments += 1;
        let ragged = header.more_fragments && !payload.len().is_multiple_of(8);
        // RFC 1858 3.2.2 and 4.2, RFC 3128: a first fragment that hides the flags of TCP, or a second one that would write over them.
        let is_tcp = header.protocol == tcp::PROTOCOL;
        let hides_flags = header.fragment_offset == 0 && payload.len() < tcp::HEADER_LEN;
        if ragged || (is_tcp && (hides_flags || header.fragment_offset == 8)) {
            self.counters.ip_fragments_condemned += 1;
            return;
        }
        let part = Part {
            offset: header.fragment_offset,
            more: header.more_fragments,
            bytes: payload,
            protocol: header.protocol,
            marked: is_marked(header.tos),
            packet: &packet[..packet.len().min(QUOTE_MAX)],
        };
        let name = Name::V4(header.src, header.dst, header.protocol, header.id);
        if let Some(whole) = self.add_fragment(name, &part, now) {
            let header = ipv4::Header {
                tos: header.tos | if whole.marked { CONGESTED } else { 0 },
                more_fragments: false,
                fragment_offset: 0,
                payload_len: whole.bytes.len() as u16,
                ..*header
            };
            let how = Received::default();
            self.ipv4_deliver(link, &header, &whole.bytes, &whole.packet, how, now);
            self.hand_over_reassembled(link, ipv4::HEADER_LEN, &whole.bytes, |out| {
                header.emit(out)
            });
        }
    }

    pub(crate) fn fragment_v6_input(
        &mut self,
        link: &ethernet::Header,
        header: &ipv6::Header,
        content: &Content<'_>,
        fragment: &Fragment,
        packet: &[u8],
        now: Instant,
    ) {
        /// Where the length of the payload stands in the header.
        const LENGTH_AT: u32 = 4;
        self.counters.ip_fragments += 1;
        let payload = content.payload;
        // RFC 8200 4.5: what is said of a fragment that cannot be right.
        let problem = if fragment.more && !payload.len().is_multiple_of(8) {
            Some((parameter::FIELD, LENGTH_AT))
        } else if usize::from(fragment.offset) + payload.len() > LEN_MAX {
            // The offset stands behind what says what follows the fragment header.
            Some((parameter::FIELD, content.protocol_at + 2))
        } else if fragment.offset == 0 && !has_whole_chain(header, content) {
            Some((parameter::INCOMPLETE_CHAIN, 0))
        } else {
            None
        };
        if let Some((code, pointer)) = problem {
            self.counters.ip_fragments_condemned += 1;
            if !header.dst.is_multicast() {
                self.icmpv6_error(
                    Icmpv6Error::Parameter { code, pointer },
                    header,
                    packet,
                    now,
                );
            }
            return;
        }
        let part = Part {
            offset: fragment.offset,
            more: fragment.more,
            bytes: payload,
            protocol: content.protocol,
            marked: is_marked(header.traffic_class),
            packet: &packet[..packet.len().min(QUOTE_MAX_V6)],
        };
        let name = Name::V6(header.src, header.dst, fragment.id);
        if let Some(whole) = self.add_fragment(name, &part, now) {
            let marked = if whole.marked { CONGESTED } else { 0 };
            let header = ipv6::Header {
                next_header: whole.protocol,
                traffic_class: header.traffic_class | marked,
                payload_len: whole.bytes.len() as u16,
                ..*header
            };
            let unchecked = Received::default();
            let (bytes, packet) = (&whole.bytes, &whole.packet);
            self.ipv6_deliver(link, &header, bytes, packet, unchecked, true, now);
            self.hand_over_reassembled(link, ipv6::HEADER_LEN, &whole.bytes, |out| {
                header.emit(out)
            });
        }
    }

    /// Queues an answer that is larger than the link takes: `packet` with `header` in front.
    pub(crate) fn reply_in_fragments_v4(&mut self, header: &ipv4::Header, packet: Vec<u8>) {
        // Nobody guesses the next one (RFC 7739 has the reasons).
        let id = self.secrets.random() as u16;
        let size = piece_size(self.config.mtu, ipv4::HEADER_LEN);
        let payload = &packet[ipv4::HEADER_LEN..];
        for (index, piece) in payload.chunks(size).enumerate() {
            let offset = index * size;
            let mut buffer = self.replies.buffer();
            buffer.resize(ipv4::HEADER_LEN, 0);
            ipv4::Header {
                id,
                dont_fragment: false,
                more_fragments: offset + piece.len() < payload.len(),
                fragment_offset: offset as u16,
                payload_len: piece.len() as u16,
                ..*header
            }
            .emit(&mut buffer);
            buffer.extend_from_slice(piece);
            self.reply(Reply::Packet(buffer));
        }
        self.replies.recycle(Reply::Packet(packet));
    }

    /// The same over IPv6.
    pub(crate) fn reply_in_fragments_v6(&mut self, header: &ipv6::Header, packet: Vec<u8>) {
        let id = self.secrets.random() as u32;
        let heads_len = ipv6::HEADER_LEN + Fragment::LEN;
        let size = piece_size(self.v6.mtu(), heads_len);
        let payload = &packet[ipv6::HEADER_LEN..];
        for (index, piece) in payload.chunks(size).enumerate() {
            let offset = index * size;
            let mut buffer = self.replies.buffer();
            buffer.resize(heads_len, 0);
            ipv6::Header {
                next_header: Fragment::PROTOCOL,
                payload_len: (Fragment::LEN + piece.len()) as u16,
                ..*header
            }
            .emit(&mut buffer);
            let fragment = Fragment {
                id,
                offset: offset as u16,
                more: offset + piece.len() < payload.len(),
            };
            fragment.emit(header.next_header, &mut buffer[ipv6::HEADER_LEN..]);
            buffer.extend_from_slice(piece);
            self.reply(Reply::Packet(buffer));
        }
        self.replies.recycle(Reply::Packet(packet));
    }

    fn add_fragment(&mut self, name: Name, part: &Part<'_>, now: Instant) -> Option<Whole> {
        match self.reassembly.add(name, part, now) {
            Outcome::TimeWaitEntry => None,
            Outcome::Whole(whole) => {
                self.counters.ip_reassembled += 1;
                Some(whole)
            }
            Outcome::Full => {
                self.counters.ip_fragments_refused += 1;
                None
            }
            Outcome::Condemned => {
                self.counters.ip_fragments_condemned += 1;
                None
            }
        }
    }

    /// Gives up packets of which fragments did not come, and tells their senders if the first fragment did (RFC 792, RFC 8200 4.5).
    pub(crate) fn expire_fragments(&mut self, now: Instant) {
        while let Some(packet) = self.reassembly.pop_expired(now) {
            self.counters.ip_reassembly_timeouts += 1;
            if let Ok((header, _)) = ipv6::Header::parse_start(&packet) {
                if !header.dst.is_multicast() {
                    self.icmpv6_error(Icmpv6Error::Reassembly, &header, &packet, now);
                }
            } else if let Ok(header) = ipv4::Header::parse_start(&packet) {
                self.icmp_reassembly_timeout(&header, &packet, now);
            }
        }
    }
}

/// How much of a payload goes into each fragment but the last.
fn piece_size(mtu: u16, heads_len: usize) -> usize {
    (usize::from(mtu) - heads_len) / 8 * 8
}

/// Whether a first fragment says all that there is to say of what is in it (RFC 7112 5): the headers up to that of TCP, UDP or ICMP.
fn has_whole_chain(header: &ipv6::Header, content: &Content<'_>) -> bool {
    let inner = ipv6::Header {
        next_header: content.protocol,
        ..*header
    };
    ipv6::walk(&inner, content.payload).is_ok_and(|inner| {
        let least = match inner.protocol {
            tcp::PROTOCOL => tcp::HEADER_LEN,
            udp::PROTOCOL => udp::HEADER_LEN,
            icmpv6::PROTOCOL => icmpv6::HEADER_LEN,
            _ => 0,
        };
        inner.payload.len() >= least
    })
}
