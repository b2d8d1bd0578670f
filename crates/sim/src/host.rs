//! A host: a stack, its interface, and the programs that run on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millrace_offload::Train;
use millrace_shard::{HeapMemory, Shard, SocketId};
use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::Mac;
use millrace_wire::offload::{Capabilities, Frame, Offload};

use crate::context::Context;
use crate::link::Line;
use crate::nic::{Nic, OnWire};
use crate::program::Program;
use crate::rng::Rng;

/// Names a host of a [`crate::Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostId(pub(crate) usize);

/// How a host works through what arrives.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// After up to this time the host looks at a frame that arrived; what arrives in the meantime
    /// is taken in with it. Another for each batch.
    pub batch: Duration,
    /// How many frames the interface takes at a time, until it is empty again 10 microseconds
    /// later.
    pub transmit_room: usize,
    /// Whether segments that are looked at together are joined before the stack takes them in.
    pub joins: bool,
    /// Up to this later than it would the host's thread wakes each time, for frames and timers
    /// alike: others have the processor.
    pub late: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            batch: Duration::from_micros(20),
            transmit_room: usize::MAX,
            joins: false,
            late: Duration::ZERO,
        }
    }
}

/// How often work may lead to more work at one point in time before that is taken for a loop.
const ROUNDS_MAX: usize = 10_000;
/// How long a full interface takes to become empty.
const TRANSMIT_TIME: Duration = Duration::from_micros(10);

pub(crate) struct Host {
    pub stack: Shard<HeapMemory>,
    pub mac: Mac,
    pub nic: Nic,
    pub line: Line,
    pub tuning: Tuning,
    pub programs: Vec<Box<dyn Program>>,
    /// Frames that arrived and were not looked at yet.
    pub arrived: VecDeque<OnWire>,
    /// The earliest time for which the network has been told to come back.
    pub scheduled: Instant,
    train: Option<Train>,
    /// How late it will wake the next time.
    pub lateness: Duration,
    rng: Rng,
    owners: BTreeMap<SocketId, usize>,
    wakes: BTreeSet<(Instant, usize)>,
    changed: Vec<SocketId>,
}

impl Host {
    pub fn new(stack: Shard<HeapMemory>, mac: Mac, nic: Nic, line: Line, rng: Rng) -> Host {
        Host {
            stack,
            mac,
            nic,
            line,
            tuning: Tuning::default(),
            programs: Vec::new(),
            arrived: VecDeque::new(),
            scheduled: Instant::NEVER,
            train: None,
            lateness: Duration::ZERO,
            rng,
            owners: BTreeMap::new(),
            wakes: BTreeSet::new(),
            changed: Vec::new(),
        }
    }

    /// Starts a program at the next [`Host::work`].
    pub fn add_program(&mut self, program: Box<dyn Program>, now: Instant) {
        self.programs.push(program);
        self.wakes.insert((now, self.programs.len() - 1));
    }

    /// When a batch that begins now is looked at.
    pub fn batch_end(&mut self, now: Instant) -> Instant {
        now + Duration::from_micros(self.rng.below(self.tuning.batch.as_micros() + 1))
    }

    /// Takes in all that has arrived, as a burst of segments to be joined.
    fn take_in_joined(&mut self, now: Instant) {
        let train = self.train.get_or_insert_default();
        let stack = &mut self.stack;
        let mut input = |frame: &Frame<'_>| stack.input(frame, now);
        while let Some(frame) = self.arrived.pop_front() {
            let len = frame.bytes.len();
            train.buffer()[..len].copy_from_slice(&frame.bytes);
            train.frame(len, frame.checksum, frame.segment_size, &mut input);
        }
        train.end_of_burst(&mut input);
    }

    /// Goes to sleep.
    pub fn sleep(&mut self) {
        if self.tuning.late > Duration::ZERO {
            self.lateness = Duration::from_micros(self.rng.below(self.tuning.late.as_micros() + 1));
        }
    }

    /// Does all that can be done now and returns the frames that leave, and when there will be more
    /// to do.
    pub fn work(&mut self, now: Instant) -> (Vec<OnWire>, Option<Instant>) {
        let mut egress = Interface {
            capabilities: self.nic.capabilities(self.mac, self.stack.config().mtu),
            nic: self.nic,
            room: self.tuning.transmit_room,
            refused: false,
            sent: Vec::new(),
        };
        if self.tuning.joins {
            self.take_in_joined(now);
        }
        while let Some(frame) = self.arrived.pop_front() {
            self.stack.input(
                &Frame {
                    bytes: &frame.bytes,
                    checksum: frame.checksum,
                    segment_size: frame.segment_size,
                },
                now,
            );
        }
        for _ in 0..ROUNDS_MAX {
            if self
                .stack
                .deadline()
                .is_some_and(|deadline| deadline <= now)
            {
                self.stack.advance(now);
            }
            self.run_programs(now);
            self.stack.transmit(&mut egress, now);
            self.stack.take_changed(&mut self.changed);
            let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
            let programs_due = self.wakes.first().map(|&(at, _)| at);
            let stack_due = due(self.stack.deadline()) && !egress.refused;
            if stack_due || due(programs_due) || !self.changed.is_empty() {
                continue;
            }
            let again = egress.refused.then(|| now + TRANSMIT_TIME);
            let next = [self.stack.deadline(), programs_due, again]
                .into_iter()
                .flatten()
                .min();
            return (
                egress.sent,
                next.map(|next| next.max(now + Duration::from_micros(1))),
            );
        }
        panic!(
            "busy: {ROUNDS_MAX} rounds of work at one point in time; deadline {:?}",
            self.stack.deadline()
        );
    }

    fn run_programs(&mut self, now: Instant) {
        self.stack.take_changed(&mut self.changed);
        for id in std::mem::take(&mut self.changed) {
            if let Some(&program) = self.owners.get(&id) {
                self.with_program(program, now, |program, context| {
                    program.changed(context, id);
                });
            }
        }
        while let Some(&(at, program)) = self.wakes.first()
            && at <= now
        {
            self.wakes.pop_first();
            self.with_program(program, now, |program, context| program.woken(context));
        }
    }

    fn with_program(
        &mut self,
        index: usize,
        now: Instant,
        call: impl FnOnce(&mut dyn Program, &mut Context<'_>),
    ) {
        let Host {
            stack,
            rng,
            owners,
            wakes,
            programs,
            ..
        } = self;
        let mut context = Context {
            stack,
            now,
            rng,
            program: index,
            owners,
            wakes,
        };
        call(&mut *programs[index], &mut context);
    }
}

/// The host's way out while it works.
struct Interface {
    capabilities: Capabilities,
    nic: Nic,
    room: usize,
    refused: bool,
    sent: Vec<OnWire>,
}

impl millrace_shard::Egress for Interface {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> bool {
        if self.room == 0 {
            self.refused = true;
            return false;
        }
        self.room -= 1;
        self.sent.extend(
            self.nic
                .finish(self.capabilities.mtu, head, payload, offload),
        );
        true
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}
