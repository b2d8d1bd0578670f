//! Why a TAP device cannot be had.

use std::io;

use crate::spec::{self, Prefix};
use crate::{MTU_MAX, MTU_MIN};

/// Why a TAP device cannot be had, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no TAP driver, or it is not to be seen from here.
    #[error(
        "/dev/net/tun is not there; load the driver (`modprobe tun`), or hand the device to the container \
         (`--device /dev/net/tun`)"
    )]
    NoDriver,
    /// The file of the driver is there, and this process may not open it.
    #[error(
        "/dev/net/tun cannot be opened to read and write ({source}); give this user access (`chmod 666 /dev/net/tun` as root), or \
         hand the device to the container (`--device /dev/net/tun`)"
    )]
    Unreadable {
        /// What the kernel says.
        source: io::Error,
    },
    /// The process may not create or configure network devices.
    #[error(
        "no privilege to {operation}{}; run as root or with CAP_NET_ADMIN, or in a user namespace with a network of its \
         own (`unshare --map-root-user --net`)",
        quoted(name)
    )]
    NoPrivilege {
        /// What was refused.
        operation: &'static str,
        /// The device. Empty: the kernel was to choose its name.
        name: String,
    },
    /// Not a name for a device.
    #[error(transparent)]
    Name(#[from] spec::Error),
    /// There is a device of this name.
    #[error(
        "there is already a network device `{name}`; choose another name, or give none and get a free one"
    )]
    Exists {
        /// The name.
        name: String,
    },
    /// Another interface has addresses of this prefix.
    #[error(
        "{wanted} overlaps with {other}, which is on interface `{interface}`; choose a prefix that no interface has"
    )]
    PrefixInUse {
        /// The address and prefix that was to be set.
        wanted: Prefix,
        /// What is there already.
        other: Prefix,
        /// Where it is.
        interface: String,
    },
    /// The MTU is out of range.
    #[error("an MTU of {mtu} is not to be had; choose one from {MTU_MIN} to {MTU_MAX}")]
    Mtu {
        /// The MTU, in bytes.
        mtu: u16,
    },
    /// The number of queues is out of range.
    #[error("a device with {queues} queues is not to be had; choose from 1 to 256")]
    Queues {
        /// The number.
        queues: u16,
    },
    /// Anything else that the kernel refuses.
    #[error("cannot {operation}{}: {source}", quoted(name))]
    System {
        /// What was refused.
        operation: &'static str,
        /// The device. Empty: the kernel was to choose its name.
        name: String,
        /// What the kernel says.
        source: io::Error,
    },
}

impl Error {
    /// The error for `operation` on `name` that failed with `source`.
    pub(super) fn system(operation: &'static str, name: &str, source: io::Error) -> Error {
        let name = name.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Error::NoPrivilege { operation, name },
            _ => Error::System {
                operation,
                name,
                source,
            },
        }
    }
}

/// The name of a device at the end of what was to be done with it, if it has one.
fn quoted(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!(" `{name}`"),
    }
}
