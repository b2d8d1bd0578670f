//! What a connection tells its socket.

bitflags::bitflags! {
    /// What has happened since the last look. Each is a hint to look at the state: `state()`, `received()`, `acked()`,
    /// `error()`.
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
        /// The peer, or the network, has refused the connection before it was established.
        const REFUSED = 1 << 5;
        /// No answer in the time allowed.
        const TIMED_OUT = 1 << 6;
        /// Transmit what there is, then replace the connection by its `time_wait()`.
        const TIME_WAIT = 1 << 7;
        /// Transmit what there is (there may be a last RST), then forget the connection.
        const CLOSED = 1 << 8;
        /// `urgent()` has changed.
        const URGENT = 1 << 9;
    }
}

/// Why a connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The peer answered our SYN with RST, or its host said that nobody listens.
    ConnectionRefused,
    /// The peer reset the connection.
    ConnectionReset,
    /// Our own program aborted the connection.
    ConnectionAborted,
    /// No answer in the time allowed.
    TimedOut,
    /// A router or the peer's host said that the host cannot be reached.
    HostUnreachable,
    /// A router said that the network cannot be reached.
    NetworkUnreachable,
    /// The peer's host said that it does not speak TCP.
    ProtocolUnavailable,
    /// The peer's host or a router could not parse what we sent.
    ProtocolError,
    /// A router or the peer's host said that it is not allowed.
    PermissionDenied,
}

impl Error {
    /// The error number of Linux that a program gets.
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

/// What an ICMP message said about a segment of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpError {
    /// Fragmentation needed: the largest segment that passes, in bytes: the link's MTU less the IP header and the TCP
    /// header of 20 bytes.
    FragmentationNeeded {
        /// Largest TCP payload with options, in bytes.
        max_segment: u16,
    },
    /// The segment could not be delivered, for a reason that a program knows as this error.
    Unreachable(Error),
}
