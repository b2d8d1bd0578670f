//! Two shards joined in memory: what the protocol costs, both ends together, with real checksums
//! unless `offload` is given. With `join` segments are joined before a shard takes them in.
//!
//! ```text
//! cargo build --release -p millrace-shard --example pair
//! target/release/examples/pair short 200000 64     # 64 at a time: connect, 64 B and back, close
//! target/release/examples/pair ping 1000000 64     # 64 B there and back
//! target/release/examples/pair bulk 4000           # megabytes one way
//! target/release/examples/pair idle 100000         # resident bytes of each idle connection
//! # Beside so many connections that do nothing:
//! target/release/examples/pair ping 1000000 64 beside=100000
//! # Beside so many that are in TIME-WAIT at the server:
//! target/release/examples/pair short 200000 64 waiting=100000
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     target/release/examples/pair short 20000 64
//! ```
//! For instructions per operation subtract the counts of two runs of different length. For bytes
//! under valgrind set `GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1000000000`, or `rep movsb`
//! counts one instruction a byte.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant as Clock;

use millrace_offload::Train;
use millrace_shard::{
    Config, Egress, HeapMemory, Options, Owner, Reuse, Shard, SocketId, ViewFlags,
};
use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;
use millrace_wire::offload::{Capabilities, ChecksumState, Frame, Offload};

const MESSAGE: [u8; 64] = [0x5a; 64];
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 80);
/// Virtual time that one exchange takes.
const ROUND_US: u64 = 10;

/// How fast bulk data passes in virtual time: 4 GB/s. On a link without limit windows would grow
/// without reason.
const LINK_BYTES_PER_US: u64 = 4096;

/// The most that a connection may have on the way, in bytes.
const BUFFER_MAX: u32 = 256 << 10;

/// From here on the server listens for connections that are made beforehand, so many at each port.
const PORTS: u16 = 1000;
const OF_DESTINATION: u64 = 20_000;

/// Frames that an engine takes at a time.
const BURST: usize = 64;

/// Frames of one direction, in buffers that are used again.
struct Wire {
    frames: Vec<(Vec<u8>, ChecksumState, u16)>,
    used: usize,
    capabilities: Capabilities,
    /// Of who receives them.
    train: Option<Train>,
}

impl Egress for Wire {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> bool {
        if self.used == self.frames.len() {
            self.frames
                .push((Vec::with_capacity(2048), ChecksumState::Unchecked, 0));
        }
        let (bytes, checksum, segment_size) = &mut self.frames[self.used];
        bytes.clear();
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(payload[0]);
        bytes.extend_from_slice(payload[1]);
        (*checksum, *segment_size) = match offload {
            Offload::None => (ChecksumState::Unchecked, 0),
            Offload::Checksum { .. } => (ChecksumState::Partial, 0),
            Offload::Segment { segment_size, .. } => (ChecksumState::Partial, segment_size),
        };
        self.used += 1;
        true
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}

/// What the ports of both do.
#[derive(Clone, Copy)]
struct Ports {
    offload: bool,
    join: bool,
}

/// Connections beside those that are measured.
#[derive(Clone, Copy)]
struct Beside {
    idle: u64,
    waiting: u64,
}

struct World {
    client: Shard<HeapMemory>,
    server: Shard<HeapMemory>,
    there: Wire,
    back: Wire,
    now_us: u64,
    changed: Vec<SocketId>,
    /// Segments that arrived with payload, and without.
    arrived: [u64; 2],
    /// Where the server does not listen yet.
    next_port: u16,
}

fn shard(last: u8, now: Instant) -> Shard<HeapMemory> {
    let mut config = Config::new(
        Ipv4Addr::new(10, 0, 0, last),
        24,
        Mac([2, 0, 0, 0, 0, last]),
        [last; 32],
    );
    // All that the window allows is in memory here before any of it is taken in: more than the
    // caches hold measures memory, not the stack.
    (config.buffers.send_max, config.buffers.receive_max) = (BUFFER_MAX, BUFFER_MAX);
    Shard::new(config, HeapMemory::new(4 << 30), now)
}

impl World {
    fn new(Ports { offload, join }: Ports) -> World {
        let now = Instant::from_micros(1_000_000);
        let wire = |last| Wire {
            frames: Vec::new(),
            used: 0,
            capabilities: Capabilities {
                mac: Mac([2, 0, 0, 0, 0, last]),
                mtu: 1500,
                tx_checksum: offload,
                tx_segmentation_max: if offload { 65_549 } else { 0 },
                rx_aggregated: offload,
                trusted_checksum: false,
                queues: 1,
            },
            train: join.then(Train::default),
        };
        World {
            client: shard(1, now),
            server: shard(2, now),
            there: wire(1),
            back: wire(2),
            now_us: 1_000_000,
            changed: Vec::new(),
            arrived: [0; 2],
            next_port: PORTS,
        }
    }

