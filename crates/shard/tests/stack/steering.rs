//! Several shards behind one address: whichever queue a frame comes in by, the flow is one shard's.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_shard::{
    AcceptQueue, Arrival, Error, Flow, FlowBatch, Groups, Hash, Misrouted, Options, Reuse, Shard,
    SocketId, Steer, Tuple, ViewFlags,
};
use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;
use millrace_wire::offload::ChecksumState;
use millrace_wire::tcp::Segment;
use millrace_wire::{arp, ethernet, ipv4};

use crate::memory::HostMemory;
use crate::net::{
    A, ADDRESSES, ADDRESSES_V6, B, Flying, MACS, OWNER, Port, Random, config_v6, offloading,
    pattern, plain,
};

/// Buckets on their way from one shard to another.
struct Moving {
    buckets: Vec<usize>,
    from: usize,
    to: usize,
    /// What was given, and in how many rounds it arrives.
    batch: Option<FlowBatch>,
    rounds: u32,
    /// Connections that there are stay, and are pinned.
    new_flows_only: bool,
}

/// A host of several shards, each with a queue of its port.
pub struct Host {
    pub shards: Vec<Shard<HostMemory>>,
    ports: Vec<Port>,
    /// Frames that a shard has for another: by receiver.
    handed: Vec<VecDeque<(Flying, Arrival)>>,
    /// Frames handed over for each reason.
    by_tag: u32,
    by_pin: u32,
    moving: Option<Moving>,
    /// Frames that wait for what is on its way, by shard.
    waiting: Vec<VecDeque<(Flying, Arrival)>>,
    /// What sockets that have moved are called now; none while they are on their way.
    names: BTreeMap<(usize, SocketId), Option<(usize, SocketId)>>,
    /// Flows that are over, by the shard that had them: told when nothing is on its way.
    unpinned: Vec<(usize, Flow)>,
}

impl Host {
    fn new(side: usize, shards: u16, offload: bool, is_shared: bool, now: Instant) -> Host {
        let memory = HostMemory::new(64 << 20, is_shared);
        let shard = |own| {
            let mut config = config_v6(side);
            config.steer = (shards > 1).then(|| Steer {
                own,
                hash: Hash::Keyed([11, 0x1234_5678_9abc_def1, 0xfeed_beef_0bad_cafe]),
                groups: Groups::even(shards),
            });
            Shard::new(config, memory.other(64 << 20), now)
        };
        let capabilities = if offload { offloading } else { plain };
        let port = |_| Port {
            capabilities: capabilities(MACS[side], 1500),
            room: usize::MAX,
            out: Vec::new(),
        };
        Host {
            shards: (0..shards).map(shard).collect(),
            ports: (0..shards).map(port).collect(),
            handed: (0..shards).map(|_| VecDeque::new()).collect(),
            by_tag: 0,
            by_pin: 0,
            moving: None,
            waiting: (0..shards).map(|_| VecDeque::new()).collect(),
            names: BTreeMap::new(),
            unpinned: Vec::new(),
        }
    }

    /// Has a shard give buckets of its own to another; what it gives arrives after so many rounds.
    /// One after the other.
    pub fn hand_over(
        &mut self,
        buckets: Vec<usize>,
        from: usize,
        to: usize,
        rounds: u32,
        new_flows_only: bool,
    ) {
        assert!(!self.is_moving() && from != to);
        self.shards[to].expect(&buckets);
        self.moving = Some(Moving {
            buckets,
            from,
            to,
            batch: None,
            rounds,
            new_flows_only,
        });
    }

