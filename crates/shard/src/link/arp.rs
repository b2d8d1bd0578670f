//! ARP (RFC 826): what is learned from packets, and the packets that wait to be sent.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use millrace_tcp::Instant;
use millrace_wire::arp::{self, Operation, Packet};
use millrace_wire::ethernet::{self, EtherType, HEADER_LEN, Mac};
use millrace_wire::offload::Offload;

use crate::env::Env;
use crate::ip::v4::Ipv4;
use crate::link::acd::ConflictDetector;
use crate::link::ethernet::{Egress, send_frame};
use crate::link::neighbour::Neighbours;

/// Packets that wait for the port. Further replies are dropped.
const QUEUE_MAX: usize = 256;

/// The ARP packets that wait to be sent, oldest first.
#[derive(Default)]
pub struct ArpQueue(VecDeque<Packet>);

/// The state that an ARP packet may change.
pub struct ArpInput<'a> {
    /// Our addresses.
    pub v4: &'a Ipv4,
    /// The state of our addresses.
    pub acd: &'a mut ConflictDetector,
    /// The table of neighbours.
    pub neighbours: &'a mut Neighbours,
    /// Where replies go.
    pub queue: &'a mut ArpQueue,
}

impl ArpInput<'_> {
    /// Processes a packet. `is_copy`: another shard has received it, and answers it. Returns
    /// whether the packet matters to every shard.
    pub fn receive(mut self, env: &mut Env, bytes: &[u8], is_copy: bool, now: Instant) -> bool {
        let packet = match Packet::parse(bytes) {
            Ok(packet) if is_plausible(&packet, env.config.mac) => packet,
            _ => {
                env.counters.arp_dropped += 1;
                return false;
            }
        };
        let for_us = self.v4.is_own(packet.target_ip);
        if self.v4.is_own(packet.sender_ip) {
            // RFC 5227 2.4: "an ARP packet (Request *or* Reply) where the 'sender IP address' is
            // (one of) the host's own IP address(es) configured on that interface, but the 'sender
            // hardware address' does not match any of the host's own interface addresses, then
            // this is a conflicting ARP packet".
            env.counters.arp_conflicts += u64::from(!is_copy);
            self.on_conflict(env, packet.sender_ip, packet.sender_mac, false, now);
            return true;
        }
        let mut concerns_all = false;
        if packet.sender_ip.is_unspecified() {
            // A probe. It gets an answer, but nothing is learned from it.
            if for_us {
                self.on_conflict(env, packet.target_ip, packet.sender_mac, true, now);
                concerns_all = true;
            }
        } else {
            let is_neighbour = self.v4.on_link(packet.sender_ip);
            // A host with several addresses may ask from one that is not on this link, as Linux
            // does. It gets an answer, but no entry.
            if !self.v4.is_valid_source(packet.sender_ip) || !(is_neighbour || for_us) {
                env.counters.arp_dropped += 1;
                return false;
            }
            if is_neighbour {
                self.learn(env, &packet, for_us, now);
                concerns_all = true;
            }
        }
        let is_request = packet.operation == Operation::REQUEST;
        if !is_copy && is_request && for_us && self.acd.may_use(packet.target_ip) {
            self.queue.reply(env, &packet);
        }
        concerns_all
    }

    /// Another station uses, or probes for, an address of ours.
    fn on_conflict(
        &mut self,
        env: &mut Env,
        address: Ipv4Addr,
        station: Mac,
        is_probe: bool,
        now: Instant,
    ) {
        if self.acd.on_conflict(address, station, is_probe, now) {
            self.queue.announce(env, address);
        }
    }

    /// RFC 826: "If the pair <protocol type, sender protocol address> is already in my translation
    /// table, update the sender hardware address field of the entry". Only the sender of a request
    /// for our address gets a new entry, since we are about to answer it.
    fn learn(&mut self, env: &mut Env, packet: &Packet, for_us: bool, now: Instant) {
        let create = for_us && packet.operation == Operation::REQUEST;
        self.neighbours.learn(
            packet.sender_ip.into(),
            packet.sender_mac,
            create,
            now,
            &mut env.counters,
        );
    }
}

/// Whether a packet can be another host's request or reply.
fn is_plausible(packet: &Packet, own: Mac) -> bool {
    matches!(packet.operation, Operation::REQUEST | Operation::REPLY)
        && packet.sender_mac.is_unicast()
        && packet.sender_mac != own
}

impl ArpQueue {
    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Queues the reply to a request for an address of ours.
    fn reply(&mut self, env: &mut Env, request: &Packet) {
        if self.0.len() >= QUEUE_MAX {
            env.counters.replies_dropped += 1;
            return;
        }
        self.0.push_back(Packet {
            operation: Operation::REPLY,
            sender_mac: env.config.mac,
            sender_ip: request.target_ip,
            target_mac: request.sender_mac,
            target_ip: request.sender_ip,
        });
    }

    /// Queues a probe for `address` (RFC 5227 2.1.1).
    pub fn probe(&mut self, env: &Env, address: Ipv4Addr) {
        let probe = request(env.config.mac, Ipv4Addr::UNSPECIFIED, address);
        self.0.push_back(probe);
    }

    /// Queues an announcement of `address` (RFC 5227 2.3).
    pub fn announce(&mut self, env: &mut Env, address: Ipv4Addr) {
        env.counters.arp_announcements_out += 1;
        self.0.push_back(request(env.config.mac, address, address));
    }

    /// Sends what waits; returns false when the port is full.
    pub fn transmit(&mut self, env: &mut Env, egress: &mut impl Egress) -> bool {
        while let Some(packet) = self.0.front() {
            let is_reply = packet.operation == Operation::REPLY;
            let to = match is_reply {
                true => packet.target_mac,
                false => Mac::BROADCAST,
            };
            if !send(env, egress, to, packet) {
                return false;
            }
            self.0.pop_front();
            env.counters.arp_replies_out += u64::from(is_reply);
        }
        true
    }
}

/// Asks station `to` for the owner of `target`; returns false when the port is full.
pub fn send_request(
    env: &mut Env,
    egress: &mut impl Egress,
    to: Mac,
    source: Ipv4Addr,
    target: Ipv4Addr,
) -> bool {
    let sent = send(env, egress, to, &request(env.config.mac, source, target));
    env.counters.arp_requests_out += u64::from(sent);
    sent
}

fn request(own: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Packet {
    Packet {
        operation: Operation::REQUEST,
        sender_mac: own,
        sender_ip: sender,
        target_mac: Mac([0; 6]),
        target_ip: target,
    }
}

fn send(env: &mut Env, egress: &mut impl Egress, to: Mac, packet: &Packet) -> bool {
    let mut frame = [0; HEADER_LEN + arp::LEN];
    ethernet::Header {
        dst: to,
        src: env.config.mac,
        ethertype: EtherType::ARP,
    }
    .emit(&mut frame);
    packet.emit(&mut frame[HEADER_LEN..]);
    send_frame(&mut env.counters, egress, &frame, [&[], &[]], Offload::None)
}
