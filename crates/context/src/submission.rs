//! Requests from the program to a shard: the submission ring, and the staging ring that carries the
//! payload of sends.
//!
//! A context belongs to one process of the program; its threads take turns by [`Context::lock`],
//! which is a lock among the program's threads only. The engine is the single consumer. Payload is
//! staged in the order of the submissions that name it, so a send needs no offset: the engine takes
//! the next `parameter` bytes.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

use bitflags::bitflags;

use crate::Address;
use crate::layout::{STAGING, SUBMISSIONS};
use crate::slot::SlotRef;

/// What is asked for.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing; with [`Ask::REPLY`] it shows that all before it has been done.
    Nop = 1,
    /// A new socket: for a stream, or with `parameter` 1 for datagrams. Replies with its
    /// [`SlotRef`] as the first word of data.
    Socket = 2,
    /// Binds to the address in `arguments[0..3]`; `arguments[3]` bit 0 is SO_REUSEADDR, bit 1
    /// SO_REUSEPORT, bit 2 IPV6_V6ONLY, bits 3 and 4 the device (1 the link, 2 loopback, else any).
    /// Replies 0 or an errno.
    Bind = 3,
    /// Listens with a backlog of `parameter`. Replies 0 or an errno.
    Listen = 4,
    /// Connects to the address in `arguments[0..3]`. The slot tells how it ends; with
    /// [`Ask::REPLY`], errors that are known at once (without it they are the slot's error, like
    /// those that come later). With `arguments[3]` it is to open fast (RFC 7413), which wants a
    /// reply: how many bytes the SYN takes along, for which it then waits; 0 if it does not.
    Connect = 5,
    /// The program has taken this socket from its listener's queue.
    Accepted = 6,
    /// `parameter` bytes of staging are the next of this socket's stream.
    Send = 7,
    /// The program has read up to `slot.app.consumed`.
    Consumed = 8,
    /// Shuts down: `parameter` is SHUT_RD, SHUT_WR or SHUT_RDWR.
    Shutdown = 9,
    /// This process holds the socket no more.
    Close = 10,
    /// Poller `parameter` wants hints of this socket; `arguments[0]` is the mask of epoll bits
    /// (with EPOLLEXCLUSIVE). `arguments[1]` is the socket's `sequence` when the program last
    /// looked: if it has changed since, the shard hints at once, so that nothing is missed between
    /// that look and this request. `arguments[2]` is the request's number in
    /// [`crate::slot::App::watch_order`].
    Watch = 11,
    /// Poller `parameter` wants none any more, unless it has asked again since: `arguments[2]` is
    /// the request's number as in [`Operation::Watch`].
    Unwatch = 12,
    /// Sets the option with number `parameter` to the value in the first arguments, both as
    /// `millrace-sockopt` has them. Replies if asked.
    SetOption = 13,
    /// Asks for the option with number `parameter`, or for a [`Query`]; the reply's data holds the
    /// value.
    GetOption = 14,
    /// Connects the other way round: the socket goes back to unconnected (connect to AF_UNSPEC).
    /// Replies 0 or an errno. The shim then sets `consumed` and `queued` back to 0, since the next
    /// connection's stream begins there.
    Disconnect = 15,
    /// `parameter` bytes of staging are a datagram. `arguments` are a [`SendTo`].
    SendTo = 16,
    /// Takes the oldest error of a datagram socket; the reply's data is a [`crate::reply::Failure`]
    /// and what it quotes.
    TakeFailure = 17,
    /// A datagram socket joins the group in `arguments[0..3]`, or with `parameter` 0 leaves it.
    /// Replies 0 or an errno.
    Membership = 18,
    /// Another program that holds this socket has it ([`crate::Status::ELSEWHERE`]): this one is to
    /// have it. The thread holds both locks of the slot, of which the engine writes `consumed` and
    /// `queued`. Replies 0 or an errno: EAGAIN while the other one is at it.
    Recall = 19,
}

impl Operation {
    /// From its number, which may be anything.
    pub fn from_number(number: u8) -> Option<Operation> {
        use Operation::*;
        [
            Nop,
            Socket,
            Bind,
            Listen,
            Connect,
            Accepted,
            Send,
            Consumed,
            Shutdown,
            Close,
            Watch,
            Unwatch,
            SetOption,
            GetOption,
            Disconnect,
            SendTo,
            TakeFailure,
            Membership,
            Recall,
        ]
        .into_iter()
        .find(|operation| *operation as u8 == number)
    }

