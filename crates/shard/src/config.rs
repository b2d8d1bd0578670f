//! The configuration of a shard.

use std::net::{Ipv4Addr, Ipv6Addr};

use millrace_wire::ethernet::Mac;

use crate::steering::Steer;

/// Everything that a shard needs to know; nothing is read from the environment.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses of this host on the link, one at least, each with the length of its prefix,
    /// 0..=32: what is in the prefix is on the link.
    pub addresses: Vec<(Ipv4Addr, u8)>,
    /// Routes to destinations that are not on the link. All others are unreachable.
    pub routes: Vec<Via<Ipv4Addr>>,
    /// The hardware address of this host on the link.
    pub mac: Mac,
    /// Largest IP packet on the link in bytes, 576..=65535.
    pub mtu: u16,
    /// How address conflicts are detected (RFC 5227).
    pub conflict_detection: ConflictDetection,
    /// IPv6 on the link; without it, the link has none. `loopback` serves `::1` nevertheless.
    pub ipv6: Option<Ipv6>,
    /// Whether 127.0.0.0/8, `::1` and the own addresses are served, inside the shard. Without it
    /// they are unreachable.
    pub loopback: bool,
    /// Whether packets to any address of one host are for this one, and its sockets may have any as
    /// their own: for a link on which everything that leaves somebody else arrives here.
    pub any_address: bool,
    /// The station that all others are behind: nobody is asked where they are.
    pub only_station: Option<Mac>,
    /// The other shards of this address; none when there is no other.
    pub steer: Option<Steer>,
    /// The local ports that may be chosen for a program, where not all of 32768 to 60999 are to be
    /// had: then [`crate::Shard::take_freed_port`] tells which nobody uses any more.
    pub ephemeral: Option<Vec<u16>>,
    /// The limits of every table and pool.
    pub limits: Limits,
    /// The buffers of a connection.
    pub buffers: Buffers,
    /// The parameters of each connection.
    pub tcp: millrace_tcp::Config,
    /// From a source of true randomness, anew for each start: keys the hashes, initial sequence
    /// numbers, ports and timestamps.
    pub secret: [u8; 32],
}

impl Config {
    /// A configuration with the default limits and buffers for a host `address`/`prefix_len` with
    /// the hardware address `mac`.
    pub fn new(address: Ipv4Addr, prefix_len: u8, mac: Mac, secret: [u8; 32]) -> Config {
        Config {
            addresses: vec![(address, prefix_len)],
            routes: Vec::new(),
            mac,
            conflict_detection: ConflictDetection::Nothing,
            ipv6: None,
            mtu: 1500,
            loopback: false,
            any_address: false,
            only_station: None,
            steer: None,
            ephemeral: None,
            limits: Limits::default(),
            buffers: Buffers::default(),
            tcp: millrace_tcp::Config::default(),
            secret,
        }
    }

    /// The first address.
    pub fn address(&self) -> Ipv4Addr {
        self.addresses
            .first()
            .map_or(Ipv4Addr::UNSPECIFIED, |&(address, _)| address)
    }
}

/// How a host comes by its addresses. Of several shards that share them one does it, the others
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictDetection {
    /// They are its own, and all know it.
    Nothing,
    /// The kernel has them too, and has done what is to be done; what is told of neighbours has its
    /// word and is believed at once.
    Kernel,
    /// They are its own, but others may remember another station (RFC 5227 2.3, RFC 4861 7.2.6).
    Announce,
    /// Others may have them: they are asked first, which takes up to seven seconds (RFC 5227 2.1).
    /// IPv6 always asks, see [`Ipv6::probes`].
    Probe,
}

impl ConflictDetection {
    /// Whether the shard announces or probes for addresses itself.
    pub(crate) fn is_on(self) -> bool {
        matches!(self, ConflictDetection::Announce | ConflictDetection::Probe)
    }
}

/// Where a host is: its addresses with the lengths of their prefixes, and the ways off the link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// As [`Config::addresses`], but that there may be none.
    pub addresses: Vec<(Ipv4Addr, u8)>,
    /// As [`Config::routes`].
    pub routes: Vec<Via<Ipv4Addr>>,
    /// As [`Ipv6::addresses`]; without one there is no IPv6 on the link.
    pub addresses_v6: Vec<(Ipv6Addr, u8)>,
    /// As [`Ipv6::routes`].
    pub routes_v6: Vec<Via<Ipv6Addr>>,
}

/// A way off the link. Of several that lead to a destination the one with the longest prefix
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via<A> {
    /// Destinations that begin like this,
    pub prefix: A,
    /// with so many bits, no more than an address has; 0 for everything,
    pub prefix_len: u8,
    /// are behind this neighbour.
    pub gateway: A,
}

