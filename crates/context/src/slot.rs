//! A socket's shared state.
//!
//! Two lines are the engine's, two the program's; neither writes the other's. Positions are stream
//! offsets in bytes from the first byte of payload and never wrap. A listener uses the same fields
//! in units of accepted connections: its ring holds [`SlotRef`]s.

use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

use bitflags::bitflags;

use crate::Address;

bitflags! {
    /// What is true of a socket now.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Status: u32 {
        /// The slot is in use.
        const OPEN = 1;
        /// It has a local address.
        const BOUND = 2;
        /// It listens; `received` and `consumed` count connections.
        const LISTENING = 4;
        /// A connection attempt is under way.
        const CONNECTING = 8;
        /// It has been established (stays set until the connection is dead).
        const CONNECTED = 16;
        /// The peer has sent FIN: end of stream at `received`.
        const READ_CLOSED = 32;
        /// The own side has been shut for writing.
        const WRITE_CLOSED = 64;
        /// The connection is over (reset, timed out, refused, or closed both ways).
        const DEAD = 128;
        /// The peer has announced a byte as urgent: [`EngineCold::urgent`] says which.
        const URGENT = 256;
        /// It is one for datagrams. Its ring holds records (`millrace_wire::record`), and
        /// `received` and `consumed` are ends of records; `acked` counts the bytes that have left.
        const DATAGRAM = 512;
        /// Errors with particulars wait for [`crate::Operation::TakeFailure`].
        const FAILURES = 1024;
        /// Another program that holds the socket has it in its memory: nothing is here to be read,
        /// and there is no room to send, until [`crate::Operation::Recall`], or until that program
        /// holds it no more.
        const ELSEWHERE = 2048;
    }
}

/// A slot and which use of it is meant. A stale one is recognised by its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotRef {
    /// Index into the region's slots.
    pub index: u32,
    /// Goes up each time the slot is given out.
    pub generation: u32,
}

impl SlotRef {
    /// As one word.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
    /// Back from one word.
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
    /// Bytes the peer has acknowledged so far: room for more. With [`Status::ELSEWHERE`] this and
    /// `sent` are what [`EngineHot::elsewhere`] says.
    pub acked: AtomicU64,
    /// Bytes that were sent so far, once at least. Kept up to date with
    /// [`EngineCold::notsent_low`].
    pub sent: AtomicU64,
    /// The program should post [`crate::Operation::Consumed`] and ring once it has read to here: a
    /// window update is then worth sending.
    pub consume_wake: AtomicU64,
    /// [`Status`].
    pub status: AtomicU32,
    /// Goes up with every change; threads blocked on this socket sleep on it.
    pub sequence: AtomicU32,
    /// Pending error: `count << 16 | errno`; the program has seen it when `error_seen` is equal.
    pub error: AtomicU32,
    /// Send buffer size in bytes.
    pub send_limit: AtomicU32,
    /// Which use of the slot this is.
    pub generation: AtomicU32,
    /// The shard that serves it.
    pub shard: AtomicU32,
}

/// Written by the engine seldom.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct EngineCold {
    /// Local address: see [`Address::to_words`].
    pub local: [AtomicU64; 3],
    /// Remote address.
    pub remote: [AtomicU64; 3],
    /// TCP_NOTSENT_LOWAT: nothing more is taken while so many bytes beyond `sent` are queued; 0: no
    /// bound.
    pub notsent_low: AtomicU32,
    /// Of a datagram socket, the largest packet to its peer in bytes; 0 without one.
    pub mtu: AtomicU32,
    /// Offset in the stream of the latest urgent byte, with [`Status::URGENT`]. Both are written
    /// before `received` passes it.
    pub urgent: AtomicU64,
}

/// Written by the program's threads; read, and never trusted, by the engine.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct App {
    /// Bytes (or connections) taken so far.
    pub consumed: AtomicU64,
    /// Bytes handed over so far.
    pub queued: AtomicU64,
    /// Threads that sleep on `sequence`: wake them when it changes.
    pub waiters: AtomicU32,
    /// Goes up each time the program found no room to send: it wants to hear when there is.
    pub send_wanted: AtomicU32,
    /// Held by the thread that reads or accepts: its thread id, 0 when free. Program's side only.
    pub read_lock: AtomicU32,
    /// Held by the thread that writes.
    pub write_lock: AtomicU32,
    /// Value of `error` that has been reported.
    pub error_seen: AtomicU32,
    /// O_NONBLOCK and the like, shared by all descriptors of this socket: the shim's own bits.
    pub flags: AtomicU32,
    /// Index plus 1 of the context that carried this socket's last submission. The shard takes
    /// contexts one after the other, so what goes through another one first waits until this one
    /// has been taken (under `write_lock`). In a connection that waits to be accepted it is the
    /// claim of the process that takes it, set before the queue's `consumed` moves on: the engine
    /// reads it when another process that could have taken it has died.
    pub context: AtomicU32,
    /// Goes up with each [`crate::Operation::Watch`] and [`crate::Operation::Unwatch`] of this
    /// socket, which carry its new value: threads send them by contexts of their own, and the shard
    /// may take the later one first.
    pub watch_order: AtomicU32,
}

