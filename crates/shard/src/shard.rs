//! The shard: its parts, and the passing of time.

use std::collections::VecDeque;
use std::net::IpAddr;

use millrace_tcp::{HalfOpenVerdict, Instant, State};
use millrace_wire::arp;
use millrace_wire::offload::{Capabilities, Offload};

use crate::config::{Config, ConflictDetection};
use crate::connection_table::{MOST, Table, Tuple};
use crate::counters::Counters;
use crate::ip::path_mtu::PathMtuCache;
use crate::ip::reassembly::Reassembly;
use crate::ip::route::{Nearness, Route, Routes};
use crate::ip::v6::Ipv6;
use crate::link::acd::ConflictDetector;
use crate::link::neighbour::Neighbours;
use crate::memory::Memory;
use crate::memory::reclaim::Reclaim;
use crate::memory::send_memory::SendMemory;
use crate::memory::shares::Shares;
use crate::output::Stalled;
use crate::output::reply_queue::{RateLimit, Reply, ReplyQueue};
use crate::secrets::Secrets;
use crate::slab::Slab;
use crate::socket::local_ports::Ports;
use crate::socket::{Kind, Marks, OptionSharing, Socket, SocketId};
use crate::steering::{Arrival, Flow, Misrouted, Pins};
use crate::tcp::autotuning::ActiveSenders;
use crate::tcp::fast_open::FastOpenCookies;
use crate::tcp::syn_received::HalfOpenTable;
use crate::tcp::time_wait::TimeWaitTable;
use crate::timer_wheel::TimerWheel;
use crate::udp::Udp;

/// After so many time-outs in a row it may be the neighbour that has changed.
const DOUBTFUL_TIMEOUTS: u8 = 2;

/// Where frames go: a port's transmit queue.
pub trait Egress {
    /// Takes one frame, the concatenation of `head` and both parts of `payload`; `offload` is what the port has to finish in it. False when there is
    /// no room: nothing was taken, and the shard comes again with the next transmit.
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> bool;
    /// What the port can do. The same at every call.
    fn capabilities(&self) -> Capabilities;
}

/// One core's stack.
pub struct Shard<M: Memory> {
    pub(crate) config: Config,
    pub(crate) memory: M,
    pub(crate) counters: Counters,
    pub(crate) secrets: Secrets,
    pub(crate) sharing: OptionSharing,
    pub(crate) routes: Routes,
    pub(crate) v6: Ipv6,
    pub(crate) acd: ConflictDetector,
    pub(crate) neighbours: Neighbours,
    pub(crate) path_mtus: PathMtuCache,
    pub(crate) cookies: FastOpenCookies,
    pub(crate) reassembly: Reassembly,
    pub(crate) sockets: Slab<Socket>,
    pub(crate) table: Table,
    pub(crate) ports: Ports,
    pub(crate) udp: Udp,
    /// The listener at every address and port that nothing else is at.
    pub(crate) catch_all_listener: Option<u32>,
    pub(crate) half_open: HalfOpenTable,
    pub(crate) time_wait: TimeWaitTable,
    pub(crate) send_memory: SendMemory,
    /// Timers of connections, by socket index.
    pub(crate) wheel: TimerWheel,
    pub(crate) replies: ReplyQueue,
    pub(crate) arp_replies: VecDeque<arp::Packet>,
    pub(crate) icmp_limit: RateLimit,
    pub(crate) echo_limit: RateLimit,
    pub(crate) reset_limit: RateLimit,
    pub(crate) ready: Ready,
    pub(crate) active_senders: ActiveSenders,
    /// What a full port did not take.
    pub(crate) stalled: Option<Stalled>,
    /// Whether the port was full at the last transmit.
    pub(crate) blocked: bool,
    pub(crate) changed: Vec<SocketId>,
    pub(crate) orphans: Shares,
    pub(crate) reclaim: Reclaim,
    /// How the frame that is being taken in came.
    pub(crate) arrival: Arrival,
    pub(crate) misrouted: Option<Misrouted>,
    /// What was put together of fragments and is another shard's.
    pub(crate) whole: Option<Vec<u8>>,
    /// Flows that belong here and are pinned to others.
    pub(crate) pins: Pins,
    /// Flows that belong to others, were pinned to us and are over.
    pub(crate) unpinned: Vec<Flow>,
}

