//! A worker between programs that write what they like into the memory they share with it, and one
//! that carries a transfer.
//!
//! The worker runs in virtual time on this thread: the same input gives the same run.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use millrace_context::layout::{Geometry, SUBMISSIONS};
use millrace_context::region::create;
use millrace_context::slot::unpack_ring;
use millrace_context::submission::Ask;
use millrace_context::{Address, Operation, Region, SlotRef, Submission};
use millrace_engine::control::command::Command;
use millrace_engine::doorbell::doorbell;
use millrace_engine::programs::owners::{IN_FLIGHT, Process};
use millrace_engine::programs::program::SlotShards;
use millrace_engine::shared::arenas::Arenas;
use millrace_engine::worker::{Parts, Worker};
use millrace_shard::{Config, Owner, Shard};
use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;

use crate::bytes::Bytes;

/// What each program has.
const GEOMETRY: Geometry = Geometry {
    shards: 1,
    slots: 32,
    contexts: PROCESSES as u32,
    pollers: POLLERS as u32,
    arena: 1 << 20,
};
/// Processes of a program, each with the context of its number.
const PROCESSES: usize = 4;
const POLLERS: usize = 4;
/// Rounds in which a program is answered that asks for one thing, whatever the others ask for.
const ANSWERED: usize = 3;
/// Rounds after which a worker has nothing left to do.
const IDLE: usize = 2_000;
/// Steps of one input.
const STEPS: usize = 200;
/// Longer than the life of any socket that nobody holds, in microseconds.
const AGES: u64 = 400_000_000;
const NOBODY: SlotRef = SlotRef {
    index: 0,
    generation: 0,
};

/// A program, as it sees itself.
struct Program {
    owner: Owner,
    region: Arc<Region>,
    processes: [bool; PROCESSES],
    pollers: [Option<Arc<OwnedFd>>; POLLERS],
    sockets: Vec<SlotRef>,
    /// Of these, what a message holds.
    in_flight: Vec<SlotRef>,
}

/// The worker and its programs: the first one carries the transfer.
struct House {
    worker: Worker,
    commands: Sender<Command>,
    now: u64,
    programs: [Program; 3],
    client: SlotRef,
    server: SlotRef,
    carried: u64,
}

/// Runs one input: what a program shares with the worker, in any state and order.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut house = House::new();
    let before = house.describe();
    for step in 0..STEPS {
        if bytes.is_empty() {
            break;
        }
        house.step(&mut bytes);
        if step % 16 == 0 {
            house.carry();
            house.check_limits();
        }
    }
    house.carry();
    house.check_limits();
    house.clear();
    house.carry();
    let after = house.describe();
    assert_eq!(after["sockets"], before["sockets"], "{after}");
    assert_eq!(after["programs"], before["programs"], "{after}");
}

impl House {
    fn new() -> House {
        let mut config = Config::new(Ipv4Addr::LOCALHOST, 8, Mac([2, 0, 0, 0, 0, 1]), [7; 32]);
        config.loopback = true;
        let (commands, receiver) = channel();
        let shard = Shard::new(config, Arenas::new(0), Instant::from_micros(0));
        let parts = Parts::alone(shard, receiver).expect("descriptors are left");
        let mut house = House {
            worker: Worker::new(parts).expect("descriptors are left"),
            commands,
            now: 0,
            programs: std::array::from_fn(|number| Program::new(number as u32)),
            client: NOBODY,
            server: NOBODY,
            carried: 0,
        };
        for number in 0..house.programs.len() {
            house.welcome(number);
        }
        house.connect();
        house.carry();
        for number in 1..house.programs.len() {
            house.dismiss(number);
        }
        house.settle();
        house
    }

    /// One round.
    fn round(&mut self) -> bool {
        self.now += 1;
        self.worker.round(Instant::from_micros(self.now))
    }

    /// Rounds until there is nothing to do.
    fn settle(&mut self) {
        let busy = (0..IDLE).all(|_| self.round());
        assert!(!busy, "still busy after {IDLE} rounds");
    }

