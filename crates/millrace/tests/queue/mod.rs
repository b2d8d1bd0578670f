//! Queues of devices in memory, each of which leads wherever a test wants it, for tests of the
//! library and of its bindings.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use millrace::{Capabilities, ChecksumState, Mac, Offload, Port, PortCounters, RxMeta};

pub type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// A queue of a device: what comes to it, and where what is sent goes.
struct Queue {
    from: Frames,
    to: Frames,
    last: u8,
    queues: u16,
}

impl Port for Queue {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<RxMeta>> {
        Ok(self.from.lock().unwrap().pop_front().map(|frame| {
            into[..frame.len()].copy_from_slice(&frame);
            RxMeta {
                len: frame.len(),
                checksum: ChecksumState::Unchecked,
                segment_size: 0,
            }
        }))
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], _: Offload) -> io::Result<bool> {
        let frame = [head, payload[0], payload[1]].concat();
        self.to.lock().unwrap().push_back(frame);
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            queues: self.queues,
            ..Capabilities::plain(Mac([2, 0, 0, 0, 0, self.last]), 1500)
        }
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

/// A queue of the host 10.0.0.`last`'s, whose device has so many.
pub fn port(from: &Frames, to: &Frames, last: u8, queues: u16) -> Box<dyn Port + Send> {
    let (from, to) = (from.clone(), to.clone());
    Box::new(Queue {
        from,
        to,
        last,
        queues,
    })
}