    /// Whether it takes `parameter` bytes of staging.
    pub fn is_staged(self) -> bool {
        matches!(self, Operation::Send | Operation::SendTo)
    }
}

/// What a program can ask of a socket beside its options, by the number of
/// [`Operation::GetOption`]. Options have the numbers below these.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// TCP_INFO: Linux's `struct tcp_info`.
    Info = 0x1000,
    /// Bytes sent and not yet acknowledged (SIOCOUTQ).
    OutQueue = 0x1001,
    /// Bytes not yet sent (SIOCOUTQNSD).
    OutQueueUnsent = 0x1002,
    /// IP_MTU, IPV6_MTU: bytes.
    Mtu = 0x1003,
}

impl Query {
    /// From its number, which may be anything.
    pub fn from_number(number: u32) -> Option<Query> {
        use Query::*;
        [Info, OutQueue, OutQueueUnsent, Mtu]
            .into_iter()
            .find(|query| *query as u32 == number)
    }
}

/// The arguments of [`Operation::SendTo`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendTo {
    /// Where to; none: to the peer.
    pub to: Option<Address>,
    /// The source address, mapped; all zero: as the socket has it.
    pub from: [u8; 16],
    /// Time to live or hop limit, if it is not the socket's.
    pub hops: Option<u8>,
    /// Type of service or traffic class, likewise.
    pub class: Option<u8>,
    /// Cut into datagrams of so many bytes; 0: not cut.
    pub segment: u16,
}

impl SendTo {
    const HAS_TO: u64 = 1 << 48;
    const HAS_HOPS: u64 = 1 << 49;
    const HAS_CLASS: u64 = 1 << 50;

    /// As words.
    pub fn to_words(self) -> [u64; 6] {
        let [a, b, port] = self.to.unwrap_or(Address::NONE).to_words();
        let [d, e, _] = Address {
            ip: self.from,
            ..Address::NONE
        }
        .to_words();
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let c = port
            | u64::from(self.segment) << 16
            | u64::from(self.hops.unwrap_or(0)) << 32
            | u64::from(self.class.unwrap_or(0)) << 40
            | flag(self.to.is_some(), SendTo::HAS_TO)
            | flag(self.hops.is_some(), SendTo::HAS_HOPS)
            | flag(self.class.is_some(), SendTo::HAS_CLASS);
        [a, b, c, d, e, 0]
    }

    /// Back from words.
    pub fn from_words(words: [u64; 6]) -> SendTo {
        let [a, b, c, d, e, _] = words;
        SendTo {
            to: (c & SendTo::HAS_TO != 0).then(|| Address::from_words([a, b, c & 0xffff])),
            from: Address::from_words([d, e, 0]).ip,
            hops: (c & SendTo::HAS_HOPS != 0).then_some((c >> 32) as u8),
            class: (c & SendTo::HAS_CLASS != 0).then_some((c >> 40) as u8),
            segment: (c >> 16) as u16,
        }
    }
}

bitflags! {
    /// How it is asked.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Ask: u8 {
        /// The sender waits for a reply in the context's reply cell.
        const REPLY = 1;
        /// On a send: more follows soon (MSG_MORE), so a short segment may wait.
        const MORE = 2;
        /// On a send: its last byte is urgent (MSG_OOB).
        const URGENT = 4;
    }
}

/// One entry, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// What is asked for.
    pub operation: Operation,
    /// How.
    pub ask: Ask,
    /// A length, a name, a poller: see [`Operation`].
    pub parameter: u32,
    /// The socket it concerns.
    pub slot: SlotRef,
    /// Further words.
    pub arguments: [u64; 6],
}

impl Submission {
    /// One without further words.
    pub fn new(operation: Operation, slot: SlotRef, parameter: u32) -> Submission {
        Submission {
            operation,
            ask: Ask::empty(),
            parameter,
            slot,
            arguments: [0; 6],
        }
    }

    fn encode(&self) -> [u64; 8] {
        let head = u64::from(self.operation as u8)
            | u64::from(self.ask.bits()) << 8
            | u64::from(self.parameter) << 32;
        let [a, b, c, d, e, f] = self.arguments;
        [head, self.slot.to_bits(), a, b, c, d, e, f]
    }

    fn decode(words: [u64; 8]) -> Option<Submission> {
        let [head, slot, a, b, c, d, e, f] = words;
        Some(Submission {
            operation: Operation::from_number(head as u8)?,
            ask: Ask::from_bits_truncate((head >> 8) as u8),
            parameter: (head >> 32) as u32,
            slot: SlotRef::from_bits(slot),
            arguments: [a, b, c, d, e, f],
        })
    }
}

