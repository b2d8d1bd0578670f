//! Packets go in and come out, where the link is the caller.

use millrace::{ChecksumState, Frame};

use super::Host;
use crate::outcome::Outcome;
use crate::packets::{OTHER, OWN, PACKET_MAX};

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
