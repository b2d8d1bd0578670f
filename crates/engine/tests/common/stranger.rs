//! A program that does what any bytes say: submissions, any content of its region, control messages
//! and descriptors.

use std::os::fd::AsFd as _;
use std::time::Duration;

use millrace_context::layout::{CONTEXT_STRIDE, PAGE};
use millrace_context::protocol::Kind;
use millrace_context::{Address, Operation, SlotRef, Submission};

use super::Program;
use super::bytes::Bytes;

/// What a random program has heard of.
pub struct Stranger<'a> {
    bytes: Bytes<'a>,
    program: Program,
    sockets: Vec<SlotRef>,
    tickets: Vec<u64>,
    pollers: Vec<u64>,
    shown: Vec<std::os::fd::OwnedFd>,
}

impl<'a> Stranger<'a> {
    /// A new program of an engine.
    pub fn new(engine: &str, data: &'a [u8]) -> Stranger<'a> {
        Stranger {
            bytes: Bytes(data),
            program: Program::attach_to(engine.to_owned()),
            sockets: Vec::new(),
            tickets: Vec::new(),
            pollers: Vec::new(),
            shown: Vec::new(),
        }
    }

    /// Does what the bytes say, until there are none left.
    pub fn run(&mut self) {
        while !self.bytes.is_empty() {
            self.step();
        }
    }

    /// Says that no child is to come that was announced: the engine waits for one for seconds.
    pub fn have_no_children(&self) {
        for ticket in &self.tickets {
            self.program.tell(Kind::Forked, [*ticket, 0, 0, 0]);
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        u64::from(self.bytes.u16()) % limit.max(1)
    }

    /// A number that code may stumble over.
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
        match self.bytes.u8() % 3 {
            0 => self.bytes.u64(),
            1 => self.bytes.u64() >> (self.bytes.u8() % 64),
            _ => EDGES[usize::from(self.bytes.u8() % 12)],
        }
    }

    fn one_of<T: Copy>(&mut self, from: impl Fn(&Self) -> &[T]) -> Option<T> {
        let at = usize::from(self.bytes.u8());
        let from = from(self);
        from.get(at % from.len().max(1)).copied()
    }

    fn socket(&mut self) -> SlotRef {
        let known = self.one_of(|this| &this.sockets);
        match known.filter(|_| self.bytes.u8() > 31) {
            Some(known) => known,
            None => SlotRef::from_bits(self.word()),
        }
    }

    /// A submission; its context may have room or not.
    fn submit(&mut self) {
        let number = 1 + self.below(19) as u8;
        let Some(operation) = Operation::from_number(number) else {
            return;
        };
        let slot = self.socket();
        let poller = self.one_of(|this| &this.pollers).unwrap_or(0);
        let parameter = match self.below(3) {
            0 => poller as u32,
            1 => self.below(128) as u32,
            _ => self.word() as u32,
        };
        let mut submission = Submission::new(operation, slot, parameter);
        if operation.is_staged() {
            submission.parameter %= 8192;
        }
        let to = Address::v4(std::net::Ipv4Addr::LOCALHOST, 9000 + self.below(8) as u16);
        submission.arguments[..3].copy_from_slice(&to.to_words());
        for word in &mut submission.arguments[3..] {
            *word = self.word();
        }
        let shard = self.below(self.program.attached.geometry.shards.into()) as u32;
        let index = self.program.attached.context + shard;
        let (context, ring) = self.program.region.context(index).expect("it is its own");
        if context.room() > 0 && context.room() <= 1024 {
            context.submit(ring, &submission);
        }
        self.program.ring();
    }

    /// A new socket, if the engine still listens to the context.
    fn open(&mut self) {
        let none = SlotRef {
            index: 0,
            generation: 0,
        };
        let mut submission = Submission::new(Operation::Socket, none, self.below(2) as u32);
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
        let (at, len) = match self.below(5) {
            0 => (0, 2 * PAGE),
            1 => (geometry.slots_at(), 16 * 256),
            2 => (context, PAGE),
            3 => (geometry.pollers_at(), 2 * geometry.poller_stride()),
            _ => (geometry.arena_at(), 1 << 16),
        };
        for _ in 0..self.below(16) {
            let offset = at + (self.below(len as u64) as usize & !7);
            let base = std::ptr::from_ref(self.program.region.header())
                .cast_mut()
                .cast::<u8>();
            // SAFETY: inside the region, which is shared and holds integers; the engine copes with
            // any.
            unsafe {
                base.add(offset).cast::<u64>().write_volatile(self.word());
            }
        }
    }

    /// A control message, with descriptors or without.
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
        let kind = self.one_of(|_| &KINDS).unwrap_or(Kind::Fork);
        let argument = match self.below(4) {
            0 => self.one_of(|this| &this.tickets).unwrap_or(0),
            1 => self.one_of(|this| &this.pollers).unwrap_or(0),
            2 => self.below(2),
            _ => self.word(),
        };
        if matches!(kind, Kind::Forked | Kind::PollerGone) {
            let second = self.below(2) * self.word();
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
        let count = self.below(9);
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
        match self.below(8) {
            0 => self.open(),
            1..=4 => self.submit(),
            5 => self.scribble(),
            _ => self.say(),
        }
    }
}
