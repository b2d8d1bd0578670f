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

/// The operations that a program can request.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Does nothing. With [`Ask::REPLY`] it shows that everything before it is done.
    Nop = 1,
    /// Makes a socket: a stream, or a datagram socket if `parameter` is 1. The first word of the
    /// reply's data is its [`SlotRef`].
    Socket = 2,
    /// Binds to the address in `arguments[0..3]`. `arguments[3]`: bit 0 is SO_REUSEADDR, bit 1
    /// SO_REUSEPORT, bit 2 IPV6_V6ONLY, bits 3 and 4 the device (1 the link, 2 loopback, else any).
    /// Replies 0 or an errno.
    Bind = 3,
    /// Listens with a backlog of `parameter`. Replies 0 or an errno.
    Listen = 4,
    /// Connects to the address in `arguments[0..3]`. The slot shows the result. With [`Ask::REPLY`]
    /// the reply has errors that are known at once; without it they become the slot's error, as
    /// later ones do. With `arguments[3]` it uses TCP Fast Open (RFC 7413) and needs a reply: how
    /// many bytes the SYN carries and waits for; 0 if it waits for none.
    Connect = 5,
    /// The program has taken this socket from its listener's queue.
    Accepted = 6,
    /// The next `parameter` bytes of staging belong to this socket's stream.
    Send = 7,
    /// The program has read up to `slot.app.consumed`.
    Consumed = 8,
    /// Shuts down: `parameter` is SHUT_RD, SHUT_WR or SHUT_RDWR.
    Shutdown = 9,
    /// This process no longer holds the socket.
    Close = 10,
    /// Poller `parameter` wants hints of this socket. `arguments[0]` is the mask of epoll bits
    /// (with EPOLLEXCLUSIVE). `arguments[1]` is the socket's `sequence` when the program last
    /// looked: if it has changed since, the shard hints at once, so that no change between that
    /// look and this request is missed. `arguments[2]` is the request's number in
    /// [`crate::slot::App::watch_order`].
    Watch = 11,
    /// Poller `parameter` wants no more hints, unless it has asked again since: `arguments[2]` is
    /// the request's number as in [`Operation::Watch`].
    Unwatch = 12,
    /// Sets the option with number `parameter` to the value in the first arguments, both as
    /// `millrace-sockopt` has them. Replies if asked.
    SetOption = 13,
    /// Asks for the option with number `parameter`, or for a [`Query`]; the reply's data holds the
    /// value.
    GetOption = 14,
    /// Disconnects the socket (connect with AF_UNSPEC). Replies 0 or an errno. The shim then sets
    /// `consumed` and `queued` to 0, where the next connection's stream begins.
    Disconnect = 15,
    /// The next `parameter` bytes of staging are a datagram. `arguments` are a [`SendTo`].
    SendTo = 16,
    /// Takes the oldest error of a datagram socket; the reply's data is a [`crate::reply::Failure`]
    /// and what it quotes.
    TakeFailure = 17,
    /// Adds a datagram socket to the group in `arguments[0..3]`; removes it if `parameter` is 0.
    /// Replies 0 or an errno.
    Membership = 18,
    /// Moves the socket here from another program that holds it ([`crate::Status::ELSEWHERE`]). The
    /// thread holds both locks of the slot, of which the engine writes `consumed` and `queued`.
    /// Replies 0 or an errno: EAGAIN while the other program is in a call on it.
    Recall = 19,
}

impl Operation {
    /// The operation with a number, which may be any number.
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

    /// Whether the operation takes `parameter` bytes of staging.
    pub fn is_staged(self) -> bool {
        matches!(self, Operation::Send | Operation::SendTo)
    }
}

/// The properties of a socket that a program can read beside its options, by the number in
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
    /// The query with a number, which may be any number.
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
    /// The destination; `None` for the peer.
    pub to: Option<Address>,
    /// The source address, with IPv4 mapped; all zero for the socket's own.
    pub from: [u8; 16],
    /// The time to live or hop limit, if it differs from the socket's.
    pub hops: Option<u8>,
    /// The type of service or traffic class, if it differs from the socket's.
    pub class: Option<u8>,
    /// The size of the datagrams that the payload is cut into; 0 if it is not cut.
    pub segment: u16,
}

impl SendTo {
    const HAS_TO: u64 = 1 << 48;
    const HAS_HOPS: u64 = 1 << 49;
    const HAS_CLASS: u64 = 1 << 50;

    /// The arguments as words.
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

    /// The arguments from their words.
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
    /// Flags of a submission.
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
    /// The operation.
    pub operation: Operation,
    /// The flags.
    pub ask: Ask,
    /// A length, a name or a poller: see [`Operation`].
    pub parameter: u32,
    /// The socket.
    pub slot: SlotRef,
    /// The other arguments.
    pub arguments: [u64; 6],
}

