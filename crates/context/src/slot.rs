//! A socket's shared state.
//!
//! Two lines are the engine's, two the program's; neither writes the other's. Positions are stream
//! offsets in bytes from the first byte of payload and never wrap. A listener uses the same fields
//! in units of accepted connections: its ring holds [`SlotRef`]s.

use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

use bitflags::bitflags;

use crate::Address;

bitflags! {
    /// The present state of a socket.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Status: u32 {
        /// The slot is in use.
        const OPEN = 1;
        /// The socket has a local address.
        const BOUND = 2;
        /// The socket listens; `received` and `consumed` count connections.
        const LISTENING = 4;
        /// A connection attempt is under way.
        const CONNECTING = 8;
        /// The connection was established. This stays set until the connection is dead.
        const CONNECTED = 16;
        /// The peer has sent a FIN: the stream ends at `received`.
        const READ_CLOSED = 32;
        /// This side has shut down writing.
        const WRITE_CLOSED = 64;
        /// The connection is over (reset, timed out, refused, or closed both ways).
        const DEAD = 128;
        /// The peer has announced an urgent byte: see [`EngineCold::urgent`].
        const URGENT = 256;
        /// A datagram socket. Its ring holds records (`millrace_wire::record`). `received` and
        /// `consumed` are ends of records; `acked` counts the bytes that have left.
        const DATAGRAM = 512;
        /// Errors with details wait for [`crate::Operation::TakeFailure`].
        const FAILURES = 1024;
        /// Another program that holds the socket has it in its memory. Here nothing can be read or
        /// sent until [`crate::Operation::Recall`], or until that program no longer holds it.
        const ELSEWHERE = 2048;
    }
}

/// A slot, and one use of it. The generation tells a stale reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotRef {
    /// Index into the region's slots.
    pub index: u32,
    /// Incremented each time the slot is given out.
    pub generation: u32,
}

impl SlotRef {
    /// The reference as one word.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
    /// The reference from its word.
    pub fn from_bits(bits: u64) -> SlotRef {
        SlotRef {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

/// Written by the engine on every change; read by the program.
///
/// Order of writes: `error`, `ring`, `received`, `acked`, `status`, then (after a full fence)
/// `sequence`, then hints. A ring is taken away or made larger only while all that it holds has
/// been copied or read, and it never shrinks while bytes are unread: a reader that finds the same
/// word before and after copying has copied the stream.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct EngineHot {
    /// The receive ring: see [`pack_ring`]. 0: none, nothing is buffered.
    pub ring: AtomicU64,
    /// In-order bytes received so far.
    pub received: AtomicU64,
    /// How many bytes the peer has acknowledged so far, which makes room for more. With
    /// [`Status::ELSEWHERE`] this and `sent` have the meaning of [`EngineHot::elsewhere`].
    pub acked: AtomicU64,
    /// How many bytes were sent at least once. Kept up to date if [`EngineCold::notsent_low`] is
    /// set.
    pub sent: AtomicU64,
    /// When the program has read up to here, it posts [`crate::Operation::Consumed`] and rings: a
    /// window update is worth sending then.
    pub consume_wake: AtomicU64,
    /// [`Status`].
    pub status: AtomicU32,
    /// Incremented by every change. Threads that block on this socket sleep on it.
    pub sequence: AtomicU32,
    /// The pending error: `count << 16
    ///  errno`. The program has seen it if `error_seen` is equal.
    pub error: AtomicU32,
    /// Send buffer size in bytes.
    pub send_limit: AtomicU32,
    /// The generation: which use of the slot this is.
    pub generation: AtomicU32,
    /// The shard that serves it.
    pub shard: AtomicU32,
}

/// Words that the engine writes seldom.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct EngineCold {
    /// The local address: see [`Address::to_words`].
    pub local: [AtomicU64; 3],
    /// The remote address.
    pub remote: [AtomicU64; 3],
    /// TCP_NOTSENT_LOWAT: the program queues no more while this many bytes beyond `sent` are
    /// queued; 0 for no limit.
    pub notsent_low: AtomicU32,
    /// The largest packet to the peer of a datagram socket, in bytes; 0 without a peer.
    pub mtu: AtomicU32,
    /// The stream offset of the latest urgent byte, with [`Status::URGENT`]. Both are written
    /// before `received` passes it.
    pub urgent: AtomicU64,
}

/// Written by the program's threads; read, and never trusted, by the engine.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct App {
    /// How many bytes (or connections) the program has taken so far.
    pub consumed: AtomicU64,
    /// How many bytes the program has handed over so far.
    pub queued: AtomicU64,
    /// The number of threads that sleep on `sequence`. The engine wakes them when it changes.
    pub waiters: AtomicU32,
    /// Incremented each time the program finds no room to send: it waits to be told of room.
    pub send_wanted: AtomicU32,
    /// The thread id of the thread that reads or accepts; 0 when free. Only the program uses it.
    pub read_lock: AtomicU32,
    /// The thread id of the thread that writes; 0 when free. Only the program uses it.
    pub write_lock: AtomicU32,
    /// The value of `error` that was reported.
    pub error_seen: AtomicU32,
    /// The shim's own bits, such as O_NONBLOCK, which all descriptors of this socket share.
    pub flags: AtomicU32,
    /// Index plus 1 of the context that carried this socket's last submission. The shard takes
    /// contexts one after the other, so a submission by another context first waits until this one
    /// was taken (under `write_lock`). In a connection that waits to be accepted, it is the claim
    /// of the process that takes it, set before the queue's `consumed` advances. The engine reads
    /// it when another process that could have taken the connection has died.
    pub context: AtomicU32,
    /// Incremented with each [`crate::Operation::Watch`] and [`crate::Operation::Unwatch`] of this
    /// socket, which carry the new value. Threads send them by contexts of their own, and the shard
    /// may take the later one first.
    pub watch_order: AtomicU32,
}

