//! Neighbour discovery (RFC 4861): what is learned from messages, and the messages that are sent.

use std::net::Ipv6Addr;

use millrace_tcp::Instant;
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ndp::{HOP_LIMIT, LEN_MAX, Message, Router};
use millrace_wire::offload::Offload;
use millrace_wire::{icmpv6, ipv6};

use crate::counters::Counters;
use crate::env::Env;
use crate::ip::v6::interface::Ipv6;
use crate::link::ethernet::{Egress, send_frame};
use crate::link::neighbour::Neighbours;
use crate::network::reply_queue::ReplyQueue;

/// The state that a message of neighbour discovery may change.
pub struct NdpInput<'a> {
    /// Our addresses, and the routers of the link.
    pub v6: &'a mut Ipv6,
    /// The table of neighbours.
    pub neighbours: &'a mut Neighbours,
    /// Where replies go.
    pub replies: &'a mut ReplyQueue,
}

impl NdpInput<'_> {
    /// Processes a message whose checksum is right. `is_copy`: another shard has received it, and
    /// answers it. Returns whether the message matters to every shard.
    pub fn receive(
        mut self,
        env: &mut Env,
        from: Mac,
        header: &ipv6::Header,
        bytes: &[u8],
        is_copy: bool,
        now: Instant,
    ) -> bool {
        // RFC 4862 appendix A: some links loop a host's own multicast packets back to it.
        let message = match Message::parse(header, bytes) {
            Ok(message) if from != env.config.mac => message,
            _ => {
                env.counters.nd_dropped += 1;
                return false;
            }
        };
        match message {
            Message::NeighbourSolicitation { target, source } => {
                self.on_solicitation(env, header, target, source, is_copy, now);
            }
            // We neither believe that the address is another host's, nor stop using it.
            Message::NeighbourAdvertisement { target, .. } if self.v6.is_local(target) => {
                if self.v6.on_address_conflict(&mut env.counters, target, true) {
                    env.counters.nd_conflicts += 1;
                }
            }
            Message::NeighbourAdvertisement {
                target,
                link,
                router,
                solicited,
                replaces,
            } => {
                self.neighbours
                    .advertised(target, link, solicited, replaces, now);
                // RFC 4861 7.2.5: "In those cases where the IsRouter flag changes from TRUE to
                // FALSE as a result of this update, the node MUST remove that router from the
                // Default Router List".
                if !router {
                    self.on_router_lost(target);
                }
            }
            Message::RouterAdvertisement(router) => self.on_router(env, header.src, &router, now),
            // The first is for routers; redirects are not followed, since there is one link.
            Message::RouterSolicitation { .. } | Message::Redirect => {}
        }
        true
    }

    /// RFC 4861 7.2.3 and 7.2.4, RFC 4862 5.4.3.
    fn on_solicitation(
        &mut self,
        env: &mut Env,
        header: &ipv6::Header,
        target: Ipv6Addr,
        source: Option<Mac>,
        is_copy: bool,
        now: Instant,
    ) {
        let is_probe = header.src.is_unspecified();
        let may_answer = self
            .v6
            .on_address_conflict(&mut env.counters, target, is_probe);
        if !may_answer {
            return;
        }
        if let Some(mac) = source
            && self.v6.on_link(header.src)
        {
            self.neighbours
                .hear(header.src, mac, true, now, &mut env.counters);
        }
        if is_copy {
            return;
        }
        let answer = Message::NeighbourAdvertisement {
            target,
            link: Some(env.config.mac),
            router: false,
            solicited: !is_probe,
            replaces: true,
        };
        // RFC 4861 7.2.4: "If the source of the solicitation is the unspecified address, the node
        // MUST set the Solicited flag to zero and multicast the advertisement to the all-nodes
        // address."
        let to = if is_probe {
            ipv6::ALL_NODES
        } else {
            header.src
        };
        send(&mut env.counters, self.replies, target, to, &answer);
    }

    /// A valid router advertisement (RFC 4861 6.1.2) from `address`.
    fn on_router(&mut self, env: &mut Env, address: Ipv6Addr, router: &Router, now: Instant) {
        // RFC 4861 6.3.4: "If the address is already present in the host's Default Router List and
        // the received Router Lifetime value is zero, immediately time-out the entry".
        if router.lifetime_s == 0 {
            self.on_router_lost(address);
        } else if !self.v6.routers.heard(address, router.lifetime_s, now) {
            env.counters.routers_refused += 1;
        }
        if let Some(mac) = router.source {
            let create = self.v6.routers.has(address);
            self.neighbours
                .hear(address, mac, create, now, &mut env.counters);
        }
        if let Some(mtu) = router.mtu {
            self.v6.limit_mtu(mtu);
        }
    }

    /// `address` is no router any more: packets that went by it look for another way.
    fn on_router_lost(&mut self, address: Ipv6Addr) {
        if self.v6.routers.remove(address) {
            self.neighbours.reroute(address.into());
        }
    }
}

/// Queues a message.
pub fn send(
    counters: &mut Counters,
    replies: &mut ReplyQueue,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    message: &Message,
) {
    match message {
        Message::NeighbourSolicitation { .. } => counters.nd_solicitations_out += 1,
        Message::NeighbourAdvertisement { .. } => counters.nd_advertisements_out += 1,
        _ => {}
    }
    replies.push_packet(counters, |buffer| {
        buffer.resize(ipv6::HEADER_LEN + LEN_MAX, 0);
        let len = emit(src, dst, message, buffer);
        buffer.truncate(len);
    });
}

/// Asks station `to`, or with the broadcast address all that may be meant, for the neighbour
/// `target`. Returns false when the port is full.
pub fn send_solicitation(
    env: &mut Env,
    egress: &mut impl Egress,
    to: Mac,
    src: Ipv6Addr,
    target: Ipv6Addr,
) -> bool {
    let (to, dst) = match to {
        Mac::BROADCAST => {
            let group = ipv6::solicited_node(target);
            (Mac::of_group(group), group)
        }
        known => (known, target),
    };
    let message = Message::NeighbourSolicitation {
        target,
        source: Some(env.config.mac),
    };
    let mut head = [0; ethernet::HEADER_LEN + ipv6::HEADER_LEN + LEN_MAX];
    ethernet::Header {
        dst: to,
        src: env.config.mac,
        ethertype: EtherType::IPV6,
    }
    .emit(&mut head);
    let len = emit(src, dst, &message, &mut head[ethernet::HEADER_LEN..]);
    let frame = &head[..ethernet::HEADER_LEN + len];
    let sent = send_frame(&mut env.counters, egress, frame, [&[], &[]], Offload::None);
    env.counters.nd_solicitations_out += u64::from(sent);
    sent
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
