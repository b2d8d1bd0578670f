//! Errors of requests to sockets, and the errno that Linux gives for each.

/// Errno numbers of Linux (all architectures that millrace runs on agree on these), without a
/// dependency on libc.
pub mod errno {
    /// Broken pipe.
    pub const EPIPE: i32 = 32;
    /// Try again: the operation would block.
    pub const EAGAIN: i32 = 11;
    /// Bad descriptor: the socket is gone.
    pub const EBADF: i32 = 9;
    /// Out of memory.
    pub const ENOMEM: i32 = 12;
    /// Invalid argument.
    pub const EINVAL: i32 = 22;
    /// Too many open sockets in the system.
    pub const ENFILE: i32 = 23;
    /// No such option.
    pub const ENOPROTOOPT: i32 = 92;
    /// Operation not supported.
    pub const EOPNOTSUPP: i32 = 95;
    /// Address in use.
    pub const EADDRINUSE: i32 = 98;
    /// The address is not one of ours, or no port is free.
    pub const EADDRNOTAVAIL: i32 = 99;
    /// No route.
    pub const ENETUNREACH: i32 = 101;
    /// Reset by peer.
    pub const ECONNRESET: i32 = 104;
    /// No buffer space.
    pub const ENOBUFS: i32 = 105;
    /// Already connected.
    pub const EISCONN: i32 = 106;
    /// Not connected.
    pub const ENOTCONN: i32 = 107;
    /// Timed out.
    pub const ETIMEDOUT: i32 = 110;
    /// Refused.
    pub const ECONNREFUSED: i32 = 111;
    /// The neighbour did not answer.
    pub const EHOSTUNREACH: i32 = 113;
    /// A connect is in progress already.
    pub const EALREADY: i32 = 114;
    /// Aborted by this end.
    pub const ECONNABORTED: i32 = 103;
    /// Protocol error.
    pub const EPROTO: i32 = 71;
    /// The message is larger than can be sent.
    pub const EMSGSIZE: i32 = 90;
    /// A datagram without a destination.
    pub const EDESTADDRREQ: i32 = 89;
    /// Not permitted.
    pub const EACCES: i32 = 13;
}

/// Why a request failed. [`Error::errno`] is the number that the same failure has on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The id names no socket (any more).
    #[error("no such socket")]
    NoSocket,
    /// Nothing to read or accept, or no room to write, now.
    #[error("the operation would block")]
    WouldBlock,
    /// The argument, or the request in this state of the socket, makes no sense.
    #[error("invalid argument or state")]
    Invalid,
    /// The local address and port are taken.
    #[error("address in use")]
    AddressInUse,
    /// The local address is not of this shard, or no ephemeral port is free for the destination.
    #[error("address not available")]
    AddressNotAvailable,
    /// No route to the destination.
    #[error("network unreachable")]
    NetworkUnreachable,
    /// The limit of sockets is reached.
    #[error("too many sockets")]
    TooManySockets,
    /// The limit of memory is reached.
    #[error("out of buffer memory")]
    NoMemory,
    /// The socket is not connected.
    #[error("not connected")]
    NotConnected,
    /// The socket is connected already.
    #[error("already connected")]
    AlreadyConnected,
    /// A connect is under way.
    #[error("connect in progress")]
    InProgress,
    /// The writing side is shut.
    #[error("broken pipe")]
    BrokenPipe,
    /// The option does not exist here.
    #[error("no such option")]
    NoOption,
    /// The socket cannot do this (for example accept on a connection).
    #[error("operation not supported")]
    NotSupported,
    /// The message is larger than can be sent.
    #[error("message too large")]
    MessageSize,
    /// No destination was given, and there is no peer.
    #[error("destination address required")]
    DestinationRequired,
    /// The socket is not allowed to send there.
    #[error("permission denied")]
    AccessDenied,
    /// The error that the connection died of, as an errno; reported once (`SO_ERROR`).
    #[error("connection failed, errno {0}")]
    Connection(i32),
}

impl Error {
    /// The errno that Linux gives.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// // `EADDRINUSE`.
    /// assert_eq!(millrace::Error::AddressInUse.errno(), 98);
    /// ```
    pub fn errno(self) -> i32 {
        match self {
            Error::NoSocket => errno::EBADF,
            Error::WouldBlock => errno::EAGAIN,
            Error::Invalid => errno::EINVAL,
            Error::AddressInUse => errno::EADDRINUSE,
            Error::AddressNotAvailable => errno::EADDRNOTAVAIL,
            Error::NetworkUnreachable => errno::ENETUNREACH,
            Error::TooManySockets => errno::ENFILE,
            Error::NoMemory => errno::ENOBUFS,
            Error::NotConnected => errno::ENOTCONN,
            Error::AlreadyConnected => errno::EISCONN,
            Error::InProgress => errno::EALREADY,
            Error::BrokenPipe => errno::EPIPE,
            Error::NoOption => errno::ENOPROTOOPT,
            Error::NotSupported => errno::EOPNOTSUPP,
            Error::MessageSize => errno::EMSGSIZE,
            Error::DestinationRequired => errno::EDESTADDRREQ,
            Error::AccessDenied => errno::EACCES,
            Error::Connection(number) => number,
        }
    }
}
