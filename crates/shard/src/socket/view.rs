//! The view of a socket that a program has at any time: readiness is state, not events.

use std::net::{Ipv4Addr, SocketAddr};

use millrace_tcp::State;

use crate::memory::{Block, Owner};
use crate::socket::id::SocketId;

bitflags::bitflags! {
    /// Facts about a socket, enough to derive Linux's poll bits: see [`View::poll`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ViewFlags: u16 {
        /// It listens.
        const LISTENING = 1;
        /// A connect is under way.
        const CONNECTING = 1 << 1;
        /// The handshake was completed, at some time.
        const CONNECTED = 1 << 2;
        /// No more bytes will come after `received`: the peer's FIN, a reset, or shut for reading.
        const END_OF_STREAM = 1 << 3;
        /// Nothing can be written any more: shut for writing, or dead.
        const WRITE_SHUT = 1 << 4;
        /// The connection is over in both directions (Linux: EPOLLHUP); also a socket that was
        /// never connected.
        const HUNG_UP = 1 << 5;
        /// `error` waits to be taken.
        const ERROR = 1 << 6;
        /// Space to write is at least a third of the send buffer, and less than half of
        /// `TCP_NOTSENT_LOWAT` was not sent yet (Linux's `sk_stream_is_writeable`).
        const WRITABLE = 1 << 7;
        /// It is one for datagrams: `received` and `consumed` are ends of records, `queued` and
        /// `acked` bytes given to send and bytes that have left.
        const DATAGRAM = 1 << 8;
        /// Errors with particulars wait: [`crate::Shard::take_report`].
        const REPORTS = 1 << 9;
    }
}

/// A picture of a socket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// TCP's state; `None` when the socket is neither connected nor was ever.
    pub state: Option<State>,
    /// Facts, for readiness.
    pub flags: ViewFlags,
    /// In-order stream bytes stored since the connection began.
    pub received: u64,
    /// Stream bytes that the reader has taken.
    pub consumed: u64,
    /// The receive ring: stream offset `o` is at byte `o & (len - 1)`. `None` while there is
    /// nothing to read.
    pub ring: Option<Block>,
    /// Stream bytes accepted for sending since the connection began.
    pub queued: u64,
    /// Stream bytes that the peer has acknowledged.
    pub acked: u64,
    /// Stream bytes that were sent, once at least.
    pub sent: u64,
    /// How many bytes beyond `acked` may be queued.
    pub send_limit: u32,
    /// `TCP_NOTSENT_LOWAT`: how many bytes beyond `sent` may be queued before no more are; 0 is no
    /// bound.
    pub notsent_low: u32,
    /// The pending error as errno, 0 when none. [`crate::Shard::take_error`] takes it.
    pub error: i32,
    /// Our end; port 0 when not bound.
    pub local: SocketAddr,
    /// The peer's end; 0.0.0.0:0 when there is none.
    pub remote: SocketAddr,
    /// Connections that wait for accept.
    pub pending_accepts: u32,
    /// Of a socket for datagrams, the largest packet to its peer in bytes.
    pub mtu: u16,
    /// Stream offset of the latest byte that the peer has announced as urgent. It is in the ring
    /// like any other.
    pub urgent: Option<u64>,
}

bitflags::bitflags! {
    /// Linux's poll bits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Poll: u32 {
        /// EPOLLIN and EPOLLRDNORM.
        const IN = 0x041;
        /// EPOLLOUT and EPOLLWRNORM.
        const OUT = 0x104;
        /// EPOLLERR.
        const ERR = 0x008;
        /// EPOLLHUP.
        const HUP = 0x010;
        /// EPOLLRDHUP.
        const RDHUP = 0x2000;
    }
}

impl View {
    /// A view of a socket without a connection.
    pub(crate) fn empty(flags: ViewFlags) -> View {
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        View {
            state: None,
            flags,
            received: 0,
            consumed: 0,
            ring: None,
            queued: 0,
            acked: 0,
            sent: 0,
            send_limit: 0,
            notsent_low: 0,
            error: 0,
            local: nowhere,
            remote: nowhere,
            pending_accepts: 0,
            mtu: 0,
            urgent: None,
        }
    }

    /// The poll bits that Linux's `tcp_poll` gives for a socket in this state.
    ///
    /// ```
    /// # use millrace_shard::{self as millrace, Config, HeapMemory, Shard};
    /// # let config = Config::new([127, 0, 0, 1].into(), 8, Default::default(), [7; 32]);
    /// # let mut shard = Shard::new(config, HeapMemory::new(1 << 20),
    /// millrace_tcp::Instant::from_micros(0));
    /// # let owner = millrace_shard::Owner(0);
    /// # let id = shard.socket(owner, &Default::default()).expect("room");
    /// let view = shard.view(id).expect("it is there");
    /// // As Linux has it for a socket that was never connected.
    /// assert_eq!(view.poll(), millrace::Poll::OUT | millrace::Poll::HUP);
    /// ```
    pub fn poll(&self) -> Poll {
        let mut bits = Poll::empty();
        let has = |flag| self.flags.contains(flag);
        if has(ViewFlags::LISTENING) {
            bits.set(Poll::IN, self.pending_accepts > 0);
            return bits;
        }
        bits.set(Poll::HUP, has(ViewFlags::HUNG_UP));
        bits.set(Poll::ERR, has(ViewFlags::ERROR) || has(ViewFlags::REPORTS));
        if has(ViewFlags::END_OF_STREAM) {
            bits |= Poll::IN | Poll::RDHUP;
        }
        bits.set(
            Poll::IN,
            bits.contains(Poll::IN) || self.received > self.consumed,
        );
        bits.set(
            Poll::OUT,
            has(ViewFlags::WRITABLE) || has(ViewFlags::WRITE_SHUT) && !has(ViewFlags::DATAGRAM),
        );
        bits
    }
}

/// A socket, as `ss` shows it.
#[derive(Clone, Debug)]
pub struct SocketInfo {
    /// The socket; `None` for what belongs to no program: orphans, half-open connections,
    /// TIME-WAIT.
    pub id: Option<SocketId>,
    /// Its owner.
    pub owner: Owner,
    /// The state of the socket.
    pub state: SocketState,
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// Bytes received and not read; of a listener, connections that wait for accept.
    pub receive_queue: u64,
    /// Bytes written and not acknowledged; of a listener, its backlog.
    pub send_queue: u64,
    /// Datagrams dropped for want of room.
    pub dropped: u64,
    /// The `tcp::Info` of the connection.
    pub tcp: Option<millrace_tcp::Info>,
}

/// State of a socket, TCP's and those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// Bound or not, but neither listening nor connected.
    Unconnected,
    /// Waiting for connections.
    Listen,
    /// A connection in this state.
    Tcp(State),
    /// A socket for datagrams, with a peer or without.
    Udp {
        /// Whether it has a peer.
        connected: bool,
    },
}
