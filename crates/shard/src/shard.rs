//! The shard: its parts, and the passing of time.

mod input;
mod steering;
mod udp;

use std::collections::VecDeque;
use std::net::IpAddr;

use millrace_tcp::{HalfOpenVerdict, Instant, State};
use millrace_wire::ethernet::Mac;

use crate::base::Base;
use crate::config::{self, Config};
use crate::connection_table::{MOST, Table, Tuple};
use crate::counters::Counters;
use crate::env::Env;
use crate::ip::route::Nearness;
use crate::memory::Memory;
use crate::memory::reclaim::Reclaim;
use crate::memory::send_memory::SendMemory;
use crate::memory::shares::Shares;
use crate::network::Network;
use crate::output::Stalled;
use crate::output::reply_queue::Reply;
use crate::rate_limit::RateLimit;
use crate::secrets::Secrets;
use crate::slab::Slab;
use crate::socket::local_ports::Ports;
use crate::socket::{Kind, Marks, OptionSharing, Socket, SocketId};
use crate::steering::Flow;
use crate::steering::misrouted::Steering;
use crate::tcp::autotuning::ActiveSenders;
use crate::tcp::fast_open::FastOpenCookies;
use crate::tcp::syn_received::HalfOpenTable;
use crate::tcp::time_wait::TimeWaitTable;
use crate::timer_wheel::TimerWheel;
use crate::udp::Udp;

/// After so many time-outs in a row it may be the neighbour that has changed.
const DOUBTFUL_TIMEOUTS: u8 = 2;

/// One core's stack.
pub struct Shard<M: Memory> {
    pub(crate) base: Base<M>,
    pub(crate) cookies: FastOpenCookies,
    pub(crate) table: Table,
    pub(crate) ports: Ports,
    pub(crate) udp: Udp,
    /// The listener at every address and port that nothing else is at.
    pub(crate) catch_all_listener: Option<u32>,
    pub(crate) half_open: HalfOpenTable,
    pub(crate) time_wait: TimeWaitTable,
    /// Timers of connections, by socket index.
    pub(crate) wheel: TimerWheel,
    pub(crate) reset_limit: RateLimit,
    pub(crate) ready: Ready,
    pub(crate) active_senders: ActiveSenders,
    /// The segment that a full port did not take.
    pub(crate) stalled: Option<Stalled>,
    /// Whether the port was full at the last transmit.
    pub(crate) blocked: bool,
    pub(crate) orphans: Shares,
    pub(crate) reclaim: Reclaim,
}

