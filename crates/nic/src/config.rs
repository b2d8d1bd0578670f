//! What can be chosen.

use millrace_offload::ActiveAck;
use millrace_port::spec::Spec;

/// A software network card.
#[derive(Clone, Debug)]
pub struct Config {
    /// The wire: a link for which [`Spec::can_relay`] holds. By packet sockets the kernel goes on
    /// using the device; by AF_XDP all frames are the card's.
    pub wire: Spec,
    /// Name of the TAP device to be created; a free one when there is none.
    pub host: Option<String>,
    /// How many threads, each with a queue of both; 1 to 64.
    pub shards: u16,
    /// The largest packet that is handed to the kernel in one piece, in bytes; 0 turns aggregation
    /// off.
    pub aggregate: u16,
    /// Of which flows the card acknowledges what it holds.
    pub active_ack: ActiveAck,
    /// Whether the segments of the kernel's large units leave one after the other.
    pub pace: bool,
    /// What the process gives up once it has opened both; nothing where it is not the card's own.
    pub sandbox: Option<millrace_sandbox::Config>,
}
