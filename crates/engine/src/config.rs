//! The configuration of an engine.

use std::net::IpAddr;

use millrace_context::layout;
pub use millrace_port::spec::Route;
use millrace_port::spec::Spec;
use serde::{Deserialize, Serialize};

/// Who owns the queues of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topology {
    /// The shards if the device has enough queues and no I/O threads were asked for; else I/O
    /// threads.
    #[default]
    Auto,
    /// Each shard owns a queue and carries its frames from the device to the program and back.
    RunToCompletion,
    /// I/O threads own the queues and give the shards their frames through virtual queues.
    Pipeline,
    /// I/O threads own some queues. Shards own the remaining queues, one each, as far as there are
    /// any.
    Mixed,
}

/// All that flags decide. It goes to the process of the engine as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// The name by which `ss`, `down` and `run --engine` find the engine.
    pub name: String,
    /// The link. None: the engine serves loopback alone.
    pub link: Option<Link>,
    /// Whether the engine serves 127.0.0.0/8, `::1` and its own addresses inside.
    pub loopback: bool,
    /// The engine ends when its last program has ended.
    pub ephemeral: bool,
    /// Threads that serve flows from the start, 1 to 64.
    pub shards: u16,
    /// All shard threads, up to 64, to which `millrace scale` can give flows. None: as many as
    /// serve from the start.
    pub shards_max: Option<u16>,
    /// Whether flows move from busy shards to less busy ones while the engine runs.
    pub balance: bool,
    /// Who owns the queues of the device.
    pub topology: Topology,
    /// Threads that own the queues in place of the shards, 1 to 64. None: the topology decides.
    pub io_threads: Option<u16>,
    /// The cores of the I/O threads, then of the shards, then of programs. Empty: the engine
    /// chooses.
    pub cores: Vec<usize>,
    /// The order in which shards serve their virtual queues, in the notation of
    /// [`millrace_steer::Policy`].
    pub shard_schedule: String,
    /// The order in which I/O threads serve their virtual queues.
    pub io_schedule: String,
    /// Whether the thread of a lone shard follows the thread of its program from core to core.
    pub follow: bool,
    /// Whether segments that the link gives one by one are joined before the stack takes them in.
    pub join: bool,
    /// Whether connections ask for explicit congestion notification. They always accept it.
    pub ecn: bool,
    /// Congestion control of sockets whose program chooses none: `cubic`, `reno`, `bbr` or `dctcp`.
    pub congestion: String,
    /// When a connection probes for the path MTU without the help of routers.
    pub mtu_probing: MtuProbing,
    /// The rights that the process drops when it has opened its link. None: the process is not the
    /// engine's own.
    pub sandbox: Option<millrace_sandbox::Config>,
    /// The file of the audit log; `-` is standard error. None: there is no log.
    #[serde(default)]
    pub audit: Option<String>,
    /// Limits of each program.
    pub limits: Limits,
}

impl Config {
    /// All shards, whether they serve from the start or not.
    pub fn room(&self) -> u16 {
        self.shards_max
            .map_or(self.shards, |most| most.max(self.shards))
    }
}

/// Addresses of each family that a link can have. The region header has room for no more.
pub const ADDRESSES_MAX: usize = layout::OWN_MAX / 2;
/// Routes that a link can have. The region header has room for no more.
pub const ROUTES_MAX: usize = layout::ROUTES_MAX - layout::OWN_MAX;

/// The first `most` addresses of each family.
pub fn some_of_each_family(addresses: &[(IpAddr, u8)], most: usize) -> Vec<(IpAddr, u8)> {
    let of = |v4: bool| {
        let family = addresses.iter().filter(move |(ip, _)| ip.is_ipv4() == v4);
        family.take(most).copied()
    };
    of(true).chain(of(false)).collect()
}

/// When a connection probes for the path MTU with larger segments (RFC 4821).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MtuProbing {
    /// Never.
    Off,
    /// When full segments time out again and again.
    BlackHole,
    /// From the start of every connection.
    Always,
}

/// What the engine follows of the kernel's, where both have the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// The engine has all addresses that the kernel has on the device, as far as there is room.
    /// Otherwise it has those of [`Link::addresses`] while the kernel has them.
    pub addresses: bool,
    /// The engine has the routes that the kernel has on the device. Otherwise it has those of
    /// [`Link::routes`].
    pub routes: bool,
}

/// A device and the addresses on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Link {
    /// The device, as [`millrace_port::open`](mod@millrace_port::open) opens it.
    pub device: Spec,
    /// What the engine follows of the kernel's, if the link has the kernel's addresses
    /// ([`Spec::shares_addresses`]).
    pub shared: Option<Shared>,
    /// Addresses of the engine with their prefix lengths, at most [`ADDRESSES_MAX`] of each family.
    /// There is at least one of IPv4, unless the addresses are the kernel's. Without an IPv6
    /// address the link has no IPv6.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Addresses that the kernel gets at the other end of a TAP device. Empty: the kernel's end
    /// stays as it is.
    pub hosts: Vec<(IpAddr, u8)>,
    /// Routes to networks beyond the link, at most [`ROUTES_MAX`].
    pub routes: Vec<Route>,
    /// The virtual LAN (IEEE 802.1Q) of the engine's frames on the device, 1 to 4094. None: the
    /// frames have no tag.
    pub vlan: Option<u16>,
    /// The largest IP packet in bytes. The MTU of an existing device limits it further.
    pub mtu: u16,
}

impl Link {
    /// The engine's addresses with their prefix lengths, and the virtual LAN, as text.
    pub fn addresses(&self) -> String {
        match self.vlan {
            None => list(&self.addresses),
            Some(id) => format!("{}, VLAN {id},", list(&self.addresses)),
        }
    }

    /// The kernel's addresses with their prefix lengths, as text.
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