    pub fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// A step of what is on its way; whether it has arrived.
    fn step(&mut self, now: Instant) -> bool {
        let Some(moving) = &mut self.moving else {
            return false;
        };
        let (from, to) = (moving.from, moving.to);
        let Some(batch) = moving.batch.take_if(|_| moving.rounds == 0) else {
            moving.rounds = moving.rounds.saturating_sub(1);
            if moving.batch.is_none() {
                let before: Vec<SocketId> = sockets(&mut self.shards[from], now);
                moving.batch = match moving.new_flows_only {
                    true => self.shards[from].give_new(&moving.buckets, to as u16),
                    false => self.shards[from].give(&moving.buckets, to as u16, |_| true),
                };
                let after = sockets(&mut self.shards[from], now);
                for gone in before.into_iter().filter(|id| !after.contains(id)) {
                    self.names.insert((from, gone), None);
                }
            }
            return false;
        };
        let taken = self.shards[to].take(batch, from as u16, now);
        for (old, new) in taken.moved {
            self.names.insert((from, old), Some((to, new)));
        }
        for (old, new) in self.shards[from].put_back(taken.refused, now) {
            self.names.insert((from, old), Some((from, new)));
        }
        let buckets = self.moving.take().map(|moving| moving.buckets);
        let others = (0..self.shards.len()).filter(|at| *at != from && *at != to);
        for other in others {
            self.shards[other].assign(buckets.as_deref().unwrap_or_default(), to as u16);
        }
        while let Some((frame, arrival)) = self.waiting[to].pop_front() {
            self.shards[to].input_handed(&frame.as_frame(), arrival, now);
            self.pass_on(to, &frame, arrival);
        }
        true
    }

    /// Where a socket is now that was opened there, and what it is called; none while it is on its
    /// way.
    fn current(&self, shard: usize, id: SocketId) -> Option<(usize, SocketId)> {
        let mut at = (shard, id);
        while let Some(next) = self.names.get(&at) {
            at = (*next)?;
        }
        Some(at)
    }

    /// A frame at a queue.
    pub fn receive(&mut self, queue: usize, frame: &Flying, now: Instant) {
        self.shards[queue].input(&frame.as_frame(), now);
        self.pass_on(queue, frame, Arrival::Link);
    }

    fn pass_on(&mut self, from: usize, frame: &Flying, came: Arrival) {
        match self.shards[from].take_misrouted() {
            Some((Misrouted::Shard(to, arrival), whole)) => {
                assert_ne!(usize::from(to), from);
                self.by_tag += u32::from(arrival == Arrival::ByTag);
                self.by_pin += u32::from(arrival == Arrival::ByPin);
                let frame = match whole {
                    Some(bytes) => Flying::plain(bytes),
                    None => frame.clone(),
                };
                self.handed[usize::from(to)].push_back((frame, arrival));
            }
            Some((Misrouted::AllShards, _)) => {
                for to in (0..self.handed.len()).filter(|to| *to != from) {
                    self.handed[to].push_back((frame.clone(), Arrival::Copy));
                }
            }
            Some((Misrouted::Awaited, whole)) => {
                let frame = whole.map_or_else(|| frame.clone(), Flying::plain);
                self.waiting[from].push_back((frame, came));
            }
            None => {}
        }
    }

    /// Everything that can be done now; the frames that leave, with the shard that sends them.
    fn work(&mut self, now: Instant) -> Vec<(usize, Flying)> {
        let mut out = Vec::new();
        for at in 0..self.shards.len() {
            while let Some((frame, arrival)) = self.handed[at].pop_front() {
                self.shards[at].input_handed(&frame.as_frame(), arrival, now);
                self.pass_on(at, &frame, arrival);
            }
            self.shards[at].advance(now);
            self.shards[at].transmit(&mut self.ports[at], now);
            out.extend(self.ports[at].out.drain(..).map(|frame| (at, frame)));
            let unpinned = self.shards[at].take_unpinned();
            self.unpinned
                .extend(unpinned.into_iter().map(|tuple| (at, tuple)));
        }
        if self.moving.is_none() {
            for (at, tuple) in std::mem::take(&mut self.unpinned) {
                for other in &mut self.shards {
                    other.unpin(&tuple, at as u16);
                }
            }
        }
        out
    }

    fn idle(&self) -> bool {
        self.handed.iter().all(VecDeque::is_empty)
    }
}

/// The sockets of a shard.
fn sockets(shard: &mut Shard<HostMemory>, now: Instant) -> Vec<SocketId> {
    let mut all = Vec::new();
    shard.for_each_socket(now, |socket| all.extend(socket.id));
    all
}

