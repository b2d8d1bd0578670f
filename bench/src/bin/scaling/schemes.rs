//! The two schemes, of the same stack: connections divided among cores, and connections that every
//! core serves under locks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use millrace_steer::{Groups, Hash, Policy, Side, flow_of, virtual_queues};
use millrace_tcp::Instant;

use crate::client::FRAME_MAX;
use crate::server::Server;

/// What one core does.
pub trait Core: Send {
    /// One round of it. Returns how many messages were answered.
    fn turn(&mut self, now: Instant) -> u64;
}

/// How the work is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scheme {
    /// Ports and shards joined by virtual queues.
    Decoupled,
    /// All cores take from one queue; locks on the queue and on each connection.
    Concurrent,
}

/// What is played.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How the work is divided.
    pub scheme: Scheme,
    /// Cores that run the stack.
    pub shards: usize,
    /// Ports, of the decoupled scheme.
    pub ports: usize,
    /// Whether ports have cores of their own, or the first shards' cores serve them too.
    pub apart: bool,
    /// Connections for each core that runs the stack.
    pub connections: usize,
    /// Bytes of a message.
    pub message: usize,
}

/// Frames that a core takes at a time.
const BURST: usize = 32;
/// Bytes of each ring: more than all connections have on the way.
const RING: usize = 1 << 19;
/// How often a lock is looked at before another thread is let have the core.
const LOOKS: u32 = 1000;

const HASH: Hash = Hash::Keyed([
    0x1234_5678_9abc_def1,
    0xfeed_beef_0bad_cafe,
    0x0123_4567_89ab_cdef,
]);

fn tag(frame: &[u8]) -> u32 {
    flow_of(frame).map_or(0, |flow| HASH.tag(&flow))
}

/// The cores of a plan, the shards' first; each works as one thread of its own, or they take turns
/// in one.
pub fn cores(plan: &Plan) -> Vec<Box<dyn Core>> {
    match plan.scheme {
        Scheme::Decoupled => decoupled(plan),
        Scheme::Concurrent => concurrent(plan),
    }
}

/// Clients' ports, so many for each group of tags: every group has the same to do.
fn ports_of_groups(groups: usize, each: usize, message: usize) -> Vec<Vec<u16>> {
    let mut of_group = vec![Vec::with_capacity(each); groups];
    let mut missing = groups * each;
    let mut frame = [0; FRAME_MAX];
    for port in 1024..u16::MAX {
        if missing == 0 {
            break;
        }
        let len = crate::client::Client::new(port, message).open(&mut frame);
        let group: &mut Vec<u16> = &mut of_group[tag(&frame[..len]) as usize % groups];
        if group.len() < each {
            group.push(port);
            missing -= 1;
        }
    }
    assert_eq!(
        missing, 0,
        "fewer connections: one address has not enough ports"
    );
    of_group
}

/// A shard's core: its part of the connections, and a queue from and to each port.
struct ShardCore {
    /// Its clients' ports, and bytes of their messages.
    clients: Vec<u16>,
    message: usize,
    /// Made by the thread that works with it, in memory of that thread's own.
    server: Option<Box<Server>>,
    side: Side,
}

/// A port's core: what shards send by it comes in again, and goes to the shard whose flow it is.
struct PortCore {
    side: Side,
    groups: Groups,
}

/// A core that is both.
struct Both(PortCore, ShardCore);

fn decoupled(plan: &Plan) -> Vec<Box<dyn Core>> {
    let policy = Policy::RoundRobin;
    let (ports, shards) = virtual_queues(plan.ports, plan.shards, RING, &policy, &policy);
    let of_group = ports_of_groups(plan.shards, plan.connections, plan.message);
    let mut ports: VecDeque<PortCore> = ports
        .into_iter()
        .map(|side| PortCore {
            side,
            groups: Groups::even(plan.shards as u16),
        })
        .collect();
    let mut cores: Vec<Box<dyn Core>> = Vec::new();
    for (side, clients) in shards.into_iter().zip(of_group) {
        let shard = ShardCore {
            clients,
            message: plan.message,
            server: None,
            side,
        };
        let port = if plan.apart { None } else { ports.pop_front() };
        cores.push(match port {
            Some(port) => Box::new(Both(port, shard)),
            None => Box::new(shard),
        });
    }
    for port in ports {
        cores.push(Box::new(port));
    }
    cores
}

impl Core for ShardCore {
    fn turn(&mut self, now: Instant) -> u64 {
        let Side { inbound, outbound } = &mut self.side;
        // Which port a flow leaves by has nothing to do with which group it is in.
        let ports = outbound.len();
        let mut emit = |frame: &[u8]| {
            let port = if ports == 1 {
                0
            } else {
                (tag(frame) >> 16) as usize % ports
            };
            assert!(
                outbound.write(port, 0, [frame]),
                "the ring has room for all"
            );
        };
        let server = self.server.get_or_insert_with(|| {
            let mut server = Box::new(Server::new(&self.clients, self.message));
            server.open(&mut emit);
            server
        });
        let mut taken = 0;
        inbound.look();
        while taken < BURST
            && let Some((_, _, frame)) = inbound.next()
        {
            server.input(frame, now);
            taken += 1;
        }
        let answered = if taken > 0 {
            server.serve(now, &mut emit)
        } else {
            0
        };
        outbound.commit();
        answered
    }
}