/// IPv6 on the link. The link needs an MTU of at least 1280 bytes for it (RFC 8200 5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// The host's addresses and the lengths of their prefixes, 0..=128, beside the link-local
    /// address that it always has.
    pub addresses: Vec<(Ipv6Addr, u8)>,
    /// Ways to what is off the link. Unless one leads to everything, what routers advertise counts,
    /// too.
    pub routes: Vec<Via<Ipv6Addr>>,
    /// How often each address is asked for before it is used (RFC 4862 5.1:
    /// `DupAddrDetectTransmits`); 0 uses it at once.
    pub probes: u8,
}

impl Default for Ipv6 {
    fn default() -> Ipv6 {
        Ipv6 {
            addresses: Vec::new(),
            routes: Vec::new(),
            probes: 1,
        }
    }
}

/// Upper bounds. When one is reached the new is refused (or, where the limit says so, the oldest
/// unfinished gives way), and a counter says so.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sockets of every kind, orphans included.
    pub sockets: u32,
    /// Connections in SYN-RECEIVED, of all listeners together; beyond it SYNs are answered with
    /// cookies.
    pub half_open: u32,
    /// Connections in TIME-WAIT; beyond it a connection that closes is forgotten at once.
    pub time_wait: u32,
    /// Connections that are closing and belong to no socket any more; beyond it a close resets the
    /// connection.
    pub orphans: u32,
    /// Neighbours of both families in the cache; one that was never used gives way, then the one
    /// used least recently.
    pub neighbours: u32,
    /// Destinations whose path is known to be smaller than the link.
    pub path_mtus: u32,
    /// Destinations whose cookie for TCP Fast Open is remembered.
    pub cookies: u32,
    /// Answers (resets, SYN-ACKs, ICMP, ARP) waiting to leave; beyond it an answer is dropped.
    pub replies: u32,
    /// Packets that came in fragments of which some are missing; of one source a quarter. Beyond it
    /// a fragment is dropped.
    pub fragmented: u32,
    /// Bytes of fragments that wait for others.
    pub fragment_memory: u64,
    /// Bytes in send rings, of all sockets together. When little is left connections that no
    /// program holds are reset for theirs.
    pub send_memory: u64,
    /// Whether the owners of sockets are strangers to each other, so that none may take the memory
    /// that others need.
    pub shared: bool,
    /// ICMP errors sent per second, of both families (RFC 1812 4.3.2.8, RFC 4443 2.4 (f)).
    pub icmp_errors_per_second: u32,
    /// Echo requests answered per second, of both families.
    pub echo_replies_per_second: u32,
    /// Resets sent per second in answer to segments that belong to no connection.
    pub resets_per_second: u32,
}

impl Limits {
    /// The part of one of so many shards, of limits that are meant for all of them. What every
    /// shard needs in full it has in full.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// let limits = millrace::Limits { sockets: 1000, ..Default::default() };
    /// assert_eq!(limits.shared_by(4).sockets, 250);
    /// ```
    #[must_use]
    pub fn shared_by(&self, shards: u16) -> Limits {
        let part = |of: u32| of.div_ceil(u32::from(shards));
        Limits {
            sockets: part(self.sockets),
            half_open: part(self.half_open),
            time_wait: part(self.time_wait),
            orphans: part(self.orphans),
            send_memory: self.send_memory / u64::from(shards),
            icmp_errors_per_second: part(self.icmp_errors_per_second),
            echo_replies_per_second: part(self.echo_replies_per_second),
            resets_per_second: part(self.resets_per_second),
            ..self.clone()
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sockets: 1 << 20,
            half_open: 1 << 14,
            time_wait: 1 << 18,
            orphans: 1 << 16,
            neighbours: 4096,
            path_mtus: 4096,
            cookies: 4096,
            replies: 4096,
            fragmented: 256,
            fragment_memory: 4 << 20,
            send_memory: 1 << 30,
            shared: false,
            icmp_errors_per_second: 1000,
            echo_replies_per_second: 10_000,
            resets_per_second: 10_000,
        }
    }
}

/// Sizes of a connection's buffers in bytes. Without `SO_SNDBUF` and `SO_RCVBUF` they start at the
/// default and are tuned up to the maximum.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Send buffer at the start.
    pub send_default: u32,
    /// Send buffer at most, also for `SO_SNDBUF`.
    pub send_max: u32,
    /// Receive buffer at the start.
    pub receive_default: u32,
    /// Receive buffer at most, also for `SO_RCVBUF`.
    pub receive_max: u32,
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers {
            send_default: 64 << 10,
            send_max: 16 << 20,
            receive_default: 64 << 10,
            receive_max: 16 << 20,
        }
    }
}
