//! Everything below the transport protocols: addresses, routes, neighbours, ICMP, fragments,
//! groups, and the replies that no socket sends. It wires the parts that `link` and `ip` define.

pub mod reply_queue;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_tcp::Instant;
use millrace_wire::ethernet::{self, Mac};
use millrace_wire::icmpv6::{self, Message};
use millrace_wire::igmp::Statement;
use millrace_wire::ipv6::{self, ALL_ROUTERS};
use millrace_wire::ndp::Message as NdpMessage;
use millrace_wire::{ipv4, mld, ndp as ndp_wire};

use crate::config::{self, ConflictDetection};
use crate::counters::Counters;
use crate::env::Env;
use crate::ip::family::Rejected;
use crate::ip::groups::Groups;
use crate::ip::icmp::{IcmpLimits, NetworkError};
use crate::ip::path_mtu::PathMtuCache;
use crate::ip::reassembly::{Name, Outcome, Part, Reassembly, Whole};
use crate::ip::route::{Nearness, Route};
use crate::ip::v4::icmp::Icmpv4Error;
use crate::ip::v4::{self, Ipv4};
use crate::ip::v6::icmp::Icmpv6Error;
use crate::ip::v6::ndp::{self, NdpInput};
use crate::ip::v6::{self, Ipv6};
use crate::link::acd::ConflictDetector;
use crate::link::arp::ArpInput;
use crate::link::arp_queue::{self, ArpQueue};
use crate::link::ethernet::Egress;
use crate::link::neighbour::{Handle, Neighbours};
use crate::memory::Owner;
use crate::network::reply_queue::{Reply, ReplyQueue};

/// The MTU of the path from this host to itself: the largest IPv4 packet.
const LOOPBACK_MTU: u16 = 65_535;

/// The network layer of a shard.
pub struct Network {
    /// IPv4 addresses and routes.
    pub v4: Ipv4,
    /// IPv6 addresses, routes and routers.
    pub v6: Ipv6,
    /// The hosts on the link.
    pub neighbours: Neighbours,
    /// Paths with an MTU below the link's.
    pub path_mtus: PathMtuCache,
    /// Packets of which fragments are missing.
    pub reassembly: Reassembly,
    /// Replies that wait for the next transmit.
    pub replies: ReplyQueue,
    groups: Groups,
    acd: ConflictDetector,
    arp: ArpQueue,
    icmp: IcmpLimits,
}

/// The outcome of a control message.
pub enum Control<'a> {
    /// It is handled.
    Handled,
    /// It is handled here, and matters to every other shard too.
    ForAllShards,
    /// It reports an error about a packet of ours.
    Error(NetworkError<'a>),
}

impl<'a> Control<'a> {
    fn shared(for_all: bool) -> Control<'a> {
        match for_all {
            true => Control::ForAllShards,
            false => Control::Handled,
        }
    }
}

impl Network {
    /// The network layer of a configuration.
    pub fn new(env: &mut Env, now: Instant) -> Network {
        let config = &env.config;
        let limits = &config.limits;
        let key = env.secrets.table[0] ^ env.secrets.table[1];
        let mut neighbours =
            Neighbours::new(limits.neighbours, key, now).all_behind(config.only_station, now);
        if config.conflict_detection == ConflictDetection::Kernel {
            neighbours.trust();
        }
        let secrets = &mut env.secrets;
        Network {
            v4: Ipv4::new(config),
            v6: Ipv6::new(config, now),
            acd: ConflictDetector::new(config, || secrets.random(), now),
            neighbours,
            path_mtus: PathMtuCache::new(limits.path_mtus),
            reassembly: Reassembly::new(limits.fragmented, limits.fragment_memory),
            replies: ReplyQueue::new(limits.replies),
            groups: Groups::default(),
            arp: ArpQueue::default(),
            icmp: IcmpLimits::new(limits),
        }
    }

    /// Takes over other addresses and routes. Every connection looks for its way again with its
    /// next packet.
    pub fn renumber(&mut self, env: &mut Env, network: config::Network, now: Instant) {
        let config = &mut env.config;
        config.addresses = network.addresses;
        config.routes = network.routes;
        config.ipv6 = (!network.addresses_v6.is_empty()).then_some(config::Ipv6 {
            addresses: network.addresses_v6,
            routes: network.routes_v6,
            probes: 0,
        });
        self.v4 = Ipv4::new(config);
        self.v6 = Ipv6::new(config, now);
        self.neighbours.reroute_all();
    }

    // Addresses and routes.

    /// The way to `destination`; `None` when there is none.
    #[inline]
    pub fn route(&self, destination: IpAddr) -> Option<Route> {
        match destination {
            IpAddr::V4(destination) => self.v4.find(destination),
            IpAddr::V6(destination) => self.v6.find(destination),
        }
    }

