//! Why a packet socket cannot be had.

use std::io;

use crate::spec;

/// Why a device cannot be used through packet sockets, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process may not open packet sockets.
    #[error(
        "no privilege to {operation} `{device}`; run as root or with CAP_NET_RAW and CAP_NET_ADMIN"
    )]
    NoPrivilege {
        /// What was refused.
        operation: &'static str,
        /// The device.
        device: String,
    },
    /// Not a name for a device.
    #[error(transparent)]
    Name(#[from] spec::Error),
    /// There is no such device.
    #[error("there is no network device `{device}`; `ip link` lists those that there are")]
    Missing {
        /// Its name.
        device: String,
    },
    /// It is down.
    #[error("the network device `{device}` is down; bring it up with `ip link set {device} up`")]
    Down {
        /// Its name.
        device: String,
    },
    /// It does not carry Ethernet frames.
    #[error("the network device `{device}` does not carry Ethernet frames; choose one that does")]
    NotEthernet {
        /// Its name.
        device: String,
    },
    /// Its MTU is of no use.
    #[error(
        "the network device `{device}` has an MTU of {mtu}; `ip link set {device} mtu 1500` gives it a common one"
    )]
    Mtu {
        /// Its name.
        device: String,
        /// The MTU, in bytes.
        mtu: u16,
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
    /// The error for `operation` on `device` that failed with `source`.
    pub(super) fn system(operation: &'static str, device: &str, source: io::Error) -> Error {
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
