//! Ethernet frames out.

use millrace_wire::ethernet::Mac;
use millrace_wire::offload::{Capabilities, Offload};

use crate::counters::Counters;

/// The queue that takes a shard's frames: the transmit queue of a port.
pub trait Egress {
    /// Takes one frame, which is `head` followed by both parts of `payload`. `offload` says what
    /// the port still has to do to it. Returns false when the queue is full: then it has taken
    /// nothing, and the shard offers the frame again with its next transmit.
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> bool;
    /// The capabilities of the port. Every call returns the same value.
    fn capabilities(&self) -> Capabilities;
}

/// Gives a frame to the port and counts it; returns false when the port is full.
#[inline]
pub fn send_frame(
    counters: &mut Counters,
    egress: &mut impl Egress,
    head: &[u8],
    payload: [&[u8]; 2],
    offload: Offload,
) -> bool {
    if !egress.send(head, payload, offload) {
        counters.egress_full += 1;
        return false;
    }
    counters.frames_out += 1;
    counters.bytes_out += (head.len() + payload[0].len() + payload[1].len()) as u64;
    true
}

/// The addresses in the Ethernet header of a frame out.
#[derive(Clone, Copy)]
pub struct Stations {
    /// The destination.
    pub to: Mac,
    /// The source: this host.
    pub from: Mac,
}