/// The options that the program writes seldom and the engine does not use.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct AppCold {
    /// SO_RCVTIMEO in microseconds, 0 for none.
    pub receive_timeout: AtomicU64,
    /// SO_SNDTIMEO in microseconds, 0 for none.
    pub send_timeout: AtomicU64,
    /// SO_RCVLOWAT in bytes.
    pub low_water: AtomicU32,
    /// Address family the program asked for (AF_INET or AF_INET6).
    pub family: AtomicI32,
    /// The options as they were set, for getsockopt without a request to the engine. The shim
    /// defines their places.
    pub options: [AtomicU32; 8],
    /// The stream offset, plus 1, of the urgent byte that was last received out of line.
    pub urgent_taken: AtomicU64,
}

/// The shared state of one socket.
#[repr(C, align(256))]
#[derive(Debug, Default)]
pub struct Slot {
    /// The engine's words that change often.
    pub engine: EngineHot,
    /// The engine's words that change seldom.
    pub cold: EngineCold,
    /// The program's words that change often.
    pub app: App,
    /// The program's words that change seldom.
    pub app_cold: AppCold,
}

#[cfg(not(millrace_loom))]
const _: () = assert!(size_of::<Slot>() == crate::layout::SLOT_STRIDE);

/// A receive ring in one word: offset from the arena's start in 4 KB units, and the binary
/// logarithm of its size. Offset `o` of the stream is byte `o & (size - 1)` of the ring. 0 means no
/// ring.
pub fn pack_ring(at: u64, log2: u8) -> u64 {
    (at >> 12) << 8 | u64::from(log2)
}

/// The ring's offset in the arena and its size in bytes; `None` for 0.
pub fn unpack_ring(word: u64) -> Option<(u64, u64)> {
    let log2 = word & 0xff;
    (12..=32)
        .contains(&log2)
        .then(|| ((word >> 8) << 12, 1 << log2))
}

impl App {
    /// Claims a connection that waits to be accepted for this context.
    pub fn claim(&self, context: u32) {
        self.context.store(context + 1, Ordering::Release);
    }

