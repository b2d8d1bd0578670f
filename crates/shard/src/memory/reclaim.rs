//! Memory that a crowd has left is given back, and where it is short bytes out of order give way:
//! by time, in bounded steps, off the path of packets.

use millrace_tcp::{Duration, Instant};

use crate::counters::Counters;
use crate::memory::Memory;
use crate::memory::send_memory::SendMemory;
use crate::slab::Slab;
use crate::socket::receive_ring::Sink;
use crate::socket::{Kind, Socket, SocketId, note_changed};

/// Memory that was free for so long is given back.
const REVIEW: Duration = Duration::from_secs(2);
/// Between two steps.
const STEP: Duration = Duration::from_millis(10);
/// Bytes given back in a step of each kind of memory.
const STEP_BYTES: u64 = 4 << 20;
/// So much is freed before the allocator is asked to give it back.
const FREED_MUCH: u64 = 16 << 20;
/// Sockets looked at in a step.
const STEP_SOCKETS: u32 = 1024;

/// The progress of giving memory back.
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

impl Reclaim {
    /// When [`Reclaim::advance`] has something to do.
    #[inline]
    pub fn deadline<M: Memory>(
        &self,
        counters: &Counters,
        send_memory: &SendMemory,
        memory: &M,
    ) -> Option<Instant> {
        let busy = self.owes
            || self.left > 0
            || self.failures != failures(counters)
            || send_memory.has_spare()
            || memory.has_spare();
        busy.then_some(self.next)
    }

    /// Does one step, if it is time.
    pub fn advance<M: Memory>(
        &mut self,
        counters: &mut Counters,
        sockets: &mut Slab<Socket>,
        (memory, send_memory): (&mut M, &mut SendMemory),
        changed: &mut Vec<SocketId>,
        now: Instant,
    ) {
        if now < self.next {
            return;
        }
        let pool = send_memory.pool_mut();
        let sent = pool.give_back(STEP_BYTES);
        let (received, more) = memory.give_back(STEP_BYTES);
        counters.memory_given_back += sent + received;
        self.freed += sent;
        self.owes = pool.owes() || more;
        if !self.owes && now >= self.review {
            pool.review();
            memory.review();
            self.owes = true;
            self.review = now + REVIEW;
        }
        self.prune(counters, sockets, memory, changed);
        self.next = match self.owes || self.left > 0 {
            true => now + STEP,
            false => self.review,
        };
    }

    /// Whether so much private memory was freed since this was last true that the allocator of the
    /// process should return memory to the system.
    pub fn take_freed_much(&mut self) -> bool {
        let much = self.freed >= FREED_MUCH || (self.freed > 0 && !self.owes);
        if much {
            self.freed = 0;
        }
        much
    }

    /// Drops bytes beyond a gap of some connections whose owners are short of memory (Linux's
    /// `tcp_prune_ofo_queue`). RFC 2018 8: "Such discarding of SACKed packets is discouraged, but
    /// may be used if the receiver runs out of buffer space."
    fn prune<M: Memory>(
        &mut self,
        counters: &mut Counters,
        sockets: &mut Slab<Socket>,
        memory: &mut M,
        changed: &mut Vec<SocketId>,
    ) {
        let failures = failures(counters);
        let all = sockets.places();
        if self.left == 0 && self.failures != failures {
            self.failures = failures;
            self.left = all;
        }
        for _ in 0..self.left.min(STEP_SOCKETS) {
            self.left -= 1;
            let index = self.hand;
            self.hand = if index + 1 < all { index + 1 } else { 0 };
            let Some((socket, generation)) = sockets.get_mut_with_generation(index) else {
                continue;
            };
            let owner = socket.owner;
            let Kind::Stream(stream) = &mut socket.kind else {
                continue;
            };
            if !stream.connection.has_gaps() || !memory.is_short(owner) {
                continue;
            }
            let mut sink = Sink {
                ring: &mut stream.recv,
                memory,
                owner,
                open: true,
                counters,
            };
            stream.connection.drop_out_of_order(&mut sink);
            note_changed(changed, SocketId::new(index, generation), socket);
        }
    }
}

/// How often receive memory ran short.
#[inline]
fn failures(counters: &Counters) -> u64 {
    counters.receive_memory_exhausted + counters.out_of_order_refused
}
