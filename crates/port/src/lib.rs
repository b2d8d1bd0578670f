//! Packet ports: sources and sinks of Ethernet frames.
//!
//! * [`tap`]: a TAP device, at whose other end is the kernel of this machine. Frames of up to 64 KB
//!   cross in one call each way.
//! * [`packet`]: a network device that the kernel goes on using, beside it under a link-layer
//!   address of our own.
//! * [`macvtap`]: a TAP device's descriptor on top of such a device.
//! * [`xdp`]: such a device too, by AF_XDP sockets past the kernel's stack.
//! * [`tun`]: a TUN device, with IP packets instead of frames.
//! * [`pair`]: two ends in memory.
//!
//! [`spec`] describes a link, and [`open`](mod@open) opens it. A new kind of link is a module here
//! and an arm in these two. [`kernel`] is what the kernel has on a device, for those that share it.
//!
//! What a port can do is told by its [`Capabilities`]; no port is special to those above.

mod addresses;
pub mod device;
mod ioctl;
#[cfg(feature = "netlink")]
pub mod kernel;
#[cfg(feature = "macvtap")]
pub mod macvtap;
#[cfg(feature = "xdp")]
pub mod netdev;
#[cfg(feature = "netlink")]
mod netlink;
pub mod open;
pub mod packet;
pub mod pair;
mod queue;
mod relay;
pub mod spec;
pub mod tap;
pub mod tun;
#[cfg(feature = "xdp")]
pub mod xdp;

use std::io;
use std::os::fd::BorrowedFd;

use millrace_wire::{ethernet, vnet};
pub use relay::{Relay, Relayed};

pub use millrace_wire::offload::{Capabilities, ChecksumState, Frame, Offload};

/// The largest frame that a port receives, in bytes: Ethernet header and the largest IP datagram. A
/// buffer that is smaller may cut frames off.
pub const FRAME_MAX: usize = ethernet::HEADER_LEN + 0xffff;
/// A buffer of so many bytes has room for what some devices put before a frame, too, which costs
/// less than a place of its own.
pub const BUFFER_LEN: usize = FRAME_MAX + vnet::LEN;
/// How many slices a frame may be given in, its head included.
pub const PARTS_MAX: usize = 65;
/// The smallest MTU that a port may have (RFC 791).
pub const MTU_MIN: u16 = 68;
/// The largest MTU that a port may have: what Linux allows a TAP device.
pub const MTU_MAX: u16 = 0xffff - ethernet::HEADER_LEN as u16;

/// What a port says of a frame that it received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxMeta {
    /// Bytes of the frame, which are the first of the buffer.
    pub len: usize,
    /// What is known of its transport checksum.
    pub checksum: ChecksumState,
    /// As in [`Frame::segment_size`].
    pub segment_size: u16,
}

/// What went through a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received; one that was joined from many segments counts once.
    pub rx_frames: u64,
    /// Bytes of these frames.
    pub rx_bytes: u64,
    /// Frames sent; one that is cut into many segments counts once.
    pub tx_frames: u64,
    /// Bytes of these frames.
    pub tx_bytes: u64,
    /// Frames received that were not of the virtual LAN that the port is on, and were dropped.
    pub rx_foreign: u64,
    /// Frames that the port took from the device and then dropped, for want of room.
    pub rx_dropped: u64,
    /// Frames that [`Port::send`] refused, for want of room or because the device was down.
    pub tx_refused: u64,
    /// Frames that it took and the device dropped, where that is told.
    pub tx_dropped: u64,
}

/// A source and sink of frames, owned by one thread. Nothing blocks.
pub trait Port {
    /// Receives one frame into `buffer`, which has [`FRAME_MAX`] bytes, better [`BUFFER_LEN`];
    /// `None` when there is none now.
    ///
    /// # Errors
    /// Those of the device, after which it is of no more use: it is gone.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>>;

    /// Sends one frame, which is `head` and both parts of `payload` in a row. `false` when there is
    /// no room for it now, or the device is down: it is refused and counted.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a frame that the port cannot send at all, or an offload
    /// that its capabilities do not name; else those of the device.
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool>;

    /// Has what was sent since the last call leave, on a port that collects frames. To be called
    /// after each burst. `false` when the device takes no more now and frames are left: this is to
    /// be called again soon, since nothing else says when it will.
    ///
    /// # Errors
    /// Those of the device.
    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// The descriptor that becomes readable when there is a frame to receive; none where polling is
    /// the only way.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Whether received segments may be worth joining: they can come one by one though their sender
    /// made many at once.
    fn gives_segments(&self) -> bool {
        !self.capabilities().rx_aggregated
    }

    /// What the port can do.
    fn capabilities(&self) -> Capabilities;

    /// What went through it.
    fn counters(&self) -> Counters;

    /// What tells, from any thread, what the kernel has counted at its queues; none where the
    /// kernel does not count.
    #[cfg(feature = "xdp")]
    fn gauges(&self) -> Vec<xdp::Gauge> {
        Vec::new()
    }
}

/// A locally administered address of a single station, drawn at random.
fn random_mac() -> io::Result<ethernet::Mac> {
    let mut mac = ethernet::Mac::default();
    rustix::rand::getrandom(&mut mac.0, rustix::rand::GetRandomFlags::empty())?;
    mac.0[0] = (mac.0[0] & !1) | 2;
    Ok(mac)
}