impl Core for PortCore {
    fn turn(&mut self, _: Instant) -> u64 {
        let Side { inbound, outbound } = &mut self.side;
        // As many as the shards take.
        let burst = BURST * outbound.len();
        let mut taken = 0;
        inbound.look();
        while taken < burst
            && let Some((_, _, frame)) = inbound.next()
        {
            let group = self.groups.of(tag(frame));
            assert!(
                outbound.write(group.into(), 0, [frame]),
                "the ring has room for all"
            );
            taken += 1;
        }
        outbound.commit();
        0
    }
}

impl Core for Both {
    fn turn(&mut self, now: Instant) -> u64 {
        self.0.turn(now);
        self.1.turn(now)
    }
}

/// A frame in memory of its own, so that little is done under the queue's lock.
type Buffer = Box<(usize, [u8; FRAME_MAX])>;

/// What all cores share: the queue, and the connections by their tags.
struct Shared {
    queue: Mutex<VecDeque<Buffer>>,
    connections: Vec<Mutex<Server>>,
}

/// A core that serves whatever comes.
struct AnyCore {
    shared: Arc<Shared>,
    taken: Vec<Buffer>,
}

fn concurrent(plan: &Plan) -> Vec<Box<dyn Core>> {
    let total = plan.shards * plan.connections;
    let mut queue = VecDeque::with_capacity(total);
    let connections = ports_of_groups(total, 1, plan.message)
        .into_iter()
        .map(|port| {
            let mut server = Server::new(&port, plan.message);
            server.open(|frame| {
                let mut buffer: Buffer = Box::new((0, [0; FRAME_MAX]));
                put(&mut buffer, frame);
                queue.push_back(buffer);
            });
            Mutex::new(server)
        })
        .collect();
    let shared = Arc::new(Shared {
        queue: Mutex::new(queue),
        connections,
    });
    let core = |_| -> Box<dyn Core> {
        Box::new(AnyCore {
            shared: Arc::clone(&shared),
            taken: Vec::with_capacity(BURST),
        })
    };
    (0..plan.shards).map(core).collect()
}

fn put(buffer: &mut Buffer, frame: &[u8]) {
    buffer.0 = frame.len();
    buffer.1[..frame.len()].copy_from_slice(frame);
}

impl Core for AnyCore {
    fn turn(&mut self, now: Instant) -> u64 {
        {
            let mut queue = acquire(&self.shared.queue);
            let many = queue.len().min(BURST);
            self.taken.extend(queue.drain(..many));
        }
        let mut answered = 0;
        for buffer in &mut self.taken {
            let connections = &self.shared.connections;
            let frame = &buffer.1[..buffer.0];
            let mut server = acquire(&connections[tag(frame) as usize % connections.len()]);
            server.input(frame, now);
            // One frame of a connection leads to one at most.
            answered += server.serve(now, |frame| put(buffer, frame));
        }
        if !self.taken.is_empty() {
            acquire(&self.shared.queue).extend(self.taken.drain(..));
        }
        answered
    }
}

/// Takes a lock as cores that do nothing else do: by looking until it is free.
fn acquire<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    let mut looks = 0;
    loop {
        match lock.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(_)) => panic!("another core has failed"),
        }
        looks += 1;
        if looks % LOOKS == 0 {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// A line of memory that says which core plays by being written to.
#[repr(align(64))]
#[derive(Default)]
struct Mark(AtomicU8);

static MARKS: [Mark; 1 + CORES_MAX] = [const { Mark(AtomicU8::new(0)) }; 1 + CORES_MAX];

/// The most cores of a plan.
pub const CORES_MAX: usize = 64;

/// Where marks are in memory, and how far they are apart: the first is nobody's.
pub fn marks() -> (usize, usize) {
    (MARKS.as_ptr().addr(), size_of::<Mark>())
}

/// How often the cores take turns.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Until every connection is at work.
    pub warm_up: u64,
    /// Those that are counted.
    pub counted: u64,
}

/// Has the cores, each a thread, take turns, so that nothing is left to chance. Returns how many
/// messages were answered in the rounds that are counted.
pub fn play(cores: Vec<Box<dyn Core>>, rounds: Rounds) -> u64 {
    let many = cores.len() as u64;
    let end = (rounds.warm_up + rounds.counted) * many;
    // How many turns were taken.
    let turn = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        let work = |(at, mut core): (usize, Box<dyn Core>)| {
            scope.spawn(move || {
                let here = 0u8;
                println!("stack {}", (&raw const here).addr());
                let mut answered = 0;
                for mine in (at as u64..end).step_by(many as usize) {
                    // By looking, so that who waits writes to nothing but its stack.
                    while turn.load(Ordering::Acquire) != mine {
                        std::thread::yield_now();
                    }
                    let round = mine / many;
                    let now = Instant::from_micros(1_000_000 + round * 10);
                    if round < rounds.warm_up {
                        core.turn(now);
                    } else {
                        answered += counted_turn(&mut *core, at, now);
                    }
                    turn.store(mine + 1, Ordering::Release);
                }
                answered
            })
        };
        let threads: Vec<_> = cores.into_iter().enumerate().map(work).collect();
        let answered = threads
            .into_iter()
            .map(|thread| thread.join().expect("no core has failed"));
        answered.sum()
    })
}

/// By itself, so that callgrind can count it.
#[inline(never)]
fn counted_turn(core: &mut dyn Core, at: usize, now: Instant) -> u64 {
    MARKS[1 + at].0.store(1, Ordering::Relaxed);
    let answered = core.turn(now);
    MARKS[0].0.store(1, Ordering::Relaxed);
    answered
}
