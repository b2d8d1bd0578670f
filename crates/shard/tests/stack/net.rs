//! The link: in-memory queues between two shards, a clock that jumps from event to event, and a
//! hand in the middle.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_shard::{
    Config, Egress, HeapMemory, Ipv6, Options, Owner, Reuse, Shard, SocketId, View,
};
use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;
use millrace_wire::offload::{Capabilities, ChecksumState, Frame, Offload};
use millrace_wire::tcp::{Flags, Segment};
use millrace_wire::{arp, ethernet, icmpv6, ipv4, ipv6, ndp};

pub const OWNER: Owner = Owner(7);
pub const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
pub const ADDRESSES_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xa),
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xb),
];
/// The client's side, by convention.
pub const A: usize = 0;
/// The server's side.
pub const B: usize = 1;

/// A frame on its way.
#[derive(Clone, Debug)]
pub struct Flying {
    pub bytes: Vec<u8>,
    pub checksum: ChecksumState,
    pub segment_size: u16,
}

impl Flying {
    pub fn plain(bytes: Vec<u8>) -> Flying {
        Flying {
            bytes,
            checksum: ChecksumState::Unchecked,
            segment_size: 0,
        }
    }

    pub fn as_frame(&self) -> Frame<'_> {
        Frame {
            bytes: &self.bytes,
            checksum: self.checksum,
            segment_size: self.segment_size,
        }
    }

    /// The IPv4 header and the TCP segment, if it is one.
    pub fn tcp(&self) -> Option<(ipv4::Header, Segment<'_>)> {
        let (link, packet) = ethernet::Header::parse(&self.bytes).ok()?;
        if link.ethertype != ethernet::EtherType::IPV4 {
            return None;
        }
        let (header, _, payload) = ipv4::Header::parse(packet).ok()?;
        (header.protocol == 6).then(|| {
            Segment::parse(payload)
                .ok()
                .map(|segment| (header, segment))
        })?
    }

    /// The IPv6 header and what follows it, if it is IPv6.
    pub fn v6(&self) -> Option<(ipv6::Header, &[u8])> {
        let (link, packet) = ethernet::Header::parse(&self.bytes).ok()?;
        (link.ethertype == ethernet::EtherType::IPV6).then(|| ipv6::Header::parse(packet).ok())?
    }

    /// The message of neighbour discovery, if it is one.
    pub fn ndp(&self) -> Option<(ipv6::Header, ndp::Message)> {
        let (header, bytes) = self.v6()?;
        let message = ndp::Message::parse(&header, bytes).ok()?;
        (header.next_header == icmpv6::PROTOCOL).then_some((header, message))
    }

    pub fn arp(&self) -> Option<arp::Packet> {
        let (link, packet) = ethernet::Header::parse(&self.bytes).ok()?;
        (link.ethertype == ethernet::EtherType::ARP).then(|| arp::Packet::parse(packet).ok())?
    }
}

/// One shard's way out.
pub struct Port {
    pub capabilities: Capabilities,
    /// Frames that may be sent before the port is full.
    pub room: usize,
    pub out: Vec<Flying>,
}

impl Egress for Port {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> bool {
        if self.out.len() >= self.room {
            return false;
        }
        let bytes = [head, payload[0], payload[1]].concat();
        let (checksum, segment_size) = match offload {
            Offload::None => (ChecksumState::Unchecked, 0),
            Offload::Checksum { .. } => (ChecksumState::Partial, 0),
            Offload::Segment { segment_size, .. } => (ChecksumState::Partial, segment_size),
        };
        if segment_size == 0 {
            assert!(
                bytes.len() <= 14 + usize::from(self.capabilities.mtu),
                "frame of {} bytes",
                bytes.len()
            );
        }
        self.out.push(Flying {
            bytes,
            checksum,
            segment_size,
        });
        true
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}

/// What the hand in the middle does with a frame: `from` is the sender's side; false drops it.
pub type Hand = Box<dyn FnMut(usize, &mut Flying) -> bool>;

pub struct Net {
    pub shards: [Shard<HeapMemory>; 2],
    pub ports: [Port; 2],
    /// Frames to each side, with the time of their arrival.
    flying: [VecDeque<(u64, Flying)>; 2],
    /// One way, in microseconds.
    pub latency_us: u64,
    /// Whose port was full when it last sent.
    full: [bool; 2],
    pub now_us: u64,
    pub hand: Hand,
    /// Every frame that was sent, with its sender.
    pub log: Vec<(usize, Flying)>,
}

/// What a net is made with.
pub fn config(side: usize) -> Config {
    let mut config = Config::new(ADDRESSES[side], 24, MACS[side], [side as u8 + 1; 32]);
    config.loopback = true;
    config
}

/// The same with IPv6, too.
pub fn config_v6(side: usize) -> Config {
    let mut config = config(side);
    config.ipv6 = Some(Ipv6 {
        addresses: vec![(ADDRESSES_V6[side], 64)],
        ..Ipv6::default()
    });
    config
}

/// A port that does nothing for the stack.
pub fn plain(mac: Mac, mtu: u16) -> Capabilities {
    Capabilities::plain(mac, mtu)
}

/// A port that cuts segments and computes checksums.
pub fn offloading(mac: Mac, mtu: u16) -> Capabilities {
    Capabilities {
        tx_checksum: true,
        tx_segmentation_max: 65_549,
        rx_aggregated: true,
        ..plain(mac, mtu)
    }
}

impl Net {
    pub fn new() -> Net {
        Net::with(config(A), config(B))
    }

