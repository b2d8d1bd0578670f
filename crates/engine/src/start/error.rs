//! Why an engine does not start.

use std::io;
use std::net::IpAddr;

use millrace_context::layout::SHARDS_MAX;
use millrace_port::{macvtap, packet, spec, tap, xdp};
use millrace_steer::PolicyError;

use crate::topology;

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The name is in use.
    #[error(
        "an engine named {0:?} is running already; choose another --name, or end it with `millrace down --name {0}`"
    )]
    NameTaken(String),
    /// Something about the device.
    #[error(transparent)]
    Tap(#[from] tap::Error),
    /// Likewise.
    #[error(transparent)]
    Packet(#[from] packet::Error),
    /// Likewise.
    #[error(transparent)]
    Macvtap(#[from] macvtap::Error),
    /// Likewise.
    #[error(transparent)]
    Xdp(#[from] xdp::Error),
    /// AF_XDP sockets see no tags, and macvtap devices are on one LAN.
    #[error(
        "this link sees no tags of virtual LANs; give packet:{0} with --vlan, or a device of that LAN (`ip link add link {0} name {0}.7 type vlan id 7`)"
    )]
    NoTags(String),
    /// An address that no host can have.
    #[error(transparent)]
    Prefix(#[from] spec::Error),
    /// Another station on the link has an address.
    #[error("{address} is in use on the link: {station} answers for it; give another --addr")]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// Whose it is.
        station: String,
    },
    /// No number of a virtual LAN.
    #[error("there is no virtual LAN {0}; they are numbered 1 to 4094")]
    Vlan(u16),
    /// None, or more than a program can speak to.
    #[error("{0} shards were asked for; an engine has 1 to {SHARDS_MAX}")]
    Shards(u16),
    /// Something about the threads.
    #[error(transparent)]
    Topology(#[from] topology::Error),
    /// No order of virtual queues.
    #[error("the order of virtual queues is {0}")]
    Schedule(#[from] PolicyError),
    /// The process keeps rights that it is to drop.
    #[error(transparent)]
    Sandbox(#[from] millrace_sandbox::Error),
    /// Neither a link nor loopback.
    #[error("an engine needs a --link, --loopback, or both")]
    NothingToServe,
    /// The machine refuses.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System { what, error }
}