    /// Index plus 1 of the context that has claimed the connection, or has carried its last
    /// submission.
    pub fn claimed_by(&self) -> u32 {
        self.context.load(Ordering::Acquire)
    }

    /// Makes this context carry the socket's next submission (under `write_lock`). Returns the
    /// context that carried the last one if it is another: its submissions must be taken first.
    pub fn goes_by(&self, context: u32) -> Option<u32> {
        let before = self.context.swap(context + 1, Ordering::Relaxed);
        before.checked_sub(1).filter(|before| *before != context)
    }

    /// The number of the next request to watch the slot or to stop watching it. The requests of one
    /// poller are numbered in their order, since its set is locked. Each goes by the calling
    /// thread's own context, so the shard may take them in another order.
    pub fn next_watch_order(&self) -> u64 {
        let before = self.watch_order.fetch_add(1, Ordering::Relaxed);
        u64::from(before.wrapping_add(1))
    }
}

impl EngineHot {
    /// Ends a listener's queue. After this the shard looks for claimed connections ([`App::claim`])
    /// and resets the others.
    pub fn end_queue(&self) {
        self.ring.store(0, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Whether the queue that was at `ring` has not ended. Called after a claim: then the shard
    /// will find the claim.
    pub fn has_queue(&self, ring: u64) -> bool {
        fence(Ordering::SeqCst);
        self.ring.load(Ordering::Relaxed) == ring
    }

    /// Whether the slot has moved away from `shard`, to which a request was just made. Then the
    /// slot may go to another shard before the request is taken, and a request to another shard has
    /// to wait. A shard publishes the new shard, passes a full fence, and takes requests once more
    /// before it gives the slot away.
    pub fn has_moved_from(&self, shard: u32) -> bool {
        fence(Ordering::SeqCst);
        self.shard.load(Ordering::Relaxed) != shard
    }

    /// Publishes that the socket is in another program's memory: `received` bytes have come there,
    /// epoll's `ready` bits hold, and this slot's program has read up to `consumed`.
    pub fn show_elsewhere(&self, consumed: u64, received: u64, ready: u32) {
        let stay = Status::OPEN
            | Status::BOUND
            | Status::LISTENING
            | Status::CONNECTING
            | Status::CONNECTED
            | Status::WRITE_CLOSED
            | Status::DATAGRAM;
        self.ring.store(0, Ordering::Release);
        self.send_limit.store(0, Ordering::Relaxed);
        self.received.store(consumed, Ordering::Release);
        self.acked.store(received, Ordering::Relaxed);
        self.sent.store(ready.into(), Ordering::Relaxed);
        let status = self.status() & stay | Status::ELSEWHERE;
        self.status.store(status.bits(), Ordering::Release);
    }

    /// For a socket in another program's memory: how many bytes have come there, and its epoll
    /// bits.
    pub fn elsewhere(&self) -> (u64, u32) {
        let ready = self.sent.load(Ordering::Relaxed) as u32;
        (self.acked.load(Ordering::Relaxed), ready)
    }

    /// The status flags.
    pub fn status(&self) -> Status {
        Status::from_bits_truncate(self.status.load(Ordering::Acquire))
    }
}

impl EngineCold {
    /// The local address, as the engine published it.
    pub fn local(&self) -> Address {
        Address::from_words(std::array::from_fn(|i| {
            self.local[i].load(Ordering::Acquire)
        }))
    }
    /// The remote address, as the engine published it.
    pub fn remote(&self) -> Address {
        Address::from_words(std::array::from_fn(|i| {
            self.remote[i].load(Ordering::Acquire)
        }))
    }
    /// Publishes both addresses.
    pub fn set_addresses(&self, local: Address, remote: Address) {
        for (to, from) in self.local.iter().zip(local.to_words()) {
            to.store(from, Ordering::Release);
        }
        for (to, from) in self.remote.iter().zip(remote.to_words()) {
            to.store(from, Ordering::Release);
        }
    }
}

impl Slot {
    /// Takes over the socket of another program's slot, read up to `consumed` and written up to
    /// `queued`. Settings of that slot's program stay valid. The engine calls it before it
    /// publishes the slot.
    pub fn take_over(&self, from: &Slot, consumed: u64, queued: u64) {
        self.app.consumed.store(consumed, Ordering::Release);
        self.app.queued.store(queued, Ordering::Release);
        let words = [
            (&self.app.error_seen, &from.app.error_seen),
            (&self.app.flags, &from.app.flags),
            (&self.app_cold.low_water, &from.app_cold.low_water),
        ];
        for (to, from) in words {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (to, from) in self.app_cold.options.iter().zip(&from.app_cold.options) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let (to, from) = (&self.app_cold, &from.app_cold);
        for (to, from) in [
            (&to.receive_timeout, &from.receive_timeout),
            (&to.send_timeout, &from.send_timeout),
            (&to.urgent_taken, &from.urgent_taken),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        to.family
            .store(from.family.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Clears the slot for a new use. The engine calls it before it tells the program of the slot.
    pub fn reset(&self, generation: u32, shard: u32) {
        let EngineHot {
            ring,
            received,
            acked,
            sent,
            consume_wake,
            status,
            sequence: _,
            error,
            send_limit,
            generation: g,
            shard: s,
        } = &self.engine;
        for word in [ring, received, acked, sent] {
            word.store(0, Ordering::Relaxed);
        }
        consume_wake.store(u64::MAX, Ordering::Relaxed);
        error.store(0, Ordering::Relaxed);
        send_limit.store(0, Ordering::Relaxed);
        s.store(shard, Ordering::Relaxed);
        let App {
            consumed,
            queued,
            waiters,
            send_wanted,
            read_lock,
            write_lock,
            error_seen,
            flags,
            context,
            watch_order,
        } = &self.app;
        consumed.store(0, Ordering::Relaxed);
        queued.store(0, Ordering::Relaxed);
        for word in [
            waiters,
            send_wanted,
            read_lock,
            write_lock,
            error_seen,
            flags,
            context,
            watch_order,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        let AppCold {
            receive_timeout,
            send_timeout,
            low_water,
            family,
            options,
            urgent_taken,
        } = &self.app_cold;
        receive_timeout.store(0, Ordering::Relaxed);
        send_timeout.store(0, Ordering::Relaxed);
        urgent_taken.store(0, Ordering::Relaxed);
        low_water.store(1, Ordering::Relaxed);
        family.store(libc::AF_INET, Ordering::Relaxed);
        for word in options {
            word.store(0, Ordering::Relaxed);
        }
        self.cold.set_addresses(Address::NONE, Address::NONE);
        self.cold.urgent.store(0, Ordering::Relaxed);
        self.cold.notsent_low.store(0, Ordering::Relaxed);
        self.cold.mtu.store(0, Ordering::Relaxed);
        g.store(generation, Ordering::Relaxed);
        status.store(Status::OPEN.bits(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_packed_in_a_word() {
        assert_eq!(unpack_ring(0), None);
        assert_eq!(unpack_ring(pack_ring(0, 12)), Some((0, 4096)));
        assert_eq!(
            unpack_ring(pack_ring(0x1_2345_6000, 22)),
            Some((0x1_2345_6000, 1 << 22))
        );
        assert_eq!(unpack_ring(7), None, "a size below a page is nothing");
    }

    #[test]
    fn a_slot_reference_is_a_word() {
        let slot = SlotRef {
            index: 0xdead_beef,
            generation: 0x0102_0304,
        };
        assert_eq!(SlotRef::from_bits(slot.to_bits()), slot);
    }

    #[test]
    fn engine_and_program_never_share_a_line() {
        assert_eq!(std::mem::offset_of!(Slot, engine), 0);
        assert_eq!(std::mem::offset_of!(Slot, cold), 64);
        assert_eq!(std::mem::offset_of!(Slot, app), 128);
        assert_eq!(std::mem::offset_of!(Slot, app_cold), 192);
    }
}
