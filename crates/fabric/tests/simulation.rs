//! Nodes on an Ethernet that loses, reorders, doubles and damages frames, is cut, and whose hosts
//! are restarted; in virtual time, from seeds.
//!
//! Each message that is reported as sent arrives once; all that arrive are whole, and in the order
//! in which they were sent on their channel; every request ends; memory is bounded. One seed alone:
//! `MILLRACE_SEED=7 cargo test -p millrace-fabric --test simulation`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use millrace_fabric::ethernet::{Node, WINDOW};
use millrace_fabric::{BufferId, Channel, Error, Failure, Limits, Payload, PortName};
use millrace_sim::{Fate, Kind, Line, Link, Rng};
use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::Mac;

const SEEDS: u64 = 2_000;
const HOSTS: usize = 3;
const PORT: u16 = 1;
const MTU: u16 = 1500;
const HEAD: usize = 24;
const LARGE: usize = 20_000;
/// Each sender writes into parts of its own of a window.
const PART: usize = 4096;
const PARTS: usize = 8;

/// What names a message: sender and its life, receiver, channel, and the number in this order.
type MessageId = (u16, u32, u16, Channel, u32);

/// A frame on its way: when it arrives, in which order it was sent, to whom.
type Flying = Reverse<(Instant, u64, usize, Vec<u8>)>;

fn pattern(id: MessageId, len: usize) -> Vec<u8> {
    let (from, life, to, channel, number) = id;
    let mut bytes = Vec::with_capacity(len);
    let channel = match channel {
        Channel::System => 0,
        Channel::Normal(number) => 0x100 + number,
        Channel::Open(number) => 0x200 + number,
    };
    for word in [
        u32::from(from),
        life,
        u32::from(to),
        u32::from(channel),
        number,
        len as u32,
    ] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.resize_with(len, {
        let mut value = number.wrapping_mul(31).wrapping_add(life) as u8;
        move || {
            value = value.wrapping_mul(5).wrapping_add(17);
            value
        }
    });
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap())
}

struct Host {
    node: Node,
    line: Line,
    life: u32,
    /// Requests under way, by their tag.
    requests: HashMap<u64, (MessageId, Option<BufferId>)>,
    next_number: HashMap<(u16, Channel), u32>,
    /// The last number received from each life of each sender on each channel, in this life.
    last_number: HashMap<(u16, u32, Channel), u32>,
    to_send: u32,
    send_at: Instant,
}

struct World {
    rng: Rng,
    now: Instant,
    hosts: Vec<Host>,
    /// Frames on their way: when, in which order, to whom.
    flying: BinaryHeap<Flying>,
    flown: u64,
    received: HashSet<MessageId>,
    delivered: HashSet<MessageId>,
    failures: Vec<Failure>,
    tags: u64,
    /// Hosts are restarted or cut off.
    is_rough: bool,
}

fn mac(host: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, host as u8 + 1])
}

