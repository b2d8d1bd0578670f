//! TCP: segments in and out, listeners' handshakes, TIME-WAIT, SYN cookies and Fast Open.
//! What one connection does is in the crate `millrace_tcp`.

pub mod autotuning;
pub mod endpoints;
pub mod fast_open;
pub mod fast_path;
pub mod input;
pub mod segment;
pub mod syn_cookie;
pub mod syn_received;
pub mod time_wait;
