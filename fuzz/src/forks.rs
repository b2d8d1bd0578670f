//! The bookkeeping of processes: forks that are announced, that fail, or that nobody announces,
//! images and deaths, in any order.
//!
//! A model says which sockets are open and which processes live. The engine must come to the same.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use millrace_context::protocol::{Kind, Request};
use millrace_context::submission::Ask;
use millrace_context::{Operation, SlotRef, Submission};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::bytes::Bytes;
use crate::engine::{Engine, Process, engine, kill, wait_until};
use crate::program::{Guard, Program};

/// Processes of one input.
const PROCESSES: usize = 10;
/// Sockets that are spoken of.
const SOCKETS: usize = 40;
/// Steps of one input.
const STEPS: usize = 24;
/// How long a process may take for a step.
const PATIENCE: Duration = Duration::from_secs(15);
/// Words of an order, and of what is said to it.
const WORDS: usize = 8;

/// What a process is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Open,
    Close,
    Fork,
    FailedFork,
    HiddenFork,
    Exec,
    Poller,
    PollerGone,
    Nonsense,
}

const ORDERS: [Order; 9] = [
    Order::Open,
    Order::Close,
    Order::Fork,
    Order::FailedFork,
    Order::HiddenFork,
    Order::Exec,
    Order::Poller,
    Order::PollerGone,
    Order::Nonsense,
];

/// A process, as the model has it.
struct Member {
    pid: u32,
    holds: BTreeSet<u64>,
}

/// The processes of a program, and what each holds.
struct Family {
    /// Our ends of the ways to each process there may be.
    ways: Vec<OwnedFd>,
    /// Theirs.
    ends: Vec<OwnedFd>,
    members: Vec<Option<Member>>,
    /// How many of the places for processes have been taken; none is taken twice.
    places: usize,
    sockets: Vec<u64>,
}

/// The first byte says at which engine.
pub fn run(data: &[u8]) {
    let Some((shards, data)) = data.split_first() else {
        return;
    };
    let engine = engine(usize::from(*shards));
    engine.while_it_holds(|| {
        let guard = Program::guard(&engine.full_name());
        let mut family = Family::new();
        let first = family.start(&engine, &guard);
        let mut bytes = Bytes(data);
        for _ in 0..STEPS {
            if bytes.is_empty() || family.living().is_empty() {
                break;
            }
            family.step(&mut bytes);
            family.check(&engine);
        }
        for member in family.members.iter().flatten() {
            kill(member.pid);
        }
        first.wait();
    });
}

impl Family {
    fn new() -> Family {
        let pair = || {
            let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
            socketpair(AddressFamily::UNIX, kind, flags, None).expect("descriptors are left")
        };
        let (ways, ends) = (0..PROCESSES).map(|_| pair()).unzip();
        Family {
            ways,
            ends,
            members: (0..PROCESSES).map(|_| None).collect(),
            places: 1,
            sockets: Vec::new(),
        }
    }

    /// The first process.
    fn start(&mut self, engine: &Engine, guard: &Guard) -> Process {
        let name = engine.full_name();
        let keep: Vec<i32> = self.ends.iter().map(|end| end.as_raw_fd()).collect();
        let process = Process::fork_with(&keep, || {
            Actor {
                number: 0,
                ends: &self.ends,
                program: Program::attach_with(name, guard.token),
                pollers: Vec::new(),
            }
            .run();
        });
        let _ = self.hear(0);
        self.members[0] = Some(Member {
            pid: process.pid(),
            holds: BTreeSet::new(),
        });
        process
    }

    fn living(&self) -> Vec<usize> {
        let members = self.members.iter().enumerate();
        members
            .filter_map(|(number, member)| member.as_ref().map(|_| number))
            .collect()
    }

    /// What a process says.
    fn hear(&self, number: usize) -> [u64; WORDS] {
        let mut words = [0u8; WORDS * 8];
        let end = Instant::now() + PATIENCE;
        loop {
            match rustix::net::recv(&self.ways[number], &mut words[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) if len == words.len() => break,
                Err(rustix::io::Errno::AGAIN) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                other => panic!("process {number} of the program says nothing: {other:?}"),
            }
        }
        from_bytes(&words)
    }

