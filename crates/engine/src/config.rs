//! What an engine is told at start.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

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
    /// The shard's thread follows its program's thread from core to core.
    pub follow: bool,
    /// Explicit congestion notification is asked for, not only accepted.
    pub ecn: bool,
    /// Limits of each program.
    pub limits: Limits,
}

/// IPv6 addresses of one link: what programs are told of them has room for no more.
pub const ADDRESSES_V6_MAX: usize = 8;

/// Where an engine's frames come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Device {
    /// A TAP device that is made for it.
    Tap {
        /// Its name; a free one if none.
        name: Option<String>,
    },
    /// A device that is there already, by packet sockets.
    Packet {
        /// Its name.
        name: String,
    },
}

/// A device and the addresses on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Link {
    /// The device.
    pub device: Device,
    /// The engine's address.
    pub address: Ipv4Addr,
    /// Bits of the prefix.
    pub prefix_len: u8,
    /// The kernel's address at the other end of a TAP device; none leaves it as it is.
    pub host: Option<(Ipv4Addr, u8)>,
    /// Next hop for everything off the link.
    pub gateway: Option<Ipv4Addr>,
    /// The engine's IPv6 addresses with the bits of their prefixes, at most [`ADDRESSES_V6_MAX`]; without any the link has no IPv6.
    pub addresses_v6: Vec<(Ipv6Addr, u8)>,
    /// The kernel's IPv6 addresses at the other end, likewise.
    pub hosts_v6: Vec<(Ipv6Addr, u8)>,
    /// Next hop for everything of IPv6 off the link.
    pub gateway_v6: Option<Ipv6Addr>,
    /// Largest IP packet in bytes; no larger than a device that is there already allows.
    pub mtu: u16,
}

impl Link {
    /// The engine's addresses with their prefixes, for people.
    pub fn addresses(&self) -> String {
        list(Some((self.address, self.prefix_len)), &self.addresses_v6)
    }

    /// The kernel's, likewise.
    pub fn hosts(&self) -> String {
        list(self.host, &self.hosts_v6)
    }
}

fn list(v4: Option<(Ipv4Addr, u8)>, v6: &[(Ipv6Addr, u8)]) -> String {
    let v4 = v4.into_iter().map(|(ip, bits)| format!("{ip}/{bits}"));
    let v6 = v6.iter().map(|(ip, bits)| format!("{ip}/{bits}"));
    v4.chain(v6).collect::<Vec<_>>().join(" and ")
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
