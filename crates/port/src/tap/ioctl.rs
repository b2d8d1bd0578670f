//! The calls that make TAP devices and configure interfaces: every `unsafe` of them is here.

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use millrace_wire::vnet;

use super::Error;

/// `struct ifreq`: a name and a union.
#[repr(C, align(8))]
pub(super) struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

const _: () = assert!(
    size_of::<Request>() == size_of::<libc::ifreq>()
        && align_of::<Request>() == align_of::<libc::ifreq>()
);

impl Request {
    /// A request about the device `name`, which is cut to what a name can be.
    pub fn about(name: &str) -> Request {
        let mut request = Request {
            name: [0; libc::IFNAMSIZ],
            value: [0; 24],
        };
        let len = name.len().min(libc::IFNAMSIZ - 1);
        request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
        request
    }

    /// With a number of 16 bits, such as flags.
    pub fn short(mut self, value: u16) -> Request {
        self.value[..2].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// With a number of 32 bits.
    pub fn int(mut self, value: u32) -> Request {
        self.value[..4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// With a `struct sockaddr_in`.
    pub fn address(mut self, address: Ipv4Addr) -> Request {
        self = self.short(libc::AF_INET as u16);
        self.value[4..8].copy_from_slice(&address.octets());
        self
    }

    /// The name, which some calls fill in.
    fn name(&self) -> String {
        let len = self
            .name
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..len]).into_owned()
    }

    /// The first number of 16 bits, which some calls fill in.
    pub fn flags(&self) -> u16 {
        u16::from_ne_bytes([self.value[0], self.value[1]])
    }
}

/// Calls `operation`, one of those that take a `struct ifreq`.
pub(super) fn interface_call(
    socket: BorrowedFd<'_>,
    operation: libc::Ioctl,
    request: &mut Request,
) -> io::Result<()> {
    // SAFETY: every operation passed here reads and writes at most one `struct ifreq`, as which `request` is laid out; it outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), operation, std::ptr::from_mut(request)) })
}

/// Creates a TAP device and returns its first queue and its name. `name` may be a pattern with `%d`.
pub(super) fn create(name: &str, multi_queue: bool) -> Result<(OwnedFd, String), Error> {
    // Exclusive, so that a device which appeared in the meantime is not taken for ours.
    open_queue(
        name,
        libc::IFF_TUN_EXCL
            | if multi_queue {
                libc::IFF_MULTI_QUEUE
            } else {
                0
            },
    )
}

/// A further queue of a device with several.
pub(super) fn attach(name: &str) -> Result<OwnedFd, Error> {
    open_queue(name, libc::IFF_MULTI_QUEUE).map(|(descriptor, _)| descriptor)
}

fn open_queue(name: &str, flags: c_int) -> Result<(OwnedFd, String), Error> {
    let operation = "create the TAP device";
    let fail = |error| Error::system(operation, name, error);
    let descriptor: OwnedFd = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::NoDriver,
            _ => fail(error),
        })?
        .into();

    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | flags;
    let mut request = Request::about(name).short(flags as u16);
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, as which `request` is laid out; it outlives the call.
    let set = unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    check(set).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => Error::Exists {
            name: name.to_owned(),
        },
        _ => fail(error),
    })?;

    let len = vnet::LEN as c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one int, which outlives the call.
    check(unsafe {
        libc::ioctl(
            descriptor.as_raw_fd(),
            libc::TUNSETVNETHDRSZ,
            &raw const len,
        )
    })
    .map_err(fail)?;
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    // SAFETY: TUNSETOFFLOAD takes a number and no pointer.
    check(unsafe {
        libc::ioctl(
            descriptor.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(offloads),
        )
    })
    .map_err(fail)?;
    Ok((descriptor, request.name()))
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
