//! A port as the shard's way out.

use millrace_port::Port;
use millrace_shard::Egress;
use millrace_wire::offload::{Capabilities, Offload};

/// The port and what happened to it on the way.
pub(crate) struct PortEgress<'a> {
    pub(crate) port: &'a mut dyn Port,
    pub(crate) errors: &'a mut u64,
    /// Frames sent.
    pub(crate) sent: u64,
    /// There was no room for one.
    pub(crate) full: bool,
}

impl Egress for PortEgress<'_> {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> bool {
        match self.port.send(head, payload, offload) {
            Ok(true) => {
                self.sent += 1;
                true
            }
            Ok(false) => {
                self.full = true;
                false
            }
            // The frame is lost as on any link, and TCP repairs it; what the device said is counted.
            Err(_) => {
                *self.errors += 1;
                true
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }
}
