//! Stations of a network: a test says each frame that they send.

use std::net::Ipv4Addr;

use millrace_wire::ethernet::Mac;
use millrace_wire::offload::ChecksumState;

use super::Network;
use crate::end::End;
use crate::link::{Line, Link};
use crate::nic::OnWire;
use crate::station::{Station, StationId};

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
