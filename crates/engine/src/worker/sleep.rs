//! How a worker sleeps: until its port, its doorbell, an alarm or its next deadline; and when it only naps, or looks instead.

use std::mem::MaybeUninit;

use millrace_context::{Context, layout};
use millrace_tcp::Duration;
use rustix::event::{Timespec, epoll};
use rustix::thread::{sched_getcpu, sched_yield};

use crate::worker::{TOKEN_IDLE_TIMER, TOKEN_PORT, Wire, Worker};

/// How soon it looks again for what nobody rings for.
const LATER: Duration = Duration::from_micros(1000);
/// How long it sleeps at most while receive rings are out: the program may have emptied one without ringing.
const SWEEP: Duration = Duration::from_micros(1_000_000);
/// How soon a port that had no room is tried again: nothing says when it has.
const FULL_RETRY: Duration = Duration::from_micros(100);
/// How often an engine that is to end looks whether it can.
const DRAIN_CHECK: Duration = Duration::from_millis(10);

impl Worker {
    /// The contexts that have something, seen from the flags alone.
    fn pending(&mut self) -> bool {
        self.peers.as_mut().is_some_and(|peers| peers.pending())
            || self.wire.as_mut().is_some_and(Wire::look)
            || self.programs.iter().flatten().any(|program| {
                program.contexts.iter().any(|entry| {
                    program
                        .region
                        .context(entry.index)
                        .is_some_and(|(context, _)| context.pending(&entry.cursor))
                })
            })
    }

    /// Tells the programs whether to ring ([`layout::AWAKE`] and its sisters).
    fn announce(&mut self, wakefulness: u32) {
        if let Some(peers) = &self.peers {
            peers.sleeps(wakefulness != layout::AWAKE);
        }
        if let Some(queues) = self.wire.as_ref().and_then(Wire::queues) {
            queues.own.sleeps(wakefulness != layout::AWAKE);
        }
        for program in self.programs.iter().flatten() {
            program.region.header().sleeping[self.own as usize].announce(wakefulness);
        }
        layout::announced();
    }

    /// Waits until there is something to do.
    pub(crate) fn sleep(&mut self) {
        // A thread that has just been woken, or is between two waits, rings when it waits again: until then a nap will do.
        let woken = self.counters.wakeups != self.wakeups_before;
        self.wakeups_before = self.counters.wakeups;
        let nap = woken || self.batching();
        let looks =
            nap && self.spin.duration_us() > 0 && (!self.shares_core() || self.carries_bulk());
        if looks && self.finds_answer() {
            return;
        }
        self.announce(if nap { layout::NAPPING } else { layout::ASLEEP });
        if self.pending() {
            self.announce(layout::AWAKE);
            return;
        }
        // Its submissions are not rung for until it waits again.
        let alarmed = nap && self.idle_timer.set(self.now).is_ok();
        let timeout = self.patience(nap && !alarmed).map(|patience| {
            let micros = patience.as_micros();
            Timespec {
                tv_sec: (micros / 1_000_000) as i64,
                tv_nsec: (micros % 1_000_000 * 1000) as i64,
            }
        });
        self.counters.sleeps += 1;
        let mut events = [const { MaybeUninit::uninit() }; 4];
        let mut answered = true;
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            answered = events
                .iter()
                .any(|event| event.data.u64() != TOKEN_IDLE_TIMER);
            for event in events {
                self.readable |= event.data.u64() == TOKEN_PORT;
            }
        }
        self.announce(layout::AWAKE);
        let before = self.now;
        self.clock();
        if nap && answered {
            self.spin.wait_ended((self.now - before).as_micros());
        } else if nap {
            self.spin.wait_timed_out();
        }
    }

    /// Looks for an answer instead of taking a nap, if naps have been short. Whether there is one, or something else to do.
    fn finds_answer(&mut self) -> bool {
        let until = self.now + Duration::from_micros(self.spin.duration_us());
        while self.now < until {
            self.readable = true;
            if self.receive() > 0 || self.pending() {
                return true;
            }
            sched_yield();
            self.clock();
        }
        false
    }

    /// Whether what came and went of late is bulk, by whatever way.
    fn carries_bulk(&mut self) -> bool {
        let counters = self.shard.counters();
        let carried = counters.bytes_in + counters.bytes_out;
        self.spin.is_bulk(self.now.as_micros(), carried)
    }

    /// Whether a thread of a program was last seen on the core that this one is on.
    fn shares_core(&self) -> bool {
        let own = sched_getcpu() as u32;
        self.contexts().any(|context| context.core() == Some(own))
    }

    /// Whether a thread of a program is between two waits.
    fn batching(&self) -> bool {
        self.contexts().any(Context::batching)
    }

    /// What the programs' threads say of themselves.
    fn contexts(&self) -> impl Iterator<Item = &Context> {
        self.programs.iter().flatten().flat_map(|program| {
            let contexts = program.contexts.iter();
            let shared = contexts.filter_map(|entry| program.region.context(entry.index));
            shared.map(|(context, _)| context)
        })
    }

    /// How long it may sleep.
    fn patience(&self, nap: bool) -> Option<Duration> {
        let deadline = self.shard.deadline();
        let mut patience = deadline.map(|deadline| deadline - self.now);
        let mut at_most = |limit: Duration| {
            patience = Some(patience.map_or(limit, |sooner| sooner.min(limit)));
        };
        if let Some(until) = self.draining {
            at_most((until - self.now).min(DRAIN_CHECK));
        }
        let mut programs = self.programs.iter().flatten();
        let stuck = self
            .peers
            .as_ref()
            .is_some_and(|peers| !peers.stuck.is_empty());
        if self.full {
            at_most(FULL_RETRY);
        }
        if nap || stuck || self.bucket_moves.is_leaving() {
            at_most(LATER);
        } else if programs.any(|program| {
            // What is left for a slot that has moved is not rung for, either.
            self.shard.memory().usage(program.owner).0 > 0 || program.entries.some_away()
        }) {
            at_most(SWEEP);
        }
        patience
    }
}