/// An owner may have twice as many connections that no program holds any more as are left for all.
const ORPHANS_GENEROSITY: u32 = 2;

/// What is in use now: all zero when nothing is open and nothing is left of what was.
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
    /// Bytes that a socket takes when it holds no buffer, of whatever kind it is; its timer and its place in the connection table come to
    /// about fifty more.
    pub const SOCKET_SIZE: usize = Slab::<Socket>::ENTRY_SIZE;

    /// A shard with nothing open. `memory` is where receive rings will live.
    pub fn new(mut config: Config, memory: M, now: Instant) -> Shard<M> {
        // The window scale must suffice for what buffers can grow to.
        config.tcp.receive_limit_max = config.buffers.receive_max;
        let mut secrets = Secrets::new(&config.secret);
        let limits = &config.limits;
        let key = secrets.table[0] ^ secrets.table[1];
        let mut neighbours =
            Neighbours::new(limits.neighbours, key, now).all_behind(config.only_station, now);
        if config.conflict_detection == ConflictDetection::Kernel {
            neighbours.trust();
        }
        Shard {
            routes: Routes::new(&config),
            acd: ConflictDetector::new(&config, || secrets.random(), now),
            v6: Ipv6::new(&config, now),
            neighbours,
            path_mtus: PathMtuCache::new(limits.path_mtus),
            cookies: FastOpenCookies::new(limits.cookies),
            reassembly: Reassembly::new(limits.fragmented, limits.fragment_memory),
            sockets: Slab::new(limits.sockets.min(MOST)),
            table: Table::new(secrets.table),
            ports: Ports::new(config.ephemeral.as_deref(), &mut secrets, limits.shared),
            udp: Udp::new(config.ephemeral.as_deref(), &mut secrets, limits.shared),
            catch_all_listener: None,
            half_open: HalfOpenTable::new(limits.half_open.min(MOST), limits.shared, now),
            time_wait: TimeWaitTable::new(limits.time_wait.min(MOST)),
            send_memory: SendMemory::new(limits.send_memory, limits.shared),
            wheel: TimerWheel::new(now),
            replies: ReplyQueue::new(limits.replies),
            arp_replies: VecDeque::new(),
            icmp_limit: RateLimit::new(limits.icmp_errors_per_second),
            echo_limit: RateLimit::new(limits.echo_replies_per_second),
            reset_limit: RateLimit::new(limits.resets_per_second),
            ready: Ready::default(),
            active_senders: ActiveSenders::default(),
            stalled: None,
            blocked: false,
            changed: Vec::new(),
            orphans: Shares::new(limits.orphans, limits.shared, ORPHANS_GENEROSITY),
            reclaim: Reclaim::default(),
            arrival: Arrival::Link,
            misrouted: None,
            whole: None,
            pins: Pins::default(),
            unpinned: Vec::new(),
            counters: Counters::default(),
            config,
            memory,
            secrets,
            sharing: OptionSharing::default(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The memory of receive rings.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The memory of receive rings, to add to it or to take away what no socket of the shard uses any more.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// A port of TCP or of UDP that no socket and no connection uses any more, where [`Config::ephemeral`] says which may be chosen.
    pub fn take_freed_port(&mut self, datagrams: bool) -> Option<u16> {
        match datagrams {
            false => self.ports.take_freed(),
            true => self.udp.ports.take_freed(),
        }
    }

    /// Whether a socket or connection of TCP or of UDP uses a port.
    pub fn is_port_used(&self, port: u16, datagrams: bool) -> bool {
        match datagrams {
            false => self.ports.is_used(port),
            true => self.udp.ports.is_used(port),
        }
    }

    /// Counts since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What is in use now.
    pub fn usage(&self) -> Usage {
        Usage {
            sockets: self.sockets.len(),
            orphans: self.orphans.used() as usize,
            half_open: self.half_open.len(),
            time_wait: self.time_wait.len(),
            table: self.table.len() + self.udp.table.len(),
            ports: self.ports.len() + self.udp.ports.len(),
            neighbours: self.neighbours.len(),
            timers: self.wheel.len(),
            replies: self.replies.len(),
            fragmented: self.reassembly.len(),
            send_memory: self.send_memory.in_use(),
            pinned: self.pins.len(),
        }
    }

    /// Runs the timers that are due at `now`.
    pub fn advance(&mut self, now: Instant) {
        while let Some(index) = self.wheel.pop(now) {
            let Some(Socket {
                owner,
                kind: Kind::Stream(stream),
                ..
            }) = self.sockets.get_mut(index)
            else {
                continue;
            };
            stream.armed = Instant::NEVER;
            match stream.connection.deadline() {
                Some(deadline) if deadline <= now => {
                    stream.connection.on_timer(&self.config.tcp, now);
                    let opening = stream.connection.state() == State::SynSent;
                    if stream.connection.timeouts_in_a_row() >= DOUBTFUL_TIMEOUTS {
                        self.neighbours.suspect(stream.hop, now);
                    }
                    let starved = self.send_memory.is_short(*owner) && stream.send.len() > 0;
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
                self.counters.half_open_expired += 1;
                self.forget_half_open(index);
                continue;
            }
            let tuple = pending.tuple;
            match pending.state.on_timer(&self.config.tcp, now) {
                HalfOpenVerdict::Reply(outgoing) => {
                    self.reply(Reply::Segment(tuple, outgoing));
                    self.half_open.arm(index);
                }
                HalfOpenVerdict::Drop => {
                    self.counters.half_open_expired += 1;
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
        self.neighbours.advance(now, &mut self.counters);
        while let Some(address) = self.neighbours.take_failed() {
            self.neighbour_failed(address);
        }
        self.expire_fragments(now);
        self.report_memberships(now);
        if self.acd.deadline().is_some_and(|deadline| deadline <= now) {
            self.advance_acd(now);
        }
        if self.v6.deadline().is_some_and(|deadline| deadline <= now) {
            self.advance_v6(now);
        }
        if self.reclaim_deadline().is_some() {
            self.reclaim_memory(now);
        }
    }

    /// Resets the connection at `index` if no program holds it: memory is short, and it makes no progress (Linux's `tcp_out_of_resources`).
    fn starve_orphan(&mut self, index: u32) {
        let Some(socket) = self.sockets.get_mut(index) else {
            return;
        };
        let (owner, orphan) = (socket.owner, socket.marks.contains(Marks::ORPHAN));
        if let Some(stream) = socket.stream_mut().filter(|_| orphan) {
            stream.connection.abort();
            // At once, so that no more of them go than must.
            stream.send.free(&mut self.send_memory, owner);
            self.counters.orphans_starved += 1;
        }
    }

    /// When [`Shard::advance`] has something to do, if ever. In the past when [`Shard::transmit`] has: work that it left because it does only
    /// so much at a time, not because the port was full.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.blocked && self.has_output() {
            return Some(Instant::from_micros(0));
        }
        let timers = [
            self.wheel.deadline(),
            self.half_open.deadline(),
            self.time_wait.deadline(),
            self.neighbours.deadline(),
            self.v6.deadline(),
            self.acd.deadline(),
            self.reassembly.deadline(),
            self.memberships_deadline(),
            self.reclaim_deadline(),
        ];
        // A time that there is not is the last of all: nothing is compared that was not set.
        let earliest = timers
            .into_iter()
            .map(|timer| timer.unwrap_or(Instant::NEVER))
            .fold(Instant::NEVER, Instant::min);
        (earliest != Instant::NEVER).then_some(earliest)
    }

    fn has_output(&self) -> bool {
        !self.ready.is_empty()
            || !self.replies.is_empty()
            || !self.arp_replies.is_empty()
            || self.neighbours.has_work()
            || !self.udp.outbox.is_empty()
            || self.stalled.is_some()
    }

    /// Whether [`Shard::take_changed`] has something to add.
    #[inline]
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Adds to `out` the sockets whose view has changed since the last call, each once. Sockets that were closed since may be among them.
    pub fn take_changed(&mut self, out: &mut Vec<SocketId>) {
        for id in &self.changed {
            if let Some(socket) = self.sockets.get_mut(id.index()) {
                socket.marks.remove(Marks::CHANGED);
            }
        }
        out.append(&mut self.changed);
    }

    /// Where `destination` is, if it can be reached at all.
    #[inline]
    pub(crate) fn route(&self, destination: IpAddr) -> Option<Route> {
        match destination {
            IpAddr::V4(destination) => self.routes.find(destination),
            IpAddr::V6(destination) => self.v6.find(destination),
        }
    }

    /// How near the link brings one to `destination`; none if it does not lead there. For hosts that have several links, with a shard for each.
    pub fn nearness(&self, destination: IpAddr) -> Option<Nearness> {
        match destination.to_canonical() {
            IpAddr::V4(destination) => self.routes.nearness(destination),
            IpAddr::V6(destination) => self.v6.nearness(destination),
        }
    }

    /// Whether `address` is of this host on the link: neither loopback nor one that is only taken for ours ([`Config::any_address`]).
    pub fn has_address(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => self.routes.is_own(address) && !address.is_unspecified(),
            IpAddr::V6(address) => self.v6.is_own(address),
        }
    }

    /// Whether `address` is this host.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.routes.is_local(address),
            IpAddr::V6(address) => self.v6.is_local(address),
        }
    }

    /// The connection at `tuple` is over.
    pub(crate) fn forget_tuple(&mut self, tuple: &Tuple) {
        self.table.remove(tuple);
        if let Some(steer) = &self.config.steer
            && !steer.is_own(tuple)
        {
            self.unpinned.push(Flow::stream(*tuple));
        }
    }

    /// Queues an answer for the next transmit.
    pub(crate) fn reply(&mut self, reply: Reply) {
        if !self.replies.push(reply) {
            self.counters.replies_dropped += 1;
        }
    }

    /// The socket at `index` may have something to send.
    pub(crate) fn mark_ready(&mut self, index: u32) {
        if let Some(socket) = self.sockets.get_mut(index) {
            self.ready.add(index, socket);
        }
    }

    /// The view of the socket at `index` has changed.
    pub(crate) fn mark_changed(&mut self, index: u32) {
        if let Some((socket, generation)) = self.sockets.get_mut_with_generation(index) {
            note_changed(&mut self.changed, SocketId::new(index, generation), socket);
        }
    }

    /// Forgets a connection in SYN-RECEIVED.
    pub(crate) fn forget_half_open(&mut self, index: u32) {
        let Some(pending) = self.half_open.remove(index) else {
            return;
        };
        self.forget_tuple(&pending.tuple);
        if let Some(listener) = self
            .sockets
            .get_mut(pending.listener)
            .and_then(Socket::listener_mut)
        {
            listener.half_open -= 1;
            // The program may wait for this one.
            if listener.asks {
                self.mark_changed(pending.listener);
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

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }
}

/// The view of a socket has changed: adds it to the list, if it is not there and a program has seen it.
#[inline(always)]
pub(crate) fn note_changed(changed: &mut Vec<SocketId>, id: SocketId, socket: &mut Socket) {
    if !socket
        .marks
        .intersects(Marks::CHANGED | Marks::ORPHAN | Marks::UNACCEPTED)
    {
        socket.marks.insert(Marks::CHANGED);
        changed.push(id);
    }
}
