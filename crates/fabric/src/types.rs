//! Names, channels, completions and errors.

use std::fmt;
use std::str::FromStr;

use millrace_tcp::Duration;

/// Bytes that a request carries itself; more are sent from a registered buffer.
pub const INLINE_MAX: usize = 64;
/// Bytes of the largest message on the system channel. It fits one frame of any Ethernet.
pub const SYSTEM_MAX: usize = 1024;
/// How many normal channels a port has, and how many open ones.
pub const CHANNELS: u16 = 16;
/// Bytes of the largest message on the other channels.
pub const MESSAGE_MAX: usize = 1 << 30;
/// How many messages of one channel a sender announces ahead.
pub const ANNOUNCED_MAX: usize = 4;

/// The name of a port: the node that it is on, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName {
    /// The node.
    pub node: u16,
    /// The port's number on the node.
    pub port: u16,
}

impl PortName {
    /// The port `port` of `node`.
    pub const fn new(node: u16, port: u16) -> PortName {
        PortName { node, port }
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.port)
    }
}

/// A text that names no port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no port: write NODE.PORT, two numbers from 0 to 65535, as in 1.7")]
pub struct BadName(String);

impl FromStr for PortName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let plain = text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse().ok()).flatten()
        };
        let (node, port) = text.split_once('.').unwrap_or_default();
        match (number(node), number(port)) {
            (Some(node), Some(port)) => Ok(PortName { node, port }),
            _ => Err(BadName(text.into())),
        }
    }
}

/// Where in a port a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Channel {
    /// Small messages, of [`SYSTEM_MAX`] bytes at most, into buffers of the port's pool.
    System,
    /// Large messages, each into the buffer that the receiver posted first.
    Normal(u16),
    /// Writes at an offset into the window that the receiver offered.
    Open(u16),
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Channel::System => f.write_str("system"),
            Channel::Normal(number) => write!(f, "normal {number}"),
            Channel::Open(number) => write!(f, "open {number}"),
        }
    }
}

/// A registered buffer. A buffer that takes its place after [`free`](crate::Endpoint::free) has
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl BufferId {
    /// As a number, for interfaces of other languages.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The buffer of that number. Any number can be one; a wrong one is an error where it is used.
    pub fn from_bits(bits: u64) -> BufferId {
        BufferId {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

/// What a request sends.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// These bytes, [`INLINE_MAX`] at most, which are copied.
    Inline(&'a [u8]),
    /// The first bytes of a registered buffer, which must stay as they are until the completion.
    Buffer(BufferId, usize),
}

impl Payload<'_> {
    /// Bytes of the message.
    pub fn len(&self) -> usize {
        match self {
            Payload::Inline(bytes) => bytes.len(),
            Payload::Buffer(_, len) => *len,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An entry of the send-completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// What the request was marked with.
    pub tag: u64,
    /// The port that the message was for.
    pub to: PortName,
    /// Whether the transport has delivered it.
    pub result: Result<(), Failure>,
}

/// An entry of the receive-completion queue: a message, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The port that sent it.
    pub from: PortName,
    /// The channel.
    pub channel: Channel,
    /// Where its bytes are. A buffer of the pool is to be given back
    /// ([`Endpoint::free`](crate::Endpoint::free)); a posted one is the program's again; of an open
    /// channel it is the window.
    pub buffer: BufferId,
    /// Where they begin in the buffer: 0, but in a window.
    pub offset: usize,
    /// Bytes of the message.
    pub len: usize,
}

/// Why a message was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no such port, or its node does not answer.
    #[error("no such port, or its node does not answer")]
    NoSuchPort,
    /// The receiver had no buffer, window or credit for it within [`Limits::wait`].
    #[error("the receiver had no buffer for it in time")]
    NoBuffer,
    /// It is longer than the buffer that the receiver posted.
    #[error("longer than the buffer that the receiver posted")]
    TooLong,
    /// It would be written outside of the window that the receiver offered.
    #[error("outside of the window that the receiver offered")]
    OutOfRange,
    /// The receiver does not have that channel.
    #[error("the receiver has no such channel")]
    NoSuchChannel,
    /// The receiver ended, or was not heard of any more. The message may have arrived.
    #[error("the receiver is gone")]
    PeerLost,
    /// The receiver ended and has begun anew. The message may have arrived.
    #[error("the receiver has been restarted")]
    PeerRestarted,
    /// The receiver has as many peers as it takes.
    #[error("the receiver has as many peers as it takes")]
    Refused,
    /// The receiver broke the protocol, and is not spoken to any more. The message may have
    /// arrived.
    #[error("the receiver broke the protocol")]
    Violation,
    /// This port was closed first. The message may have arrived.
    #[error("the port was closed")]
    Closed,
}

/// Why a call was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// As many requests as [`Limits::requests`] are under way, or their completions were not read.
    #[error("the send queue is full ({0} requests): read completions, or ask for a longer one")]
    QueueFull(usize),
    /// The message is longer than its channel, or an inline request, takes.
    #[error("a message of {len} bytes; at most {max} go this way")]
    TooLong {
        /// What was asked for, in bytes.
        len: usize,
        /// The most, in bytes.
        max: usize,
    },
    /// The channel's number is too large, or the call is not for channels of this kind.
    #[error("channel {0} cannot be used for this")]
    BadChannel(Channel),
    /// The buffer has been freed, or never was.
    #[error("no such buffer: it was freed, or never was")]
    NoSuchBuffer,
    /// The buffer is posted, offered, being sent or being received into.
    #[error("the buffer is in use: wait for its completion, or withdraw it")]
    BufferInUse,
    /// More bytes than the buffer has.
    #[error("{len} bytes of a buffer that has {size}")]
    OutOfRange {
        /// What was asked for, in bytes.
        len: usize,
        /// The buffer's size, in bytes.
        size: usize,
    },
    /// [`Limits::memory`] or [`Limits::buffers`] is reached.
    #[error(
        "the port's limit of registered memory is reached ({0} bytes): free buffers, or ask for more"
    )]
    Memory(usize),
    /// As many peers as [`Limits::peers`].
    #[error("the port has as many peers as it may ({0})")]
    TooManyPeers(usize),
    /// A port sends nothing to itself.
    #[error("a port sends nothing to itself")]
    ToItself,
}

/// What a port may hold. At a limit the new is refused and the old is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests under way and completions of them that were not read.
    pub requests: usize,
    /// Ports that it speaks with.
    pub peers: usize,
    /// Messages on the system channel that each peer may send ahead: buffers of the pool.
    pub system_buffers: usize,
    /// Buffers that the program registers.
    pub buffers: usize,
    /// Bytes of these buffers.
    pub memory: usize,
    /// Writes into windows whose completions were not read.
    pub window_writes: usize,
    /// How long a message waits for a buffer, window or credit at its receiver.
    pub wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            requests: 1024,
            peers: 64,
            system_buffers: 256,
            buffers: 4096,
            memory: 256 << 20,
            window_writes: 1024,
            wait: Duration::from_millis(10_000),
        }
    }
}

/// What a port has counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that were delivered.
    pub sent: u64,
    /// Messages that were not, each with an error completion.
    pub failed: u64,
    /// Messages received.
    pub received: u64,
    /// Messages that had to wait for a credit, buffer or window of their receiver, or for room in
    /// the transport.
    pub waited: u64,
    /// Requests refused because the send queue was full.
    pub queue_full: u64,
    /// Peers refused because there were as many as the port takes.
    pub peers_refused: u64,
    /// Peers that broke the protocol.
    pub violations: u64,
    /// Peers lost, those that broke the protocol among them.
    pub peers_lost: u64,
}