    /// Has a process do something; what it says.
    fn order(&self, number: usize, order: Order, words: [u64; 6]) -> [u64; WORDS] {
        let mut all = [0; WORDS];
        all[0] = ORDERS.iter().position(|other| *other == order).unwrap_or(0) as u64 + 1;
        all[1..7].copy_from_slice(&words);
        send(&self.ways[number], &all);
        self.hear(number)
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let living = self.living();
        let number = living[usize::from(bytes.u8()) % living.len()];
        let any_socket = |bytes: &mut Bytes<'_>, sockets: &[u64]| {
            let at = usize::from(bytes.u8()) % sockets.len().max(1);
            sockets.get(at).copied().unwrap_or(0)
        };
        let order = bytes.u8() % 12;
        let Some(&order) = ORDERS.get(usize::from(order)) else {
            return self.end(number);
        };
        let member = self.members[number].as_mut().expect("it lives");
        match order {
            Order::Open if self.sockets.len() < SOCKETS => {
                let said = self.order(number, order, [bytes.u8().into(); 6]);
                if said[0] == 0 {
                    self.sockets.push(said[1]);
                    self.member(number).holds.insert(said[1]);
                }
            }
            Order::Close => {
                let socket = any_socket(bytes, &self.sockets);
                member.holds.remove(&socket);
                self.order(number, order, [socket; 6]);
            }
            Order::Fork | Order::HiddenFork => {
                if self.places == PROCESSES {
                    return;
                }
                let child = self.places;
                let mut holds = member.holds.clone();
                if order == Order::HiddenFork {
                    holds = holds.into_iter().take(4).collect();
                }
                let mut words = [child as u64, 0, 0, 0, 0, 0];
                for (word, socket) in words[1..].iter_mut().zip(&holds) {
                    *word = *socket;
                }
                let said = self.order(number, order, words);
                if said[0] == 0 {
                    self.places += 1;
                    let pid = self.hear(child)[1] as u32;
                    self.members[child] = Some(Member { pid, holds });
                }
            }
            Order::Exec => {
                let keep: Vec<u64> = member.holds.iter().copied().take(6).collect();
                let keep = keep[..usize::from(bytes.u8() % 7).min(keep.len())].to_vec();
                member.holds = keep.iter().copied().collect();
                let mut words = [0; 6];
                words[..keep.len()].copy_from_slice(&keep);
                self.order(number, order, words);
            }
            Order::Nonsense => {
                let socket = any_socket(bytes, &self.sockets);
                self.order(number, order, [bytes.u64(), bytes.u64(), socket, 0, 0, 0]);
            }
            _ => {
                self.order(number, order, [bytes.u8().into(); 6]);
            }
        }
    }

    fn member(&mut self, number: usize) -> &mut Member {
        self.members[number].as_mut().expect("it lives")
    }

    fn end(&mut self, number: usize) {
        if let Some(member) = self.members[number].take() {
            kill(member.pid);
        }
    }

    /// The engine says the same as the model.
    fn check(&self, engine: &Engine) {
        let members = || self.members.iter().flatten();
        let pids: BTreeSet<u64> = members().map(|member| member.pid.into()).collect();
        let sockets: BTreeSet<u64> = members()
            .flat_map(|member| &member.holds)
            .copied()
            .collect();
        if pids.is_empty() {
            return;
        }
        wait_until(|| {
            let (mut known, mut open) = (BTreeSet::new(), 0);
            let description = crate::program::describe(engine.name);
            let shards = description["shards"].as_array().expect("a list");
            for program in shards
                .iter()
                .flat_map(|shard| shard["programs"].as_array().expect("a list"))
            {
                let its = program["pids"].as_array().expect("a list");
                let its: BTreeSet<u64> = its.iter().filter_map(serde_json::Value::as_u64).collect();
                if its.is_disjoint(&pids) {
                    continue;
                }
                open += program["sockets"].as_u64().expect("a number");
                known.extend(its.into_iter().filter(|pid| *pid > 0));
            }
            match known == pids && open == sockets.len() as u64 {
                true => Ok(()),
                false => Err(format!(
                    "processes {known:?} and {open} sockets where the model has {pids:?} and {sockets:?}"
                )),
            }
        });
    }
}

/// A process of the program.
struct Actor<'a> {
    number: usize,
    ends: &'a [OwnedFd],
    program: Program,
    pollers: Vec<u64>,
}