/// The ports of a segment of either family.
fn ports(frame: &Flying) -> Option<(u16, u16)> {
    let v4 = frame.tcp().map(|(_, segment)| segment);
    let segment = v4.or_else(|| {
        let (header, payload) = frame.v6()?;
        let is_tcp = header.next_header == millrace_wire::tcp::PROTOCOL;
        is_tcp.then(|| Segment::parse(payload).ok())?
    })?;
    Some((segment.src_port, segment.dst_port))
}

/// What moves with buckets.
pub enum Moves {
    Everything,
    NewFlows,
    Either,
}

/// Two hosts, and a link that loses and reorders.
pub struct World {
    pub hosts: [Host; 2],
    pub now_us: u64,
    pub random: Random,
    /// In a thousand.
    pub loss: u64,
    /// By how much more one frame may be late than another, in microseconds.
    pub jitter: u64,
    /// Whether frames come in by any queue, or by the first.
    pub any_queue: bool,
    /// How often buckets of the second host's begin to move when they may, in a thousand; and how
    /// often they have.
    pub restless: u64,
    pub moves: u32,
    pub moves_of: Moves,
    flying: BTreeMap<(u64, u64), (usize, Flying)>,
    count: u64,
    /// The shard of the second host that has sent a segment of a flow, by the ports.
    senders: BTreeMap<(u16, u16), usize>,
}

impl World {
    pub fn new(shards: u16, seed: u64) -> World {
        let now = Instant::from_micros(1_000_000);
        let mut random = Random(seed * 2 + 1);
        let offload = random.below(2) == 1;
        let mut world = World {
            hosts: [
                Host::new(A, 1, offload, false, now),
                Host::new(B, shards, offload, seed % 2 == 1, now),
            ],
            now_us: 1_000_000,
            random,
            loss: 20,
            jitter: 200,
            any_queue: true,
            restless: 0,
            moves: 0,
            moves_of: Moves::Everything,
            flying: BTreeMap::new(),
            count: 0,
            senders: BTreeMap::new(),
        };
        // The IPv6 addresses are looked for on the link first.
        world.run(5_000_000);
        world
    }

    pub fn now(&self) -> Instant {
        Instant::from_micros(self.now_us)
    }

    /// Has some buckets of some shard of the second host's move to some other, now and then.
    fn rebalance(&mut self) {
        let count = self.hosts[B].shards.len() as u64;
        if self.hosts[B].is_moving() || self.random.below(1000) >= self.restless {
            return;
        }
        let from = self.random.below(count);
        let to = (from + 1 + self.random.below(count - 1)) % count;
        let steer = self.hosts[B].shards[from as usize].config().steer.clone();
        let groups = steer.expect("several shards").groups;
        // A shard keeps some, so that it can open connections.
        let part = 2 + self.random.below(3);
        let buckets: Vec<usize> = (0..groups.buckets())
            .filter(|bucket| groups.of_bucket(*bucket) == Some(from as u16))
            .filter(|_| self.random.below(part) == 0)
            .collect();
        let rounds = self.random.below(20) as u32;
        let new = match self.moves_of {
            Moves::Everything => false,
            Moves::NewFlows => true,
            Moves::Either => self.random.below(2) == 0,
        };
        self.hosts[B].hand_over(buckets, from as usize, to as usize, rounds, new);
    }

    fn work(&mut self) {
        let now = self.now();
        self.rebalance();
        for side in [A, B] {
            if self.hosts[side].step(now) {
                self.moves += 1;
                // Each flow is one shard's from now on, whichever.
                self.senders.clear();
            }
            loop {
                for (shard, frame) in self.hosts[side].work(now) {
                    if let (B, Some(flow)) = (side, ports(&frame)) {
                        let first = *self.senders.entry(flow).or_insert(shard);
                        assert_eq!(first, shard, "flow {flow:?} is two shards'");
                    }
                    if self.random.below(1000) >= self.loss {
                        let at = self.now_us + 20 + self.random.below(self.jitter);
                        self.count += 1;
                        self.flying.insert((at, self.count), (1 - side, frame));
                    }
                }
                if self.hosts[side].idle() {
                    break;
                }
            }
        }
    }