    pub fn with(a: Config, b: Config) -> Net {
        let start = Instant::from_micros(1_000_000);
        let port = |config: &Config| Port {
            capabilities: plain(config.mac, config.mtu),
            room: usize::MAX,
            out: Vec::new(),
        };
        Net {
            ports: [port(&a), port(&b)],
            shards: [a, b].map(|config| Shard::new(config, HeapMemory::new(64 << 20), start)),
            flying: Default::default(),
            latency_us: 50,
            full: [false; 2],
            now_us: 1_000_000,
            hand: Box::new(|_, _| true),
            log: Vec::new(),
        }
    }

    /// Both sides speak IPv6, and their addresses have stood the test.
    pub fn v6() -> Net {
        let mut net = Net::with(config_v6(A), config_v6(B));
        net.run(1_500_000);
        assert!(net.shards.iter().all(|shard| !shard.is_tentative()));
        net
    }

    pub fn with_offloads(mut self) -> Net {
        for port in &mut self.ports {
            port.capabilities = offloading(port.capabilities.mac, port.capabilities.mtu);
        }
        self
    }

    pub fn now(&self) -> Instant {
        Instant::from_micros(self.now_us)
    }

    /// Lets `us` microseconds pass, and everything happen that belongs there.
    pub fn run(&mut self, us: u64) {
        let end = self.now_us + us;
        loop {
            self.exchange();
            let arrivals = self
                .flying
                .iter()
                .filter_map(|queue| queue.front().map(|&(at, _)| at));
            let timers = self
                .shards
                .iter()
                .filter_map(|shard| shard.deadline().map(Instant::as_micros));
            // A port that was full has room again a little later.
            let full = self.full.contains(&true).then_some(self.now_us + 10);
            let next = arrivals
                .chain(timers)
                .chain(full)
                .min()
                .unwrap_or(u64::MAX)
                .max(self.now_us);
            if next > end {
                self.now_us = end;
                return;
            }
            // A deadline that does not move on is an endless loop.
            self.now_us = next;
        }
    }

    /// What happens at this moment: arrivals, timers, then sending.
    fn exchange(&mut self) {
        let now = self.now();
        for side in [A, B] {
            while self.flying[side]
                .front()
                .is_some_and(|&(at, _)| at <= self.now_us)
            {
                let (_, flying) = self.flying[side].pop_front().expect("is there");
                self.shards[side].input(&flying.as_frame(), now);
            }
            self.shards[side].advance(now);
            self.transmit(side);
        }
    }

    pub fn transmit(&mut self, side: usize) {
        let now = self.now();
        self.shards[side].transmit(&mut self.ports[side], now);
        self.full[side] =
            self.ports[side].room > 0 && self.ports[side].out.len() >= self.ports[side].room;
        for mut flying in std::mem::take(&mut self.ports[side].out) {
            if (self.hand)(side, &mut flying) {
                self.flying[1 - side].push_back((self.now_us + self.latency_us, flying.clone()));
            }
            self.log.push((side, flying));
        }
    }

    /// Gives a shard a frame, and takes what it sends in answer at once.
    pub fn inject(&mut self, side: usize, bytes: &[u8]) -> Vec<Flying> {
        let now = self.now();
        self.shards[side].input(&Flying::plain(bytes.to_vec()).as_frame(), now);
        self.shards[side].transmit(&mut self.ports[side], now);
        std::mem::take(&mut self.ports[side].out)
    }

