//! mTCP's interface: its names, types, constants and meaning, on stacks of ours.
//! `include/mtcp_api.h` and `include/mtcp_epoll.h` declare it.
//!
//! A context is a stack of the thread that made it; a socket's number is its key there, small and
//! used again, as programs that index arrays by it expect. What mTCP's own threads did is done
//! inside the calls that wait.

pub mod boundary;
mod config;
mod context;
pub mod periodic;
mod signals;
