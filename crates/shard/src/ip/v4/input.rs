//! IPv4 in: the checks of RFC 1122 3.2.1 and the way up.

use std::net::Ipv4Addr;

use millrace_tcp::Instant;
use millrace_wire::checksum::Sum;
use millrace_wire::ethernet::{EtherType, Mac};
use millrace_wire::offload::{ChecksumState, Frame};
use millrace_wire::tcp::{PROTOCOL as PROTOCOL_TCP, PlainSegment};
use millrace_wire::{ethernet, icmpv4, igmp, ipv4, udp};

use crate::connection_table::Pair;
use crate::ip::{Received, is_marked};
use crate::memory::Memory;
use crate::shard::Shard;
use crate::udp::Packet;

/// Where TCP begins in a frame whose IPv4 header has no options.
const HEADS_LEN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

impl<M: Memory> Shard<M> {
    /// Takes in a frame if it is what nearly all are: TCP in a whole IPv4 packet without options, to us, in order in all that is checked
    /// below. False when it is not; then nothing has happened, and the frame is for the long way, which knows what is wrong.
    #[inline]
    pub(crate) fn fast_path_input(&mut self, frame: &Frame<'_>, now: Instant) -> bool {
        let Some((heads, rest)) = frame.bytes.split_first_chunk::<HEADS_LEN>() else {
            return false;
        };
        let word = |at: usize| {
            u32::from_be_bytes([heads[at], heads[at + 1], heads[at + 2], heads[at + 3]])
        };
        let (first, second, third) = (word(14), word(18), word(22));
        let (src, dst) = (word(26), word(30));
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *heads;
        let total_len = (first & 0xffff) as usize;
        let expected = Mac([d0, d1, d2, d3, d4, d5]) == self.config.mac
            && heads[12..14] == EtherType::IPV4.0.to_be_bytes()
            // Version and header length; no fragment; protocol; hops left.
            && first >> 24 == 0x45
            && second & 0x3fff == 0
            && third >> 16 & 0xff == u32::from(PROTOCOL_TCP)
            && third >> 24 != 0
            && total_len >= ipv4::HEADER_LEN
            && total_len - ipv4::HEADER_LEN <= rest.len();
        if !expected || !Sum::of(&heads[ethernet::HEADER_LEN..]).is_valid() {
            return false;
        }
        let (local, remote) = (Ipv4Addr::from(dst), Ipv4Addr::from(src));
        let from = Mac([s0, s1, s2, s3, s4, s5]);
        let marked = is_marked((first >> 16) as u8);
        let bytes = &rest[..total_len - ipv4::HEADER_LEN];
        let addresses = Sum::of(&heads[HEADS_LEN - 8..]);
        let pseudo = Sum::word(u16::from(PROTOCOL_TCP)) + Sum::word(bytes.len() as u16);
        let checksum = match frame.checksum {
            ChecksumState::Unchecked if (addresses + pseudo + Sum::of(bytes)).is_valid() => {
                ChecksumState::Valid
            }
            known => known,
        };
        if checksum != ChecksumState::Unchecked
            && let Some(mut segment) = PlainSegment::parse(bytes)
            // What a connection speaks with was looked at when it was made.
            && let Some(index) = self.table.stream_v4(&Pair {
                local,
                remote,
                local_port: segment.dst_port,
                remote_port: segment.src_port,
            })
        {
            segment.marked = marked;
            if self.plain_input::<false>(index, &segment, from, now)
                || self.plain_input::<true>(index, &segment, from, now)
            {
                self.counters.segments_in += 1;
                return true;
            }
        }
        if !self.routes.takes(local) || !self.routes.is_valid_source(remote) {
            return false;
        }
        self.tcp_input((local, remote), bytes, checksum, marked, from, now);
        true
    }