    pub fn listen(&mut self, port: u16, backlog: u32) -> SocketId {
        let local = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        self.shards[B]
            .listen(
                OWNER,
                local,
                backlog,
                Reuse {
                    address: true,
                    port: false,
                },
            )
            .expect("listen")
    }

    pub fn connect(&mut self, port: u16) -> SocketId {
        let now = self.now();
        let remote = SocketAddr::new(ADDRESSES[B].into(), port);
        self.shards[A]
            .connect(OWNER, None, remote, &Options::default(), now)
            .expect("connect")
    }

    /// A listener of the server's side for both families.
    pub fn listen_v6(&mut self, port: u16) -> SocketId {
        let local = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let reuse = Reuse {
            address: true,
            port: false,
        };
        self.shards[B]
            .listen(OWNER, local, 16, reuse)
            .expect("listen")
    }

    pub fn connect_to(&mut self, remote: SocketAddr) -> SocketId {
        let now = self.now();
        self.shards[A]
            .connect(OWNER, None, remote, &Options::default(), now)
            .expect("connect")
    }

    /// As [`Net::pair`], over IPv6.
    pub fn pair_v6(&mut self) -> (SocketId, SocketId, SocketId) {
        let listener = self.listen_v6(80);
        let client = self.connect_to(SocketAddr::new(ADDRESSES_V6[B].into(), 80));
        self.run(10_000 + 6 * self.latency_us);
        let server = self.shards[B].accept(listener).expect("a connection waits");
        (client, server, listener)
    }

    /// A connection between both, established: the client's and the server's socket, and the
    /// listener.
    pub fn pair(&mut self) -> (SocketId, SocketId, SocketId) {
        let listener = self.listen(80, 16);
        let client = self.connect(80);
        self.run(10_000 + 6 * self.latency_us);
        let server = self.shards[B].accept(listener).expect("a connection waits");
        (client, server, listener)
    }

    pub fn view(&self, side: usize, id: SocketId) -> View {
        self.shards[side].view(id).expect("socket")
    }

    pub fn send(&mut self, side: usize, id: SocketId, bytes: &[u8]) -> usize {
        self.shards[side].send(id, bytes, true).expect("send")
    }

    /// Everything that can be read now.
    pub fn recv(&mut self, side: usize, id: SocketId) -> Vec<u8> {
        let now = self.now();
        let mut all = Vec::new();
        let mut buffer = [0; 70_000];
        while let Ok(len) = self.shards[side].recv(id, &mut buffer, now)
            && len > 0
        {
            all.extend_from_slice(&buffer[..len]);
        }
        all
    }

    pub fn close(&mut self, side: usize, id: SocketId) {
        let now = self.now();
        self.shards[side].close(id, now).expect("close");
    }

    /// Sends `total` bytes of a pattern from one side to the other, reading as they come; returns
    /// the virtual time it took.
    pub fn transfer(&mut self, from: (usize, SocketId), to: (usize, SocketId), total: u64) -> u64 {
        let start = self.now_us;
        let (mut sent, mut received) = (0u64, 0u64);
        while received < total {
            let view = self.view(from.0, from.1);
            let space = u64::from(view.send_limit).saturating_sub(view.queued - view.acked);
            let chunk: Vec<u8> = (sent..total.min(sent + space)).map(pattern).collect();
            sent += self.send(from.0, from.1, &chunk) as u64;
            self.run(self.latency_us.max(20));
            for byte in self.recv(to.0, to.1) {
                assert_eq!(byte, pattern(received), "byte {received}");
                received += 1;
            }
            assert!(
                self.now_us - start < 3_600_000_000,
                "no progress: {received} of {total}"
            );
        }
        self.now_us - start
    }

    /// TCP segments in the log with these flags set.
    pub fn count(&self, from: usize, flags: Flags) -> usize {
        let matches = |(side, flying): &&(usize, Flying)| {
            *side == from
                && flying
                    .tcp()
                    .is_some_and(|(_, segment)| segment.flags.contains(flags))
        };
        self.log.iter().filter(matches).count()
    }

    /// Closes what is left, lets all timers run out and checks that nothing is in use.
    pub fn assert_clean(&mut self) {
        self.run(3_000_000_000);
        for shard in &self.shards {
            assert_eq!(shard.usage(), millrace_shard::Usage::default());
            assert_eq!(shard.memory().in_use(), 0);
        }
    }
}

/// Byte `offset` of every test stream.
pub fn pattern(offset: u64) -> u8 {
    (offset ^ (offset >> 8).wrapping_mul(31) ^ (offset >> 16).wrapping_mul(17)) as u8
}

/// A small generator for seeded tests.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }
}