impl Actor<'_> {
    fn run(&mut self) {
        self.say([0, std::process::id().into()]);
        loop {
            let mut words = [0u8; WORDS * 8];
            let received =
                rustix::net::recv(&self.ends[self.number], &mut words[..], RecvFlags::empty());
            if !matches!(received, Ok((len, _)) if len == words.len()) {
                return;
            }
            // It may live as long as its program is told to do something.
            crate::engine::set_alarm();
            let words = from_bytes(&words);
            let order = ORDERS[(words[0] as usize).saturating_sub(1) % ORDERS.len()];
            let arguments = std::array::from_fn(|at| words[at + 1]);
            let said = self.act(order, arguments);
            self.say(said);
        }
    }

    fn say(&self, [outcome, word]: [u64; 2]) {
        let mut all = [0; WORDS];
        all[..2].copy_from_slice(&[outcome, word]);
        send(&self.ends[self.number], &all);
    }

    /// Does it; an errno or 0, and a word.
    fn act(&mut self, order: Order, words: [u64; 6]) -> [u64; 2] {
        match order {
            Order::Open => {
                let shards = self.program.attached.geometry.shards;
                self.program.shard.set(words[0] as u32 % shards);
                [0, self.program.socket().to_bits()]
            }
            Order::Close => {
                let socket = SlotRef::from_bits(words[0]);
                let mut close = Submission::new(Operation::Close, socket, 0);
                close.ask = Ask::REPLY;
                [self.program.ask(close).0.unsigned_abs(), 0]
            }
            Order::Fork => self.fork(words[0] as usize),
            Order::HiddenFork => self.hidden_fork(words),
            Order::FailedFork => {
                if let Ok([ticket, ..]) = self.program.control(Kind::Fork, [0; 4]) {
                    self.program.tell(Kind::Forked, [ticket, 0, 0, 0]);
                }
                [0, 0]
            }
            Order::Exec => {
                self.program = self.program.join(0, 0);
                self.holds(words, 0);
                [0, 0]
            }
            Order::Poller => {
                if let Ok([poller, ..]) = self.program.control(Kind::Poller, [0; 4]) {
                    self.pollers.push(poller);
                }
                [0, 0]
            }
            Order::PollerGone => {
                let at = words[0] as usize % self.pollers.len().max(1);
                if at < self.pollers.len() {
                    let poller = self.pollers.swap_remove(at);
                    self.program.tell(Kind::PollerGone, [poller, 0, 0, 0]);
                }
                [0, 0]
            }
            Order::Nonsense => {
                let [a, b, socket, ..] = words;
                self.program.tell(Kind::Forked, [a, b, 0, 0]);
                self.program.tell(Kind::PollerGone, [b, 0, 0, 0]);
                // Another one's socket, of which it takes no hold.
                let mut close = Submission::new(Operation::Accepted, SlotRef::from_bits(socket), 0);
                close.ask = Ask::REPLY;
                self.program.ask(close);
                [0, 0]
            }
        }
    }

    /// Holds these, and with `more` those that it did not hold, too.
    fn holds(&self, sockets: [u64; 6], more: u64) {
        let sockets = sockets.iter().filter(|socket| **socket != 0);
        let payload: Vec<u8> = sockets.flat_map(|socket| socket.to_ne_bytes()).collect();
        let request = Request::new(Kind::Holds, [0; 16], [more, 0, 0, 0]);
        request
            .call(self.program.connection(), &payload)
            .expect("it is a member");
    }

    fn fork(&mut self, child: usize) -> [u64; 2] {
        let Ok([ticket, ..]) = self.program.control(Kind::Fork, [0; 4]) else {
            return [libc::EUSERS as u64, 0];
        };
        let pid = self.child(child, ticket, 0, [0; 6]);
        let raw = Pid::from_raw(pid as i32).expect("a process");
        let pidfd = pidfd_open(raw, PidfdFlags::empty());
        let request = Request::new(Kind::Forked, [0; 16], [ticket, pid.into(), 0, 0]);
        let shown: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
        // No answer comes.
        let _ = request.send_with(self.program.connection(), &[], &shown);
        [0, 0]
    }

    fn hidden_fork(&mut self, words: [u64; 6]) -> [u64; 2] {
        let mut sockets = words;
        sockets[0] = 0;
        let sharing = u64::from(self.program.attached.process) + 1;
        self.child(words[0] as usize, 0, sharing, sockets);
        [0, 0]
    }

    /// Starts a process, which attaches as this; its number.
    fn child(&self, number: usize, ticket: u64, sharing: u64, sockets: [u64; 6]) -> u32 {
        let keep: Vec<i32> = self.ends.iter().map(AsRawFd::as_raw_fd).collect();
        Process::fork_with(&keep, || {
            let mut actor = Actor {
                number,
                ends: self.ends,
                program: self.program.join(ticket, sharing),
                pollers: Vec::new(),
            };
            if sharing > 0 {
                actor.holds(sockets, 1);
            }
            actor.run();
        })
        .pid()
    }
}

fn send(to: &OwnedFd, words: &[u64; WORDS]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    // Who does not listen has ended.
    let _ = rustix::net::send(to, &bytes, SendFlags::NOSIGNAL);
}

fn from_bytes(bytes: &[u8; WORDS * 8]) -> [u64; WORDS] {
    std::array::from_fn(|at| {
        let word = bytes[at * 8..][..8].try_into();
        word.map_or(0, u64::from_ne_bytes)
    })
}
