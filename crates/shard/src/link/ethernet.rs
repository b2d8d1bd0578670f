//! Frames in: which are for us, and ARP.

use std::net::Ipv4Addr;

use millrace_tcp::Instant;
use millrace_wire::arp::{self, Operation};
use millrace_wire::ethernet::{self, EtherType, HEADER_LEN, Mac};
use millrace_wire::offload::{Frame, Offload};

use crate::link::neighbour::Request;
use crate::memory::Memory;
use crate::shard::{Egress, Shard};
use crate::steering::Arrival;

impl<M: Memory> Shard<M> {
    /// Takes in one frame. What it gives rise to leaves with the next [`Shard::transmit`], so that the answers to a batch of frames, and
    /// what programs say to them, leave together.
    pub fn input(&mut self, frame: &Frame<'_>, now: Instant) {
        self.counters.frames_in += 1;
        self.counters.bytes_in += frame.bytes.len() as u64;
        if !self.fast_path_input(frame, now) {
            self.other_input(frame, now);
        }
    }

    /// The long way in. Apart, so that the short one is not made to carry it.
    #[inline(never)]
    fn other_input(&mut self, frame: &Frame<'_>, now: Instant) {
        let Ok((header, payload)) = ethernet::Header::parse(frame.bytes) else {
            self.counters.ethernet_dropped += 1;
            return;
        };
        if header.dst != self.config.mac && !header.dst.is_multicast() {
            self.counters.ethernet_not_ours += 1;
            return;
        }
        match header.ethertype {
            EtherType::IPV4 => self.ipv4_input(&header, payload, frame, now),
            EtherType::ARP => self.arp_input(payload, now),
            EtherType::IPV6 if self.v6.is_on() => self.ipv6_input(&header, payload, frame, now),
            _ => self.counters.ethernet_dropped += 1,
        }
    }

    /// RFC 826, with the care of RFC 5227 for our own addresses.
    fn arp_input(&mut self, bytes: &[u8], now: Instant) {
        let Ok(packet) = arp::Packet::parse(bytes) else {
            self.counters.arp_dropped += 1;
            return;
        };
        let known_operation = matches!(packet.operation, Operation::REQUEST | Operation::REPLY);
        if !known_operation
            || !packet.sender_mac.is_unicast()
            || packet.sender_mac == self.config.mac
        {
            self.counters.arp_dropped += 1;
            return;
        }
        let for_us = self.routes.is_own(packet.target_ip);
        if self.routes.is_own(packet.sender_ip) {
            // Somebody claims an address of ours. We neither believe it nor stop using it, if we use it yet (RFC 5227 2.4 (c)).
            if self.arrival != Arrival::Copy {
                self.counters.arp_conflicts += 1;
            }
            self.copy_to_all_shards();
            self.on_conflict(packet.sender_ip, packet.sender_mac, false, now);
            return;
        }
        // A probe for our address (sender unspecified) is answered, and taught nothing by.
        if !packet.sender_ip.is_unspecified() {
            if !self.routes.is_valid_source(packet.sender_ip) {
                self.counters.arp_dropped += 1;
                return;
            }
            // A host with several addresses may ask in the name of one that is not of this link, as Linux does. It is answered likewise.
            let on_link = self.routes.on_link(packet.sender_ip);
            if !on_link && !for_us {
                self.counters.arp_dropped += 1;
                return;
            }
            // One that asks for us will be answered: it is worth an entry. Others, gratuitous ones among them, only change what is known.
            if on_link {
                let create = for_us && packet.operation == Operation::REQUEST;
                self.neighbours.learn(
                    packet.sender_ip.into(),
                    packet.sender_mac,
                    create,
                    now,
                    &mut self.counters,
                );
                self.copy_to_all_shards();
            }
        }
        if for_us && packet.sender_ip.is_unspecified() {
            self.copy_to_all_shards();
            self.on_conflict(packet.target_ip, packet.sender_mac, true, now);
        }
        if self.arrival == Arrival::Copy {
            return;
        }
        let answers = for_us && self.acd.may_use(packet.target_ip);
        if answers && packet.operation == Operation::REQUEST {
            if self.arp_replies.len() < ARP_REPLIES_MAX {
                self.arp_replies.push_back(arp::Packet {
                    operation: Operation::REPLY,
                    sender_mac: self.config.mac,
                    sender_ip: packet.target_ip,
                    target_mac: packet.sender_mac,
                    target_ip: packet.sender_ip,
                });
            } else {
                self.counters.replies_dropped += 1;
            }
        }
    }

    /// Sends the ARP answers, probes and announcements that wait; false when the port is full.
    pub(crate) fn send_arp_replies(&mut self, egress: &mut impl Egress) -> bool {
        while let Some(packet) = self.arp_replies.front().copied() {
            let is_reply = packet.operation == Operation::REPLY;
            let to = if is_reply {
                packet.target_mac
            } else {
                Mac::BROADCAST
            };
            if !self.send_arp_packet(egress, to, &packet) {
                return false;
            }
            self.arp_replies.pop_front();
            self.counters.arp_replies_out += u64::from(is_reply);
        }
        true
    }

    /// Asks for a neighbour; false when the port is full.
    pub(crate) fn send_arp_request(
        &mut self,
        egress: &mut impl Egress,
        request: &Request,
        target: Ipv4Addr,
    ) -> bool {
        let packet = arp::Packet {
            operation: Operation::REQUEST,
            sender_mac: self.config.mac,
            sender_ip: self.routes.source_for(target),
            target_mac: Mac([0; 6]),
            target_ip: target,
        };
        if !self.send_arp_packet(egress, request.to, &packet) {
            return false;
        }
        self.counters.arp_requests_out += 1;
        true
    }

    fn send_arp_packet(&mut self, egress: &mut impl Egress, to: Mac, packet: &arp::Packet) -> bool {
        let mut head = [0; HEADER_LEN + arp::LEN];
        ethernet::Header {
            dst: to,
            src: self.config.mac,
            ethertype: EtherType::ARP,
        }
        .emit(&mut head);
        packet.emit(&mut head[HEADER_LEN..]);
        self.send_frame(egress, &head, [&[], &[]], Offload::None)
    }

    /// Hands a frame to the port and counts it; false when the port is full.
    pub(crate) fn send_frame(
        &mut self,
        egress: &mut impl Egress,
        head: &[u8],
        payload: [&[u8]; 2],
        offload: Offload,
    ) -> bool {
        if !egress.send(head, payload, offload) {
            self.counters.egress_full += 1;
            return false;
        }
        self.counters.frames_out += 1;
        self.counters.bytes_out += (head.len() + payload[0].len() + payload[1].len()) as u64;
        true
    }
}

/// ARP replies that wait for the port; more than a batch asks for are dropped.
const ARP_REPLIES_MAX: usize = 256;
