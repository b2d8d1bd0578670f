//! Messages between processes of one host, through memory that a pair of ports shares. No privilege
//! is needed.
//!
//! A port listens at a Unix socket in a directory of its user's, named after the port; who holds
//! the lock beside it has the name. Whoever sends to a port for the first time connects there and
//! passes the pair's memory, a sealed memfd. Both check that the other process is of their own
//! user. The connection stays: its end tells that the peer is gone.
//!
//! A port that sleeps is woken by an eventfd that its peer has made and shows to nobody; what the
//! port has is an epoll set with the eventfd in it. So neither can make the other one block, or
//! swallow what a third one rings.

mod directory;
pub mod memory;
mod port;

pub use directory::{Directory, OpenError};
pub use port::Port;

#[cfg(test)]
mod tests;
