//! IPv4 in: the checks of RFC 1122 3.2.1 and the way up.

use std::net::{Ipv4Addr, Ipv6Addr};

use millrace_tcp::Instant;
use millrace_wire::ethernet::{EtherType, Mac};
use millrace_wire::offload::{ChecksumState, Frame};
use millrace_wire::tcp::{PROTOCOL as PROTOCOL_TCP, Segment};
use millrace_wire::{checksum, ethernet, icmpv4, ipv4, udp};

use crate::memory::Memory;
use crate::segment::fold;
use crate::shard::Shard;
use crate::table::{Pair, Tuple};

/// Whether a type of service or traffic class says that the packet has met congestion (CE, RFC 3168 5).
pub(crate) fn is_marked(class: u8) -> bool {
    class & 3 == 3
}

/// Where TCP begins in a frame whose IPv4 header has no options.
const HEADS_LEN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

impl<M: Memory> Shard<M> {
    /// Takes in a frame if it is what nearly all are: TCP in a whole IPv4 packet without options, to us, in order in all that is checked
    /// below. False when it is not; then nothing has happened, and the frame is for the long way, which knows what is wrong.
    #[inline]
    pub(crate) fn plain_tcp_input(&mut self, frame: &Frame<'_>, now: Instant) -> bool {
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
            && total_len - ipv4::HEADER_LEN <= rest.len()
            && self.routes.is_own(dst.into());
        let sum = u64::from(first)
            + u64::from(second)
            + u64::from(third)
            + u64::from(src)
            + u64::from(dst);
        if !expected || fold(sum) != 0xffff || !self.routes.is_valid_source(src.into()) {
            return false;
        }
        let from = Mac([s0, s1, s2, s3, s4, s5]);
        self.tcp_input::<Ipv4Addr>(
            (dst.into(), src.into()),
            &rest[..total_len - ipv4::HEADER_LEN],
            frame.checksum,
            is_marked((first >> 16) as u8),
            from,
            now,
        );
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
        // Groups are not served, whether the address of the packet or of the frame says so (RFC 1122 3.3.6, RFC 9293 MUST-57).
        if !self.routes.is_own(header.dst) || link.dst.is_multicast() {
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
        self.ipv4_deliver(link, &header, payload, bytes, frame.checksum, now);
    }

    /// Hands up a whole packet, of which `bytes` is the start, header included.
    pub(crate) fn ipv4_deliver(
        &mut self,
        link: &ethernet::Header,
        header: &ipv4::Header,
        payload: &[u8],
        bytes: &[u8],
        checksum: ChecksumState,
        now: Instant,
    ) {
        match header.protocol {
            PROTOCOL_TCP => {
                self.tcp_input(
                    (header.dst, header.src),
                    payload,
                    checksum,
                    is_marked(header.tos),
                    link.src,
                    now,
                );
            }
            ipv4::PROTOCOL_ICMP => self.icmp_input(header, payload, now),
            other => {
                self.counters.ip_unknown_protocol += 1;
                let code = if other == udp::PROTOCOL {
                    icmpv4::unreachable::PORT
                } else {
                    icmpv4::unreachable::PROTOCOL
                };
                self.icmp_error(code, header, bytes, now);
            }
        }
    }

    #[inline]
    pub(crate) fn tcp_input<A: Family>(
        &mut self,
        (local, remote): (A, A),
        bytes: &[u8],
        checksum: ChecksumState,
        marked: bool,
        from: Mac,
        now: Instant,
    ) {
        self.counters.segments_in += 1;
        if checksum == ChecksumState::Unchecked && !A::verify(remote, local, PROTOCOL_TCP, bytes) {
            self.counters.tcp_checksum += 1;
            return;
        }
        let Ok(mut segment) = Segment::parse(bytes) else {
            self.counters.tcp_malformed += 1;
            return;
        };
        segment.marked = marked;
        let tuple = A::tuple(Pair {
            local,
            remote,
            local_port: segment.dst_port,
            remote_port: segment.src_port,
        });
        self.segment_input(&tuple, &segment, Some(from), now);
    }
}

/// The two families of addresses, as far as transport protocols tell them apart.
pub(crate) trait Family: Copy {
    /// Whether the checksum of a transport packet is right.
    fn verify(src: Self, dst: Self, protocol: u8, packet: &[u8]) -> bool;
    /// A pair as a tuple.
    fn tuple(pair: Pair<Self>) -> Tuple;
}

impl Family for Ipv4Addr {
    #[inline]
    fn verify(src: Self, dst: Self, protocol: u8, packet: &[u8]) -> bool {
        checksum::verify_v4(src, dst, protocol, packet)
    }

    #[inline]
    fn tuple(pair: Pair<Self>) -> Tuple {
        Tuple::V4(pair)
    }
}

impl Family for Ipv6Addr {
    #[inline]
    fn verify(src: Self, dst: Self, protocol: u8, packet: &[u8]) -> bool {
        checksum::verify_v6(src, dst, protocol, packet)
    }

    #[inline]
    fn tuple(pair: Pair<Self>) -> Tuple {
        Tuple::V6(pair)
    }
}