    /// Lets time pass.
    pub fn run(&mut self, us: u64) {
        let end = self.now_us + us;
        loop {
            let now = self.now();
            while let Some(entry) = self.flying.first_entry()
                && entry.key().0 <= self.now_us
            {
                let (to, frame) = entry.remove();
                let queues = match self.any_queue {
                    true => self.hosts[to].shards.len() as u64,
                    false => 1,
                };
                let queue = self.random.below(queues);
                self.hosts[to].receive(queue as usize, &frame, now);
            }
            self.work();
            let timers = self.hosts.iter().flat_map(|host| &host.shards);
            let timers = timers.filter_map(|shard| shard.deadline().map(Instant::as_micros));
            let arrivals = self.flying.keys().next().map(|(at, _)| *at);
            let next = timers.chain(arrivals).min().unwrap_or(u64::MAX);
            if next > end {
                self.now_us = end;
                return;
            }
            self.now_us = next.max(self.now_us);
        }
    }

    /// A listener on each shard of a host.
    pub fn listen(&mut self, side: usize, port: u16) -> Vec<SocketId> {
        let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let shards = self.hosts[side].shards.iter_mut();
        shards
            .map(|shard| shard.listen(OWNER, local, 64, Reuse::default()).unwrap())
            .collect()
    }

    /// Sends `total` bytes from one end of each pair to the other, all at once, reading as they
    /// come.
    pub fn transfer(&mut self, pairs: &[[End; 2]], total: u64) {
        let mut progress = vec![(0u64, 0u64); pairs.len()];
        let start = self.now_us;
        while progress.iter().any(|(_, received)| *received < total) {
            let now = self.now();
            for ([from, to], (sent, received)) in pairs.iter().zip(&mut progress) {
                let (Some(from), Some(to)) = (self.current(from), self.current(to)) else {
                    continue;
                };
                let shard = &mut self.hosts[from.side].shards[from.shard];
                let view = shard.view(from.id).expect("open");
                let space = u64::from(view.send_limit).saturating_sub(view.queued - view.acked);
                let chunk: Vec<u8> = (*sent..total.min(*sent + space)).map(pattern).collect();
                if !chunk.is_empty() {
                    *sent += shard.send(from.id, &chunk, true).expect("send") as u64;
                }
                let mut buffer = [0; 65_536];
                let shard = &mut self.hosts[to.side].shards[to.shard];
                while let Ok(len) = shard.recv(to.id, &mut buffer, now)
                    && len > 0
                {
                    for byte in &buffer[..len] {
                        assert_eq!(*byte, pattern(*received), "byte {received}");
                        *received += 1;
                    }
                }
            }
            self.run(200);
            assert!(
                self.now_us - start < 600_000_000,
                "no progress: {progress:?}"
            );
        }
    }

    /// Flows may begin anew in another shard.
    pub fn forget_senders(&mut self) {
        self.senders.clear();
    }

    /// What an end is called now; none while it is on its way.
    pub fn current(&self, end: &End) -> Option<End> {
        let (shard, id) = self.hosts[end.side].current(end.shard, end.id)?;
        Some(End { shard, id, ..*end })
    }

    pub fn close(&mut self, end: End) {
        let now = self.now();
        let end = self.current(&end).expect("nothing is on its way");
        let shard = &mut self.hosts[end.side].shards[end.shard];
        shard.close(end.id, now).expect("open");
    }
}

#[derive(Clone, Copy)]
pub struct End {
    pub side: usize,
    pub shard: usize,
    pub id: SocketId,
}

pub fn seeds() -> std::ops::Range<u64> {
    0..12
}

/// Every other seed is over IPv6.
pub fn address_of(side: usize, seed: u64) -> SocketAddr {
    match seed % 2 {
        0 => SocketAddr::from((ADDRESSES[side], 80)),
        _ => SocketAddr::from((ADDRESSES_V6[side], 80)),
    }
}

pub fn shards_of(seed: u64) -> u16 {
    2 + (seed % 3) as u16
}