    fn now(&self) -> Instant {
        Instant::from_micros(self.now_us)
    }

    fn listen(&mut self) -> SocketId {
        self.server
            .listen(Owner(1), SERVER, 4096, Reuse::default())
            .expect("listen")
    }

    fn connect(&mut self) -> SocketId {
        self.connect_to(SERVER.port())
    }

    fn connect_to(&mut self, port: u16) -> SocketId {
        let now = self.now();
        let remote = SocketAddr::new(SERVER.ip(), port);
        self.client
            .connect(Owner(0), None, remote, &Options::default(), now)
            .expect("connect")
    }

    /// So many connections, to ports of their own: the client's ends, and the server's.
    fn establish(&mut self, count: u64) -> [Vec<SocketId>; 2] {
        // The client's ports for one destination do not suffice.
        let first = self.next_port;
        self.next_port += count.div_ceil(OF_DESTINATION) as u16;
        let listeners: Vec<SocketId> = (first..self.next_port)
            .map(|port| {
                let local = SocketAddr::new(SERVER.ip(), port);
                let reuse = Reuse::default();
                let heard = self.server.listen(Owner(1), local, 4096, reuse);
                heard.expect("listen")
            })
            .collect();
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for at in 0..count {
            clients.push(self.connect_to(first + (at / OF_DESTINATION) as u16));
            if at % 64 == 63 || at + 1 == count {
                for _ in 0..4 {
                    self.deliver_there();
                    self.deliver_back();
                }
                for &id in &listeners {
                    while let Ok(accepted) = self.server.accept(id) {
                        self.server.view(accepted).expect("open");
                        servers.push(accepted);
                    }
                }
            }
        }
        [clients, servers]
    }

    /// What there is beside what is measured.
    fn fill(&mut self, beside: Beside) {
        self.establish(beside.idle);
        let [clients, servers] = self.establish(beside.waiting);
        for (clients, servers) in clients.chunks(64).zip(servers.chunks(64)) {
            // The server closes first, so it waits.
            for &id in servers {
                let now = self.now();
                self.server.close(id, now).expect("open");
            }
            self.deliver_there();
            self.deliver_back();
            for &id in clients {
                let now = self.now();
                self.client.close(id, now).expect("open");
            }
            self.settle();
        }
        let waiting = self.server.usage().time_wait as u64;
        assert_eq!(waiting, beside.waiting, "in TIME-WAIT");
    }

    fn deliver_there(&mut self) {
        let now = self.now();
        advance([&mut self.client, &mut self.server], now);
        transmit_requests(&mut self.client, &mut self.there, now);
        deliver(&mut self.there, &mut self.server, &mut self.arrived, now);
        self.changed.clear();
        self.server.take_changed(&mut self.changed);
    }

    fn deliver_back(&mut self) {
        let now = self.now();
        advance([&mut self.client, &mut self.server], now);
        self.back.used = 0;
        self.server.transmit(&mut self.back, now);
        deliver(&mut self.back, &mut self.client, &mut self.arrived, now);
        self.changed.clear();
        self.client.take_changed(&mut self.changed);
        self.now_us += ROUND_US;
    }

    /// Lets the application's time pass when nothing is on the way.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.deliver_there();
            self.deliver_back();
        }
    }
}

fn advance(shards: [&mut Shard<HeapMemory>; 2], now: Instant) {
    for shard in shards {
        if shard.deadline().is_some_and(|at| at <= now) {
            shard.advance(now);
        }
    }
}