    fn order(&mut self, command: Command) {
        self.commands.send(command).expect("the worker is here");
    }

    /// Orders something that is answered.
    fn ask<T>(&mut self, command: impl FnOnce(Sender<T>) -> Command) -> T {
        let (done, answer): (_, Receiver<T>) = channel();
        self.order(command(done));
        for _ in 0..IDLE {
            self.round();
            if let Ok(answer) = answer.try_recv() {
                return answer;
            }
        }
        panic!("a command is not carried out in {IDLE} rounds");
    }

    fn describe(&mut self) -> serde_json::Value {
        let text = self.ask(|reply| Command::Describe { reply });
        serde_json::from_str(&text).expect("it is JSON")
    }

    /// A new program of this number, with its first process.
    fn welcome(&mut self, number: usize) {
        self.programs[number] = Program::new(number as u32);
        let program = &self.programs[number];
        let (owner, region) = (program.owner, program.region.clone());
        let slot_shards = Arc::new(SlotShards::new(&region));
        self.order(Command::AddProgram {
            owner,
            region,
            slot_shards,
            doorbell: doorbell().expect("descriptors are left"),
        });
        self.attach(number, 0);
    }

    /// A process attaches, or is another image now.
    fn attach(&mut self, number: usize, process: Process) {
        let owner = self.programs[number].owner;
        self.programs[number].processes[usize::from(process)] = true;
        self.ask(|done| Command::AddProcess {
            owner,
            process,
            pid: 1000 + u32::from(process),
            contexts: vec![process.into()],
            done,
        });
    }

    /// A program is over.
    fn dismiss(&mut self, number: usize) {
        let program = &mut self.programs[number];
        let (owner, in_flight) = (program.owner, std::mem::take(&mut program.in_flight));
        let processes = std::mem::take(&mut program.processes);
        let pollers = std::mem::take(&mut program.pollers);
        for socket in in_flight {
            self.order(Command::Arrived { owner, socket });
        }
        for process in (0..).zip(processes).filter(|(_, lives)| *lives) {
            let process = process.0;
            self.order(Command::ProcessGone { owner, process });
        }
        for poller in (0..).zip(pollers).filter(|(_, made)| made.is_some()) {
            let poller = poller.0;
            self.order(Command::RemovePoller { owner, poller });
        }
        self.ask(|done| Command::LeaveToSharers { owner, done });
        self.order(Command::RemoveProgram { owner });
    }

    /// All programs but the first are over, and so is all that they left.
    fn clear(&mut self) {
        for number in 1..self.programs.len() {
            self.dismiss(number);
        }
        self.settle();
        for _ in 0..40 {
            self.now += AGES / 40;
            self.settle();
        }
    }

    /// What the first program asks for is answered soon.
    fn request(&mut self, submission: Submission) -> (i64, [u8; 64]) {
        let region = self.programs[0].region.clone();
        let (context, ring) = region.context(0).expect("there is one");
        let before = context
            .reply
            .sequence
            .load(std::sync::atomic::Ordering::Acquire);
        let ask = submission.ask | Ask::REPLY;
        context.submit(ring, &Submission { ask, ..submission });
        for _ in 0..ANSWERED {
            self.round();
            if context
                .reply
                .sequence
                .load(std::sync::atomic::Ordering::Acquire)
                != before
            {
                let mut data = [0; 64];
                let (result, _) = context.reply.read(&mut data);
                return (result, data);
            }
        }
        panic!("no answer to {submission:?} within {ANSWERED} rounds");
    }

    fn open(&mut self) -> SlotRef {
        let (result, data) = self.request(Submission::new(Operation::Socket, NOBODY, 0));
        assert_eq!(result, 0);
        SlotRef::from_bits(word(&data))
    }

