//! Memory that a crowd has left is given back, and where it is short bytes out of order give way: by time, in bounded steps, off the path of packets.

use millrace_tcp::{Duration, Instant};

use crate::memory::Memory;
use crate::shard::Shard;
use crate::socket::Kind;
use crate::socket::receive_ring::Sink;

/// What was free for so long is given back.
const REVIEW: Duration = Duration::from_secs(2);
/// Between two steps.
const STEP: Duration = Duration::from_millis(10);
/// Bytes given back in a step of each kind of memory.
const STEP_BYTES: u64 = 4 << 20;
/// So much is freed before the allocator is asked to give it back.
const FREED_MUCH: u64 = 16 << 20;
/// Sockets looked at in a step.
const STEP_SOCKETS: u32 = 1024;

/// What is being done about memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reclaim {
    next: Instant,
    review: Instant,
    /// Segments for which there was no memory when that was last looked at.
    failures: u64,
    /// Sockets that are still to be looked at, and the next one.
    left: u32,
    hand: u32,
    /// Whether something is still to be given back.
    owes: bool,
    /// Bytes of private memory that were freed.
    freed: u64,
}

impl<M: Memory> Shard<M> {
    #[inline]
    fn failures(&self) -> u64 {
        self.counters.receive_memory_exhausted + self.counters.out_of_order_refused
    }

    /// When there is something to do about memory, if there is.
    #[inline]
    pub(crate) fn reclaim_deadline(&self) -> Option<Instant> {
        let reclaim = &self.reclaim;
        let busy = reclaim.owes
            || reclaim.left > 0
            || reclaim.failures != self.failures()
            || self.send_memory.has_spare()
            || self.memory.has_spare();
        busy.then_some(reclaim.next)
    }

    /// Does a step of it, if it is time.
    pub(crate) fn reclaim_memory(&mut self, now: Instant) {
        if now < self.reclaim.next {
            return;
        }
        let pool = self.send_memory.pool_mut();
        let sent = pool.give_back(STEP_BYTES);
        let (received, more) = self.memory.give_back(STEP_BYTES);
        self.counters.memory_given_back += sent + received;
        self.reclaim.freed += sent;
        self.reclaim.owes = pool.owes() || more;
        if !self.reclaim.owes && now >= self.reclaim.review {
            self.send_memory.pool_mut().review();
            self.memory.review();
            self.reclaim.owes = true;
            self.reclaim.review = now + REVIEW;
        }
        self.prune();
        let steps = self.reclaim.owes || self.reclaim.left > 0;
        self.reclaim.next = match steps {
            true => now + STEP,
            false => self.reclaim.review,
        };
    }

    /// Whether the pool has freed so much private memory since this was last true that the allocator of the process should give back what it has.
    pub fn has_freed_much(&mut self) -> bool {
        let freed = self.reclaim.freed;
        let much = freed >= FREED_MUCH || (freed > 0 && !self.reclaim.owes);
        if much {
            self.reclaim.freed = 0;
        }
        much
    }

    /// Drops what some connections have stored beyond a gap, of owners whose memory is short (RFC 2018 8: "Such discarding of SACKed packets is discouraged, but may be
    /// used if the receiver runs out of buffer space."; Linux's `tcp_prune_ofo_queue`).
    fn prune(&mut self) {
        let failures = self.failures();
        let all = self.sockets.places();
        if self.reclaim.left == 0 && self.reclaim.failures != failures {
            self.reclaim.failures = failures;
            self.reclaim.left = all;
        }
        for _ in 0..self.reclaim.left.min(STEP_SOCKETS) {
            self.reclaim.left -= 1;
            let index = self.reclaim.hand;
            self.reclaim.hand = if index + 1 < all { index + 1 } else { 0 };
            let Some(socket) = self.sockets.get_mut(index) else {
                continue;
            };
            let owner = socket.owner;
            let Kind::Stream(stream) = &mut socket.kind else {
                continue;
            };
            if !stream.connection.has_gaps() || !self.memory.is_short(owner) {
                continue;
            }
            let mut sink = Sink {
                ring: &mut stream.recv,
                memory: &mut self.memory,
                owner,
                open: true,
                counters: &mut self.counters,
            };
            stream.connection.drop_out_of_order(&mut sink);
            self.mark_changed(index);
        }
    }
}