/// What the client sends. By itself, so that callgrind can count it (`--toggle-collect`), as are
/// the two below.
#[inline(never)]
fn transmit_requests(client: &mut Shard<HeapMemory>, wire: &mut Wire, now: Instant) {
    wire.used = 0;
    client.transmit(wire, now);
}

#[inline(never)]
fn input_payload(shard: &mut Shard<HeapMemory>, frame: &Frame<'_>, now: Instant) {
    shard.input(frame, now);
}

#[inline(never)]
fn input_bare(shard: &mut Shard<HeapMemory>, frame: &Frame<'_>, now: Instant) {
    shard.input(frame, now);
    // Else the compiler makes one function of the two.
    std::hint::black_box(1);
}

/// Ethernet, IPv4 and TCP with timestamps: no longer than this is a segment without payload.
const BARE: usize = 14 + 20 + 32;

fn deliver(wire: &mut Wire, to: &mut Shard<HeapMemory>, arrived: &mut [u64; 2], now: Instant) {
    if let Some(train) = &mut wire.train {
        let mut input = |frame: &Frame<'_>| to.input(frame, now);
        for burst in wire.frames[..wire.used].chunks(BURST) {
            for (bytes, checksum, segment_size) in burst {
                train.buffer()[..bytes.len()].copy_from_slice(bytes);
                train.frame(bytes.len(), *checksum, *segment_size, &mut input);
            }
            train.end_of_burst(&mut input);
        }
        return;
    }
    for (bytes, checksum, segment_size) in &wire.frames[..wire.used] {
        let frame = Frame {
            bytes,
            checksum: *checksum,
            segment_size: *segment_size,
        };
        let bare = bytes.len() <= BARE;
        arrived[usize::from(bare)] += 1;
        if bare {
            input_bare(to, &frame, now);
        } else {
            input_payload(to, &frame, now);
        }
    }
}

/// The server: accepts, answers every message, and closes after the first if `once`.
fn serve(world: &mut World, listener: SocketId, once: bool) {
    let now = world.now();
    let mut buffer = [0; 256];
    for at in 0..world.changed.len() {
        let id = world.changed[at];
        if id == listener {
            while let Ok(accepted) = world.server.accept(listener) {
                answer(&mut world.server, accepted, once, &mut buffer, now);
            }
        } else {
            answer(&mut world.server, id, once, &mut buffer, now);
        }
    }
}

fn answer(
    shard: &mut Shard<HeapMemory>,
    id: SocketId,
    once: bool,
    buffer: &mut [u8],
    now: Instant,
) {
    if shard.recv(id, buffer, now).is_ok_and(|len| len > 0) {
        shard.send(id, &MESSAGE, true).expect("room");
        if once {
            shard.close(id, now).expect("open");
        }
    }
}

fn short(count: u64, parallel: u64, ports: Ports, beside: Beside) -> u64 {
    let mut world = World::new(ports);
    world.fill(beside);
    let listener = world.listen();
    let mut started = 0;
    let mut done = 0;
    let mut buffer = [0; 256];
    while started < parallel.min(count) {
        world.connect();
        started += 1;
    }
    while done < count {
        world.deliver_there();
        serve(&mut world, listener, true);
        world.deliver_back();
        let now = world.now();
        for at in 0..world.changed.len() {
            let id = world.changed[at];
            let Some(view) = world.client.view(id) else {
                continue;
            };
            assert!(!view.flags.contains(ViewFlags::ERROR), "{view:?}");
            if view.queued == 0 && view.flags.contains(ViewFlags::CONNECTED) {
                world.client.send(id, &MESSAGE, true).expect("room");
            }
            if view.received > view.consumed {
                assert_eq!(world.client.recv(id, &mut buffer, now), Ok(64));
            }
            if view.flags.contains(ViewFlags::END_OF_STREAM) {
                world.client.close(id, now).expect("open");
                done += 1;
                if started < count {
                    world.connect();
                    started += 1;
                }
            }
        }
    }
    count
}

