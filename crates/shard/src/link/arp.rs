//! ARP packets in (RFC 826): neighbours are learned from them, and requests are answered.

use std::net::Ipv4Addr;

use millrace_tcp::Instant;
use millrace_wire::arp::{Operation, Packet};
use millrace_wire::ethernet::Mac;

use crate::env::Env;
use crate::ip::v4::Ipv4;
use crate::link::acd::ConflictDetector;
use crate::link::arp_queue::ArpQueue;
use crate::link::neighbour::Neighbours;

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
