//! The kernel's interface may be given another link-layer address while it is used: what it sends
//! shows it, and the wire then takes the frames to that one.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_port::packet::Station;
use millrace_port::tap::Tap;
use millrace_port::{Capabilities, Counters, Offload, Port, Relay, Relayed, RxMeta};
use millrace_wire::ethernet::Mac;
use millrace_wire::vnet::VnetHeader;

/// Where a frame's source is.
const SOURCE: std::ops::Range<usize> = 6..12;
/// How often the kernel is asked at most. Behind a bridge there are senders enough that are not the
/// interface.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// A queue of the kernel's interface that is watched for another address.
pub(crate) struct Followed {
    tap: Tap,
    /// As the wire has it.
    mac: Mac,
    /// All queues of the wire.
    stations: Arc<[Station]>,
    asked: Option<Instant>,
}

impl Followed {
    pub(crate) fn new(tap: Tap, mac: Mac, stations: Arc<[Station]>) -> Followed {
        Followed {
            tap,
            mac,
            stations,
            asked: None,
        }
    }

    /// A frame had another source than the interface: is it because that has another address?
    #[cold]
    fn look(&mut self) -> io::Result<()> {
        if self.asked.is_some_and(|asked| asked.elapsed() < ASK_AGAIN) {
            return Ok(());
        }
        self.asked = Some(Instant::now());
        let mac = self.tap.current_mac()?;
        if mac != self.mac {
            for station in &*self.stations {
                station.set(mac)?;
            }
            self.mac = mac;
        }
        Ok(())
    }
}

impl Relay for Followed {
    fn receive_parts(&mut self, buffer: &mut [u8], rest: &mut [u8]) -> io::Result<Option<Relayed>> {
        let Some(frame) = self.tap.receive_parts(buffer, rest)? else {
            return Ok(None);
        };
        let bytes = &buffer[frame.start..frame.start + frame.len];
        if bytes.get(SOURCE).is_some_and(|source| source != self.mac.0) {
            self.look()?;
        }
        Ok(Some(frame))
    }

    fn send_parts(
        &mut self,
        head: &[u8],
        payload: &[&[u8]],
        vnet: &VnetHeader,
    ) -> io::Result<bool> {
        self.tap.send_parts(head, payload, vnet)
    }
}

impl Port for Followed {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        self.tap.receive(buffer)
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        self.tap.send(head, payload, offload)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.tap.descriptor()
    }

    fn capabilities(&self) -> Capabilities {
        self.tap.capabilities()
    }

    fn counters(&self) -> Counters {
        self.tap.counters()
    }
}
