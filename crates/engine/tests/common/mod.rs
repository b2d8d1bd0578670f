//! A small program for tests. It speaks to an engine as the shim does, and can misbehave as no shim
//! would.
#![allow(dead_code, reason = "each test file uses its part")]

#[path = "../../../../fuzz/src/bytes.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "the crate that has the file has this one, too"
)]
pub mod bytes;
pub mod stranger;

use std::cell::Cell;
use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use millrace_context::control_socket::{self, Directory};
use millrace_context::protocol::{self, Answer, Attached, Descriptors, Kind, Request};
use millrace_context::slot::unpack_ring;
use millrace_context::submission::Ask;
use millrace_context::{Address, Operation, Region, SlotRef, Status, Submission, futex};
use millrace_engine::Config;
use millrace_engine::config::{Limits, Link, MtuProbing};
use millrace_engine::topology::Topology;
use rustix::net::SocketType;

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// The variable that tells a process that it is a child, and of whom.
const CHILD: &str = "MILLRACE_TEST_CHILD";
/// The beginning of the line that a child prints.
const SAYS: &str = "child says: ";

/// An engine in this process that serves loopback alone. A test must call [`end`], since the engine
/// waits for its programs, and their process is this one.
pub fn engine(name: &str) -> std::thread::JoinHandle<()> {
    engine_of(name, None, 1)
}

/// An engine with several shards that serves loopback alone.
pub fn engine_with_shards(name: &str, shards: u16) -> std::thread::JoinHandle<()> {
    engine_of(name, None, shards)
}

/// An engine on a link; without a link it serves loopback.
pub fn engine_of(name: &str, link: Option<Link>, shards: u16) -> std::thread::JoinHandle<()> {
    start(config(name, link, shards))
}

/// An engine for loopback that writes an audit log.
pub fn audited_engine(name: &str, path: &std::path::Path) -> std::thread::JoinHandle<()> {
    start(Config {
        audit: path.to_str().map(str::to_owned),
        ..config(name, None, 1)
    })
}

fn config(name: &str, link: Option<Link>, shards: u16) -> Config {
    Config {
        name: format!("{name}-{}", std::process::id()),
        loopback: link.is_none(),
        link,
        ephemeral: false,
        shards,
        shards_max: None,
        balance: false,
        topology: Topology::Auto,
        io_threads: None,
        cores: Vec::new(),
        shard_schedule: "round-robin".to_owned(),
        io_schedule: "round-robin".to_owned(),
        follow: false,
        join: true,
        congestion: "cubic".into(),
        ecn: false,
        mtu_probing: MtuProbing::BlackHole,
        sandbox: None,
        audit: None,
        limits: Limits {
            sockets: 4096,
            memory: 64 << 20,
            pollers: 64,
            processes: 16,
        },
    }
}

fn start(config: Config) -> std::thread::JoinHandle<()> {
    let (ready, wait) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        millrace_engine::start(&config, |_| ready.send(()).unwrap()).unwrap();
    });
    wait.recv_timeout(PATIENCE).expect("the engine starts");
    thread
}

/// Where an engine of this user is.
pub fn address(name: &str) -> PathBuf {
    let (directory, _) = Directory::own().unwrap();
    directory.path_of(name)
}

/// A connection to an engine of this user.
pub fn connect(name: &str) -> OwnedFd {
    control_socket::connect(&address(name), SocketType::SEQPACKET).unwrap()
}

/// Ends an engine.
pub fn end(name: &str, thread: std::thread::JoinHandle<()>) {
    let socket = connect(&format!("{name}-{}", std::process::id()));
    Request::new(Kind::Down, [0; 16], [0; 4])
        .call(&socket, &[])
        .unwrap();
    thread.join().unwrap();
}

/// A program that lives as long as this.
pub struct Guard {
    pub connection: OwnedFd,
    pub token: [u8; 16],
}

/// A process of a program, with one context for each shard in use.
pub struct Program {
    // Held open: the program lives as long as this connection.
    guard: OwnedFd,
    control: OwnedFd,
    engine: String,
    token: [u8; 16],
    pub region: Region,
    pub attached: Attached,
    doorbells: Vec<OwnedFd>,
    /// The shard for new sockets.
    pub shard: Cell<u32>,
}

impl Program {
    /// A new program.
    pub fn attach(engine: &str) -> Program {
        Program::attach_to(format!("{engine}-{}", std::process::id()))
    }

