//! The calls that make TAP devices: every `unsafe` of them is here.

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use millrace_wire::ethernet::Mac;
use millrace_wire::vnet;

use super::Error;
use crate::ioctl::{Request, check};

/// Creates a TAP device and returns its first queue and its name. `name` may be a pattern with
/// `%d`.
pub(crate) fn create(
    kind: Kind,
    name: &str,
    multi_queue: bool,
) -> Result<(OwnedFd, String), Error> {
    // Exclusive, so that a device which appeared in the meantime is not taken for ours.
    open_queue(
        kind,
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
pub(crate) fn attach(kind: Kind, name: &str) -> Result<OwnedFd, Error> {
    open_queue(kind, name, libc::IFF_MULTI_QUEUE).map(|(descriptor, _)| descriptor)
}

/// The only queue of a device that somebody has made for us.
pub(crate) fn take(kind: Kind, name: &str) -> Result<OwnedFd, Error> {
    open_queue(kind, name, 0).map(|(descriptor, _)| descriptor)
}

/// The link-layer address of the device, in whatever namespace it is by now.
pub(super) fn mac(descriptor: &OwnedFd) -> io::Result<Mac> {
    let mut request = Request::about("");
    // SAFETY: SIOCGIFHWADDR on a queue of the device fills in one `struct ifreq`, as which
    // `request` is laid out; it outlives the call.
    check(unsafe {
        libc::ioctl(
            descriptor.as_raw_fd(),
            libc::SIOCGIFHWADDR as libc::Ioctl,
            &raw mut request,
        )
    })?;
    Ok(Mac(request.hardware_address()))
}

/// What a device carries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ethernet frames.
    Tap,
    /// IP packets.
    Tun,
}

fn open_queue(kind: Kind, name: &str, flags: c_int) -> Result<(OwnedFd, String), Error> {
    // Nobody who reads a message has typed the pattern.
    let fail = |error| match name.contains("%d") {
        true => Error::system("create a TAP device", "", error),
        false => Error::system("create the TAP device", name, error),
    };
    let descriptor: OwnedFd = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::NoDriver,
            Some(libc::EACCES | libc::EPERM) => Error::Unreadable { source: error },
            _ => fail(error),
        })?
        .into();

    let name =
        prepare(&descriptor, kind, name, flags).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => Error::Exists {
                name: name.to_owned(),
            },
            _ => fail(error),
        })?;
    Ok((descriptor, name))
}

/// Makes the descriptor that of a device, with a virtio-net header before each frame and all
/// offloads; the device's name.
pub(crate) fn prepare(
    descriptor: &OwnedFd,
    kind: Kind,
    name: &str,
    flags: c_int,
) -> io::Result<String> {
    let kind = match kind {
        Kind::Tap => libc::IFF_TAP,
        Kind::Tun => libc::IFF_TUN,
    };
    let flags = kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR | flags;
    let mut request = Request::about(name).short(flags as u16);
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, as which `request` is laid out; it
    // outlives the call.
    let set = unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    check(set)?;
    let len = vnet::LEN as c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one int, which outlives the call.
    check(unsafe {
        libc::ioctl(
            descriptor.as_raw_fd(),
            libc::TUNSETVNETHDRSZ,
            &raw const len,
        )
    })?;
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    // SAFETY: TUNSETOFFLOAD takes a number and no pointer.
    check(unsafe {
        libc::ioctl(
            descriptor.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(offloads),
        )
    })?;
    Ok(request.name())
}