    pub(crate) fn ipv4_input(
        &mut self,
        link: &ethernet::Header,
        bytes: &[u8],
        frame: &Frame<'_>,
        now: Instant,
    ) {
        let Ok((header, options, payload)) = ipv4::Header::parse(bytes) else {
            self.counters.ip_malformed += 1;
            self.say_faulty_option(link, bytes, now);
            return;
        };
        if header.ttl == 0 || (!options.is_empty() && ipv4::is_source_routed(options)) {
            self.counters.ip_malformed += 1;
            return;
        }
        if !ipv4::verify(bytes) {
            self.counters.ip_checksum += 1;
            return;
        }
        // What is for several is so by the addresses of packet and frame alike (RFC 1122 3.3.6), and never TCP (RFC 9293 MUST-57).
        let heard = if link.dst.is_multicast() {
            self.accepts_multicast_or_broadcast(&header)
        } else {
            self.routes.takes(header.dst)
        };
        if !heard {
            self.counters.ip_not_ours += 1;
            return;
        }
        if !self.routes.is_valid_source(header.src) {
            self.counters.ip_bad_source += 1;
            return;
        }
        if header.is_fragment() {
            self.fragment_v4_input(link, &header, payload, bytes, now);
            return;
        }
        let how = Received {
            checksum: frame.checksum,
            segment_size: frame.segment_size,
        };
        self.ipv4_deliver(link, &header, payload, bytes, how, now);
    }

    /// Tells who has sent an option that makes no sense where it stands (RFC 1122 3.2.2.5), if it may be said of that packet at all (3.2.2).
    #[cold]
    fn say_faulty_option(&mut self, link: &ethernet::Header, bytes: &[u8], now: Instant) {
        let Some((header, pointer)) = ipv4::faulty_option(bytes) else {
            return;
        };
        let heads_len = usize::from(bytes[0] & 0xf) * 4;
        let about_error = header.protocol == ipv4::PROTOCOL_ICMP
            && (header.payload_len == 0 || icmpv4::is_error(bytes[heads_len]));
        if ipv4::verify(bytes)
            && !link.dst.is_multicast()
            && self.routes.takes(header.dst)
            && self.routes.is_valid_source(header.src)
            && header.fragment_offset == 0
            && !about_error
        {
            self.icmp_parameter_problem(pointer, &header, bytes, now);
        }
    }

    /// Whether a packet to several hosts is one that we hear.
    fn accepts_multicast_or_broadcast(&self, header: &ipv4::Header) -> bool {
        let is_group = header.dst.is_multicast()
            && (self.config.steer.is_some() || self.is_member(header.dst.into()));
        match header.protocol {
            udp::PROTOCOL => is_group || self.routes.is_broadcast(header.dst),
            igmp::PROTOCOL => is_group,
            _ => false,
        }
    }

    /// Hands up a whole packet, of which `bytes` is the start, header included.
    pub(crate) fn ipv4_deliver(
        &mut self,
        link: &ethernet::Header,
        header: &ipv4::Header,
        payload: &[u8],
        bytes: &[u8],
        how: Received,
        now: Instant,
    ) {
        match header.protocol {
            PROTOCOL_TCP => {
                self.tcp_input(
                    (header.dst, header.src),
                    payload,
                    how.checksum,
                    is_marked(header.tos),
                    link.src,
                    now,
                );
            }
            ipv4::PROTOCOL_ICMP => self.icmp_input(header, payload, now),
            igmp::PROTOCOL if header.dst.is_multicast() => self.igmp_input(payload, now),
            udp::PROTOCOL => {
                let packet = Packet {
                    src: header.src,
                    dst: header.dst,
                    hops: header.ttl,
                    class: header.tos,
                    bytes: payload,
                    checksum: how.checksum,
                    segment_size: how.segment_size,
                    is_multicast_or_broadcast: !self.routes.takes(header.dst),
                };
                // RFC 1122 4.1.3.1.
                if !self.udp_input(&packet) {
                    self.icmp_error(icmpv4::unreachable::PORT, header, bytes, now);
                }
            }
            _ => {
                self.counters.ip_unknown_protocol += 1;
                self.icmp_error(icmpv4::unreachable::PROTOCOL, header, bytes, now);
            }
        }
    }
}
