//! macvtap: a TAP device's descriptor on top of a network device that is there.
//!
//! The kernel makes a device on top of the other, with a link-layer address of its own, and what
//! that sends and receives crosses as on a TAP device: up to 64 KB in one call, with the device's
//! own segmentation and aggregation. Unlike a TAP device it would outlive its descriptors; so it is
//! made in a network namespace that nobody else has, and goes with that when the ports are gone,
//! however the process ended.

mod request;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use millrace_wire::ethernet::Mac;

use crate::netlink::Netlink;
use crate::packet::socket::find;
use crate::queue::Queue;
use crate::spec::check_device_name;
use crate::tap::ioctl::{Kind, prepare};
use crate::{
    Capabilities, Counters, FRAME_MAX, MTU_MIN, Offload, Port, RxMeta, packet, random_mac,
};

/// Numbers of devices that the kernel does not reach by counting.
const INDEX_FIRST: u32 = 1 << 24;
/// How often a number is drawn that somebody else may have.
const TRIES: u32 = 8;

/// Where the port is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device.
    pub device: String,
    /// How many queues, each a port; 1 to 256.
    pub queues: u16,
    /// The stack's address; a random, locally administered one when there is none. It must not be
    /// the device's own.
    pub mac: Option<Mac>,
}

/// Why a device cannot be used through macvtap, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process may not make devices and namespaces.
    #[error(
        "no privilege to {operation} `{device}`; run as root or with CAP_NET_ADMIN and CAP_SYS_ADMIN"
    )]
    NoPrivilege {
        /// What was refused.
        operation: &'static str,
        /// The device.
        device: String,
    },
    /// Something about the device itself.
    #[error(transparent)]
    Device(#[from] packet::Error),
    /// The kernel has no such devices.
    #[error(
        "the kernel has no macvtap (`modprobe macvtap` may bring it), or `{device}` is not one to put it on: {source}; packet:{device} needs none"
    )]
    Unsupported {
        /// The device.
        device: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// The descriptor's name is not to be seen from here.
    #[error(
        "{path} is not to be seen here: in a container /dev must be the machine's own (`--volume /dev:/dev`); packet:{device} does without"
    )]
    NoNode {
        /// Where it would be.
        path: String,
        /// The device.
        device: String,
    },
    /// The number of queues is out of range.
    #[error("{queues} queues are not to be had; choose from 1 to 256")]
    Queues {
        /// The number.
        queues: u16,
    },
    /// Anything else that the kernel refuses.
    #[error("cannot {operation} `{device}`: {source}")]
    System {
        /// What was refused.
        operation: &'static str,
        /// The device.
        device: String,
        /// What the kernel says.
        source: io::Error,
    },
}

impl Error {
    fn system(operation: &'static str, device: &str, source: io::Error) -> Error {
        let device = device.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Error::NoPrivilege { operation, device },
            _ => Error::System {
                operation,
                device,
                source,
            },
        }
    }
}

/// One queue of a device on top of another.
#[derive(Debug)]
pub struct Macvtap {
    queue: Queue,
    capabilities: Capabilities,
    /// The device is in it, and goes with the last port.
    _namespace: Arc<OwnedFd>,
}

/// Makes the device on top of another and returns its queues.
///
/// # Errors
/// Each says what it met and what can be done; nothing is left behind.
pub fn open(config: &Config) -> Result<Vec<Macvtap>, Error> {
    let name = &config.device;
    check_device_name(name).map_err(packet::Error::from)?;
    if !(1..=256).contains(&config.queues) {
        return Err(Error::Queues {
            queues: config.queues,
        });
    }
    let found = find(name)?;
    if found.mtu < MTU_MIN {
        let (device, mtu) = (name.clone(), found.mtu);
        return Err(packet::Error::Mtu { device, mtu }.into());
    }
    let fail = |operation| move |error| Error::system(operation, name, error);
    let mac = config.mac.map_or_else(random_mac, Ok);
    let mac = mac.map_err(fail("draw a random link-layer address for"))?;
    let namespace = namespace().map_err(fail("make a network namespace for a device on"))?;
    let index = make(found.index, &namespace, mac).map_err(|source| {
        let device = name.clone();
        match source.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EINVAL) => Error::Unsupported { device, source },
            _ => Error::system("make a macvtap device on", name, source),
        }
    })?;
    let path = format!("/dev/tap{index}");
    let capabilities = Capabilities {
        mac,
        mtu: found.mtu,
        tx_checksum: true,
        tx_segmentation_max: FRAME_MAX as u32,
        rx_aggregated: true,
        // Frames come from a wire; the kernel marks those whose checksum somebody has verified.
        trusted_checksum: false,
        queues: config.queues,
    };
    let namespace = Arc::new(namespace);
    (0..config.queues)
        .map(|_| {
            let descriptor: OwnedFd = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&path)
                .map_err(|error| match error.raw_os_error() {
                    Some(libc::ENOENT | libc::ENXIO) => Error::NoNode {
                        path: path.clone(),
                        device: name.clone(),
                    },
                    _ => Error::system("open a queue on", name, error),
                })?
                .into();
            // The name is the device's already, whatever is asked for.
            prepare(&descriptor, Kind::Tap, "", libc::IFF_MULTI_QUEUE)
                .map_err(fail("ask for offloads on"))?;
            Ok(Macvtap {
                queue: Queue::new(descriptor),
                capabilities,
                _namespace: namespace.clone(),
            })
        })
        .collect()
}

/// A network namespace that nobody is in. The kernel has no IPv6 there: it would speak in the
/// stack's name.
fn namespace() -> io::Result<OwnedFd> {
    let made = std::thread::spawn(|| {
        // SAFETY: a call with a number only; it moves this thread, which ends here, and no other.
        crate::ioctl::check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        // A kernel without IPv6 has no such file.
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        File::open("/proc/thread-self/ns/net").map(OwnedFd::from)
    });
    made.join()
        .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// Makes the device; its number, which its descriptor is named after. Numbers are drawn, since the
/// names are the machine's, not the namespace's.
fn make(on: u32, namespace: &OwnedFd, mac: Mac) -> io::Result<u32> {
    let netlink = Netlink::open()?;
    let mut tried = 0;
    loop {
        let mut drawn = [0; 4];
        rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())?;
        let index = INDEX_FIRST | (u32::from_ne_bytes(drawn) >> 2);
        match netlink.add_macvtap(on, index, namespace.as_raw_fd(), mac) {
            Ok(()) => return Ok(index),
            Err(error) if tried < TRIES && error.raw_os_error() == Some(libc::EEXIST) => tried += 1,
            Err(error) => return Err(error),
        }
    }
}

impl Port for Macvtap {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        self.queue.receive(buffer)
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        self.queue.send(head, payload, offload)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.descriptor.as_fd())
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn counters(&self) -> Counters {
        self.queue.counters
    }
}
