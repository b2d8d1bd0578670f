//! Where AF_XDP ports are to be, and which frames are theirs.

use std::net::IpAddr;

use millrace_wire::ethernet::Mac;

use crate::spec::{BusyPoll, Mode};

/// Where the ports are to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device.
    pub device: String,
    /// How many of its queues are used, from the first; all of them when it is not said.
    pub queues: Option<u16>,
    /// How frames get here.
    pub mode: Mode,
    /// How many ports there are to be; each has one queue at least, those that are left go round.
    pub ports: u16,
    /// Whether the program that looks for frames runs the driver's poller.
    pub busy_poll: BusyPoll,
    /// The stack's address; a random, locally administered one when there is none. It must not be
    /// the device's own.
    pub mac: Option<Mac>,
    /// Addresses of the kernel's on this device, at most [`SHARED_MAX`] of each family, that the
    /// stack has, too: then it has the device's link-layer address. None: it has its own.
    pub shared: Vec<IpAddr>,
}

/// How many addresses of each family can be shared with the kernel.
pub const SHARED_MAX: usize = 8;

/// Which of a device's frames a port is for.
#[derive(Clone, Copy)]
pub(super) enum Ours<'a> {
    /// Those to a station of the stack's own, and to groups.
    Station(Mac),
    /// Those to addresses that the kernel has as well, and to ports of the stack's.
    Shared(&'a [IpAddr]),
    /// All: the kernel receives nothing by this device.
    Everything,
}

/// What the program knows of addresses, as `program.c` has it: those of IPv4, then those of IPv6,
/// all zero where there is none.
pub(super) type Addresses = [u32; 5 * SHARED_MAX];