fn ping(count: u64, parallel: u64, ports: Ports, beside: Beside) -> u64 {
    let mut world = World::new(ports);
    world.fill(beside);
    let listener = world.listen();
    let [clients, _] = world.establish(parallel);
    for id in clients {
        world.client.send(id, &MESSAGE, true).expect("room");
    }
    world.deliver_there();
    serve(&mut world, listener, false);
    world.deliver_back();
    let mut done = 0;
    let mut buffer = [0; 256];
    while done < count {
        let now = world.now();
        for at in 0..world.changed.len() {
            let id = world.changed[at];
            if world
                .client
                .recv(id, &mut buffer, now)
                .is_ok_and(|len| len > 0)
            {
                world.client.send(id, &MESSAGE, true).expect("room");
                done += 1;
            }
        }
        world.deliver_there();
        serve(&mut world, listener, false);
        world.deliver_back();
    }
    done
}

fn bulk(megabytes: u64, ports: Ports, beside: Beside) -> u64 {
    let mut world = World::new(ports);
    world.fill(beside);
    let listener = world.listen();
    let client = world.connect();
    world.settle();
    let server = world.server.accept(listener).expect("connected");
    let total = megabytes << 20;
    let chunk = vec![0x5a; 64 << 10];
    let mut buffer = vec![0; 64 << 10];
    let (mut sent, mut received) = (0u64, 0u64);
    while received < total {
        while sent < total
            && let Ok(len) = world.client.send(
                client,
                &chunk[..chunk.len().min((total - sent) as usize)],
                true,
            )
        {
            sent += len as u64;
        }
        world.deliver_there();
        let before = received;
        let now = world.now();
        while let Ok(len) = world.server.recv(server, &mut buffer, now) {
            received += len as u64;
        }
        world.deliver_back();
        world.now_us += (received - before) / LINK_BYTES_PER_US;
    }
    let [payload, bare] = world.arrived;
    println!("{payload} segments with payload, {bare} without");
    total
}

fn idle(count: u64) -> u64 {
    let mut world = World::new(Ports {
        offload: false,
        join: false,
    });
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
        statm
            .split(' ')
            .nth(1)
            .and_then(|pages| pages.parse::<u64>().ok())
            .expect("pages")
            * 4096
    };
    let before = resident();
    let [clients, servers] = world.establish(count);
    // The lists of them are not to be counted.
    let listed = size_of_val(&clients[..]) + size_of_val(&servers[..]);
    let used = resident() - before - listed as u64;
    println!(
        "{} bytes resident for each end, {} in the socket alone",
        used / count / 2,
        Shard::<HeapMemory>::SOCKET_SIZE
    );
    let before = resident();
    for some in clients.chunks(64) {
        for &client in some {
            world.client.send(client, &MESSAGE, true).expect("room");
        }
        world.deliver_there();
        world.deliver_back();
    }
    println!(
        "{} bytes more for each connection whose message waits to be read",
        (resident() - before) / count
    );
    count
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        arguments
            .get(at)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let behind = |word| {
        let mut words = arguments.iter();
        let number = words.find_map(|text| text.strip_prefix(word)?.parse().ok());
        number.unwrap_or(0)
    };
    let beside = Beside {
        idle: behind("beside="),
        waiting: behind("waiting="),
    };
    let said = |word| arguments.iter().any(|text| text == word);
    let ports = Ports {
        offload: said("offload"),
        join: said("join"),
    };
    let start = Clock::now();
    let (operations, unit) = match arguments.first().map(String::as_str) {
        Some("short") => (
            short(number(1, 100_000), number(2, 1), ports, beside),
            "transaction",
        ),
        Some("ping") => (
            ping(number(1, 100_000), number(2, 1), ports, beside),
            "ping-pong",
        ),
        Some("bulk") => (bulk(number(1, 1_000), ports, beside), "byte"),
        Some("idle") => (idle(number(1, 100_000)), "connection"),
        _ => {
            eprintln!(
                "usage: pair short|ping|bulk|idle COUNT [PARALLEL] [offload] [join] [beside=N] [waiting=N]"
            );
            std::process::exit(2);
        }
    };
    let elapsed = start.elapsed();
    println!(
        "{operations} x {unit}: {:.4} us each, {:.3} s",
        elapsed.as_secs_f64() * 1e6 / operations as f64,
        elapsed.as_secs_f64()
    );
}
