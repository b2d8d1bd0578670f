//! TCP: segments in and out, listeners' handshakes, TIME-WAIT, SYN cookies and Fast Open.
//! The crate `millrace_tcp` has the protocol of one connection.

pub mod autotuning;
pub mod catch_all;
mod change_owner;
mod connect;
pub mod endpoints;
mod fast_open;
mod fast_open_cookies;
mod fast_path;
pub mod input;
mod listen;
pub mod migration;
mod options;
pub mod output;
mod ready;
pub mod segment;
mod stalled;
pub mod state;
mod stream;
mod syn_cookie;
mod syn_received;
mod time_wait;
