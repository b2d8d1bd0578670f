//! A stack whose link is the caller: IP packets go in and come out, and nothing else happens.

use std::collections::VecDeque;

use millrace::{Capabilities, Egress, Mac, Offload};

/// The frame that the stack wants around a packet: its own address, and whoever's.
const HEADER_LEN: usize = 14;
pub const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Packets that wait to be taken out. When there are so many the stack keeps what it has.
pub const WAITING_MAX: usize = 1024;
/// The largest packet.
pub const PACKET_MAX: usize = 65_535;

/// Packets that wait for the caller, oldest first.
pub struct Packets {
    pub waiting: VecDeque<Vec<u8>>,
    mtu: u16,
}

impl Packets {
    pub fn new(mtu: u16) -> Packets {
        Packets {
            waiting: VecDeque::new(),
            mtu,
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Egress for Packets {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], _: Offload) -> bool {
        if self.waiting.len() >= WAITING_MAX {
            return false;
        }
        let head = head.get(HEADER_LEN..).unwrap_or(&[]);
        self.waiting
            .push_back([head, payload[0], payload[1]].concat());
        true
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(Mac(OWN), self.mtu)
    }
}
