//! The shard: what the engine does with `Watch` and `Unwatch`, and when something has come.

use loom::thread;
use millrace_context::layout::{AWAKE, announced};
use millrace_context::submission::Cursor;
use millrace_context::sync::{Ordering, fence};
use millrace_context::{Operation, SlotRef, Submission, futex};

use crate::engine::{CONTEXTS, Engine};
use crate::kernel::{self, BELL};

#[expect(dead_code, reason = "it is the engine's, which uses all of it")]
#[path = "../../../../crates/engine/src/programs/watches.rs"]
mod watches;

pub const SOCKET: SlotRef = SlotRef {
    index: 0,
    generation: 1,
};

pub struct Shard {
    engine: &'static Engine,
    cursors: [Cursor; CONTEXTS as usize],
    watches: watches::Watches,
    tail: u32,
    served: u32,
    /// Whether the numbers of requests are heeded.
    heeds_order: bool,
}

impl Shard {
    pub fn new(engine: &'static Engine) -> Shard {
        Shard {
            engine,
            cursors: Default::default(),
            watches: watches::Watches::default(),
            tail: 0,
            served: 0,
            heeds_order: true,
        }
    }

    pub fn without_order(mut self) -> Shard {
        self.heeds_order = false;
        self
    }

    fn carry_out(&mut self, submission: &Submission) {
        self.served += 1;
        let [mask, sequence, order, ..] = submission.arguments;
        let order = if self.heeds_order {
            order as u32
        } else {
            self.served
        };
        let poller = submission.parameter;
        if submission.operation == Operation::Unwatch {
            return self.watches.unwatch(poller, order);
        }
        let region = &self.engine.region;
        let (shared, hints) = region.poller(poller).unwrap();
        let watch = self.watches.watch(poller, mask as u32, order);
        let slot = region.slot(SOCKET.index).unwrap();
        let is_wanted = watch.wants(u32::MAX);
        if is_wanted && slot.engine.sequence.load(Ordering::Relaxed) != sequence as u32 {
            watch.hinted_at(shared.push(hints, 0, &mut self.tail, SOCKET.index));
            fence(Ordering::SeqCst);
            self.ring_sleepers();
        }
    }

    fn ring_sleepers(&self) {
        let (shared, _) = self.engine.region.poller(0).unwrap();
        if shared.has_sleepers() {
            kernel::ring(BELL);
        }
    }

    /// Serves each context once, in turn.
    pub fn serve(&mut self) -> u32 {
        let mut served = 0;
        for index in 0..CONTEXTS {
            let (context, ring) = self.engine.region.context(index).unwrap();
            let mut cursor = self.cursors[index as usize];
            while let Some(submission) = context.take(ring, &mut cursor).unwrap() {
                self.carry_out(&submission);
                served += 1;
            }
            context.publish(&cursor);
            self.cursors[index as usize] = cursor;
        }
        served
    }

    /// Serves so many requests.
    pub fn serve_until(&mut self, count: u32) {
        while self.served < count {
            self.serve();
            if self.served < count {
                thread::yield_now();
            }
        }
    }

    /// Sleeps until there is a request, and serves it. `fenced`: as it does in production.
    pub fn serve_asleep(&mut self, wakefulness: u32, fenced: bool) {
        let line = &self.engine.region.sleeping;
        while self.serve() == 0 {
            line.announce(wakefulness);
            if fenced {
                announced();
            }
            let contexts = 0..CONTEXTS;
            let mut contexts = contexts.filter_map(|index| {
                let (context, _) = self.engine.region.context(index)?;
                Some((context, self.cursors[index as usize]))
            });
            if !contexts.any(|(context, cursor)| context.pending(&cursor)) {
                self.engine.wait_for_ring();
            }
            line.announce(AWAKE);
        }
    }

    /// Something has come for the socket.
    pub fn receive(&mut self) {
        let region = &self.engine.region;
        let slot = region.slot(SOCKET.index).unwrap();
        slot.engine.received.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        futex::change(&slot.engine.sequence, &slot.app.waiters);
        let (shared, hints) = region.poller(0).unwrap();
        let tail = &mut self.tail;
        self.watches.hint(
            crate::readiness::bits::IN,
            &mut (),
            |(), _| shared.has_waiting_thread(),
            |(), watch| {
                let hint = watch.hint();
                if !hint.is_some_and(|hint| shared.still_pending(0, *tail, hint)) {
                    watch.hinted_at(shared.push(hints, 0, tail, SOCKET.index));
                }
            },
        );
        fence(Ordering::SeqCst);
        self.ring_sleepers();
    }
}