    /// The first program connects to itself.
    fn connect(&mut self) {
        let listener = self.open();
        let to = Address::v4(Ipv4Addr::LOCALHOST, 7000).to_words();
        let mut bind = Submission::new(Operation::Bind, listener, 0);
        bind.arguments[..3].copy_from_slice(&to);
        assert_eq!(self.request(bind).0, 0);
        let listen = Submission::new(Operation::Listen, listener, 4);
        assert_eq!(self.request(listen).0, 0);
        self.client = self.open();
        let mut connect = Submission::new(Operation::Connect, self.client, 0);
        connect.arguments[..3].copy_from_slice(&to);
        assert_eq!(self.request(connect).0, 0);
        self.settle();
        let region = self.programs[0].region.clone();
        let slot = region.slot(listener.index).expect("it is open");
        let ring = slot.engine.ring.load(std::sync::atomic::Ordering::Acquire);
        let (at, _) = unpack_ring(ring).expect("it listens");
        let mut data = [0; 8];
        region.read_arena(at, &mut data);
        slot.app
            .consumed
            .store(1, std::sync::atomic::Ordering::Release);
        self.server = SlotRef::from_bits(u64::from_ne_bytes(data));
        let accepted = Submission::new(Operation::Accepted, self.server, 0);
        assert_eq!(self.request(accepted).0, 0);
        // Others would connect to it, and wait in its queue beyond their end.
        let close = Submission::new(Operation::Close, listener, 0);
        assert_eq!(self.request(close).0, 0);
    }

    /// The first program sends itself a few bytes, which come as they were.
    fn carry(&mut self) {
        use std::sync::atomic::Ordering::{Acquire, Release};
        let region = self.programs[0].region.clone();
        let (context, _) = region.context(0).expect("there is one");
        let sent: Vec<u8> = (0..100)
            .map(|at| (self.carried + at) as u8 ^ 0x5a)
            .collect();
        let mut done = 0;
        for (at, len) in context.staging_pieces(sent.len() as u64) {
            region.stage(0, at, &sent[done..done + len]);
            done += len;
        }
        let (from, to) = (self.client.index, self.server.index);
        let (from, to) = (
            region.slot(from).expect("open"),
            region.slot(to).expect("open"),
        );
        self.carried += sent.len() as u64;
        from.app.queued.store(self.carried, Release);
        let send = Submission::new(Operation::Send, self.client, sent.len() as u32);
        assert_eq!(self.request(send).0, 0);
        for _ in 0..IDLE {
            if to.engine.received.load(Acquire) == self.carried {
                break;
            }
            self.now += 1000;
            self.round();
        }
        assert_eq!(
            to.engine.received.load(Acquire),
            self.carried,
            "all of it comes"
        );
        let start = self.carried - sent.len() as u64;
        let (at, len) = unpack_ring(to.engine.ring.load(Acquire)).expect("it has bytes");
        for (offset, byte) in (start..).zip(&sent) {
            let mut came = [0];
            region.read_arena(at + (offset & (len - 1)), &mut came);
            assert_eq!(came[0], *byte, "at {offset}");
        }
        to.app.consumed.store(self.carried, Release);
        let consumed = Submission::new(Operation::Consumed, self.server, 0);
        assert_eq!(self.request(consumed).0, 0);
    }

    /// No program holds more than it may.
    fn check_limits(&mut self) {
        let said = self.describe();
        for program in said["programs"].as_array().expect("a list") {
            let number = |name: &str| program[name].as_u64().expect("a number");
            assert!(number("sockets") <= GEOMETRY.slots.into(), "{program}");
            assert!(number("receive_memory") <= GEOMETRY.arena, "{program}");
            let pids = program["pids"].as_array().expect("a list");
            assert!(pids.len() <= PROCESSES, "{program}");
        }
    }

