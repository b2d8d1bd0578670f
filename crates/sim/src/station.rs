//! Stations without a stack: a test says each frame that they send.

use std::net::Ipv4Addr;

use millrace_wire::arp::{self, Operation};
use millrace_wire::ethernet::{EtherType, HEADER_LEN, Header, Mac};
use millrace_wire::offload::ChecksumState;

use crate::link::{Line, Link};
use crate::network::{End, Network};
use crate::nic::OnWire;

/// Names a station of a [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StationId(usize);

pub(crate) struct Station {
    pub mac: Mac,
    pub line: Line,
    address: Ipv4Addr,
    received: Vec<Vec<u8>>,
}

impl Network {
    /// Adds a station, with the address 10.0.0.201 and so on. It answers when it is asked for its
    /// hardware address, and does nothing else.
    pub fn add_station(&mut self, link: Link) -> StationId {
        let number = self.stations.len() as u8 + 201;
        let line = Line::new(link, self.rng.fork());
        let (mac, address) = (
            Mac([2, 0, 0, 0, 0, number]),
            Ipv4Addr::new(10, 0, 0, number),
        );
        self.stations.push(Station {
            mac,
            line,
            address,
            received: Vec::new(),
        });
        StationId(self.stations.len() - 1)
    }

    /// The addresses of a station.
    pub fn station_address(&self, station: StationId) -> (Mac, Ipv4Addr) {
        let station = &self.stations[station.0];
        (station.mac, station.address)
    }

    /// The station sends these bytes as a frame.
    pub fn send_from(&mut self, station: StationId, bytes: Vec<u8>) {
        self.send(
            End::Station(station.0),
            &OnWire {
                bytes,
                checksum: ChecksumState::Unchecked,
                segment_size: 0,
            },
        );
    }

    /// The frames that the station received since the last call, without questions for its hardware
    /// address.
    pub fn take_received(&mut self, station: StationId) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.stations[station.0].received)
    }

    pub(crate) fn arrive_at_station(&mut self, index: usize, bytes: Vec<u8>) {
        let station = &mut self.stations[index];
        match station.answer_to_arp(&bytes) {
            Some(bytes) => self.send_from(StationId(index), bytes),
            None => station.received.push(bytes),
        }
    }
}

impl Station {
    fn answer_to_arp(&self, frame: &[u8]) -> Option<Vec<u8>> {
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
