//! A port that leads nowhere, for tests of the library and of its bindings.

use std::io;
use std::os::fd::BorrowedFd;

use millrace::{Capabilities, ChecksumState, Mac, Offload, Port, PortCounters, RxMeta};

/// Nothing comes from it, or nothing but frames that are nobody's, for ever.
pub struct Void {
    pub floods: bool,
}

impl Port for Void {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<RxMeta>> {
        into[..60].fill(0);
        Ok(self.floods.then_some(RxMeta {
            len: 60,
            checksum: ChecksumState::Unchecked,
            segment_size: 0,
        }))
    }

    fn send(&mut self, _: &[u8], _: [&[u8]; 2], _: Offload) -> io::Result<bool> {
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            queues: 2,
            ..Capabilities::plain(Mac([2, 0, 0, 0, 0, 1]), 1500)
        }
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}
