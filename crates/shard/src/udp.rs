//! UDP (RFC 768, RFC 1122 4.1, RFC 8200 8.1): sockets that hold datagrams.
//!
//! A datagram that has come lies in the socket's receive ring as a record
//! ([`millrace_wire::record`]), so the ring is read as that of a stream is. One that is to leave
//! waits in one queue of the shard, in a block of the send pool; it counts against its socket's
//! send buffer until the port, or its neighbour's queue, has taken it.

mod bind;
mod cross_shard;
mod errors;
mod input;
pub mod options;
mod output;
pub mod packet;
mod receive;
mod send;
pub mod socket;
mod state;

pub(crate) use errors::Failure;
pub(crate) use input::Packet;
pub use send::SendTo;
pub use socket::Report;
pub(crate) use state::Udp;
