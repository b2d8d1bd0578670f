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
    /// The name is in use by another engine.
    #[error(
        "an engine named {0:?} is running already; choose another --name, or end it with `millrace down --name {0}`"
    )]
    NameTaken(String),
    /// The TAP or TUN device could not be opened.
    #[error(transparent)]
    Tap(#[from] tap::Error),
    /// The packet sockets could not be opened.
    #[error(transparent)]
    Packet(#[from] packet::Error),
    /// The macvtap device could not be opened.
    #[error(transparent)]
    Macvtap(#[from] macvtap::Error),
    /// The AF_XDP sockets could not be opened.
    #[error(transparent)]
    Xdp(#[from] xdp::Error),
    /// A VLAN was asked for on AF_XDP, which sees no tags, or on macvtap, which is on one VLAN.
    #[error(
        "this link sees no tags of virtual LANs; use packet:{0} with --vlan, or a device on that LAN (`ip link add link {0} name {0}.7 type vlan id 7`)"
    )]
    NoTags(String),
    /// No host can have this address.
    #[error(transparent)]
    Prefix(#[from] spec::Error),
    /// Another station on the link has this address.
    #[error("{address} is in use on the link: {station} answers for it; give another --addr")]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The station that has it.
        station: String,
    },
    /// A VLAN number that does not exist.
    #[error("there is no virtual LAN {0}; they are numbered 1 to 4094")]
    Vlan(u16),
    /// No shards, or more than a program can use.
    #[error("{0} shards were asked for; an engine has 1 to {SHARDS_MAX}")]
    Shards(u16),
    /// These threads are not possible.
    #[error(transparent)]
    Topology(#[from] topology::Error),
    /// An unknown order of virtual queues.
    #[error("the order of virtual queues is {0}")]
    Schedule(#[from] PolicyError),
    /// The process could not drop its rights.
    #[error(transparent)]
    Sandbox(#[from] millrace_sandbox::Error),
    /// Neither a link nor loopback.
    #[error("an engine needs a --link, --loopback, or both")]
    NothingToServe,
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// What the engine tried.
        what: &'static str,
        /// The error of the system call.
        error: io::Error,
    },
}

pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System { what, error }
}