    /// How near the link brings a packet to `destination`; `None` if it does not lead there.
    pub fn nearness(&self, destination: IpAddr) -> Option<Nearness> {
        match destination.to_canonical() {
            IpAddr::V4(destination) => self.v4.nearness(destination),
            IpAddr::V6(destination) => self.v6.nearness(destination),
        }
    }

    /// Whether `address` is an address of this host on the link.
    pub fn has_address(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => self.v4.is_own(address) && !address.is_unspecified(),
            IpAddr::V6(address) => self.v6.is_own(address),
        }
    }

    /// Whether `address` is this host.
    pub fn is_local(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.is_local(address),
            IpAddr::V6(address) => self.v6.is_local(address),
        }
    }

    /// Whether a socket may be bound to `address`.
    pub fn is_bindable(&self, env: &Env, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                self.v4.takes(address) || (env.config.loopback && address.is_loopback())
            }
            IpAddr::V6(address) => self.v6.is_bindable(address),
        }
    }

    /// Whether packets to `address` are for several hosts.
    pub fn is_multicast_or_broadcast(&self, address: IpAddr) -> bool {
        address.is_multicast()
            || matches!(address, IpAddr::V4(address) if self.v4.is_broadcast(address))
    }

    /// The address to send from to `destination`; `None` while IPv6 has none that may be used.
    #[inline]
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        match destination {
            IpAddr::V4(destination) => Some(self.v4.source_for(destination).into()),
            IpAddr::V6(destination) => self.v6.source_for(destination).map(IpAddr::from),
        }
    }

    /// Whether an address of this host is still being probed for.
    pub fn is_tentative(&self) -> bool {
        self.v6.is_tentative() || self.acd.is_tentative()
    }

    /// An address of this host that another station uses, and that station if it is known.
    pub fn conflict(&self) -> Option<(IpAddr, Option<Mac>)> {
        let v4 = self.acd.conflict();
        v4.map(|(address, station)| (address.into(), Some(station)))
            .or_else(|| Some((self.v6.duplicate()?.into(), None)))
    }

    /// The MTU of the first link on the way to `remote`; `None` when there is no route.
    #[inline(always)]
    pub fn first_mtu(&self, env: &Env, remote: IpAddr) -> Option<u16> {
        Some(match (self.route(remote)?, remote) {
            (Route::Local, _) => LOOPBACK_MTU,
            (Route::Link(_), IpAddr::V4(_)) => env.config.mtu,
            (Route::Link(_), IpAddr::V6(_)) => self.v6.mtu(),
        })
    }

    /// The neighbour that leads to `remote`, for a connection that is about to use it.
    /// [`Handle::NONE`] when the table is full or `remote` is this host.
    #[inline(always)]
    pub fn first_hop(
        &mut self,
        counters: &mut Counters,
        remote: IpAddr,
        owner: Owner,
        now: Instant,
    ) -> Handle {
        let Some(Route::Link(next)) = self.route(remote) else {
            return Handle::NONE;
        };
        match self.neighbours.find(next, Some(owner), now, counters) {
            Some(hop) => {
                self.neighbours.resolve(hop, now);
                hop
            }
            None => Handle::NONE,
        }
    }

    // Packets in.

    /// Processes an ARP packet. `is_copy`: another shard has received it.
    pub fn arp_input(
        &mut self,
        env: &mut Env,
        bytes: &[u8],
        is_copy: bool,
        now: Instant,
    ) -> Control<'static> {
        let input = ArpInput {
            v4: &self.v4,
            acd: &mut self.acd,
            neighbours: &mut self.neighbours,
            queue: &mut self.arp,
        };
        Control::shared(input.receive(env, bytes, is_copy, now))
    }

    /// Parses and checks an IPv4 packet; `None` when it is dropped.
    pub fn parse_v4<'a>(
        &mut self,
        env: &mut Env,
        link: &ethernet::Header,
        bytes: &'a [u8],
        now: Instant,
    ) -> Option<(ipv4::Header, &'a [u8])> {
        let all = env.config.steer.is_some();
        match v4::input::parse(&self.v4, &self.groups, all, link, bytes) {
            Ok(parsed) => Some(parsed),
            Err(rejected) => {
                rejected.count(&mut env.counters);
                if rejected == Rejected::Options
                    && let Some((header, at)) = v4::input::faulty_option(&self.v4, link, bytes)
                {
                    self.send_icmpv4_error(env, Icmpv4Error::Parameter(at), &header, bytes, now);
                }
                None
            }
        }
    }

    /// Parses and checks an IPv6 packet; `None` when it is dropped.
    pub fn parse_v6<'a>(
        &mut self,
        env: &mut Env,
        link: &ethernet::Header,
        bytes: &'a [u8],
    ) -> Option<(ipv6::Header, &'a [u8])> {
        let all = env.config.steer.is_some();
        v6::input::parse(&self.v6, &self.groups, all, link, bytes)
            .inspect_err(|rejected| rejected.count(&mut env.counters))
            .ok()
    }

    /// Processes an ICMP message.
    pub fn icmpv4_input<'a>(
        &mut self,
        env: &mut Env,
        header: &ipv4::Header,
        bytes: &'a [u8],
        now: Instant,
    ) -> Control<'a> {
        v4::icmp::receive(env, &mut self.icmp, &mut self.replies, header, bytes, now)
            .map_or(Control::Handled, Control::Error)
    }

    /// Processes an ICMPv6 message, from station `from`. `is_copy`: another shard has received it.
    pub fn icmpv6_input<'a>(
        &mut self,
        env: &mut Env,
        (from, header): (Mac, &ipv6::Header),
        bytes: &'a [u8],
        was_fragmented: bool,
        is_copy: bool,
        now: Instant,
    ) -> Control<'a> {
        let message = match Message::parse(bytes) {
            Ok(message) if icmpv6::verify(header.src, header.dst, bytes) => message,
            _ => {
                env.counters.icmp_dropped += 1;
                return Control::Handled;
            }
        };
        if ndp_wire::is_ndp(bytes[0]) {
            // RFC 6980 5: "Nodes MUST silently ignore the following Neighbor Discovery [...]
            // messages if the packets carrying them include an IPv6 Fragmentation Header".
            if was_fragmented {
                env.counters.nd_dropped += 1;
                return Control::Handled;
            }
            let input = NdpInput {
                v6: &mut self.v6,
                neighbours: &mut self.neighbours,
                replies: &mut self.replies,
            };
            return Control::shared(input.receive(env, from, header, bytes, is_copy, now));
        }
        match message {
            _ if header.src.is_unspecified() => env.counters.icmp_dropped += 1,
            Message::Other {
                kind: mld::QUERY, ..
            } => self.v6.on_query(env, &self.groups, header, bytes, now),
            message => {
                let (limits, replies) = (&mut self.icmp, &mut self.replies);
                return v6::icmp::receive(env, &self.v6, limits, replies, header, &message, now)
                    .map_or(Control::Handled, Control::Error);
            }
        }
        Control::Handled
    }

    /// Processes an IGMP message.
    pub fn igmp_input(&mut self, env: &mut Env, bytes: &[u8], now: Instant) -> Control<'static> {
        Control::shared(v4::groups::receive(env, &mut self.groups, bytes, now))
    }

    /// Sends an ICMP error about `packet`, if the limit allows one more.
    pub fn send_icmpv4_error(
        &mut self,
        env: &mut Env,
        error: Icmpv4Error,
        header: &ipv4::Header,
        packet: &[u8],
        now: Instant,
    ) {
        let (limits, replies) = (&mut self.icmp, &mut self.replies);
        v4::icmp::send_error(env, limits, replies, error, header, packet, now);
    }

    /// Sends an ICMPv6 error about `packet`, if RFC 4443 and the limit allow it.
    pub fn send_icmpv6_error(
        &mut self,
        env: &mut Env,
        error: Icmpv6Error,
        header: &ipv6::Header,
        packet: &[u8],
        now: Instant,
    ) {
        let (limits, replies) = (&mut self.icmp, &mut self.replies);
        v6::icmp::send_error(env, &self.v6, limits, replies, error, (header, packet), now);
    }

    /// Adds a fragment; returns the packet when it is complete.
    pub fn add_fragment(
        &mut self,
        counters: &mut Counters,
        name: Name,
        part: &Part<'_>,
        now: Instant,
    ) -> Option<Whole> {
        match self.reassembly.add(name, part, now) {
            Outcome::Waiting => None,
            Outcome::Whole(whole) => {
                counters.ip_reassembled += 1;
                Some(whole)
            }
            Outcome::Full => {
                counters.ip_fragments_refused += 1;
                None
            }
            Outcome::Condemned => {
                counters.ip_fragments_condemned += 1;
                None
            }
        }
    }

    // Multicast groups.

    /// Whether a socket of this shard has joined a group.
    pub fn is_member(&self, group: IpAddr) -> bool {
        self.groups.contains(group)
    }

    /// A socket joins a group.
    pub fn join(&mut self, env: &mut Env, group: IpAddr, now: Instant) {
        if self.groups.join(group, now) {
            if group.is_ipv6() {
                self.v6.report_now(now);
            }
            self.report_memberships(env, now);
        }
    }

    /// A socket leaves a group.
    pub fn leave(&mut self, env: &mut Env, group: IpAddr) {
        if !self.groups.leave(group) {
            return;
        }
        let replies = &mut self.replies;
        match group {
            IpAddr::V4(group) => v4::groups::report(env, replies, group, Statement::Leave),
            IpAddr::V6(group) => self.v6.report_left(env, replies, group),
        }
    }

    /// Sends the IGMP reports that are due.
    fn report_memberships(&mut self, env: &mut Env, now: Instant) {
        while let Some(group) = self.groups.pop_due(now) {
            if let IpAddr::V4(group) = group {
                v4::groups::report(env, &mut self.replies, group, Statement::Member);
            }
        }
    }

    // Time.

    /// When [`Network::advance`] has something to do.
    pub fn deadline(&self) -> Instant {
        [
            self.neighbours.deadline(),
            self.v6.deadline(),
            self.acd.deadline(),
            self.reassembly.deadline(),
            self.groups.deadline(),
        ]
        .into_iter()
        .fold(Instant::NEVER, |earliest, at| {
            earliest.min(at.unwrap_or(Instant::NEVER))
        })
    }

    /// Runs the timers that are due.
    pub fn advance(&mut self, env: &mut Env, now: Instant) {
        self.neighbours.advance(now, &mut env.counters);
        while let Some(address) = self.neighbours.take_failed() {
            // RFC 4861 6.3.6: a router that does not answer gives way to the next one.
            if let IpAddr::V6(router) = address
                && self.v6.demote_router(router)
            {
                self.neighbours.reroute(address);
            }
        }
        self.expire_fragments(env, now);
        self.report_memberships(env, now);
        if self.acd.deadline().is_some_and(|at| at <= now) {
            self.acd.advance(env, &mut self.arp, now);
        }
        if self.v6.deadline().is_some_and(|at| at <= now) {
            self.advance_v6(env, now);
        }
    }

    fn advance_v6(&mut self, env: &mut Env, now: Instant) {
        self.v6.detect_duplicates(env, &mut self.replies, now);
        self.v6.announce_addresses(env, &mut self.replies, now);
        self.v6
            .report_groups(env, &self.groups, &mut self.replies, now);
        while let Some(router) = self.v6.pop_expired_router(now) {
            self.neighbours.reroute(router.into());
        }
        if let Some(source) = self.v6.take_router_solicitation(now) {
            let message = NdpMessage::RouterSolicitation {
                source: Some(env.config.mac),
            };
            let replies = &mut self.replies;
            ndp::send(&mut env.counters, replies, source, ALL_ROUTERS, &message);
        }
    }

    /// Gives up packets of which fragments are missing, and tells their senders if the first
    /// fragment has come (RFC 792, RFC 8200 4.5).
    fn expire_fragments(&mut self, env: &mut Env, now: Instant) {
        while let Some(packet) = self.reassembly.pop_expired(now) {
            env.counters.ip_reassembly_timeouts += 1;
            if let Ok((header, _)) = ipv6::Header::parse_start(&packet) {
                if !header.dst.is_multicast() {
                    self.send_icmpv6_error(env, Icmpv6Error::Reassembly, &header, &packet, now);
                }
            } else if let Ok(header) = ipv4::Header::parse_start(&packet) {
                self.send_icmpv4_error(env, Icmpv4Error::Reassembly, &header, &packet, now);
            }
        }
    }

    // Packets out.

    /// Whether packets of the link or of the network wait to be sent.
    pub fn has_output(&self) -> bool {
        !self.replies.is_empty() || !self.arp.is_empty() || self.neighbours.has_work()
    }

    /// Queues a reply for the next transmit.
    #[inline(always)]
    pub fn reply(&mut self, counters: &mut Counters, reply: Reply) {
        self.replies.push(counters, reply);
    }

    /// Sends ARP packets, and requests for neighbours over ARP or neighbour discovery. Returns
    /// false when the port is full.
    pub fn send_link_packets(&mut self, env: &mut Env, egress: &mut impl Egress) -> bool {
        if !self.arp.transmit(env, egress) {
            return false;
        }
        while let Some(request) = self.neighbours.take_request() {
            let to = request.to;
            let sent = match request.target {
                IpAddr::V4(target) => {
                    let source: Ipv4Addr = self.v4.source_for(target);
                    arp_queue::send_request(env, egress, to, source, target)
                }
                // A tentative address asks for no neighbour; the request is made again in a second.
                IpAddr::V6(target) => self.v6.source_for(target).is_none_or(|source: Ipv6Addr| {
                    ndp::send_solicitation(env, egress, to, source, target)
                }),
            };
            if !sent {
                self.neighbours.return_request(request);
                return false;
            }
        }
        true
    }
}