    /// A new program of an engine that may be in another process.
    pub fn attach_to(engine: String) -> Program {
        let Guard { connection, token } = Program::guard(&engine);
        Program::process(engine, connection, token, 0)
    }

    /// The first process of a program that another process guards.
    pub fn attach_with(engine: String, token: [u8; 16]) -> Program {
        let connection = connect(&engine);
        Program::process(engine, connection, token, 0)
    }

    /// Its control connection.
    pub fn connection(&self) -> &OwnedFd {
        &self.control
    }

    /// A new program without a process.
    pub fn guard(engine: &str) -> Guard {
        let connection = connect(engine);
        let (answer, _) = Request::new(Kind::Program, [0; 16], [0; 4])
            .call(&connection, &[])
            .unwrap();
        let mut token = [0; 16];
        token[..8].copy_from_slice(&answer.words[0].to_ne_bytes());
        token[8..].copy_from_slice(&answer.words[1].to_ne_bytes());
        Guard { connection, token }
    }

    /// Another process of this program, which calls this: the one of a ticket, or of a fork that
    /// was not announced and shares the epoll sets of the slot `sharing` - 1 ([`Kind::Attach`]).
    pub fn join(&self, ticket: u64, sharing: u64) -> Program {
        let guard = connect(&self.engine);
        Program::attach_as(self.engine.clone(), guard, self.token, [ticket, sharing])
    }

    fn process(engine: String, guard: OwnedFd, token: [u8; 16], announced: u64) -> Program {
        Program::attach_as(engine, guard, token, [announced, 0])
    }

    fn attach_as(engine: String, guard: OwnedFd, token: [u8; 16], named: [u64; 2]) -> Program {
        let control = connect(&engine);
        let [ticket, sharing] = named;
        let (answer, mut descriptors) = Request::new(Kind::Attach, token, [ticket, sharing, 0, 0])
            .call(&control, &[])
            .unwrap();
        let attached = Attached::from_words(answer.words);
        let file = descriptors.take(0).unwrap();
        let region = Region::map(file.as_fd(), attached.geometry).unwrap();
        let doorbells = (0..attached.geometry.shards as usize)
            .map(|shard| descriptors.take(1 + shard).unwrap())
            .collect();
        Program {
            guard,
            control,
            engine,
            token,
            region,
            attached,
            doorbells,
            shard: Cell::new(0),
        }
    }

    /// Asks the control thread.
    pub fn control(&self, kind: Kind, arguments: [u64; 4]) -> std::io::Result<[u64; 8]> {
        let request = Request::new(kind, [0; 16], arguments);
        Ok(request.call(&self.control, &[])?.0.words)
    }

    /// Sends the control thread a message that has no answer.
    pub fn tell(&self, kind: Kind, arguments: [u64; 4]) {
        let request = Request::new(kind, [0; 16], arguments);
        request.send(&self.control, &[]).unwrap();
    }

    /// Announces a child. Returns its ticket.
    pub fn announce(&self) -> u64 {
        self.control(Kind::Fork, [0; 4]).unwrap()[0]
    }