fn node(host: usize, rng: &mut Rng) -> Node {
    let mut secret = [0; 16];
    secret.fill_with(|| rng.next() as u8);
    let mut node = Node::new(host as u16, mac(host), MTU, secret);
    let limits = Limits {
        system_buffers: 8,
        ..Limits::default()
    };
    assert!(node.open(PORT, limits) && !node.open(PORT, limits));
    let port = node.port(PORT).unwrap();
    for channel in 0..2 {
        for _ in 0..2 {
            let buffer = port.register(LARGE).unwrap();
            port.post(Channel::Normal(channel), buffer).unwrap();
            assert_eq!(
                port.post(Channel::Normal(channel), buffer),
                Err(Error::BufferInUse)
            );
        }
    }
    let window = port.register(HOSTS * PARTS * PART).unwrap();
    port.offer(Channel::Open(0), window).unwrap();
    node
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let mut some = |probability: f64, most: f64| match rng.chance(probability) {
            true => most * rng.below(1000) as f64 / 1000.0,
            false => 0.0,
        };
        let link = Link {
            loss: some(0.5, 0.2),
            reorder: some(0.5, 0.3),
            duplicate: some(0.5, 0.2),
            corrupt: some(0.5, 0.1),
            burst_loss: some(0.2, 0.02),
            ..Link::default()
        };
        let is_rough = rng.chance(0.4);
        let mut hosts = Vec::new();
        for host in 0..HOSTS {
            hosts.push(Host {
                node: node(host, &mut rng),
                line: Line::new(link, rng.fork()),
                life: 1,
                requests: HashMap::new(),
                next_number: HashMap::new(),
                last_number: HashMap::new(),
                to_send: 12,
                send_at: Instant::from_micros(rng.below(2_000)),
            });
        }
        World {
            rng,
            now: Instant::from_micros(0),
            hosts,
            flying: BinaryHeap::new(),
            flown: 0,
            received: HashSet::new(),
            delivered: HashSet::new(),
            failures: Vec::new(),
            tags: 0,
            is_rough,
        }
    }

    /// Asks for a message at random.
    fn send(&mut self, from: usize) {
        let (rng, host) = (&mut self.rng, &mut self.hosts[from]);
        let to = (from + 1 + rng.below(HOSTS as u64 - 1) as usize) % HOSTS;
        let (channel, len) = match rng.below(8) {
            0..4 => (Channel::System, rng.between(HEAD as u64, 1024)),
            4 | 5 => (
                Channel::Normal(rng.below(2) as u16),
                rng.between(HEAD as u64, 4_000),
            ),
            6 => (Channel::Normal(0), rng.between(HEAD as u64, LARGE as u64)),
            _ => (Channel::Open(0), rng.between(HEAD as u64, PART as u64)),
        };
        let to_name = PortName::new(to as u16, PORT);
        let number = host.next_number.entry((to_name.node, channel)).or_default();
        let id = (from as u16, host.life, to_name.node, channel, *number);
        let offset = match channel {
            Channel::Open(_) => ((from * PARTS + *number as usize % PARTS) * PART) as u64,
            _ => 0,
        };
        *number += 1;
        let bytes = pattern(id, len as usize);
        let port = host.node.port(PORT).unwrap();
        let buffer = (bytes.len() > 64).then(|| {
            let buffer = port.register(bytes.len()).unwrap();
            port.bytes_mut(buffer).unwrap().copy_from_slice(&bytes);
            buffer
        });
        let payload = match buffer {
            Some(buffer) => Payload::Buffer(buffer, bytes.len()),
            None => Payload::Inline(&bytes),
        };
        self.tags += 1;
        let now = self.now;
        let sent = host
            .node
            .send(PORT, to_name, channel, offset, payload, self.tags, now);
        sent.unwrap();
        if let Some(buffer) = buffer {
            let port = host.node.port(PORT).unwrap();
            assert!(port.bytes(buffer).is_ok());
        }
        host.requests.insert(self.tags, (id, buffer));
        host.to_send -= 1;
        host.send_at = self.now + Duration::from_micros(self.rng.below(3_000));
    }

    /// Reads the completions of a host.
    fn read(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let port = host.node.port(PORT).unwrap();
        while let Some(message) = port.poll_received() {
            let bytes = port.message(&message).unwrap();
            let (from, life) = (message.from.node, word(bytes, 1));
            let id = (from, life, at as u16, message.channel, word(bytes, 4));
            assert_eq!(bytes, pattern(id, message.len), "{message:?} is whole");
            assert!(self.received.insert(id), "{id:?} comes once");
            let order = (from, life, message.channel);
            let before = host.last_number.insert(order, id.4);
            assert!(
                before.is_none_or(|before| before < id.4),
                "{id:?} behind {before:?}"
            );
            match message.channel {
                Channel::System => {
                    port.free(message.buffer).unwrap();
                    assert_eq!(port.free(message.buffer), Err(Error::NoSuchBuffer));
                }
                Channel::Normal(_) => port.post(message.channel, message.buffer).unwrap(),
                Channel::Open(_) => {}
            }
        }
        while let Some(sent) = port.poll_sent() {
            let (id, buffer) = host
                .requests
                .remove(&sent.tag)
                .expect("one for each request");
            if let Some(buffer) = buffer {
                port.free(buffer).unwrap();
            }
            match sent.result {
                Ok(()) => assert!(self.delivered.insert(id)),
                Err(failure) => self.failures.push(failure),
            }
        }
        let most = 2 * WINDOW * usize::from(MTU) * (HOSTS - 1);
        assert!(host.node.memory() <= most);
    }

    /// Has a host send its frames.
    fn transmit(&mut self, from: usize) {
        let (now, flown, flying) = (self.now, &mut self.flown, &mut self.flying);
        let Host { node, line, .. } = &mut self.hosts[from];
        node.transmit(now, |frame| {
            let fate = line.carry(frame.len(), Kind::Checked, now);
            let Fate::Arrives {
                at, again, corrupt, ..
            } = fate
            else {
                return true;
            };
            for at in [Some(at), again].into_iter().flatten() {
                for to in (0..HOSTS).filter(|&to| to != from) {
                    let is_his = frame[..6] == mac(to).0 || frame[..6] == Mac::BROADCAST.0;
                    if is_his {
                        let mut frame = frame.to_vec();
                        if corrupt {
                            line.damage(&mut frame, 14);
                        }
                        *flown += 1;
                        flying.push(Reverse((at, *flown, to, frame)));
                    }
                }
            }
            true
        });
    }

    /// Something that happens to hosts.
    fn mishap(&mut self) {
        let host = self.rng.below(HOSTS as u64) as usize;
        if self.rng.chance(0.5) {
            let cut = &mut self.hosts[host].line.link.cut;
            *cut = !*cut;
        } else {
            let fresh = node(host, &mut self.rng);
            let host = &mut self.hosts[host];
            host.node = fresh;
            host.life += 1;
            host.requests.clear();
            host.next_number.clear();
            host.last_number.clear();
        }
    }

    fn run(&mut self) {
        let end = Instant::from_millis(120_000);
        let mut mishaps = if self.is_rough {
            self.rng.between(1, 4)
        } else {
            0
        };
        let mut mishap_at = Instant::from_micros(self.rng.below(60_000));
        loop {
            for host in 0..HOSTS {
                while self.hosts[host].to_send > 0 && self.hosts[host].send_at <= self.now {
                    self.send(host);
                }
                self.transmit(host);
                self.read(host);
                self.transmit(host);
            }
            let is_over = |host: &Host| host.to_send == 0 && host.requests.is_empty();
            if self.hosts.iter().all(is_over) {
                return;
            }
            let mut next = self.hosts.iter().filter(|host| host.to_send > 0);
            let mut at = next.next().map_or(Instant::NEVER, |host| host.send_at);
            at = next.fold(at, |at, host| at.min(host.send_at));
            for host in &mut self.hosts {
                at = at.min(host.node.deadline());
            }
            if let Some(Reverse((arrival, ..))) = self.flying.peek() {
                at = at.min(*arrival);
            }
            if mishaps > 0 {
                at = at.min(mishap_at);
            }
            assert!(at < end, "requests that do not end at {at:?}");
            self.now = self.now.max(at);
            if mishaps > 0 && self.now >= mishap_at {
                self.mishap();
                mishaps -= 1;
                mishap_at = self.now + Duration::from_micros(self.rng.below(200_000));
                if mishaps == 0 && self.rng.chance(0.7) {
                    self.hosts
                        .iter_mut()
                        .for_each(|host| host.line.link.cut = false);
                }
            }
            while let Some(Reverse((arrival, ..))) = self.flying.peek() {
                if *arrival > self.now {
                    break;
                }
                let Some(Reverse((_, _, to, frame))) = self.flying.pop() else {
                    break;
                };
                self.hosts[to].node.input(&frame, self.now);
                self.read(to);
            }
        }
    }
}

/// Runs a seed; returns how many messages were delivered and failed.
fn check(seed: u64) -> (usize, usize) {
    let mut world = World::new(seed);
    world.run();
    for id in &world.delivered {
        assert!(world.received.contains(id), "{id:?} was reported as sent");
    }
    if !world.is_rough {
        assert_eq!(world.failures, [], "no request fails for lost frames");
        assert_eq!(world.delivered.len(), HOSTS * 12);
    }
    (world.delivered.len(), world.failures.len())
}

#[test]
fn messages_arrive_once_in_order_and_whole() {
    if let Ok(seed) = std::env::var("MILLRACE_SEED") {
        println!("{:?}", check(seed.parse().unwrap()));
        return;
    }
    let (mut delivered, mut failed) = (0, 0);
    for seed in 0..SEEDS {
        let outcome = std::panic::catch_unwind(|| check(seed));
        let Ok((more, less)) = outcome else {
            panic!("seed {seed} fails: MILLRACE_SEED={seed} runs it alone");
        };
        delivered += more;
        failed += less;
    }
    println!("{delivered} messages delivered, {failed} failed");
    assert!(failed > 0 && delivered > 30 * SEEDS as usize);
}
