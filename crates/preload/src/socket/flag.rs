//! The shim's bits in [`millrace_context::slot::App::flags`].

/// O_NONBLOCK.
pub const NONBLOCK: u32 = 1;
/// This side has shut down reading.
pub const SHUT_READ: u32 = 2;
/// This side has shut down writing.
pub const SHUT_WRITE: u32 = 4;
/// A connect was submitted, and `connect` has not reported its end yet.
pub const CONNECTING: u32 = 8;
/// `connect` has reported success, or the connection was accepted.
pub const CONNECTED: u32 = 16;
/// The end of the engine was reported as an error.
pub const LOSS_SEEN: u32 = 32;
/// Other processes may hold the socket too.
pub const SHARED: u32 = 64;
/// A connect was submitted and no error was taken since: it is under way until the shard says
/// otherwise.
pub const ATTEMPT: u32 = 128;
/// The program has bound this datagram socket.
pub const BOUND: u32 = 256;
/// The SYN waits for the first bytes to send (TCP Fast Open).
pub const DEFERRED: u32 = 512;
/// A process has put the socket into an epoll set that other processes have too. Every process that
/// has the set reports the socket, whichever process holds the socket.
pub const IN_SHARED_SET: u32 = 1024;
