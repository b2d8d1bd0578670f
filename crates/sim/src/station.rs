//! A station without a stack, which answers to ARP alone.

use std::net::Ipv4Addr;

use millrace_wire::arp::{self, Operation};
use millrace_wire::ethernet::{EtherType, HEADER_LEN, Header, Mac};

use crate::link::Line;

/// Names a station of a [`crate::Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StationId(pub(crate) usize);

pub(crate) struct Station {
    pub mac: Mac,
    pub line: Line,
    pub address: Ipv4Addr,
    pub received: Vec<Vec<u8>>,
}

impl Station {
    pub fn answer_to_arp(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let (header, payload) = Header::parse(frame).ok()?;
        let question = arp::Packet::parse(payload)
            .ok()
            .filter(|_| header.ethertype == EtherType::ARP)?;
        if (question.operation, question.target_ip) != (Operation::REQUEST, self.address) {
            return None;
        }
        let answer = arp::Packet {
            operation: Operation::REPLY,
            sender_mac: self.mac,
            sender_ip: self.address,
            target_mac: question.sender_mac,
            target_ip: question.sender_ip,
        };
        let mut bytes = vec![0; HEADER_LEN + arp::LEN];
        Header {
            dst: question.sender_mac,
            src: self.mac,
            ethertype: EtherType::ARP,
        }
        .emit(&mut bytes);
        answer.emit(&mut bytes[HEADER_LEN..]);
        Some(bytes)
    }
}