#[test]
fn accepted_flows_are_one_shards_and_every_byte_arrives() {
    for seed in seeds() {
        let mut world = World::new(shards_of(seed), seed);
        let listeners = world.listen(B, 80);
        let remote = address_of(B, seed);
        let clients: Vec<SocketId> = (0..24)
            .map(|_| {
                let now = world.now();
                let client = &mut world.hosts[A].shards[0];
                let options = Options::default();
                client.connect(OWNER, None, remote, &options, now).unwrap()
            })
            .collect();
        world.run(20_000_000);
        let mut servers = BTreeMap::new();
        for (shard, listener) in listeners.iter().enumerate() {
            while let Ok(id) = world.hosts[B].shards[shard].accept(*listener) {
                let view = world.hosts[B].shards[shard].view(id).unwrap();
                let end = End { side: B, shard, id };
                assert!(servers.insert(view.remote.port(), end).is_none());
            }
        }
        let used: Vec<usize> = servers.values().map(|end| end.shard).collect();
        assert!(
            (0..listeners.len()).all(|shard| used.contains(&shard)),
            "seed {seed}: {used:?}"
        );
        let pairs: Vec<[End; 2]> = clients
            .iter()
            .map(|id| {
                let port = world.hosts[A].shards[0].view(*id).unwrap().local.port();
                let client = End {
                    side: A,
                    shard: 0,
                    id: *id,
                };
                [client, servers[&port]]
            })
            .collect();
        world.transfer(&pairs, 100_000);
        let back: Vec<[End; 2]> = pairs.iter().map(|[a, b]| [*b, *a]).collect();
        world.transfer(&back, 100_000);
        assert!(world.hosts[B].by_tag > 100, "seed {seed}: nothing strayed");
        for end in pairs.into_iter().flatten() {
            world.close(end);
        }
        for (shard, id) in listeners.into_iter().enumerate() {
            world.close(End { side: B, shard, id });
        }
        world.run(3_000_000_000);
        for shard in world.hosts.iter().flat_map(|host| &host.shards) {
            assert_eq!(
                shard.usage(),
                millrace_shard::Usage::default(),
                "seed {seed}"
            );
        }
    }
}

/// Of a group (`SO_REUSEPORT`) with a listener of each shard's each gets what its own shard
/// accepts; without one of each all get some of all.
#[test]
fn listeners_of_a_group_get_what_their_shard_accepts() {
    for homes in [vec![0, 1, 2], vec![0, 0, 2]] {
        let mut world = World::new(3, 7);
        let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 80));
        let reuse = Reuse {
            address: false,
            port: true,
        };
        let queues: Vec<AcceptQueue> = (1..)
            .zip(&homes)
            .map(|(label, home)| AcceptQueue::new(label, 0, *home, 3))
            .collect();
        let listeners: Vec<Vec<SocketId>> = (0..3u16)
            .map(|shard| {
                let stack = &mut world.hosts[B].shards[usize::from(shard)];
                let listen = |queue: &AcceptQueue| {
                    let id = stack.bind(OWNER, local, reuse).unwrap();
                    let queue = queue.of_shard(shard);
                    stack.listen_bound(id, 64, Some(queue)).unwrap();
                    id
                };
                queues.iter().map(listen).collect()
            })
            .collect();
        for _ in 0..90 {
            let (now, remote) = (world.now(), address_of(B, 0));
            let client = &mut world.hosts[A].shards[0];
            let options = Options::default();
            client.connect(OWNER, None, remote, &options, now).unwrap();
        }
        world.run(20_000_000);
        let mut all = 0;
        for (shard, listeners) in listeners.iter().enumerate() {
            for (listener, home) in listeners.iter().zip(&homes) {
                let stack = &mut world.hosts[B].shards[shard];
                let accepted = std::iter::from_fn(|| stack.accept(*listener).ok()).count();
                let near = homes == [0, 1, 2];
                let expected = !near || usize::from(*home) == shard;
                assert_eq!(accepted > 0, expected, "{homes:?}: {home} in {shard}");
                all += accepted;
            }
        }
        assert_eq!(all, 90);
    }
}

