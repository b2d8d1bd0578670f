//! What the kernel counts at a queue's socket, for whoever asks.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use super::sockopt::{get, get_option};

/// What the kernel has counted at the socket of one queue (`struct xdp_statistics`) since it was
/// opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Received frames that were dropped because there was no memory for them, or too little.
    pub rx_dropped: u64,
    /// Entries of the fill ring that made no sense.
    pub rx_invalid_descs: u64,
    /// Frames to be sent that made no sense.
    pub tx_invalid_descs: u64,
    /// Received frames that were dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// How often the fill ring had no memory.
    pub rx_fill_ring_empty_descs: u64,
    /// How often the kernel found nothing to send.
    pub tx_ring_empty_descs: u64,
}

impl Statistics {
    /// By the kernel's names.
    pub fn fields(&self) -> [(&'static str, u64); 6] {
        [
            ("rx_dropped", self.rx_dropped),
            ("rx_invalid_descs", self.rx_invalid_descs),
            ("tx_invalid_descs", self.tx_invalid_descs),
            ("rx_ring_full", self.rx_ring_full),
            ("rx_fill_ring_empty_descs", self.rx_fill_ring_empty_descs),
            ("tx_ring_empty_descs", self.tx_ring_empty_descs),
        ]
    }
}

/// A queue's socket, to be asked from any thread. It does not keep the socket.
#[derive(Clone, Debug)]
pub struct Gauge {
    queue: u32,
    socket: Weak<OwnedFd>,
}

impl Gauge {
    pub(super) fn new(queue: u32, socket: &Arc<OwnedFd>) -> Gauge {
        let socket = Arc::downgrade(socket);
        Gauge { queue, socket }
    }

    /// Which of the device's queues it is, from 0.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// The number (NAPI id) of the driver's poller that runs when frames are looked for, 0 as long
    /// as the kernel does not know it; none where it is not to, or once the port is gone.
    pub fn poller(&self) -> Option<u32> {
        poller(&*self.socket.upgrade()?)
    }

    /// What the kernel has counted; nothing once the port is gone.
    pub fn read(&self) -> Statistics {
        self.socket
            .upgrade()
            .map_or_else(Statistics::default, |socket| statistics(&socket))
    }
}

/// Frames that came by these queues and that nobody took in time.
pub fn missed(gauges: &[Gauge]) -> u64 {
    let read = gauges.iter().map(Gauge::read);
    read.map(|read| read.rx_dropped + read.rx_ring_full).sum()
}

/// The number (NAPI id) of the poller that brings a socket's frames, 0 as long as the kernel does
/// not know it; none where it is not to be run from here.
pub(super) fn poller(socket: &OwnedFd) -> Option<u32> {
    let (mut wanted, mut id): (c_int, u32) = (0, 0);
    get(
        socket,
        libc::SOL_SOCKET,
        libc::SO_PREFER_BUSY_POLL,
        &mut wanted,
    )
    .ok()?;
    get(socket, libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID, &mut id).ok()?;
    (wanted != 0).then_some(id)
}

/// What the kernel has counted at a socket.
fn statistics(socket: &OwnedFd) -> Statistics {
    // SAFETY: zeros are a value of it.
    let mut told: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    // A kernel that knows fewer of them leaves the others as they are.
    let _ = get_option(socket, libc::XDP_STATISTICS, &mut told);
    Statistics {
        rx_dropped: told.rx_dropped,
        rx_invalid_descs: told.rx_invalid_descs,
        tx_invalid_descs: told.tx_invalid_descs,
        rx_ring_full: told.rx_ring_full,
        rx_fill_ring_empty_descs: told.rx_fill_ring_empty_descs,
        tx_ring_empty_descs: told.tx_ring_empty_descs,
    }
}