/// The program's words of a context.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct AppLine {
    tail: AtomicU32,
    /// 1 from the return of a wait with events until the next wait: submissions will be rung for
    /// then, so the shard only naps.
    batching: AtomicU32,
    staging_tail: AtomicU64,
    /// The core the program's thread last ran on, plus 1.
    core: AtomicU32,
}

/// The engine's words of a context.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct EngineLine {
    head: AtomicU32,
    staging_head: AtomicU64,
}

/// The program's lock over the context.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct LockLine(AtomicU32);

/// Head page of a context; the rings follow it.
#[cfg_attr(not(millrace_loom), repr(C, align(4096)))]
#[derive(Debug)]
#[cfg_attr(any(test, millrace_loom), derive(Default))]
pub struct Context {
    app: AppLine,
    engine: EngineLine,
    lock: LockLine,
    /// Where answers arrive.
    pub reply: crate::reply::Reply,
}

#[cfg(not(millrace_loom))]
const _: () = assert!(size_of::<Context>() == crate::layout::PAGE);

/// Why the engine stops listening to a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nonsense {
    /// The tail is further ahead of the head than the ring is long.
    #[error("submission tail {tail} is more than {SUBMISSIONS} ahead of head {head}")]
    Tail {
        /// As read.
        tail: u32,
        /// The engine's own.
        head: u32,
    },
    /// The entry is no operation.
    #[error("submission {0} is no known operation")]
    Entry(u32),
    /// A send names more bytes than are staged.
    #[error("a send names {named} bytes of staging where {staged} are staged")]
    Staging {
        /// Bytes named.
        named: u64,
        /// Bytes there.
        staged: u64,
    },
}

/// The engine's private side of a context: what it believes, whatever the shared words say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    head: u32,
    staging_head: u64,
}

impl Context {
    /// The program's lock word over this context: the holder's thread id, or 0.
    pub fn lock(&self) -> &AtomicU32 {
        &self.lock.0
    }

    // ---- the program's side; all under the lock ----

    /// Entries that can be submitted now.
    pub fn room(&self) -> u32 {
        let used = self
            .app
            .tail
            .load(Ordering::Relaxed)
            .wrapping_sub(self.engine.head.load(Ordering::Acquire));
        SUBMISSIONS.saturating_sub(used)
    }

    /// Bytes that can be staged now.
    pub fn staging_room(&self) -> u64 {
        let used = self
            .app
            .staging_tail
            .load(Ordering::Relaxed)
            .wrapping_sub(self.engine.staging_head.load(Ordering::Acquire));
        STAGING.saturating_sub(used)
    }

    /// Where the next `len` staged bytes go: up to two pieces as (offset in the staging ring,
    /// length).
    pub fn staging_pieces(&self, len: u64) -> [(usize, usize); 2] {
        pieces(self.app.staging_tail.load(Ordering::Relaxed), len)
    }

