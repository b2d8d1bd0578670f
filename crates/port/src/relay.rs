//! Ports whose frames go on to another port: whatever is left undone in a frame is told and taken
//! as it is.

use std::io;
use std::os::fd::BorrowedFd;

use millrace_wire::vnet::VnetHeader;

use crate::{Capabilities, Counters, Offload, Port, RxMeta};

/// Room that is kept before a frame, for a tag that the device has taken off.
pub(crate) const TAG_LEN: usize = 4;

/// A frame that was received in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Where it starts in the first buffer.
    pub start: usize,
    /// How many of its bytes are there.
    pub len: usize,
    /// How many are in the second one: those that the first had no room for.
    pub rest: usize,
    /// What is left undone in it, and known of it.
    pub vnet: VnetHeader,
}

/// What a port is that takes part in relaying frames. The header of a frame that one port has
/// received is what another is told when it sends it.
pub trait Relay: Port {
    /// Receives one frame into `buffer`, and what does not fit there into `rest`; together they
    /// have [`crate::FRAME_MAX`] bytes and some to spare. `None` when there is none now.
    ///
    /// # Errors
    /// Those of the device, after which it is of no more use: it is gone.
    fn receive_parts(&mut self, buffer: &mut [u8], rest: &mut [u8]) -> io::Result<Option<Relayed>>;

    /// Sends one frame, which is `head` and all of `payload` in a row: at most [`crate::PARTS_MAX`]
    /// slices. `false` when it could not be sent, for want of room or because the device does not
    /// take it: it is dropped and counted.
    ///
    /// # Errors
    /// Those of the device, after which it is of no more use.
    fn send_parts(&mut self, head: &[u8], payload: &[&[u8]], vnet: &VnetHeader)
    -> io::Result<bool>;
}

impl Port for Box<dyn Relay + Send> {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        (**self).receive(buffer)
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        (**self).send(head, payload, offload)
    }

    fn flush(&mut self) -> io::Result<bool> {
        (**self).flush()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (**self).descriptor()
    }

    fn gives_segments(&self) -> bool {
        (**self).gives_segments()
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }

    #[cfg(feature = "xdp")]
    fn gauges(&self) -> Vec<crate::xdp::gauge::Gauge> {
        (**self).gauges()
    }
}

impl Relay for Box<dyn Relay + Send> {
    fn receive_parts(&mut self, buffer: &mut [u8], rest: &mut [u8]) -> io::Result<Option<Relayed>> {
        (**self).receive_parts(buffer, rest)
    }

    fn send_parts(
        &mut self,
        head: &[u8],
        payload: &[&[u8]],
        vnet: &VnetHeader,
    ) -> io::Result<bool> {
        (**self).send_parts(head, payload, vnet)
    }
}
