//! What an engine is told at start.

use std::net::IpAddr;

use millrace_context::layout;
pub use millrace_port::spec::Route;
use millrace_port::spec::Spec;
use serde::{Deserialize, Serialize};

use crate::topology::Topology;

/// Everything that flags decide. It crosses to the engine's process as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Name of the engine: `ss`, `down` and `run --engine` find it by this.
    pub name: String,
    /// The link; none for an engine that serves loopback alone.
    pub link: Option<Link>,
    /// Whether 127.0.0.0/8, `::1` and the own addresses are served inside.
    pub loopback: bool,
    /// Ends when its last program has ended.
    pub ephemeral: bool,
    /// Threads that run the stack, each with its part of the flows, 1 to 64.
    pub shards: u16,
    /// Threads that are there for `millrace scale` to give flows to, those among them, up to 64; as many as serve from the start where it is not said.
    pub shards_max: Option<u16>,
    /// Flows go from shards that have much to do to those that have less, while the engine runs.
    pub balance: bool,
    /// Who owns the queues of the device.
    pub topology: Topology,
    /// Threads that own the queues, where shards do not, 1 to 64; none where it is not said.
    pub io_threads: Option<u16>,
    /// The cores of the I/O threads and of the shards, in this order, and of programs if any are left; empty where it is not said.
    pub cores: Vec<usize>,
    /// In what order shards serve their virtual queues, as [`millrace_steer::Policy`] is written.
    pub shard_schedule: String,
    /// In what order I/O threads serve theirs.
    pub io_schedule: String,
    /// The shard's thread follows its program's thread from core to core.
    pub follow: bool,
    /// Segments that the link gives one by one are joined before the stack takes them in.
    pub join: bool,
    /// Explicit congestion notification is asked for, not only accepted.
    pub ecn: bool,
    /// Congestion control of sockets for which their program chooses none: `cubic`, `reno`, `bbr` or `dctcp`.
    pub congestion: String,
    /// When the largest segment that a path carries is looked for without the help of routers.
    pub mtu_probing: MtuProbing,
    /// What the process gives up once it has opened its link; nothing where it is not the engine's own.
    pub sandbox: Option<millrace_sandbox::Config>,
    /// The file that the audit log goes to, `-` for standard error; none without one.
    #[serde(default)]
    pub audit: Option<String>,
    /// Limits of each program.
    pub limits: Limits,
}

impl Config {
    /// How many shards there are, whether they serve from the start or not.
    pub fn room(&self) -> u16 {
        self.shards_max
            .map_or(self.shards, |most| most.max(self.shards))
    }
}

/// Addresses of each family that a link can have: what programs are told of them has room for no more.
pub const ADDRESSES_MAX: usize = layout::OWN_MAX / 2;
/// Routes that a link can have, likewise.
pub const ROUTES_MAX: usize = layout::ROUTES_MAX - layout::OWN_MAX;

/// The first so many addresses of each family.
pub fn some_of_each_family(addresses: &[(IpAddr, u8)], most: usize) -> Vec<(IpAddr, u8)> {
    let of = |v4: bool| {
        let family = addresses.iter().filter(move |(ip, _)| ip.is_ipv4() == v4);
        family.take(most).copied()
    };
    of(true).chain(of(false)).collect()
}

/// When the size of a path is found out by sending larger segments (RFC 4821).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MtuProbing {
    /// Never.
    Off,
    /// When full segments time out again and again.
    BlackHole,
    /// From the start of every connection.
    Always,
}

/// What is the kernel's, and followed while the engine runs, where both have the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// All addresses that the kernel has on the device, as far as there is room; otherwise those of [`Link::addresses`], while it has them.
    pub addresses: bool,
    /// Its routes by gateways there; otherwise those of [`Link::routes`].
    pub routes: bool,
}

/// A device and the addresses on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Link {
    /// The device, as [`millrace_port::open`](mod@millrace_port::open) opens it.
    pub device: Spec,
    /// What of the kernel's is followed, if the link has the kernel's addresses ([`Spec::shares_addresses`]).
    pub shared: Option<Shared>,
    /// The engine's addresses with the bits of their prefixes, at most [`ADDRESSES_MAX`] of each family, one of IPv4 at least unless they are the kernel's; without one of IPv6
    /// the link has no IPv6.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The kernel's addresses at the other end of a TAP device; none leaves it as it is.
    pub hosts: Vec<(IpAddr, u8)>,
    /// Ways to what is off the link, at most [`ROUTES_MAX`].
    pub routes: Vec<Route>,
    /// The virtual LAN (IEEE 802.1Q) whose tag the engine's frames have on the device, 1 to 4094; without it they have none.
    pub vlan: Option<u16>,
    /// Largest IP packet in bytes; no larger than a device that is there already allows.
    pub mtu: u16,
}

impl Link {
    /// The engine's addresses with their prefixes, and the virtual LAN that they are on, for people.
    pub fn addresses(&self) -> String {
        match self.vlan {
            None => list(&self.addresses),
            Some(id) => format!("{}, VLAN {id},", list(&self.addresses)),
        }
    }

    /// The kernel's, likewise.
    pub fn hosts(&self) -> String {
        list(&self.hosts)
    }
}

fn list(addresses: &[(IpAddr, u8)]) -> String {
    let each = addresses.iter().map(|(ip, bits)| format!("{ip}/{bits}"));
    each.collect::<Vec<_>>().join(" and ")
}

/// Upper bounds for one program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Sockets.
    pub sockets: u32,
    /// Bytes that received data may take.
    pub memory: u64,
    /// epoll sets and threads in `poll` at once.
    pub pollers: u32,
    /// Processes alive at once.
    pub processes: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sockets: 128 << 10,
            memory: 1 << 30,
            pollers: 4096,
            processes: 1024,
        }
    }
}
