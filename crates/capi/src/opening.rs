//! Connections from a port whose answers come to another shard: that one has to agree to hand them
//! over before anything is sent. Until then the socket is connecting, as any is that waits for its
//! peer; if it is refused that is its error.

use std::ffi::c_int;
use std::pin::Pin;

/// A connection that is not opened yet.
pub enum Opening {
    /// The other shard was asked.
    Asked(Pin<Box<dyn Future<Output = Result<(), millrace::Error>>>>),
    /// It was not opened for this reason, which nobody was told.
    Refused(c_int),
}

/// What a connection is ready for that is not opened: to be told why.
pub fn refused() -> millrace::Poll {
    use millrace::Poll;
    Poll::IN | Poll::OUT | Poll::ERR | Poll::HUP | Poll::RDHUP
}
