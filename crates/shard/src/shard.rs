//! The shard: its parts, and the passing of time.

mod input;
mod output;
pub mod sockets;
mod steering;
mod tcp;
mod udp;

use std::net::IpAddr;

use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;

use crate::base::Base;
use crate::config::{self, Config};
use crate::connection_table::MOST;
use crate::counters::Counters;
use crate::env::Env;
use crate::ip::route::Nearness;
use crate::memory::Memory;
use crate::memory::reclaim::Reclaim;
use crate::memory::send_memory::SendMemory;
use crate::network::Network;
use crate::secrets::Secrets;
use crate::slab::Slab;
use crate::socket::{Marks, OptionSharing, Socket, SocketId};
use crate::steering::misrouted::Steering;
use crate::tcp::state::Tcp;
use crate::udp::Udp;

/// One core's stack.
pub struct Shard<M: Memory> {
    pub(crate) base: Base<M>,
    pub(crate) tcp: Tcp,
    pub(crate) udp: Udp,
    /// Whether the port was full at the last transmit.
    blocked: bool,
    reclaim: Reclaim,
}

/// Numbers of what is in use now: all zero when nothing is open and nothing is left over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sockets of every kind, orphans included.
    pub sockets: usize,
    /// Connections that no program holds.
    pub orphans: usize,
    /// Connections in SYN-RECEIVED.
    pub half_open: usize,
    /// Connections in TIME-WAIT.
    pub time_wait: usize,
    /// Entries of the connection table.
    pub table: usize,
    /// Local ports in use.
    pub ports: usize,
    /// Entries of the neighbour cache.
    pub neighbours: usize,
    /// Timers of connections.
    pub timers: usize,
    /// Answers waiting to be sent.
    pub replies: usize,
    /// Packets of which fragments are missing.
    pub fragmented: usize,
    /// Bytes in send rings.
    pub send_memory: u64,
    /// Flows that belong here and are other shards'.
    pub pinned: usize,
}

impl Usage {
    /// Adds `other` to this: the sum over shards.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// let mut all = millrace::Usage { sockets: 2, ..Default::default() };
    /// all.add(&millrace::Usage { sockets: 3, ..Default::default() });
    /// assert_eq!(all.sockets, 5);
    /// ```
    pub fn add(&mut self, other: &Usage) {
        let Usage {
            sockets,
            orphans,
            half_open,
            time_wait,
            table,
            ports,
            neighbours,
            timers,
            replies,
            fragmented,
            send_memory,
            pinned,
        } = *other;
        self.sockets += sockets;
        self.orphans += orphans;
        self.half_open += half_open;
        self.time_wait += time_wait;
        self.table += table;
        self.ports += ports;
        self.neighbours += neighbours;
        self.timers += timers;
        self.replies += replies;
        self.fragmented += fragmented;
        self.send_memory += send_memory;
        self.pinned += pinned;
    }
}

impl<M: Memory> Shard<M> {
    /// Bytes that a socket takes when it holds no buffer, of whatever kind it is; its timer and its
    /// place in the connection table come to about fifty more.
    pub const SOCKET_SIZE: usize = Slab::<Socket>::ENTRY_SIZE;

    /// A shard with nothing open. `memory` is where receive rings will live.
    pub fn new(mut config: Config, memory: M, now: Instant) -> Shard<M> {
        // The window scale must suffice for what buffers can grow to.
        config.tcp.receive_limit_max = config.buffers.receive_max;
        let mut env = Env {
            secrets: Secrets::new(&config.secret),
            counters: Counters::default(),
            config,
        };
        let network = Network::new(&mut env, now);
        let (config, secrets) = (&env.config, &mut env.secrets);
        let limits = &config.limits;
        Shard {
            tcp: Tcp::new(config, secrets, now),
            udp: Udp::new(config.ephemeral.as_deref(), secrets, limits.shared),
            blocked: false,
            reclaim: Reclaim::default(),
            base: Base {
                network,
                sockets: Slab::new(limits.sockets.min(MOST)),
                send_memory: SendMemory::new(limits.send_memory, limits.shared),
                changed: Vec::new(),
                steering: Steering::default(),
                memory,
                sharing: OptionSharing::default(),
                env,
            },
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.base.env.config
    }

    /// The memory of receive rings.
    pub fn memory(&self) -> &M {
        &self.base.memory
    }

    /// The memory of receive rings, to add to it or to take away what no socket of the shard uses
    /// any more.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.base.memory
    }

    /// A port of TCP or of UDP that no socket and no connection uses any more, where
    /// [`Config::ephemeral`] says which may be chosen.
    pub fn take_freed_port(&mut self, datagrams: bool) -> Option<u16> {
        match datagrams {
            false => self.tcp.ports_mut().take_freed(),
            true => self.udp.ports_mut().take_freed(),
        }
    }

