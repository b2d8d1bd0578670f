//! Random programs against an engine in this process.
//!
//! They write any content into the region, submit any requests, send any control messages and
//! descriptors, fork and die in any order. The engine must neither panic nor wait, must serve
//! another program as before, and must keep nothing of them when they are gone.
//! `MILLRACE_SEEDS=0..10000` runs other seeds. A failure names its seed.

mod common;

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use common::{Program, end, engine_with_shards, transfer};
use millrace_context::layout::{CONTEXT_STRIDE, PAGE};
use millrace_context::protocol::{Kind, Request};
use millrace_context::{Address, Operation, SlotRef, Submission};

/// The variable that tells a process to run seeds: the engine, the first seed, and the end.
const CHILD: &str = "MILLRACE_TEST_SEEDS";
/// How long the engine may take to return to its former state.
const PATIENCE: Duration = Duration::from_secs(20);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }

    /// A number that may break code.
    fn word(&mut self) -> u64 {
        const EDGES: [u64; 12] = [
            0,
            1,
            63,
            64,
            1023,
            1024,
            4096,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            1 << 63,
            u64::MAX,
        ];
        match self.below(3) {
            0 => self.next(),
            1 => self.next() >> self.below(64),
            _ => EDGES[self.below(12) as usize],
        }
    }

    fn one_of<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len() as u64) as usize).copied()
    }
}

/// A random program and all that it has heard of.
struct Stranger {
    random: Random,
    program: Program,
    sockets: Vec<SlotRef>,
    tickets: Vec<u64>,
    pollers: Vec<u64>,
    shown: Vec<std::os::fd::OwnedFd>,
}

impl Stranger {
    fn new(engine: &str, seed: u64) -> Stranger {
        Stranger {
            random: Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            program: Program::attach_to(engine.to_owned()),
            sockets: Vec::new(),
            tickets: Vec::new(),
            pollers: Vec::new(),
            shown: Vec::new(),
        }
    }

    fn socket(&mut self) -> SlotRef {
        let known = self.random.one_of(&self.sockets);
        let any = SlotRef::from_bits(self.random.word());
        known.filter(|_| self.random.below(8) > 0).unwrap_or(any)
    }

    /// Submits a request; the ring may have room or not.
    fn submit(&mut self) {
        let number = 1 + self.random.below(18) as u8;
        let Some(operation) = Operation::from_number(number) else {
            return;
        };
        let slot = self.socket();
        let poller = self.random.one_of(&self.pollers).unwrap_or(0);
        let parameter = match self.random.below(3) {
            0 => poller as u32,
            1 => self.random.below(128) as u32,
            _ => self.random.word() as u32,
        };
        let mut submission = Submission::new(operation, slot, parameter);
        if operation.is_staged() {
            submission.parameter %= 8192;
        }
        let to = Address::v4(
            std::net::Ipv4Addr::LOCALHOST,
            9000 + self.random.below(8) as u16,
        );
        submission.arguments[..3].copy_from_slice(&to.to_words());
        for word in &mut submission.arguments[3..] {
            *word = self.random.word();
        }
        let shard = self
            .random
            .below(self.program.attached.geometry.shards.into()) as u32;
        let index = self.program.attached.context + shard;
        let (context, ring) = self.program.region.context(index).expect("it is its own");
        if context.room() > 0 && context.room() <= 1024 {
            context.submit(ring, &submission);
        }
        self.program.ring();
    }

