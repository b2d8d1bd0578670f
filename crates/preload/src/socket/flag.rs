//! The shim's bits in [`millrace_context::slot::App::flags`].

/// O_NONBLOCK.
pub const NONBLOCK: u32 = 1;
/// Shut for reading, by this side.
pub const SHUT_READ: u32 = 2;
/// Shut for writing, by this side.
pub const SHUT_WRITE: u32 = 4;
/// A connect has been asked for and its end not been reported by `connect` yet.
pub const CONNECTING: u32 = 8;
/// `connect` has reported success, or the connection was accepted.
pub const CONNECTED: u32 = 16;
/// The loss of the engine has been reported as an error.
pub const LOSS_SEEN: u32 = 32;
/// Processes other than this one may hold it too.
pub const SHARED: u32 = 64;
/// A connect has been asked for and no error been taken since: until the shard says otherwise it is
/// under way.
pub const ATTEMPT: u32 = 128;
/// It is for datagrams, and the program has bound it.
pub const BOUND: u32 = 256;
/// The SYN waits for the first bytes to send (TCP Fast Open).
pub const DEFERRED: u32 = 512;