    /// Starts the announced child, which runs the test `role` ([`Program::as_child`]). Returns what
    /// it prints.
    pub fn spawn(&self, announced: u64, role: &str) -> (std::process::Child, Vec<u64>) {
        let token = protocol::format_token(&self.token);
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", role, "--nocapture"])
            .env(CHILD, format!("{} {token} {}", self.engine, announced + 1))
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix(SAYS).map(str::to_owned))
            .expect("the child says something");
        let words = said.split(' ').map(|word| word.parse().unwrap());
        (child, words.collect())
    }

    /// The program, if this process is a child of another test process.
    pub fn as_child() -> Option<Program> {
        let words = std::env::var(CHILD).ok()?;
        let mut words = words.split(' ');
        let engine = words.next()?.to_owned();
        let token = protocol::parse_token(words.next()?)?;
        let announced = words.next()?.parse().ok()?;
        let guard = connect(&engine);
        Some(Program::process(engine, guard, token, announced))
    }

    /// Prints what [`Program::spawn`] returns, and waits to be killed.
    pub fn say(&self, words: &[u64]) {
        let words: Vec<String> = words.iter().map(u64::to_string).collect();
        println!("\n{SAYS}{}", words.join(" "));
        std::thread::sleep(PATIENCE);
    }

    /// Submits to a shard without ringing.
    pub fn leave(&self, shard: u32, submission: &Submission) {
        let (context, ring) = self.region.context(self.attached.context + shard).unwrap();
        assert!(context.room() > 0);
        context.submit(ring, submission);
    }

    pub fn call(
        &self,
        kind: Kind,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Descriptors), i32> {
        Request::new(kind, [0; 16], [0; 4])
            .call_with(&self.control, payload, descriptors)
            .map_err(|error| error.raw_os_error().unwrap_or(-1))
    }

    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        for doorbell in &self.doorbells {
            rustix::io::write(doorbell, &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// The shard that serves a socket.
    pub fn shard_of(&self, slot: SlotRef) -> u32 {
        let shared = self.region.slot(slot.index);
        let shard = shared.map_or(0, |shared| shared.engine.shard.load(Ordering::Relaxed));
        // After a program has overwritten its memory this may be any number.
        shard.min(self.attached.geometry.shards - 1)
    }

    /// The context that speaks to a socket's shard.
    fn context_of(&self, slot: SlotRef) -> u32 {
        self.attached.context + self.shard_of(slot)
    }

    /// Submits, and waits for the reply.
    pub fn ask(&self, mut submission: Submission) -> (i64, [u8; 64]) {
        submission.ask |= Ask::REPLY;
        let index = match submission.operation {
            Operation::Socket => self.attached.context + self.shard.get(),
            _ => self.context_of(submission.slot),
        };
        let (context, ring) = self.region.context(index).unwrap();
        let before = context.reply.sequence.load(Ordering::Acquire);
        let end = Instant::now() + PATIENCE;
        while context.room() == 0 {
            assert!(Instant::now() < end, "the ring stays full");
            self.ring();
            std::thread::yield_now();
        }
        context.submit(ring, &submission);
        self.ring();
        while context.reply.sequence.load(Ordering::Acquire) == before {
            assert!(Instant::now() < end, "no reply to {submission:?}");
            let _ = futex::wait(
                &context.reply.sequence,
                before,
                Some(Duration::from_millis(100)),
            );
        }
        let mut data = [0; 64];
        let (result, _) = context.reply.read(&mut data);
        (result, data)
    }

    pub fn socket(&self) -> SlotRef {
        let (result, data) = self.ask(Submission::new(
            Operation::Socket,
            SlotRef {
                index: 0,
                generation: 0,
            },
            0,
        ));
        assert_eq!(result, 0);
        SlotRef::from_bits(u64::from_ne_bytes(data[..8].try_into().unwrap()))
    }

    fn with_address(operation: Operation, slot: SlotRef, port: u16) -> Submission {
        let mut submission = Submission::new(operation, slot, 0);
        let words = Address::v4(std::net::Ipv4Addr::LOCALHOST, port).to_words();
        submission.arguments[..3].copy_from_slice(&words);
        submission
    }

    /// A listener on every address.
    pub fn listener(&self, port: u16) -> SlotRef {
        let slot = self.socket();
        let mut bind = Submission::new(Operation::Bind, slot, 0);
        let any = Address::v4(std::net::Ipv4Addr::UNSPECIFIED, port);
        bind.arguments[..3].copy_from_slice(&any.to_words());
        assert_eq!(self.ask(bind).0, 0);
        assert_eq!(self.ask(Submission::new(Operation::Listen, slot, 64)).0, 0);
        slot
    }

    pub fn wait(&self, slot: SlotRef, what: impl Fn(&millrace_context::Slot) -> bool) {
        let shared = self.region.slot(slot.index).unwrap();
        let end = Instant::now() + PATIENCE;
        while !what(shared) {
            assert!(Instant::now() < end, "waited in vain: {shared:?}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub fn connect(&self, port: u16) -> SlotRef {
        let slot = self.socket();
        assert_eq!(
            self.ask(Self::with_address(Operation::Connect, slot, port))
                .0,
            0
        );
        self.wait(slot, |shared| {
            shared.engine.status().contains(Status::CONNECTED)
        });
        slot
    }

    pub fn accept(&self, listener: SlotRef) -> SlotRef {
        let shared = self.region.slot(listener.index).unwrap();
        let taken = shared.app.consumed.load(Ordering::Relaxed);
        self.wait(listener, |shared| {
            shared.engine.received.load(Ordering::Acquire) > taken
        });
        let (at, len) = unpack_ring(shared.engine.ring.load(Ordering::Acquire)).unwrap();
        let mut word = [0; 8];
        self.region
            .read_arena(at + ((taken * 8) & (len - 1)), &mut word);
        shared.app.consumed.store(taken + 1, Ordering::Release);
        let slot = SlotRef::from_bits(u64::from_ne_bytes(word));
        assert_eq!(self.ask(Submission::new(Operation::Accepted, slot, 0)).0, 0);
        slot
    }

    /// Sends what fits now. Returns how much that was.
    pub fn send(&self, slot: SlotRef, data: &[u8]) -> usize {
        let shared = self.region.slot(slot.index).unwrap();
        let index = self.context_of(slot);
        let (context, ring) = self.region.context(index).unwrap();
        let queued = shared.app.queued.load(Ordering::Relaxed);
        let used = queued - shared.engine.acked.load(Ordering::Acquire);
        let limit = u64::from(shared.engine.send_limit.load(Ordering::Acquire));
        let len = (data.len() as u64)
            .min(limit.saturating_sub(used))
            .min(context.staging_room());
        if len == 0 || context.room() == 0 {
            self.ring();
            return 0;
        }
        let mut done = 0;
        for (at, piece) in context.staging_pieces(len) {
            self.region.stage(index, at, &data[done..done + piece]);
            done += piece;
        }
        shared.app.queued.store(queued + len, Ordering::Release);
        context.submit(ring, &Submission::new(Operation::Send, slot, len as u32));
        self.ring();
        len as usize
    }

    /// Receives what is there.
    pub fn receive(&self, slot: SlotRef) -> Vec<u8> {
        let shared = self.region.slot(slot.index).unwrap();
        let consumed = shared.app.consumed.load(Ordering::Relaxed);
        loop {
            let received = shared.engine.received.load(Ordering::Acquire);
            let word = shared.engine.ring.load(Ordering::Acquire);
            let Some((at, len)) = unpack_ring(word).filter(|_| received > consumed) else {
                return Vec::new();
            };
            let mut out = vec![0; (received - consumed) as usize];
            for (index, byte) in out.iter_mut().enumerate() {
                self.region.read_arena(
                    at + ((consumed + index as u64) & (len - 1)),
                    std::slice::from_mut(byte),
                );
            }
            if shared.engine.ring.load(Ordering::Acquire) == word {
                shared.app.consumed.store(received, Ordering::Release);
                assert_eq!(self.ask(Submission::new(Operation::Consumed, slot, 0)).0, 0);
                return out;
            }
        }
    }

    pub fn close(&self, slot: SlotRef) {
        self.ask(Submission::new(Operation::Close, slot, 0));
    }
}

/// What an engine says of itself.
pub fn describe(name: &str) -> serde_json::Value {
    let socket = connect(&format!("{name}-{}", std::process::id()));
    let request = Request::new(Kind::Describe, [0; 16], [0; 4]);
    let (_, mut descriptors) = request.call(&socket, &[]).unwrap();
    let file = std::fs::File::from(descriptors.take(0).unwrap());
    let text = std::io::read_to_string(file).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// What the engine says that programs hold: processes, sockets, receive memory, sockets on their
/// way.
pub fn holdings(name: &str) -> Vec<u64> {
    let all = describe(name);
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

/// The byte at `offset` of a test stream.
pub fn byte(offset: usize) -> u8 {
    (offset.wrapping_mul(31) >> 3) as u8 ^ offset as u8
}

/// Sends `len` bytes from one socket to another of the same program, checking each.
pub fn transfer(program: &Program, from: SlotRef, to: SlotRef, len: usize, mut step: impl FnMut()) {
    let data: Vec<u8> = (0..len).map(byte).collect();
    let (mut sent, mut got) = (0, 0);
    let end = Instant::now() + PATIENCE;
    while got < len {
        assert!(Instant::now() < end, "stuck at {sent} sent, {got} received");
        if sent < len {
            let upto = len.min(sent + 50_000);
            sent += program.send(from, &data[sent..upto]);
        }
        for byte in program.receive(to) {
            assert_eq!(byte, data[got], "at {got}");
            got += 1;
        }
        step();
    }
}
