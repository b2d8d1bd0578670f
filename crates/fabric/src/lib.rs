//! User-level messages in the manner of BCL-3: ports, channels, queues of requests and completions.
//!
//! A **port** is named (node, port) and belongs to one thread. It has a send-request queue, a pool
//! of receive buffers, a send-completion queue and a receive-completion queue. A message goes to a
//! **channel** of another port:
//!
//! | channel | message | goes into |
//! |---|---|---|
//! | [`Channel::System`] | up to [`SYSTEM_MAX`] bytes | a buffer of the port's pool |
//! | [`Channel::Normal`] | up to [`MESSAGE_MAX`] bytes | the buffer that the receiver posted first |
//! | [`Channel::Open`] | up to [`MESSAGE_MAX`] bytes | the window that the receiver offered, at an offset of the sender's choice |
//!
//! The paper says of the open channel only that it is for large messages; a window of the
//! receiver's memory is our reading. A request carries up to [`INLINE_MAX`] bytes itself, or names
//! a registered buffer. Completions are read from queues, without a system call; a peer is woken
//! only if it sleeps.
//!
//! # What the paper leaves open
//! - **Order.** Messages of one sender to one channel of one receiver arrive in the order in which
//!   they were sent. Between channels there is no order.
//! - **Reliability.** A message arrives whole and once, or its request ends with a [`Failure`].
//!   After [`Failure::PeerLost`], [`Failure::PeerRestarted`], [`Failure::Violation`] and
//!   [`Failure::Closed`] it may have arrived. A completion without an error says: over Ethernet,
//!   that the receiver's node has acknowledged all of it; in shared memory, that it is in the
//!   memory of the pair, which the receiver still reads if the sender ends.
//! - **Credits.** On the system channel each peer may send [`Limits::system_buffers`] messages
//!   ahead; the program gives credit back with the buffer. On the other channels a message is
//!   announced (up to [`ANNOUNCED_MAX`] of a channel ahead), granted when there is a place for it,
//!   and then sent.
//! - **No buffer.** The sender waits, [`Limits::wait`] at most, and is told [`Failure::NoBuffer`]
//!   then. Waits are counted ([`Counters::waited`]); nothing is dropped silently. A message that is
//!   longer than the first posted buffer ends with [`Failure::TooLong`], and the buffer stays
//!   posted.
//! - **A peer that ends or is restarted.** What was under way to it ends with an error, buffers
//!   that it was writing into are posted again, and the next request begins a new session, with a
//!   new epoch. Nothing of an old epoch is taken for the new one's.
//! - **Limits.** Each queue has one ([`Limits`]); at a limit the new is refused with a clear error,
//!   and the old is kept.
//! - **Misuse.** A buffer has a generation. Posted twice, freed in use, used after it was freed: an
//!   [`Error`], and nothing has changed.
//!
//! # Layers
//! [`Endpoint`] is the sans-IO core: queues, buffers, sessions. Sessions speak in records
//! ([`Head`]), which a [`Transport`] carries in order, each once. [`ethernet`] carries them in
//! frames, over any port, by a sliding window; its [`Node`](ethernet::Node) is sans-IO, too.
//! [`shm`] carries them in memory that two processes share. [`Port`] is a port over either. A peer
//! is hostile to both: whatever it sends is checked, and one that breaks the protocol loses its
//! session and nobody else's. `unsafe` is in [`shm::memory`] alone.
//!
//! ```
//! use millrace_fabric::{Channel, Limits, Payload, PortName, shm::{Directory, Port}};
//!
//! let place = std::env::temp_dir().join(format!("millrace-fabric-doc-{}", std::process::id()));
//! let directory = Directory::at(&place);
//! let mut one = Port::open_in(&directory, PortName::new(0, 1), Limits::default())?;
//! let mut two = Port::open_in(&directory, PortName::new(0, 2), Limits::default())?;
//! one.send(two.name(), Channel::System, 0, Payload::Inline(b"hello"), 7)?;
//! let message = loop {
//!     one.poll();
//!     two.poll();
//!     if let Some(message) = two.poll_received() {
//!         break message;
//!     }
//! };
//! assert_eq!(two.message(&message)?, b"hello");
//! two.free(message.buffer)?;
//! # std::fs::remove_dir_all(place)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod buffers;
mod crc32c;
mod endpoint;
pub mod ethernet;
pub mod ip;
mod port;
mod queues;
mod record;
mod session;
pub mod shm;
mod types;

pub use endpoint::Endpoint;
pub use port::Port;
pub use record::{Body, HEAD_LEN, Head, Transport, Words};
pub use types::*;