    /// Opens a socket, if the engine still reads the context.
    fn open(&mut self) {
        let none = SlotRef {
            index: 0,
            generation: 0,
        };
        let mut submission = Submission::new(Operation::Socket, none, self.random.below(2) as u32);
        submission.ask = millrace_context::submission::Ask::REPLY;
        let index = self.program.attached.context;
        let (context, ring) = self.program.region.context(index).expect("it is its own");
        if context.room() == 0 || context.room() > 1024 {
            return;
        }
        context.submit(ring, &submission);
        self.program.ring();
        for _ in 0..100 {
            if context.drained() {
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let mut data = [0; 64];
        if context.reply.read(&mut data).0 == 0 {
            let word = data[..8].try_into().unwrap_or_default();
            self.sockets
                .push(SlotRef::from_bits(u64::from_ne_bytes(word)));
        }
    }

    fn scribble(&mut self) {
        let geometry = self.program.attached.geometry;
        let context =
            geometry.contexts_at() + self.program.attached.context as usize * CONTEXT_STRIDE;
        let (at, len) = match self.random.below(5) {
            0 => (0, 2 * PAGE),
            1 => (geometry.slots_at(), 16 * 256),
            2 => (context, PAGE),
            3 => (geometry.pollers_at(), 2 * geometry.poller_stride()),
            _ => (geometry.arena_at(), 1 << 16),
        };
        for _ in 0..self.random.below(16) {
            let offset = at + (self.random.below(len as u64) as usize & !7);
            let base = std::ptr::from_ref(self.program.region.header())
                .cast_mut()
                .cast::<u8>();
            // SAFETY: the address is inside the region, which is shared and holds integers. The
            // engine copes with any value.
            unsafe {
                base.add(offset)
                    .cast::<u64>()
                    .write_volatile(self.random.word());
            }
        }
    }

    /// Sends a control message, with descriptors or without.
    fn say(&mut self) {
        const KINDS: [Kind; 7] = [
            Kind::Fork,
            Kind::Forked,
            Kind::Poller,
            Kind::PollerGone,
            Kind::Holds,
            Kind::Pass,
            Kind::Claim,
        ];
        let kind = self.random.one_of(&KINDS).unwrap_or(Kind::Fork);
        let argument = match self.random.below(4) {
            0 => self.random.one_of(&self.tickets).unwrap_or(0),
            1 => self.random.one_of(&self.pollers).unwrap_or(0),
            2 => self.random.below(2),
            _ => self.random.word(),
        };
        if matches!(kind, Kind::Forked | Kind::PollerGone) {
            let second = self.random.below(2) * self.random.word();
            return self.program.tell(kind, [argument, second, 0, 0]);
        }
        if matches!(kind, Kind::Fork | Kind::Poller) {
            let said = self.program.control(kind, [argument & 1, 0, 0, 0]);
            if let Ok(words) = said {
                match kind {
                    Kind::Fork => self.tickets.push(words[0]),
                    _ => self.pollers.push(words[0]),
                }
            }
            return;
        }
        let count = self.random.below(9);
        let payload: Vec<u8> = (0..count)
            .flat_map(|_| self.socket().to_bits().to_ne_bytes())
            .collect();
        let null = std::fs::File::open("/dev/null").expect("there is one");
        let shown: Vec<_> = self.shown.iter().map(|shown| shown.as_fd()).collect();
        let descriptors = match (kind, shown.is_empty()) {
            (Kind::Claim, false) => &shown[..shown.len().min(8)],
            (Kind::Claim, true) => &[null.as_fd()][..],
            _ => &[],
        };
        if let Ok((_, mut came)) = self.program.call(kind, &payload, descriptors) {
            let new = (0..came.len()).filter_map(|at| came.take(at));
            self.shown.extend(new);
        }
        self.shown.truncate(16);
    }

    fn step(&mut self) {
        match self.random.below(8) {
            0 => self.open(),
            1..=4 => self.submit(),
            5 => self.scribble(),
            _ => self.say(),
        }
    }
}

/// What programs hold by the engine's account: processes, sockets, receive memory, sockets in
/// messages.
fn held(name: &str) -> Vec<u64> {
    let socket = common::connect(&format!("{name}-{}", std::process::id()));
    let request = Request::new(Kind::Describe, [0; 16], [0; 4]);
    let (_, mut descriptors) = request.call(&socket, &[]).unwrap();
    let file = std::fs::File::from(descriptors.take(0).unwrap());
    let text = std::io::read_to_string(file).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut held = vec![all["in_flight"]["now"].as_u64().unwrap()];
    for shard in all["shards"].as_array().unwrap() {
        let mut sums = [0; 4];
        for program in shard["programs"].as_array().unwrap() {
            sums[0] += 1;
            sums[1] += program["pids"].as_array().unwrap().len() as u64;
            sums[2] += program["sockets"].as_u64().unwrap();
            sums[3] += program["receive_memory"].as_u64().unwrap();
        }
        held.extend(sums);
    }
    held
}

/// Runs seeds in child processes, which then end, beside a program that goes on.
fn random_programs(name: &str, shards: u16, seeds: std::ops::Range<u64>) {
    const BATCH: u64 = 25;
    let thread = engine_with_shards(name, shards);
    let victim = Program::attach(name);
    let listener = victim.listener(7000);
    let client = victim.connect(7000);
    let server = victim.accept(listener);
    transfer(&victim, client, server, 100_000, || ());
    let before = held(name);
    let mut next = seeds.start;
    while next < seeds.end {
        let batch = next..seeds.end.min(next + BATCH);
        next = batch.end;
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "runs_seeds", "--nocapture"])
            .env(
                CHILD,
                format!(
                    "{name}-{} {} {}",
                    std::process::id(),
                    batch.start,
                    batch.end
                ),
            )
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let status = loop {
            transfer(&victim, client, server, 20_000, || ());
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
        };
        assert!(status.success(), "seeds {batch:?}: {status}");
        let end = Instant::now() + PATIENCE;
        while held(name) != before {
            let now = held(name);
            assert!(
                Instant::now() < end,
                "after seeds {batch:?} programs hold {now:?} where they held {before:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(
            !thread.is_finished(),
            "seeds {batch:?} have ended the engine"
        );
    }
    drop(victim);
    end(name, thread);
}

/// What the processes of [`random_programs`] do. In any other process it does nothing.
#[test]
fn runs_seeds() {
    let Ok(words) = std::env::var(CHILD) else {
        return;
    };
    let words: Vec<&str> = words.split(' ').collect();
    let seeds = words[1].parse().unwrap()..words[2].parse().unwrap();
    for seed in seeds {
        let mut stranger = Stranger::new(words[0], seed);
        for _ in 0..20 + stranger.random.below(140) {
            stranger.step();
        }
    }
}

fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(named) = std::env::var("MILLRACE_SEEDS") else {
        return usual;
    };
    let (first, end) = named.split_once("..").expect("MILLRACE_SEEDS=FIRST..END");
    first.parse().unwrap()..end.parse().unwrap()
}

#[test]
fn random_programs_leave_an_engine_as_it_was() {
    random_programs("seeds", 1, seeds(0..50));
}

#[test]
fn random_programs_leave_an_engine_of_two_shards_as_it_was() {
    random_programs("seeds-two", 2, seeds(50..100));
}
