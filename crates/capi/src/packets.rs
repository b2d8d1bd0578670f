//! A stack whose link is the caller: IP packets go in and come out, and nothing else happens.

use std::collections::VecDeque;

use millrace::{Capabilities, ChecksumState, Egress, Frame, Mac, Offload};

use crate::host::Host;
use crate::outcome::Outcome;

/// The frame that the stack wants around a packet: its own address, and whoever's.
const HEADER_LEN: usize = 14;
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Packets that wait to be taken out. When there are so many the stack keeps what it has.
const WAITING_MAX: usize = 1024;
/// The largest packet.
pub const PACKET_MAX: usize = 65_535;

/// Packets that wait for the caller, oldest first.
pub struct Packets {
    waiting: VecDeque<Vec<u8>>,
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

impl Host {
    /// Takes in one IP packet.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a stack with a link, `EINVAL` for what is no packet at all, `EMSGSIZE` for
    /// one that is too large.
    pub fn input(&self, packet: &[u8]) -> Outcome<()> {
        if self.packets.is_none() {
            return Err(libc::EOPNOTSUPP);
        }
        if packet.len() > PACKET_MAX {
            return Err(libc::EMSGSIZE);
        }
        let kind: [u8; 2] = match packet.first().map(|first| first >> 4) {
            Some(4) => [0x08, 0x00],
            Some(6) => [0x86, 0xdd],
            _ => return Err(libc::EINVAL),
        };
        // Of a clock of the system's: a packet comes when it comes, whenever the stack last worked.
        self.stack.read_clock();
        let bytes = [&OWN[..], &OTHER, &kind, packet].concat();
        self.stack.input(&Frame {
            bytes: &bytes,
            checksum: ChecksumState::Unchecked,
            segment_size: 0,
        });
        self.note_changed();
        Ok(())
    }

    /// Takes out the oldest packet; its length, 0 when there is none.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a stack with a link, `EMSGSIZE` when it does not fit into `out`; it stays
    /// then.
    pub fn output(&self, out: &mut [u8]) -> Outcome<usize> {
        let packets = self.packets.as_ref().ok_or(libc::EOPNOTSUPP)?;
        if packets.borrow().waiting.is_empty() {
            self.work();
        }
        let mut packets = packets.borrow_mut();
        let Some(packet) = packets.waiting.front() else {
            return Ok(0);
        };
        let len = packet.len();
        out.get_mut(..len)
            .ok_or(libc::EMSGSIZE)?
            .copy_from_slice(packet);
        packets.waiting.pop_front();
        Ok(len)
    }
}
