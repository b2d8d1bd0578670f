//! When a worker sleeps, and for how long.
//!
//! A worker sleeps until its port, a doorbell or its next deadline. After it has woken a program
//! it sleeps for 1 ms at most (a nap), or it spins for a while and does not sleep: see
//! [`crate::worker::spin`].

use millrace_context::{Context, layout};
use millrace_tcp::Duration;
use rustix::thread::{sched_getcpu, sched_yield};

use crate::worker::Worker;

/// How long it sleeps at most while nobody rings for what it waits for.
const NAP: Duration = Duration::from_micros(1000);
/// How long it sleeps at most while receive rings are out. The program may have emptied a ring
/// without a request.
const SWEEP: Duration = Duration::from_micros(1_000_000);
/// When a port that had no room is tried again. Nothing says when it has room.
const FULL_RETRY: Duration = Duration::from_micros(100);
/// How often an engine that is to end checks whether it can.
const DRAIN_CHECK: Duration = Duration::from_millis(10);

impl Worker {
    /// Whether there is something to do, by the flags alone.
    fn has_work(&mut self) -> bool {
        let server = &mut self.server;
        server.peers.as_mut().is_some_and(|peers| peers.pending())
            || server.link.has_queued_frames()
            || server.programs.have_requests()
    }

    /// Tells the programs whether to ring ([`layout::AWAKE`], [`layout::NAPPING`] or
    /// [`layout::ASLEEP`]).
    fn announce(&mut self, wakefulness: u32) {
        let asleep = wakefulness != layout::AWAKE;
        let server = &self.server;
        if let Some(peers) = &server.peers {
            peers.sleeps(asleep);
        }
        server.link.set_asleep(asleep);
        for program in server.programs.iter() {
            program.region.header().sleeping[server.own as usize].announce(wakefulness);
        }
        layout::announced();
    }

    /// Waits until there is something to do.
    pub(super) fn sleep(&mut self) {
        // A thread that has just been woken, or is between two waits, rings when it waits again.
        // Until then a nap will do.
        let wakeups = self.server.counters.wakeups;
        let woken = std::mem::replace(&mut self.wakeups_before, wakeups) != wakeups;
        let nap = woken || self.server.programs.contexts().any(Context::batching);
        let spins =
            nap && self.spin.duration_us() > 0 && (!self.shares_core() || self.carries_bulk());
        if spins && self.finds_answer() {
            return;
        }
        self.announce(if nap { layout::NAPPING } else { layout::ASLEEP });
        if self.has_work() {
            self.announce(layout::AWAKE);
            return;
        }
        // The program does not ring for its requests until it waits again.
        let timed = nap && self.wait_set.start_timer(self.server.now);
        let patience = self.patience(nap && !timed);
        self.server.counters.sleeps += 1;
        if let Some(lost) = self.server.link.take_lost_descriptor() {
            self.wait_set.remove(lost);
        }
        let wakeup = self.wait_set.wait(patience);
        if wakeup.is_readable {
            self.server.link.set_readable();
        }
        self.announce(layout::AWAKE);
        let before = self.server.now;
        self.read_clock();
        if nap && wakeup.is_event {
            self.spin.wait_ended((self.server.now - before).as_micros());
        } else if nap {
            self.spin.wait_timed_out();
        }
    }

    /// Spins until something comes, in place of a nap, if naps have been short. Returns whether
    /// something came.
    fn finds_answer(&mut self) -> bool {
        let until = self.server.now + Duration::from_micros(self.spin.duration_us());
        while self.server.now < until {
            self.server.link.set_readable();
            if self.server.receive() > 0 || self.has_work() {
                return true;
            }
            sched_yield();
            self.read_clock();
        }
        false
    }

    /// Whether recent traffic is bulk, by any way.
    fn carries_bulk(&mut self) -> bool {
        let counters = self.server.shard.counters();
        let carried = counters.bytes_in + counters.bytes_out;
        self.spin.is_bulk(self.server.now.as_micros(), carried)
    }

    /// Whether a thread of a program was last seen on the core of this thread.
    fn shares_core(&self) -> bool {
        let own = sched_getcpu() as u32;
        let mut contexts = self.server.programs.contexts();
        contexts.any(|context| context.core() == Some(own))
    }

    /// How long it may sleep. `nap`: nothing else ends a nap.
    fn patience(&self, nap: bool) -> Option<Duration> {
        let server = &self.server;
        let deadline = server.shard.deadline();
        let mut patience = deadline.map(|deadline| deadline - server.now);
        let mut at_most = |limit: Duration| {
            patience = Some(patience.map_or(limit, |sooner| sooner.min(limit)));
        };
        if let Some(until) = self.draining {
            at_most((until - server.now).min(DRAIN_CHECK));
        }
        let peers = server.peers.as_ref();
        let stuck = peers.is_some_and(|peers| peers.backlog.has_stuck());
        if server.link.is_full() {
            at_most(FULL_RETRY);
        }
        let mut programs = server.programs.iter();
        if nap || stuck || server.bucket_moves.is_leaving() {
            at_most(NAP);
        } else if programs.any(|program| {
            // Programs do not ring for slots that have moved, either.
            server.shard.memory().usage(program.owner).0 > 0 || program.entries.some_away()
        }) {
            at_most(SWEEP);
        }
        patience
    }
}