/// A port that a shard chooses brings the answers back to it; one that the program chose is pinned.
#[test]
fn opened_flows_stay_with_their_shard() {
    for seed in seeds() {
        let shards = shards_of(seed);
        let mut world = World::new(shards, seed);
        let listener = world.listen(A, 80)[0];
        let remote = address_of(A, seed);
        let mut clients = BTreeMap::new();
        let mut pinned = 0;
        for round in 0..16u16 {
            let shard = usize::from(round % shards);
            let now = world.now();
            let host = &mut world.hosts[B];
            let id = if round < 8 {
                let options = Options::default();
                host.shards[shard]
                    .connect(OWNER, None, remote, &options, now)
                    .unwrap()
            } else {
                let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 5000 + round));
                let id = host.shards[shard]
                    .bind(OWNER, local, Reuse::default())
                    .unwrap();
                if let Some((owner, tuple)) = host.shards[shard].must_pin(id, remote) {
                    host.shards[usize::from(owner)]
                        .pin(tuple, shard as u16)
                        .unwrap();
                    assert_eq!(
                        host.shards[usize::from(owner)].pin(tuple, shards),
                        Err(Error::AddressNotAvailable)
                    );
                    pinned += 1;
                }
                host.shards[shard].connect_bound(id, remote, now).unwrap();
                id
            };
            let port = host.shards[shard].view(id).unwrap().local.port();
            clients.insert(port, End { side: B, shard, id });
        }
        world.run(20_000_000);
        let mut pairs = Vec::new();
        while let Ok(id) = world.hosts[A].shards[0].accept(listener) {
            let port = world.hosts[A].shards[0].view(id).unwrap().remote.port();
            let server = End {
                side: A,
                shard: 0,
                id,
            };
            pairs.push([clients[&port], server]);
        }
        assert_eq!(pairs.len(), 16, "seed {seed}");
        world.transfer(&pairs, 50_000);
        let back: Vec<[End; 2]> = pairs.iter().map(|[a, b]| [*b, *a]).collect();
        world.transfer(&back, 50_000);
        assert_eq!(world.hosts[B].by_pin > 0, pinned > 0, "seed {seed}");
        for end in pairs.into_iter().flatten() {
            world.close(end);
        }
        world.run(3_000_000_000);
        let pins = |host: &mut Host| {
            // Pinning again succeeds only where nothing is pinned.
            let any = |shard: &mut Shard<HostMemory>| {
                let tuple = Tuple::new(
                    SocketAddr::from((ADDRESSES[B], 5008)),
                    SocketAddr::from((ADDRESSES[A], 80)),
                )
                .unwrap();
                shard.pin(Flow::stream(tuple), 99).is_err()
            };
            host.shards.iter_mut().any(any)
        };
        assert!(!pins(&mut world.hosts[B]), "seed {seed}: a pin was left");
    }
}

/// Both ends of a connection to this host itself are the shard's that opened it.
#[test]
fn loopback_stays_in_the_shard() {
    let mut world = World::new(3, 1);
    let listeners = world.listen(B, 80);
    for (shard, listener) in listeners.into_iter().enumerate() {
        let now = world.now();
        let remote = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
        let stack = &mut world.hosts[B].shards[shard];
        let client = stack
            .connect(OWNER, None, remote, &Options::default(), now)
            .unwrap();
        world.run(10_000);
        let stack = &mut world.hosts[B].shards[shard];
        let server = stack.accept(listener).expect("a connection waits");
        let flags = stack.view(client).unwrap().flags;
        assert!(flags.contains(ViewFlags::CONNECTED));
        let end = |id| End { side: B, shard, id };
        world.transfer(&[[end(client), end(server)]], 300_000);
    }
    assert_eq!((world.hosts[B].by_tag, world.flying.len()), (0, 0));
}