/// Written by the program seldom: its own options, of which the engine knows nothing.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct AppCold {
    /// SO_RCVTIMEO in microseconds, 0 for none.
    pub receive_timeout: AtomicU64,
    /// SO_SNDTIMEO in microseconds.
    pub send_timeout: AtomicU64,
    /// SO_RCVLOWAT in bytes.
    pub low_water: AtomicU32,
    /// Address family the program asked for (AF_INET or AF_INET6).
    pub family: AtomicI32,
    /// Options as they were set, for getsockopt without asking the engine: the shim's own
    /// numbering.
    pub options: [AtomicU32; 8],
    /// Offset in the stream, plus 1, of the urgent byte that was last received out of line.
    pub urgent_taken: AtomicU64,
}

/// One socket.
#[repr(C, align(256))]
#[derive(Debug, Default)]
pub struct Slot {
    /// The engine's, hot.
    pub engine: EngineHot,
    /// The engine's, cold.
    pub cold: EngineCold,
    /// The program's, hot.
    pub app: App,
    /// The program's, cold.
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

/// The ring's offset in the arena and its size in bytes; none for 0.
pub fn unpack_ring(word: u64) -> Option<(u64, u64)> {
    let log2 = word & 0xff;
    (12..=32)
        .contains(&log2)
        .then(|| ((word >> 8) << 12, 1 << log2))
}

impl App {
    /// A connection that waits to be accepted is taken by this context.
    pub fn claim(&self, context: u32) {
        self.context.store(context + 1, Ordering::Release);
    }

    /// The context that has claimed it, or carried its last submission, plus 1.
    pub fn claimed_by(&self) -> u32 {
        self.context.load(Ordering::Acquire)
    }

    /// What is submitted next of this socket goes by this context (under `write_lock`). The context
    /// by which it went until now, if that is another one: what it has carried is to be taken
    /// first.
    pub fn goes_by(&self, context: u32) -> Option<u32> {
        let before = self.context.swap(context + 1, Ordering::Relaxed);
        before.checked_sub(1).filter(|before| *before != context)
    }

    /// The number of the next request to watch the slot or to stop watching it, for its submission.
    /// Requests of one poller are numbered in their order, since its set is locked; each goes by
    /// the calling thread's own context, and the shard may come to another thread's first.
    pub fn next_watch_order(&self) -> u64 {
        let before = self.watch_order.fetch_add(1, Ordering::Relaxed);
        u64::from(before.wrapping_add(1))
    }
}

impl EngineHot {
    /// A listener's queue is about to end: after this the shard looks which of its connections are
    /// claimed ([`App::claim`]), and resets the others.
    pub fn end_queue(&self) {
        self.ring.store(0, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Whether the queue has not ended that was at `ring`. After a claim: it will be found.
    pub fn has_queue(&self, ring: u64) -> bool {
        fence(Ordering::SeqCst);
        self.ring.load(Ordering::Relaxed) == ring
    }

    /// Whether the slot has moved from `shard`, which has just been asked for something: then it
    /// may be given away before it is asked, and what is asked of another shard next has to wait. A
    /// shard says whom to ask, passes a full fence, and serves once more before it gives.
    pub fn has_moved_from(&self, shard: u32) -> bool {
        fence(Ordering::SeqCst);
        self.shard.load(Ordering::Relaxed) != shard
    }

    /// The socket is in another program's memory, where `received` has come and epoll's `ready`
    /// bits hold; this slot's program has read up to `consumed`.
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

    /// Of a socket that is in another program's memory: how much has come there, and epoll's bits
    /// that hold.
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
    /// Local address as the engine published it.
    pub fn local(&self) -> Address {
        Address::from_words(std::array::from_fn(|i| {
            self.local[i].load(Ordering::Acquire)
        }))
    }
    /// Remote address as the engine published it.
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
    /// The socket of another program's slot is this one's from now on, read up to `consumed` and
    /// written up to `queued`: what its program has said of it holds. The engine calls it before it
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

    /// Clears the slot for a new use: the engine calls it before it tells the program of the slot.
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