/// An owner may have twice as many connections that no program holds any more as are left for all.
const ORPHANS_GENEROSITY: u32 = 2;

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
            cookies: FastOpenCookies::new(limits.cookies),
            table: Table::new(secrets.table),
            ports: Ports::new(config.ephemeral.as_deref(), secrets, limits.shared),
            udp: Udp::new(config.ephemeral.as_deref(), secrets, limits.shared),
            catch_all_listener: None,
            half_open: HalfOpenTable::new(limits.half_open.min(MOST), limits.shared, now),
            time_wait: TimeWaitTable::new(limits.time_wait.min(MOST)),
            wheel: TimerWheel::new(now),
            reset_limit: RateLimit::new(limits.resets_per_second),
            ready: Ready::default(),
            active_senders: ActiveSenders::default(),
            stalled: None,
            blocked: false,
            orphans: Shares::new(limits.orphans, limits.shared, ORPHANS_GENEROSITY),
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
            false => self.ports.take_freed(),
            true => self.udp.ports_mut().take_freed(),
        }
    }

    /// Whether a socket or connection of TCP or of UDP uses a port.
    pub fn is_port_used(&self, port: u16, datagrams: bool) -> bool {
        match datagrams {
            false => self.ports.is_used(port),
            true => self.udp.ports().is_used(port),
        }
    }

    /// Counts since the start.
    pub fn counters(&self) -> &Counters {
        &self.base.env.counters
    }

    /// Numbers of what is in use now.
    pub fn usage(&self) -> Usage {
        Usage {
            sockets: self.base.sockets.len(),
            orphans: self.orphans.used() as usize,
            half_open: self.half_open.len(),
            time_wait: self.time_wait.len(),
            table: self.table.len() + self.udp.table().len(),
            ports: self.ports.len() + self.udp.ports().len(),
            neighbours: self.base.network.neighbours.len(),
            timers: self.wheel.len(),
            replies: self.base.network.replies.len(),
            fragmented: self.base.network.reassembly.len(),
            send_memory: self.base.send_memory.in_use(),
            pinned: self.base.steering.pins().len(),
        }
    }

    /// Runs the timers that are due at `now`.
    pub fn advance(&mut self, now: Instant) {
        while let Some(index) = self.wheel.pop(now) {
            let Some(Socket {
                owner,
                kind: Kind::Stream(stream),
                ..
            }) = self.base.sockets.get_mut(index)
            else {
                continue;
            };
            stream.armed = Instant::NEVER;
            match stream.connection.deadline() {
                Some(deadline) if deadline <= now => {
                    stream.connection.on_timer(&self.base.env.config.tcp, now);
                    let opening = stream.connection.state() == State::SynSent;
                    if stream.connection.timeouts_in_a_row() >= DOUBTFUL_TIMEOUTS {
                        self.base.network.neighbours.suspect(stream.hop, now);
                    }
                    let starved = self.base.send_memory.is_short(*owner) && stream.send.len() > 0;
                    if starved {
                        self.starve_orphan(index);
                    }
                    if opening {
                        self.note_fast_open(index, now);
                    }
                    self.apply_state_change(index);
                }
                // The deadline has moved since the timer was armed.
                _ => stream.arm(&mut self.wheel, index),
            }
        }
        while let Some(index) = self.half_open.pop_due(now) {
            let Some(pending) = self.half_open.get_mut(index) else {
                continue;
            };
            if pending.asked {
                // Nobody has said whether it is wanted.
                self.base.env.counters.half_open_expired += 1;
                self.forget_half_open(index);
                continue;
            }
            let tuple = pending.tuple;
            match pending.state.on_timer(&self.base.env.config.tcp, now) {
                HalfOpenVerdict::Reply(outgoing) => {
                    self.base
                        .network
                        .reply(&mut self.base.env.counters, Reply::Segment(tuple, outgoing));
                    self.half_open.arm(index);
                }
                HalfOpenVerdict::Drop => {
                    self.base.env.counters.half_open_expired += 1;
                    self.forget_half_open(index);
                }
                HalfOpenVerdict::Ignore | HalfOpenVerdict::Establish => self.half_open.arm(index),
            }
        }
        while let Some(waiting) = self.time_wait.pop(now) {
            self.forget_tuple(&waiting.tuple);
            self.ports
                .remove_connection(waiting.tuple.local(), waiting.reuse);
        }
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

    /// Resets the connection at `index` if no program holds it: memory is short, and it makes no
    /// progress (Linux's `tcp_out_of_resources`).
    fn starve_orphan(&mut self, index: u32) {
        let Some(socket) = self.base.sockets.get_mut(index) else {
            return;
        };
        let (owner, orphan) = (socket.owner, socket.marks.contains(Marks::ORPHAN));
        if let Some(stream) = socket.stream_mut().filter(|_| orphan) {
            stream.connection.abort();
            // At once, so that no more of them go than must.
            stream.send.free(&mut self.base.send_memory, owner);
            self.base.env.counters.orphans_starved += 1;
        }
    }

    /// When [`Shard::advance`] has something to do, if ever. In the past when [`Shard::transmit`]
    /// has: work that it left because it does only so much at a time, not because the port was
    /// full.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.blocked && self.has_output() {
            return Some(Instant::from_micros(0));
        }
        let timers = [
            self.wheel.deadline(),
            self.half_open.deadline(),
            self.time_wait.deadline(),
            self.reclaim_deadline(),
        ];
        // A time that there is not is the last of all: nothing is compared that was not set.
        let earliest = timers
            .into_iter()
            .map(|timer| timer.unwrap_or(Instant::NEVER))
            .fold(self.base.network.deadline(), Instant::min);
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
        !self.ready.is_empty()
            || self.base.network.has_output()
            || self.udp.has_output()
            || self.stalled.is_some()
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

    /// The connection at `tuple` is over.
    pub(crate) fn forget_tuple(&mut self, tuple: &Tuple) {
        self.table.remove(tuple);
        let steer = self.base.env.config.steer.as_ref();
        self.base.steering.note_over(steer, Flow::stream(*tuple));
    }

    /// The socket at `index` may have something to send.
    pub(crate) fn mark_ready(&mut self, index: u32) {
        if let Some(socket) = self.base.sockets.get_mut(index) {
            self.ready.add(index, socket);
        }
    }

    /// Forgets a connection in SYN-RECEIVED.
    pub(crate) fn forget_half_open(&mut self, index: u32) {
        let Some(pending) = self.half_open.remove(index) else {
            return;
        };
        self.forget_tuple(&pending.tuple);
        if let Some(listener) = self
            .base
            .sockets
            .get_mut(pending.listener)
            .and_then(Socket::listener_mut)
        {
            listener.half_open -= 1;
            // The program may wait for this one.
            if listener.asks {
                self.base.mark_changed(pending.listener);
            }
        }
    }
}

/// Connections that may have something to send, each once, in the order in which they came.
#[derive(Default)]
pub(crate) struct Ready {
    /// Those with nothing in their send ring: an ACK or some control segment.
    control: VecDeque<u32>,
    /// Those with data.
    data: VecDeque<u32>,
}

impl Ready {
    /// Puts the socket at `index` in line, if it is not there.
    #[inline(always)]
    pub fn add(&mut self, index: u32, socket: &mut Socket) {
        if socket.marks.contains(Marks::READY) {
            return;
        }
        socket.marks.insert(Marks::READY);
        match socket.stream() {
            Some(stream) if stream.send.len() > 0 => self.data.push_back(index),
            _ => self.control.push_back(index),
        }
    }

    /// The next: control before data.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        self.control.pop_front().or_else(|| self.data.pop_front())
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }
}
