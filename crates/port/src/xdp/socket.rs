//! The calls that make an AF_XDP socket: with the rings, every `unsafe` is here.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gauge::{Gauge, poller};
use super::poller::Poller;
use super::ring::{Mapping, Rings};
use super::sockopt::{get_option, set, set_option};
use crate::ioctl::check;

/// Bytes of memory for one frame, or for a piece of a larger one: a page.
pub(super) const CHUNK: u32 = 4096;
/// Entries of each ring, and frames of memory for what comes.
pub(super) const RING: u32 = 2048;
/// Frames of memory for what leaves, at most.
pub(super) const WINDOW_MAX: u32 = RING;
/// And on veth. What is sent there lies in a ring of 256 until the other end takes it, and veth
/// drops what that has no room for; it gives places back sixteen at a time, and the kernel's own
/// packets lie there as well.
pub(super) const WINDOW_VETH: u32 = 224;
/// What the kernel keeps free before each frame for the program (`XDP_PACKET_HEADROOM`).
const PROGRAM_ROOM: u32 = 256;
/// The largest frame that fits one chunk.
pub(super) const SINGLE_MAX: usize = (CHUNK - PROGRAM_ROOM) as usize;
/// Room before a frame to be sent for what is asked to be finished in it
/// (`struct xsk_tx_metadata`).
pub(super) const REQUEST: usize = 24;
/// How many frames the kernel takes in one call (`XDP_MAX_TX_SKB_BUDGET`, Linux 6.17); it took 32
/// before.
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
/// How long a call may poll, in microseconds: these poll once, since they never block, but 0 is not
/// to poll at all.
const POLL_TIME: c_int = 20;
/// Frames that the driver takes in one poll: as many as it does when it polls by itself.
const POLL_BUDGET: c_int = 64;
/// A queue that was let go of a moment ago is busy for some milliseconds.
const BUSY_PATIENCE: Duration = Duration::from_secs(2);

/// What a socket is to be bound with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) device: u32,
    pub(super) queue: u32,
    pub(super) zero_copy: bool,
    /// Frames may be in several pieces.
    pub(super) pieces: bool,
    /// How many frames, or pieces, may be between here and where they are going.
    pub(super) window: u32,
}

/// A socket that is bound to one queue of a device, its memory, and its rings.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) rings: Rings,
    pub(super) memory: Mapping,
    descriptor: Arc<OwnedFd>,
    queue: u32,
    /// The kernel finishes checksums that it is asked to.
    pub(super) finishes: bool,
    /// Frames are copied by the kernel, both ways.
    pub(super) copies: bool,
    /// Of its queue.
    pub(super) poller: Poller,
}

impl Socket {
    /// Opens a socket and binds it.
    pub(super) fn open(binding: Binding) -> io::Result<Socket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a call with numbers only.
        let raw = check(unsafe { libc::socket(libc::AF_XDP, kind, 0) })?;
        // SAFETY: just opened, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        let window = binding.window.min(WINDOW_MAX);
        let memory = Mapping::new(((RING + window) * CHUNK) as usize)?;
        // A driver that sends out of the memory itself would have to be asked whether it computes
        // checksums; the kernel's copy always can.
        let finishes = !binding.zero_copy && register(&descriptor, &memory, REQUEST as u32).is_ok();
        if !finishes {
            register(&descriptor, &memory, 0)?;
        }
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set_option(&descriptor, ring, &RING)?;
        }
        // Older kernels have no such limit to set.
        let _ = set_option(&descriptor, XDP_MAX_TX_SKB_BUDGET, &RING);
        allow(&descriptor, window);
        let rings = Rings::map(&descriptor, &offsets(&descriptor)?, RING)?;
        let mut socket = Socket {
            rings,
            memory,
            descriptor: Arc::new(descriptor),
            queue: binding.queue,
            finishes,
            copies: !binding.zero_copy,
            poller: Poller::None,
        };
        // The first part of the memory is for what comes.
        for chunk in 0..RING {
            socket.rings.fill.push(u64::from(chunk * CHUNK));
        }
        socket.rings.fill.publish();
        socket.bind(binding)?;
        Ok(socket)
    }

    fn bind(&self, binding: Binding) -> io::Result<()> {
        let mode = match binding.zero_copy {
            true => libc::XDP_ZEROCOPY,
            false => libc::XDP_COPY,
        };
        let pieces = if binding.pieces { libc::XDP_USE_SG } else { 0 };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: mode | pieces | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: binding.device,
            sxdp_queue_id: binding.queue,
            sxdp_shared_umem_fd: 0,
        };
        let end = Instant::now() + BUSY_PATIENCE;
        loop {
            // SAFETY: the address outlives the call, and is as long as is said.
            let bound = check(unsafe {
                libc::bind(
                    self.descriptor.as_raw_fd(),
                    (&raw const address).cast(),
                    size_of_val(&address) as u32,
                )
            });
            match bound {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => return other.map(drop),
            }
        }
    }

    /// Has the kernel send what is in the transmit ring.
    pub(super) fn kick(&self) -> io::Result<()> {
        // SAFETY: nothing is sent but what is in the ring: there are no bytes and no address.
        let sent = unsafe {
            libc::sendto(
                self.descriptor.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Has every call that looks at this socket run the driver's poller, which interrupts leave to
    /// it for as long as the device is told to wait (`napi_defer_hard_irqs` and
    /// `gro_flush_timeout`).
    pub(super) fn busy_poll(&mut self) -> io::Result<()> {
        let options = [
            (libc::SO_PREFER_BUSY_POLL, 1),
            (libc::SO_BUSY_POLL, POLL_TIME),
            (libc::SO_BUSY_POLL_BUDGET, POLL_BUDGET),
        ];
        for (option, value) in options {
            set(&self.descriptor, libc::SOL_SOCKET, option, &value)?;
        }
        self.poller = Poller::Wanted;
        Ok(())
    }

    /// Has the driver look at the fill ring, and run its poller if it is to be.
    pub(super) fn kick_receive(&self) {
        // SAFETY: nothing is received: there is no room for bytes, and no address. Whether it
        // failed shows in the ring.
        unsafe {
            libc::recvfrom(
                self.descriptor.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }

    /// A frame has come: now the kernel knows which poller brings them, or never will.
    pub(super) fn find_poller(&mut self) {
        self.poller = match poller(&self.descriptor) {
            Some(0) | None => Poller::None,
            Some(_) => Poller::Ours,
        };
    }

    /// What tells what the kernel has counted.
    pub(super) fn gauge(&self) -> Gauge {
        Gauge::new(self.queue, &self.descriptor)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Tells the kernel of the memory.
fn register(socket: &OwnedFd, memory: &Mapping, request: u32) -> io::Result<()> {
    let area = libc::xdp_umem_reg {
        addr: memory.address(),
        len: memory.len() as u64,
        chunk_size: CHUNK,
        headroom: 0,
        flags: if request == 0 {
            0
        } else {
            libc::XDP_UMEM_TX_METADATA_LEN
        },
        tx_metadata_len: request,
    };
    set_option(socket, libc::XDP_UMEM_REG, &area)
}

/// Lets the kernel have copies of a whole window of frames at a time, of two pages each with what
/// it keeps of them. It goes by less where that is refused.
fn allow(socket: &OwnedFd, window: u32) {
    let bytes = (window * CHUNK) as c_int;
    // Twice as much as is asked for.
    let _ = set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes);
}

/// Where the indices and entries of the rings are in their mappings.
fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: zeros are a value of it.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get_option(socket, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
    Ok(offsets)
}