    /// What one of the other programs does next, or the control thread on its behalf.
    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        let number = 1 + usize::from(what >> 7);
        if self.programs[number].processes == [false; PROCESSES] {
            self.dismiss_and_welcome(number);
        }
        match what % 16 {
            0..=6 => self.programs[number].submit(bytes),
            7 => self.programs[number].flood(bytes),
            8..=9 => self.programs[number].scribble(bytes),
            10 => self.open_for(number, bytes),
            11 => self.fork_or_exec(number, bytes),
            12 => self.end_process(number, bytes),
            13 => self.change_poller(number, bytes),
            14 => self.pass(number, bytes),
            _ => {
                self.now += u64::from(bytes.u32() % 4_000_000);
                self.settle();
            }
        }
        self.round();
    }

    fn dismiss_and_welcome(&mut self, number: usize) {
        self.dismiss(number);
        self.welcome(number);
    }

    /// A new socket, if the worker still listens to the context.
    fn open_for(&mut self, number: usize, bytes: &mut Bytes<'_>) {
        let kind = u32::from(bytes.u8() % 2);
        let mut submission = Submission::new(Operation::Socket, NOBODY, kind);
        submission.ask = Ask::REPLY;
        let region = self.programs[number].region.clone();
        let (context, ring) = region.context(0).expect("there is one");
        if context.room() == 0 || context.room() > SUBMISSIONS {
            return;
        }
        context.submit(ring, &submission);
        for _ in 0..ANSWERED {
            self.round();
        }
        let mut data = [0; 64];
        if context.reply.read(&mut data).0 == 0 {
            let program = &mut self.programs[number];
            program.sockets.push(SlotRef::from_bits(word(&data)));
        }
    }

    fn fork_or_exec(&mut self, number: usize, bytes: &mut Bytes<'_>) {
        let process = Process::from(bytes.u8() % PROCESSES as u8);
        let program = &self.programs[number];
        let (owner, lives) = (program.owner, program.processes);
        let parent = (0..).zip(lives).find(|(_, lives)| *lives);
        let parent: Process = parent.expect("one lives").0;
        if !lives[usize::from(process)] {
            self.ask(|done| Command::Fork {
                owner,
                parent,
                child: process,
                done,
            });
            self.attach(number, process);
            return;
        }
        self.attach(number, process);
        let count = bytes.u8() % 4;
        let program = &self.programs[number];
        let sockets = (0..count).map(|_| program.socket(bytes)).collect();
        let more = bytes.u8() % 2 == 1;
        self.ask(|done| Command::Holds {
            owner,
            process,
            sockets,
            more,
            done,
        });
    }

    fn end_process(&mut self, number: usize, bytes: &mut Bytes<'_>) {
        let process = bytes.u8() % PROCESSES as u8;
        let program = &mut self.programs[number];
        if std::mem::take(&mut program.processes[usize::from(process)]) {
            let (owner, process) = (program.owner, process.into());
            self.order(Command::ProcessGone { owner, process });
        }
    }

    fn change_poller(&mut self, number: usize, bytes: &mut Bytes<'_>) {
        let poller = bytes.u8() % POLLERS as u8;
        let program = &mut self.programs[number];
        let (owner, place) = (program.owner, &mut program.pollers[usize::from(poller)]);
        let poller = poller.into();
        if place.take().is_some() {
            return self.order(Command::RemovePoller { owner, poller });
        }
        let made = doorbell().expect("descriptors are left");
        *place = Some(made.clone());
        self.ask(|done| Command::AddPoller {
            owner,
            poller,
            doorbell: made,
            done,
        });
    }

    /// A socket goes into a message, and out of it to the other program or to nobody.
    fn pass(&mut self, number: usize, bytes: &mut Bytes<'_>) {
        let program = &self.programs[number];
        let (from, socket) = (program.owner, program.socket(bytes));
        let process = (0..).zip(program.processes).find(|(_, lives)| *lives);
        let process: Process = process.expect("one lives").0;
        let shared = self.ask(|done| Command::Share {
            owner: from,
            sockets: vec![socket],
            from: process,
            to: IN_FLIGHT,
            done,
        });
        if shared == [true] {
            self.programs[number].in_flight.push(socket);
        }
        if bytes.u8() < 128 {
            return;
        }
        let Some(socket) = self.programs[number].in_flight.pop() else {
            return;
        };
        let other = &self.programs[3 - number];
        let lives = (0..).zip(other.processes).find(|(_, lives)| *lives);
        if let Some((process, _)) = lives {
            let to = other.owner;
            let moved = self.ask(|done| Command::Transfer {
                from,
                socket,
                to,
                process,
                done,
            });
            if let Ok(socket) = moved {
                self.programs[3 - number].sockets.push(socket);
            }
        }
        self.order(Command::Arrived {
            owner: from,
            socket,
        });
    }
}

