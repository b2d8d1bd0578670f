//! Why an engine does not start.

use std::io;
use std::net::IpAddr;

use millrace_context::layout::SHARDS_MAX;
use millrace_port::open;
use millrace_port::spec::{self, Spec};
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
    /// The link could not be opened.
    #[error(transparent)]
    Link(#[from] open::Error),
    /// The link carries no Ethernet frames.
    #[error("an engine does not take {0}; give tap, packet:NAME, macvtap:NAME or xdp:NAME")]
    NoFrames(Spec),
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
