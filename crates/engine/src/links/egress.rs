//! A port as the egress of a shard.

use std::io;

use millrace_port::Port;
use millrace_shard::Egress;
use millrace_wire::offload::{Capabilities, Offload};

use crate::links::link_loss::is_gone;

/// The port, and what happened while the shard transmitted.
pub(crate) struct PortEgress<'a> {
    pub(crate) port: &'a mut dyn Port,
    pub(crate) errors: &'a mut u64,
    /// The error that says that the device is gone.
    pub(crate) gone: Option<io::Error>,
    /// Frames sent.
    pub(crate) sent: u64,
    /// The port had no room for a frame.
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
            // The frame is lost as on any link, and TCP sends it again. The error is counted.
            Err(error) => {
                *self.errors += 1;
                if is_gone(&error) {
                    self.gone = Some(error);
                }
                true
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }
}