impl Program {
    fn new(number: u32) -> Program {
        let file = create(&GEOMETRY).expect("a region can be made");
        let region = Region::map(file.as_fd(), GEOMETRY).expect("and mapped");
        Program {
            owner: Owner(number),
            region: Arc::new(region),
            processes: [false; PROCESSES],
            pollers: [const { None }; POLLERS],
            sockets: Vec::new(),
            in_flight: Vec::new(),
        }
    }

    /// One of its sockets, or anything.
    fn socket(&self, bytes: &mut Bytes<'_>) -> SlotRef {
        let which = bytes.u8();
        match self.sockets.len() {
            0 => SlotRef::from_bits(bytes.u64()),
            _ if which == 0xff => SlotRef::from_bits(bytes.u64()),
            len => self.sockets[usize::from(which) % len],
        }
    }

    fn submission(&self, bytes: &mut Bytes<'_>) -> Option<Submission> {
        let operation = Operation::from_number(1 + bytes.u8() % 20)?;
        let slot = self.socket(bytes);
        let parameter = match bytes.u8() % 4 {
            0 => bytes.u32(),
            1 => u32::from(bytes.u16()),
            _ => u32::from(bytes.u8()),
        };
        let mut submission = Submission::new(operation, slot, parameter);
        submission.ask = Ask::from_bits_truncate(bytes.u8());
        let port = 7000 + u16::from(bytes.u8() % 4);
        let to = Address::v4(Ipv4Addr::LOCALHOST, port).to_words();
        submission.arguments[..3].copy_from_slice(&to);
        if bytes.u8() < 64 {
            for word in &mut submission.arguments {
                *word = bytes.u64();
            }
        }
        Some(submission)
    }

    /// A few submissions, by the context of any of its processes.
    fn submit(&self, bytes: &mut Bytes<'_>) {
        let context = u32::from(bytes.u8() % PROCESSES as u8);
        let (context, ring) = self.region.context(context).expect("there are as many");
        for _ in 0..=bytes.u8() % 4 {
            let submission = self.submission(bytes);
            let has_room = (1..=SUBMISSIONS).contains(&context.room());
            if let Some(submission) = submission.filter(|_| has_room) {
                context.submit(ring, &submission);
            }
        }
    }

    /// Every ring is as full as can be.
    fn flood(&self, bytes: &mut Bytes<'_>) {
        let Some(submission) = self.submission(bytes) else {
            return;
        };
        for context in 0..GEOMETRY.contexts {
            let (context, ring) = self.region.context(context).expect("there are as many");
            for _ in 0..SUBMISSIONS {
                if (1..=SUBMISSIONS).contains(&context.room()) {
                    context.submit(ring, &submission);
                }
            }
        }
    }

    /// Words anywhere in the region, near what the worker reads.
    fn scribble(&self, bytes: &mut Bytes<'_>) {
        let base = std::ptr::from_ref(self.region.header())
            .cast_mut()
            .cast::<u8>();
        for _ in 0..=bytes.u8() % 8 {
            let (at, room) = match bytes.u8() % 5 {
                0 => (0, 8192),
                1 => (GEOMETRY.slots_at(), GEOMETRY.slots as usize * 256),
                2 => (GEOMETRY.contexts_at(), 4096 + 64 * 64),
                3 => (GEOMETRY.pollers_at(), 2 * GEOMETRY.poller_stride()),
                _ => (GEOMETRY.arena_at(), 1 << 16),
            };
            let at = at + (bytes.u16() as usize % (room / 8)) * 8;
            let word = match bytes.u8() % 3 {
                0 => bytes.u64(),
                1 => u64::from(bytes.u8()),
                _ => u64::from(bytes.u32()),
            };
            // SAFETY: inside the region, which holds integers only, and which nobody else has.
            unsafe { base.add(at).cast::<u64>().write_volatile(word) };
        }
    }
}

/// The first word of a reply's data.
fn word(data: &[u8; 64]) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|at| data[at]))
}
