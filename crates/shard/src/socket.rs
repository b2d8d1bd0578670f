//! Sockets of programs: bound, listening, connected, and datagram sockets.

mod backlog;
pub mod id;
pub mod local_ports;
pub mod marks;
pub mod options;
pub mod receive_ring;
pub mod send_ring;
mod sockopt;
pub mod stream;
pub mod tcp_info;
pub mod view;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::Deref;

use millrace_tcp::{Connection, Instant, Settings, Shared, Sharing, Usual};

pub use backlog::AcceptQueue;
pub(crate) use backlog::Backlog;
pub use id::SocketId;
pub(crate) use marks::Marks;
pub use options::{Device, Options, Reuse};
pub use stream::How;
pub use tcp_info::TCP_INFO_LEN;
pub use view::{Poll, SocketInfo, SocketState, View, ViewFlags};

use crate::link::neighbour::Handle;
use crate::memory::Owner;
use crate::socket::receive_ring::RecvRing;
use crate::socket::send_ring::SendRing;
use crate::tcp::endpoints::Endpoints;
use crate::tcp::segment::IpFields;
use crate::udp::socket::Datagram;

/// Options as sockets hold them, with the part that their connections hold.
#[derive(Clone)]
pub(crate) struct SharedOptions {
    options: Options,
    pub settings: Shared<Settings>,
}

impl Deref for SharedOptions {
    type Target = Options;

    #[inline(always)]
    fn deref(&self) -> &Options {
        &self.options
    }
}

impl PartialEq for SharedOptions {
    fn eq(&self, other: &SharedOptions) -> bool {
        self.options == other.options
    }
}

impl Usual for SharedOptions {
    const USUAL: &'static SharedOptions = &SharedOptions {
        options: Options::UNSET,
        settings: Shared::USUAL,
    };
}

/// Values of options, shared by the sockets that have the same ones.
#[derive(Default)]
pub(crate) struct OptionSharing {
    options: Sharing<SharedOptions>,
    settings: Sharing<Settings>,
}

impl OptionSharing {
    /// These options, for a socket to hold.
    pub fn share(&mut self, options: &Options) -> Shared<SharedOptions> {
        let make = || SharedOptions {
            options: *options,
            settings: self.settings.share(&options.tcp),
        };
        self.options.find(|shared| shared.options == *options, make)
    }
}

/// A socket.
pub(crate) struct Socket {
    pub owner: Owner,
    pub marks: Marks,
    pub options: Shared<SharedOptions>,
    pub kind: Kind,
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly all sockets are streams, and they should not cost another allocation"
)]
pub(crate) enum Kind {
    /// Neither listening nor connected; bound to an address, or not (port 0).
    Bound { local: SocketAddr },
    /// Waiting for connections.
    Listener(Listener),
    /// A connection.
    Stream(Stream),
    /// UDP.
    Datagram(Box<Datagram>),
}

/// A listening socket.
pub(crate) struct Listener {
    pub local: SocketAddr,
    /// Connections (socket indices) that wait for accept, oldest first.
    pub queue: VecDeque<u32>,
    /// How many may wait, here and with the program.
    pub backlog: Backlog,
    /// Connections of this listener in SYN-RECEIVED.
    pub half_open: u32,
    /// Connections of this listener that are open before their handshake is complete.
    pub early: u32,
    /// Whether the program says of each connection whether it is wanted, before its SYN is
    /// answered.
    pub asks: bool,
    /// Half-open connections that it has not been asked about, oldest first: where they are, and
    /// which of those that were there.
    pub requests: VecDeque<(u32, NonZeroU32)>,
    /// Until when an ACK may bring a SYN cookie back.
    pub cookies_until: Instant,
    /// Keys of its own for the cookies of TCP Fast Open.
    pub fast_open_keys: Option<Box<millrace_sockopt::FastOpenKeys>>,
}

impl Listener {
    pub fn new(local: SocketAddr, backlog: Backlog) -> Listener {
        Listener {
            local,
            queue: VecDeque::new(),
            backlog,
            half_open: 0,
            early: 0,
            asks: false,
            requests: VecDeque::new(),
            cookies_until: Instant::from_micros(0),
            fast_open_keys: None,
        }
    }
}

/// A connection with its buffers.
pub(crate) struct Stream {
    pub connection: Connection,
    pub endpoints: Endpoints,
    /// The rest of its IP headers.
    pub fields: IpFields,
    /// The neighbour that leads to the peer.
    pub hop: Handle,
    pub send: SendRing,
    pub recv: RecvRing,
    /// How many bytes beyond the acknowledged ones may be queued.
    pub send_limit: u32,
    /// When it was counted as one of those that send.
    pub counted: u32,
    /// The receive buffer: how far the window may reach beyond what was read.
    pub receive_limit: u32,
    /// The pending error as errno; 0 when none.
    pub error: u16,
    /// While it waits to be accepted, whose queue it is in.
    pub listener: u32,
    /// When the wheel comes back to it at the latest: [`Instant::NEVER`] if it does not.
    pub armed: Instant,
    pub tuning: Tuning,
}

/// Measures how fast the program reads, to size the receive buffer.
#[derive(Clone, Copy)]
pub(crate) struct Tuning {
    /// When the measurement began: low half of a microsecond count. A pause of 71 minutes is taken
    /// for none.
    pub since: u32,
    /// The stream offset that had been read then: its low half.
    pub from: u32,
    /// How long a measurement takes, in microseconds: a round trip.
    pub span_us: u32,
    /// Bytes read in the best measurement so far.
    pub best: u32,
}

impl Stream {
    /// Stream offset up to which the program has read.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.recv.consumed(self.connection.received())
    }
}

impl Socket {
    /// Whether a program holds it.
    #[inline]
    pub fn has_program(&self) -> bool {
        !self.marks.intersects(Marks::ORPHAN | Marks::UNACCEPTED)
    }

    pub fn stream(&self) -> Option<&Stream> {
        match &self.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    pub fn stream_mut(&mut self) -> Option<&mut Stream> {
        match &mut self.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// Whether its connection was, or was to be, opened fast (RFC 7413).
    #[inline]
    pub fn is_opened_fast(&self) -> bool {
        let asked = |stream: &Stream| stream.connection.is_opened_fast();
        self.marks.contains(Marks::EARLY) || self.stream().is_some_and(asked)
    }

    pub fn listener_mut(&mut self) -> Option<&mut Listener> {
        match &mut self.kind {
            Kind::Listener(listener) => Some(listener),
            _ => None,
        }
    }
}

/// The view of a socket has changed: adds it to the list, if it is not there and a program has seen
/// it.
#[inline(always)]
pub(crate) fn note_changed(changed: &mut Vec<SocketId>, id: SocketId, socket: &mut Socket) {
    if !socket
        .marks
        .intersects(Marks::CHANGED | Marks::ORPHAN | Marks::UNACCEPTED)
    {
        socket.marks.insert(Marks::CHANGED);
        changed.push(id);
    }
}
