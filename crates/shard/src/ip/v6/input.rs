//! IPv6 in: the checks of RFC 8200 and the way up.

use millrace_tcp::Instant;
use millrace_wire::ipv6::{self, Problem, parameter};
use millrace_wire::offload::Frame;
use millrace_wire::{ethernet, icmpv6, tcp, udp};

use super::icmp::Icmpv6Error;
use crate::ip::{Received, is_marked};
use crate::memory::Memory;
use crate::shard::Shard;
use crate::udp::Packet;

impl<M: Memory> Shard<M> {
    pub(crate) fn ipv6_input(
        &mut self,
        link: &ethernet::Header,
        bytes: &[u8],
        frame: &Frame<'_>,
        now: Instant,
    ) {
        let Ok((header, payload)) = ipv6::Header::parse(bytes) else {
            self.counters.ip_malformed += 1;
            return;
        };
        let to_group = self.v6.is_group(header.dst)
            || header.dst.is_multicast()
                && (self.config.steer.is_some() || self.is_member(header.dst.into()));
        // Whoever sends to one host does not send to a group of stations.
        if !to_group && (link.dst.is_multicast() || !self.v6.takes(header.dst)) {
            self.counters.ip_not_ours += 1;
            return;
        }
        // Only neighbour discovery comes from nobody.
        let from_nobody = header.src.is_unspecified();
        if !from_nobody && !self.v6.is_valid_source(header.src) {
            self.counters.ip_bad_source += 1;
            return;
        }
        let packet = &bytes[..ipv6::HEADER_LEN + payload.len()];
        let how = Received {
            checksum: frame.checksum,
            segment_size: frame.segment_size,
        };
        self.ipv6_deliver(link, &header, payload, packet, how, false, now);
    }

    /// Hands up a packet, of which `packet` is the start, header included. `joined`: it was put together from fragments.
    #[expect(clippy::too_many_arguments, reason = "a packet and how it came")]
    pub(crate) fn ipv6_deliver(
        &mut self,
        link: &ethernet::Header,
        header: &ipv6::Header,
        payload: &[u8],
        packet: &[u8],
        how: Received,
        joined: bool,
        now: Instant,
    ) {
        let to_group = header.dst.is_multicast();
        let from_nobody = header.src.is_unspecified();
        let content = match ipv6::walk(header, payload) {
            Ok(content) => content,
            Err(problem) => {
                self.counters.ip_malformed += 1;
                if let Problem::Parameter {
                    code,
                    pointer,
                    to_groups,
                } = problem
                    && (!to_group || to_groups)
                {
                    self.icmpv6_error(
                        Icmpv6Error::Parameter { code, pointer },
                        header,
                        packet,
                        now,
                    );
                }
                return;
            }
        };
        match content.fragment {
            Some(_) if joined => {
                // A fragment within a fragment.
                self.counters.ip_malformed += 1;
                return;
            }
            Some(fragment) if !fragment.is_atomic() => {
                self.fragment_v6_input(link, header, &content, &fragment, packet, now);
                return;
            }
            _ => {}
        }
        let fragmented = joined || content.fragment.is_some();
        match content.protocol {
            icmpv6::PROTOCOL => {
                self.icmpv6_input(link, header, content.payload, fragmented, now);
            }
            _ if from_nobody => self.counters.ip_bad_source += 1,
            udp::PROTOCOL => {
                let packet_in = Packet {
                    src: header.src,
                    dst: header.dst,
                    hops: header.hop_limit,
                    class: header.traffic_class,
                    bytes: content.payload,
                    checksum: how.checksum,
                    segment_size: how.segment_size,
                    is_multicast_or_broadcast: to_group,
                };
                if !self.udp_input(&packet_in) {
                    let trouble = Icmpv6Error::Unreachable(icmpv6::unreachable::PORT);
                    self.icmpv6_error(trouble, header, packet, now);
                }
            }
            _ if to_group => self.counters.ip_not_ours += 1,
            tcp::PROTOCOL => {
                self.tcp_input(
                    (header.dst, header.src),
                    content.payload,
                    how.checksum,
                    is_marked(header.traffic_class),
                    link.src,
                    now,
                );
            }
            _ => {
                self.counters.ip_unknown_protocol += 1;
                let trouble = Icmpv6Error::Parameter {
                    code: parameter::NEXT_HEADER,
                    pointer: content.protocol_at,
                };
                self.icmpv6_error(trouble, header, packet, now);
            }
        }
    }
}
