//! Why a device cannot be used through AF_XDP.

use std::io;

use aya::programs::ProgramError;

use crate::packet;

/// Why a device cannot be used through AF_XDP, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process lacks a privilege.
    #[error(
        "no privilege to {operation} `{device}`; run as root or with CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW"
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
    /// Another program is there.
    #[error(
        "another XDP program is attached to `{device}`; `ip link set dev {device} xdp off` takes it off (if a process holds it, end \
         that: `bpftool link` shows which)"
    )]
    Occupied {
        /// The device.
        device: String,
    },
    /// The driver has no XDP.
    #[error(
        "the driver of `{device}` does not take XDP programs: {source}; leave `mode` out, or give `mode=generic`"
    )]
    NoDriver {
        /// The device.
        device: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// No zero copy.
    #[error(
        "the driver of `{device}` does not share its memory with AF_XDP sockets: {source}; leave `mode` out, or give `mode=copy`"
    )]
    NoZeroCopy {
        /// The device.
        device: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// No poller.
    #[error(
        "the queues of `{device}` cannot be busy-polled: {source}; leave `busy-poll` out, or give `busy-poll=off`"
    )]
    NoBusyPoll {
        /// The device.
        device: String,
        /// What is missing.
        source: io::Error,
    },
    /// Somebody else has the queue.
    #[error(
        "queue {queue} of `{device}` is in use by another AF_XDP socket; end the process that holds it (`ss --xdp` lists them), or choose \
         another device"
    )]
    Busy {
        /// The device.
        device: String,
        /// The queue, from 0.
        queue: u32,
    },
    /// Frames do not fit.
    #[error(
        "`{device}` has an MTU of {mtu}, and its frames would not fit in one piece of AF_XDP memory, which is all that the kernel and driver \
         have here: `ip link set dev {device} mtu {max}`"
    )]
    Mtu {
        /// The device.
        device: String,
        /// Its MTU, in bytes.
        mtu: u16,
        /// The largest that fits.
        max: u16,
    },
    /// More shards than queues.
    #[error(
        "{wanted} shards want a queue of `{device}` each, and {queues} are in use there; give it more (`ethtool -L {device} combined {wanted}`; one of a \
         veth pair is made with `numrxqueues {wanted} numtxqueues {wanted}`), or take --shards {queues}"
    )]
    TooFewQueues {
        /// The device.
        device: String,
        /// How many shards there are to be.
        wanted: u16,
        /// How many queues are used.
        queues: u16,
    },
    /// The number of queues is out of range.
    #[error("queues={wanted}, but `{device}` has {queues}: choose 1 to {queues}")]
    Queues {
        /// The device.
        device: String,
        /// The number.
        wanted: u16,
        /// How many it has.
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

    /// Likewise, of what the loader says.
    pub(super) fn of_program(operation: &'static str, device: &str, error: ProgramError) -> Error {
        let source = match error {
            ProgramError::SyscallError(error) => error.io_error,
            ProgramError::LoadError { io_error, .. } => io_error,
            other => io::Error::other(other),
        };
        Error::system(operation, device, source)
    }
}