/// RFC 826: an ARP reply comes in by any queue, and all shards learn from it; one that asks is
/// answered once.
#[test]
fn rfc826_what_one_shard_hears_all_learn() {
    let mut world = World::new(4, 3);
    world.loss = 0;
    let neighbour = Mac([2, 9, 9, 9, 9, 9]);
    let mut bytes = vec![0; ethernet::HEADER_LEN + arp::LEN];
    ethernet::Header {
        dst: Mac::BROADCAST,
        src: neighbour,
        ethertype: ethernet::EtherType::ARP,
    }
    .emit(&mut bytes);
    arp::Packet {
        operation: arp::Operation::REQUEST,
        sender_mac: neighbour,
        sender_ip: Ipv4Addr::new(10, 0, 0, 77),
        target_mac: Mac([0; 6]),
        target_ip: ADDRESSES[B],
    }
    .emit(&mut bytes[ethernet::HEADER_LEN..]);
    let now = world.now();
    world.hosts[B].receive(2, &Flying::plain(bytes), now);
    let mut replies = 0;
    while !world.hosts[B].idle() || replies == 0 {
        let out = world.hosts[B].work(now);
        replies += out
            .iter()
            .filter(|(_, frame)| frame.arp().is_some())
            .count();
    }
    assert_eq!(replies, 1);
    for shard in &world.hosts[B].shards {
        assert_eq!(shard.usage().neighbours, 1);
    }
}

/// RFC 1122 3.3.2: what one shard has put together of fragments is another's, whole. A connection
/// to the second host, and a segment of 1,000 bytes to it, caught on its way, in two fragments.
pub fn cut_segment(world: &mut World) -> (End, [Flying; 2]) {
    world.loss = 0;
    let listeners = world.listen(B, 80);
    let remote = SocketAddr::from((ADDRESSES[B], 80));
    let now = world.now();
    let client = &mut world.hosts[A].shards[0];
    let options = Options::default();
    let id = client.connect(OWNER, None, remote, &options, now).unwrap();
    world.run(1_000_000);
    let port = world.hosts[A].shards[0].view(id).unwrap().local.port();
    let server = (0..2)
        .find_map(|shard| {
            let id = world.hosts[B].shards[shard].accept(listeners[shard]);
            id.ok().map(|id| End { side: B, shard, id })
        })
        .expect("a connection waits");
    let now = world.now();
    let host = &mut world.hosts[A];
    host.shards[0].send(id, &[7; 1000], true).unwrap();
    let sent = host.work(now);
    let (_, frame) = sent
        .iter()
        .find(|(_, frame)| ports(frame) == Some((port, 80)))
        .expect("a segment");
    let (mut bytes, offloaded) = (frame.bytes.clone(), frame.checksum);
    let (header, segment) = (14..34, 34..bytes.len());
    if offloaded == ChecksumState::Partial {
        // Fragments carry the checksum of the whole.
        let sum = millrace_wire::checksum::Sum::of(&bytes[segment.clone()]);
        bytes[34 + 16..34 + 18].copy_from_slice(&sum.finish().to_be_bytes());
    }
    let half = 512;
    let parts = [(0, half, true), (half, segment.len(), false)].map(|(start, end, more)| {
        let (parsed, _, _) = ipv4::Header::parse(&frame.bytes[14..]).unwrap();
        let mut part = bytes[..34].to_vec();
        ipv4::Header {
            id: 9,
            dont_fragment: false,
            more_fragments: more,
            fragment_offset: start as u16,
            payload_len: (end - start) as u16,
            ..parsed
        }
        .emit(&mut part[header.clone()]);
        part.extend_from_slice(&bytes[segment.start + start..segment.start + end]);
        Flying::plain(part)
    });
    (server, parts)
}

#[test]
fn rfc1122_3_3_2_fragments_are_put_together_before_they_are_handed_over() {
    let mut world = World::new(2, 5);
    let (server, parts) = cut_segment(&mut world);
    let now = world.now();
    for part in parts {
        // To the other shard's queue.
        world.hosts[B].receive(1 - server.shard, &part, now);
    }
    world.run(1000);
    let mut buffer = [0; 2000];
    let got = world.hosts[B].shards[server.shard].recv(server.id, &mut buffer, now);
    assert_eq!(got, Ok(1000));
    assert_eq!(buffer[..1000], [7; 1000]);
}
