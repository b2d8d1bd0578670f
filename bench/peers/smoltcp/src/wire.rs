//! One end of a link in memory.

use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use smoltcp::time::Instant;

/// Ethernet header and 1,500 bytes.
const FRAME_MAX: usize = 1514;

/// Frames, in buffers that are used again.
#[derive(Default)]
pub struct Frames {
    buffers: Vec<(Box<[u8]>, usize)>,
    used: usize,
}

/// What arrives at one end and what it sends.
#[derive(Default)]
pub struct Wire {
    arrived: Frames,
    /// How many of them are taken in.
    taken: usize,
    sent: Frames,
}

impl Wire {
    /// What this end has sent is what arrives at the other, which has taken in everything.
    pub fn carry_to(&mut self, other: &mut Wire) {
        std::mem::swap(&mut self.sent, &mut other.arrived);
        self.sent.used = 0;
        other.taken = 0;
    }
}

/// A frame that has arrived.
pub struct Arrived<'a>(&'a [u8]);
/// Where one to send goes.
pub struct Sending<'a>(&'a mut Frames);

impl Device for Wire {
    type RxToken<'a> = Arrived<'a>;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived<'_>, Sending<'_>)> {
        if self.taken == self.arrived.used {
            return None;
        }
        let (buffer, len) = &self.arrived.buffers[self.taken];
        self.taken += 1;
        Some((Arrived(&buffer[..*len]), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut checksum = ChecksumCapabilities::default();
        (checksum.ipv4, checksum.tcp) = (Checksum::Both, Checksum::Both);
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_MAX;
        capabilities.checksum = checksum;
        capabilities
    }
}

impl RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let frames = self.0;
        if frames.used == frames.buffers.len() {
            frames.buffers.push((vec![0; FRAME_MAX].into(), 0));
        }
        let (buffer, used) = &mut frames.buffers[frames.used];
        frames.used += 1;
        *used = len;
        fill(&mut buffer[..len])
    }
}
