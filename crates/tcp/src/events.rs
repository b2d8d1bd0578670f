//! Events, and the errors that end a connection.

bitflags::bitflags! {
    /// What has happened since the last call of [`crate::Connection::take_events`]. Each event is a
    /// hint to look at `state()`, `received()`, `acked()` or `error()`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Events: u16 {
        /// The handshake is complete.
        const ESTABLISHED = 1;
        /// `received()` has grown.
        const READABLE = 1 << 1;
        /// `acked()` has grown: there is room in the send buffer.
        const WRITABLE = 1 << 2;
        /// The peer has sent its FIN and all before it: end of stream.
        const PEER_CLOSED = 1 << 3;
        /// The peer has reset the connection.
        const RESET = 1 << 4;
        /// The peer, or the network, refused the connection before it was established.
        const REFUSED = 1 << 5;
        /// No answer came in the time allowed.
        const TIMED_OUT = 1 << 6;
        /// Transmit what there is, then replace the connection by its `time_wait()`.
        const TIME_WAIT = 1 << 7;
        /// Transmit what there is (a last RST, maybe), then drop the connection.
        const CLOSED = 1 << 8;
        /// `urgent()` has changed.
        const URGENT = 1 << 9;
    }
}

/// Why a connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The peer answered our SYN with RST, or its host reported that nobody listens.
    ConnectionRefused,
    /// The peer reset the connection.
    ConnectionReset,
    /// Our own program aborted the connection.
    ConnectionAborted,
    /// No answer came in the time allowed.
    TimedOut,
    /// A router, or the peer's host, reported that the host is unreachable.
    HostUnreachable,
    /// A router reported that the network is unreachable.
    NetworkUnreachable,
    /// The peer's host reported that it does not speak TCP.
    ProtocolUnavailable,
    /// A router, or the peer's host, could not parse what we sent.
    ProtocolError,
    /// A router, or the peer's host, reported that the traffic is not allowed.
    PermissionDenied,
}

impl Error {
    /// Linux's error number for a program.
    pub fn errno(self) -> i32 {
        match self {
            Error::PermissionDenied => 13,
            Error::ProtocolError => 71,
            Error::ProtocolUnavailable => 92,
            Error::NetworkUnreachable => 101,
            Error::ConnectionAborted => 103,
            Error::ConnectionReset => 104,
            Error::TimedOut => 110,
            Error::ConnectionRefused => 111,
            Error::HostUnreachable => 113,
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Error::ConnectionRefused => "connection refused",
            Error::ConnectionReset => "connection reset by peer",
            Error::ConnectionAborted => "connection aborted by this end",
            Error::TimedOut => "no answer from the peer in the time allowed",
            Error::HostUnreachable => "no route to the peer's host",
            Error::NetworkUnreachable => "no route to the peer's network",
            Error::ProtocolUnavailable => "the peer's host does not speak TCP",
            Error::PermissionDenied => "a router, or the peer's host, does not allow it",
            Error::ProtocolError => "the peer's host rejected our packet as malformed",
        })
    }
}

impl std::error::Error for Error {}

/// What an ICMP message reports about a segment of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpError {
    /// Fragmentation needed: the segment is larger than a link on the path carries.
    FragmentationNeeded {
        /// The largest segment that passes, in bytes: the link's MTU less the IP header and the 20
        /// bytes of the TCP header. Options are not subtracted.
        max_segment: u16,
    },
    /// The segment could not be delivered, for this reason.
    Unreachable(Error),
}