    /// Whether a socket or connection of TCP or of UDP uses a port.
    pub fn is_port_used(&self, port: u16, datagrams: bool) -> bool {
        match datagrams {
            false => self.tcp.ports().is_used(port),
            true => self.udp.ports().is_used(port),
        }
    }

    /// Counts since the start.
    pub fn counters(&self) -> &Counters {
        &self.base.env.counters
    }

    /// Numbers of what is in use now.
    pub fn usage(&self) -> Usage {
        let (orphans, timers) = self.tcp.orphans_and_timers();
        Usage {
            sockets: self.base.sockets.len(),
            orphans,
            half_open: self.tcp.half_open().len(),
            time_wait: self.tcp.time_wait().len(),
            table: self.tcp.table().len() + self.udp.table().len(),
            ports: self.tcp.ports().len() + self.udp.ports().len(),
            neighbours: self.base.network.neighbours.len(),
            timers,
            replies: self.base.network.replies.len(),
            fragmented: self.base.network.reassembly.len(),
            send_memory: self.base.send_memory.in_use(),
            pinned: self.base.steering.pins().len(),
        }
    }

    /// Runs the timers that are due at `now`.
    pub fn advance(&mut self, now: Instant) {
        self.tcp.advance(&mut self.base, now);
        self.base.network.advance(&mut self.base.env, now);
        if self.reclaim_deadline().is_some() {
            self.reclaim.advance(
                &mut self.base.env.counters,
                &mut self.base.sockets,
                (&mut self.base.memory, &mut self.base.send_memory),
                &mut self.base.changed,
                now,
            );
        }
    }

    /// When [`Shard::advance`] has something to do, if ever. In the past when [`Shard::transmit`]
    /// has: work that it left because it does only so much at a time, not because the port was
    /// full.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.blocked && self.has_output() {
            return Some(Instant::from_micros(0));
        }
        let reclaim = self.reclaim_deadline().unwrap_or(Instant::NEVER);
        let earliest = reclaim
            .min(self.tcp.deadline())
            .min(self.base.network.deadline());
        (earliest != Instant::NEVER).then_some(earliest)
    }

    fn reclaim_deadline(&self) -> Option<Instant> {
        let counters = &self.base.env.counters;
        self.reclaim
            .deadline(counters, &self.base.send_memory, &self.base.memory)
    }

    /// Whether the pools have freed so much private memory since this was last true that the
    /// allocator of the process should return memory to the system.
    pub fn has_freed_much(&mut self) -> bool {
        self.reclaim.take_freed_much()
    }

    fn has_output(&self) -> bool {
        self.tcp.has_output() || self.base.network.has_output() || self.udp.has_output()
    }

    /// Whether [`Shard::take_changed`] has something to add.
    #[inline]
    pub fn has_changed(&self) -> bool {
        !self.base.changed.is_empty()
    }

    /// Adds to `out` the sockets whose view has changed since the last call, each once. Sockets
    /// that were closed since may be among them.
    pub fn take_changed(&mut self, out: &mut Vec<SocketId>) {
        for id in &self.base.changed {
            if let Some(socket) = self.base.sockets.get_mut(id.index()) {
                socket.marks.remove(Marks::CHANGED);
            }
        }
        out.append(&mut self.base.changed);
    }

    /// How near the link brings a packet to `destination`; `None` if it does not lead there. For
    /// hosts that have several links, with a shard for each.
    pub fn nearness(&self, destination: IpAddr) -> Option<Nearness> {
        self.base.network.nearness(destination)
    }

    /// Whether `address` is an address of this host on the link: neither loopback nor an address
    /// that only [`Config::any_address`] makes ours.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.base.network.has_address(address)
    }

    /// Whether an address of this host is still being probed for. Until then no packet is sent from
    /// it, and none to it is taken in.
    pub fn is_tentative(&self) -> bool {
        self.base.network.is_tentative()
    }

    /// An address of this host that another station used when the shard started, and that station
    /// if it is known. The address cannot be used.
    pub fn conflict(&self) -> Option<(IpAddr, Option<Mac>)> {
        self.base.network.conflict()
    }

    /// Whether a router of the link advertises a default route, and the configuration has none.
    pub fn has_default_router(&self) -> bool {
        self.base.network.v6.has_default_router()
    }

    /// Takes over other addresses and routes, which are the kernel's
    /// ([`crate::ConflictDetection::Kernel`]). Every connection looks for its way again with its
    /// next packet. A connection whose own address is gone keeps trying, as on Linux, and goes on
    /// when the address is back.
    pub fn renumber(&mut self, network: config::Network, now: Instant) {
        self.base.network.renumber(&mut self.base.env, network, now);
    }
}