impl Submission {
    /// A submission without arguments.
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
    /// 1 from the return of a wait with events until the next wait. The doorbell rings then, so
    /// meanwhile the shard only naps.
    batching: AtomicU32,
    staging_tail: AtomicU64,
    /// The core on which the program's thread last ran, plus 1.
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

/// The head page of a context; its rings follow.
#[cfg_attr(not(millrace_loom), repr(C, align(4096)))]
#[derive(Debug)]
#[cfg_attr(any(test, millrace_loom), derive(Default))]
pub struct Context {
    app: AppLine,
    engine: EngineLine,
    lock: LockLine,
    /// The cell for answers.
    pub reply: crate::reply::Reply,
}

#[cfg(not(millrace_loom))]
const _: () = assert!(size_of::<Context>() == crate::layout::PAGE);

/// The reasons why the engine stops reading a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nonsense {
    /// The tail is further ahead of the head than the ring is long.
    #[error("submission tail {tail} is more than {SUBMISSIONS} ahead of head {head}")]
    Tail {
        /// The tail that was read.
        tail: u32,
        /// The engine's own head.
        head: u32,
    },
    /// The entry names no operation.
    #[error("submission {0} is no known operation")]
    Entry(u32),
    /// A send names more bytes than are staged.
    #[error("a send names {named} bytes of staging where {staged} are staged")]
    Staging {
        /// The bytes that the send names.
        named: u64,
        /// The bytes that are staged.
        staged: u64,
    },
}

/// The engine's private state of a context. The engine believes it, whatever the shared words say.
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

    /// The number of entries that can be submitted now.
    pub fn room(&self) -> u32 {
        let used = self
            .app
            .tail
            .load(Ordering::Relaxed)
            .wrapping_sub(self.engine.head.load(Ordering::Acquire));
        SUBMISSIONS.saturating_sub(used)
    }

    /// The number of bytes that can be staged now.
    pub fn staging_room(&self) -> u64 {
        let used = self
            .app
            .staging_tail
            .load(Ordering::Relaxed)
            .wrapping_sub(self.engine.staging_head.load(Ordering::Acquire));
        STAGING.saturating_sub(used)
    }

    /// The place of the next `len` staged bytes: up to two pieces as (offset in the staging ring,
    /// length).
    pub fn staging_pieces(&self, len: u64) -> [(usize, usize); 2] {
        pieces(self.app.staging_tail.load(Ordering::Relaxed), len)
    }

    /// Submits. The caller has checked [`Context::room`]. For a send it has filled the staged
    /// bytes, which become the engine's.
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

    /// The position of the next submission. Everything before it was taken once [`Context::taken`]
    /// says so. Needs no lock.
    pub fn position(&self) -> u32 {
        self.app.tail.load(Ordering::Acquire)
    }

    /// Whether everything before `position` has been taken. Needs no lock.
    pub fn taken(&self, position: u32) -> bool {
        let head = self.engine.head.load(Ordering::Acquire);
        let tail = self.app.tail.load(Ordering::Acquire);
        // Distances round the ring. A head that is ahead has passed the position. A tail that is
        // behind is another process's, which starts anew: the engine first takes what is left of
        // the former process's submissions.
        position.wrapping_sub(head) as i32 <= 0 || position.wrapping_sub(tail) as i32 > 0
    }

    /// Whether everything submitted has been taken.
    pub fn drained(&self) -> bool {
        self.app.tail.load(Ordering::Relaxed) == self.engine.head.load(Ordering::Acquire)
    }

    /// Publishes whether the program is between two waits (true) or about to wait (false). Between
    /// two waits the shard naps instead of sleeping ([`crate::layout::NAPPING`]).
    pub fn set_batching(&self, batching: bool) {
        self.app
            .batching
            .store(u32::from(batching), Ordering::Relaxed);
    }

    /// Publishes the core on which the program's thread runs.
    pub fn set_core(&self, core: u32) {
        self.app.core.store(core + 1, Ordering::Relaxed);
    }

    // ---- the engine's side ----

    /// Whether the program is between two waits.
    pub fn batching(&self) -> bool {
        self.app.batching.load(Ordering::Relaxed) == 1
    }

    /// The core on which the program's thread last ran.
    pub fn core(&self) -> Option<u32> {
        self.app.core.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Whether there is a submission that `cursor` has not taken.
    pub fn pending(&self, cursor: &Cursor) -> bool {
        self.app.tail.load(Ordering::Acquire) != cursor.head
    }

    /// Takes the next submission. The staged bytes of a send are at [`Cursor::staged`] until
    /// [`Cursor::unstage`].
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

    /// Publishes the engine's position, once for each batch.
    pub fn publish(&self, cursor: &Cursor) {
        self.engine
            .staging_head
            .store(cursor.staging_head, Ordering::Release);
        self.engine.head.store(cursor.head, Ordering::Release);
    }

    /// Marks everything as taken, because the process has ended: nobody has to wait for its
    /// submissions.
    pub fn abandon(&self) {
        let tail = self.app.tail.load(Ordering::Acquire);
        self.engine.head.store(tail, Ordering::Release);
    }

    /// Sets both cursors to zero, for a new process.
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
    /// The place of the next `len` staged bytes: up to two pieces as (offset in the staging ring,
    /// length).
    pub fn staged(&self, len: u64) -> [(usize, usize); 2] {
        pieces(self.staging_head, len)
    }
    /// Whether everything before `position` has been taken.
    pub fn has_taken(&self, position: u32) -> bool {
        position.wrapping_sub(self.head) as i32 <= 0
    }
    /// The staged bytes were copied, or are not needed.
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
    /// Copies the entry once. A program that changes it later changes nothing.
    fn load(&self) -> [u64; 8] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests;