    /// Submits. The caller has seen [`Context::room`]; for a send it has filled the staged bytes,
    /// which this makes the engine's.
    pub fn submit(&self, ring: &[SubmissionCell], submission: &Submission) {
        if submission.operation.is_staged() {
            let tail = self.app.staging_tail.load(Ordering::Relaxed);
            self.app.staging_tail.store(
                tail.wrapping_add(u64::from(submission.parameter)),
                Ordering::Release,
            );
        }
        let tail = self.app.tail.load(Ordering::Relaxed);
        ring[(tail % SUBMISSIONS) as usize].store(submission.encode());
        self.app.tail.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Where the next submission goes: what is before it has been taken once [`Context::taken`]
    /// says so. Needs no lock.
    pub fn position(&self) -> u32 {
        self.app.tail.load(Ordering::Acquire)
    }

    /// Whether everything before `position` has been taken. Needs no lock.
    pub fn taken(&self, position: u32) -> bool {
        let head = self.engine.head.load(Ordering::Acquire);
        let tail = self.app.tail.load(Ordering::Acquire);
        // Distances round the ring; a head that is ahead has passed it. A tail that is behind is
        // that of another process, which begins anew: the engine takes what is left of the one
        // before first.
        position.wrapping_sub(head) as i32 <= 0 || position.wrapping_sub(tail) as i32 > 0
    }

    /// Whether everything submitted has been taken.
    pub fn drained(&self) -> bool {
        self.app.tail.load(Ordering::Relaxed) == self.engine.head.load(Ordering::Acquire)
    }

    /// Says that the program is between two waits (true), or about to wait (false). Meanwhile the
    /// shard naps instead of sleeping ([`crate::layout::NAPPING`]).
    pub fn set_batching(&self, batching: bool) {
        self.app
            .batching
            .store(u32::from(batching), Ordering::Relaxed);
    }

    /// Publishes the core that the program's thread runs on.
    pub fn set_core(&self, core: u32) {
        self.app.core.store(core + 1, Ordering::Relaxed);
    }

    // ---- the engine's side ----

    /// Whether the program is between two waits.
    pub fn batching(&self) -> bool {
        self.app.batching.load(Ordering::Relaxed) == 1
    }

    /// The core that the program's thread last ran on.
    pub fn core(&self) -> Option<u32> {
        self.app.core.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Whether something has been submitted that `cursor` has not taken.
    pub fn pending(&self, cursor: &Cursor) -> bool {
        self.app.tail.load(Ordering::Acquire) != cursor.head
    }

    /// Takes the next submission. Its staged bytes, if it is a send, are at [`Cursor::staged`]
    /// until [`Cursor::unstage`].
    pub fn take(
        &self,
        ring: &[SubmissionCell],
        cursor: &mut Cursor,
    ) -> Result<Option<Submission>, Nonsense> {
        let tail = self.app.tail.load(Ordering::Acquire);
        if tail == cursor.head {
            return Ok(None);
        }
        if tail.wrapping_sub(cursor.head) > SUBMISSIONS {
            return Err(Nonsense::Tail {
                tail,
                head: cursor.head,
            });
        }
        let words = ring[(cursor.head % SUBMISSIONS) as usize].load();
        let submission =
            Submission::decode(words).ok_or(Nonsense::Entry(words[0] as u32 & 0xff))?;
        if submission.operation.is_staged() {
            let staged = self
                .app
                .staging_tail
                .load(Ordering::Acquire)
                .wrapping_sub(cursor.staging_head)
                .min(STAGING);
            let named = u64::from(submission.parameter);
            if named > staged {
                return Err(Nonsense::Staging { named, staged });
            }
        }
        cursor.head = cursor.head.wrapping_add(1);
        Ok(Some(submission))
    }

    /// Publishes how far the engine has come; once per batch.
    pub fn publish(&self, cursor: &Cursor) {
        self.engine
            .staging_head
            .store(cursor.staging_head, Ordering::Release);
        self.engine.head.store(cursor.head, Ordering::Release);
    }

    /// Nothing more is taken, as the process is gone: what others wait for to be taken will not be.
    pub fn abandon(&self) {
        let tail = self.app.tail.load(Ordering::Acquire);
        self.engine.head.store(tail, Ordering::Release);
    }

    /// Both cursors to zero, for a new process.
    pub fn reset(&self) {
        for word in [
            &self.app.tail,
            &self.app.batching,
            &self.app.core,
            &self.engine.head,
            &self.lock.0,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.app.staging_tail.store(0, Ordering::Relaxed);
        self.engine.staging_head.store(0, Ordering::Relaxed);
        self.reply.reset();
        fence(Ordering::Release);
    }
}

impl Cursor {
    /// Where the next `len` staged bytes lie: up to two pieces as (offset in the staging ring,
    /// length).
    pub fn staged(&self, len: u64) -> [(usize, usize); 2] {
        pieces(self.staging_head, len)
    }
    /// Whether everything before `position` has been taken.
    pub fn has_taken(&self, position: u32) -> bool {
        position.wrapping_sub(self.head) as i32 <= 0
    }
    /// They have been copied or are not wanted.
    pub fn unstage(&mut self, len: u64) {
        self.staging_head = self.staging_head.wrapping_add(len);
    }
}

fn pieces(position: u64, len: u64) -> [(usize, usize); 2] {
    let at = position % STAGING;
    let first = len.min(STAGING - at);
    [(at as usize, first as usize), (0, (len - first) as usize)]
}

/// One entry in shared memory.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct SubmissionCell([AtomicU64; 8]);

impl SubmissionCell {
    fn store(&self, words: [u64; 8]) {
        for (cell, word) in self.0.iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
    }
    /// Copies the entry once: a program that changes it later changes nothing.
    fn load(&self) -> [u64; 8] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests;
