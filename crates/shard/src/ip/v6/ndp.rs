//! Neighbour discovery (RFC 4861): answers for our addresses, and what is learnt of others.

use std::net::{IpAddr, Ipv6Addr};

use millrace_tcp::Instant;
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ndp::{HOP_LIMIT, LEN_MAX, Message};
use millrace_wire::offload::Offload;
use millrace_wire::{icmpv6, ipv6};

use crate::link::neighbour::Request;
use crate::memory::Memory;
use crate::output::reply_queue::Reply;
use crate::shard::{Egress, Shard};
use crate::steering::Arrival;

impl<M: Memory> Shard<M> {
    /// Takes in a message whose checksum is right.
    pub(super) fn ndp_input(
        &mut self,
        link: &ethernet::Header,
        header: &ipv6::Header,
        bytes: &[u8],
        now: Instant,
    ) {
        // What we have sent ourselves comes back on some links (RFC 4862, appendix A).
        let message = match Message::parse(header, bytes) {
            Ok(message) if link.src != self.config.mac => message,
            _ => {
                self.counters.nd_dropped += 1;
                return;
            }
        };
        self.copy_to_all_shards();
        match message {
            Message::NeighbourSolicitation { target, source } => {
                self.solicitation_input(header, target, source, now);
            }
            Message::NeighbourAdvertisement {
                target,
                link,
                router,
                solicited,
                replaces,
            } => {
                if self.v6.is_local(target) {
                    // We neither believe it nor stop using the address.
                    if self.on_address_conflict(target, true) {
                        self.counters.nd_conflicts += 1;
                    }
                    return;
                }
                self.neighbours
                    .advertised(target, link, solicited, replaces, now);
                if !router {
                    self.router_lost(target);
                }
            }
            Message::RouterAdvertisement(router) => self.router_input(header.src, &router, now),
            // For routers, or not followed.
            Message::RouterSolicitation { .. } | Message::Redirect => {}
        }
    }

    /// RFC 4861 7.2.3 and 7.2.4, RFC 4862 5.4.3.
    fn solicitation_input(
        &mut self,
        header: &ipv6::Header,
        target: Ipv6Addr,
        source: Option<Mac>,
        now: Instant,
    ) {
        let is_probe = header.src.is_unspecified();
        if !self.on_address_conflict(target, is_probe) {
            return;
        }
        if let Some(mac) = source
            && self.v6.on_link(header.src)
        {
            self.neighbours
                .hear(header.src, mac, true, now, &mut self.counters);
        }
        if self.arrival == Arrival::Copy {
            return;
        }
        let answer = Message::NeighbourAdvertisement {
            target,
            link: Some(self.config.mac),
            router: false,
            solicited: !is_probe,
            replaces: true,
        };
        let to = if is_probe {
            ipv6::ALL_NODES
        } else {
            header.src
        };
        self.send_ndp(target, to, &answer);
    }

    /// Queues a message.
    pub(super) fn send_ndp(&mut self, src: Ipv6Addr, dst: Ipv6Addr, message: &Message) {
        match message {
            Message::NeighbourSolicitation { .. } => self.counters.nd_solicitations_out += 1,
            Message::NeighbourAdvertisement { .. } => self.counters.nd_advertisements_out += 1,
            _ => {}
        }
        let mut buffer = self.replies.buffer();
        buffer.resize(ipv6::HEADER_LEN + LEN_MAX, 0);
        let len = emit(src, dst, message, &mut buffer);
        buffer.truncate(len);
        self.reply(Reply::Packet(buffer));
    }

    /// Asks for a neighbour; false when the port is full.
    pub(crate) fn send_solicitation(
        &mut self,
        egress: &mut impl Egress,
        request: &Request,
        target: Ipv6Addr,
    ) -> bool {
        // An address that is not ours yet asks for nobody; the neighbour is asked again in a second.
        let Some(src) = self.v6.source_for(target) else {
            return true;
        };
        let (to, dst) = match request.to {
            Mac::BROADCAST => {
                let group = ipv6::solicited_node(target);
                (Mac::of_group(group), group)
            }
            known => (known, target),
        };
        let message = Message::NeighbourSolicitation {
            target,
            source: Some(self.config.mac),
        };
        let mut head = [0; ethernet::HEADER_LEN + ipv6::HEADER_LEN + LEN_MAX];
        ethernet::Header {
            dst: to,
            src: self.config.mac,
            ethertype: EtherType::IPV6,
        }
        .emit(&mut head);
        let len = emit(src, dst, &message, &mut head[ethernet::HEADER_LEN..]);
        let frame = &head[..ethernet::HEADER_LEN + len];
        if !self.send_frame(egress, frame, [&[], &[]], Offload::None) {
            return false;
        }
        self.counters.nd_solicitations_out += 1;
        true
    }

    /// Sends requests for neighbours, over ARP or neighbour discovery; false when the port is full.
    pub(crate) fn send_requests(&mut self, egress: &mut impl Egress) -> bool {
        while let Some(request) = self.neighbours.take_request() {
            let sent = match request.target {
                IpAddr::V4(target) => self.send_arp_request(egress, &request, target),
                IpAddr::V6(target) => self.send_solicitation(egress, &request, target),
            };
            if !sent {
                self.neighbours.return_request(request);
                return false;
            }
        }
        true
    }
}

/// Writes the packet with a message; returns its length.
fn emit(src: Ipv6Addr, dst: Ipv6Addr, message: &Message, out: &mut [u8]) -> usize {
    let len = message.emit(src, dst, &mut out[ipv6::HEADER_LEN..]);
    ipv6::Header {
        src,
        dst,
        next_header: icmpv6::PROTOCOL,
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
        flow_label: 0,
        payload_len: len as u16,
    }
    .emit(out);
    ipv6::HEADER_LEN + len
}
