//! ARP packets out (RFC 826).

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use millrace_wire::arp::{self, Operation, Packet};
use millrace_wire::ethernet::{self, EtherType, HEADER_LEN, Mac};
use millrace_wire::offload::Offload;

use crate::env::Env;
use crate::link::ethernet::{Egress, send_frame};

/// Packets that wait for the port. Further replies are dropped.
const QUEUE_MAX: usize = 256;

/// The ARP packets that wait to be sent, oldest first.
#[derive(Default)]
pub struct ArpQueue(VecDeque<Packet>);

impl ArpQueue {
    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Queues the reply to a request for an address of ours.
    pub fn reply(&mut self, env: &mut Env, request: &Packet) {
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
