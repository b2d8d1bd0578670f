//! Memory that a crowd has left is given back, and where it is short bytes out of order give way: by time, in bounded steps, off the path of packets.

use millrace_tcp::{Duration, Instant};

use crate::memory::Memory;
use crate::recv_ring::Sink;
use crate::shard::Shard;
use crate::socket::Kind;

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
pub(crate) struct Tending {
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
    pub(crate) fn tending_deadline(&self) -> Option<Instant> {
        let tending = &self.tending;
        let busy = tending.owes
            || tending.left > 0
            || tending.failures != self.failures()
            || self.send_memory.has_spare()
            || self.memory.has_spare();
        busy.then_some(tending.next)
    }

    /// Does a step of it, if it is time.
    pub(crate) fn tend(&mut self, now: Instant) {
        if now < self.tending.next {
            return;
        }
        let pool = self.send_memory.pool_mut();
        let sent = pool.give_back(STEP_BYTES);
        let (received, more) = self.memory.give_back(STEP_BYTES);
        self.counters.memory_given_back += sent + received;
        self.tending.freed += sent;
        self.tending.owes = pool.owes() || more;
        if !self.tending.owes && now >= self.tending.review {
            self.send_memory.pool_mut().review();
            self.memory.review();
            self.tending.owes = true;
            self.tending.review = now + REVIEW;
        }
        self.prune();
        let steps = self.tending.owes || self.tending.left > 0;
        self.tending.next = match steps {
            true => now + STEP,
            false => self.tending.review,
        };
    }

    /// Whether the pool has freed so much private memory since this was last true that the allocator of the process should give back what it has.
    pub fn has_freed_much(&mut self) -> bool {
        let freed = self.tending.freed;
        let much = freed >= FREED_MUCH || (freed > 0 && !self.tending.owes);
        if much {
            self.tending.freed = 0;
        }
        much
    }

    /// Drops what some connections have stored beyond a gap, of owners whose memory is short (RFC 2018 8: "Such discarding of SACKed packets is discouraged, but may be
    /// used if the receiver runs out of buffer space."; Linux's `tcp_prune_ofo_queue`).
    fn prune(&mut self) {
        let failures = self.failures();
        let all = self.sockets.places();
        if self.tending.left == 0 && self.tending.failures != failures {
            self.tending.failures = failures;
            self.tending.left = all;
        }
        for _ in 0..self.tending.left.min(STEP_SOCKETS) {
            self.tending.left -= 1;
            let index = self.tending.hand;
            self.tending.hand = if index + 1 < all { index + 1 } else { 0 };
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
