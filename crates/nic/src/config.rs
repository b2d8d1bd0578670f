//! What can be chosen.

use millrace_offload::ActiveAck;
use millrace_port::xdp::{BusyPoll, Mode};

/// Where frames come from.
#[derive(Clone, Debug)]
pub enum Wire {
    /// A network device that the kernel goes on using, by packet sockets.
    Packet {
        /// Its name.
        device: String,
    },
    /// A network device of which all frames are the card's, by AF_XDP sockets.
    Xdp {
        /// Its name.
        device: String,
        /// How many of its queues are used; all of them when it is not said.
        queues: Option<u16>,
        /// How frames get here.
        mode: Mode,
        /// Whether its poller runs when the card looks for frames.
        busy_poll: BusyPoll,
    },
}

impl Wire {
    /// The name of the device.
    pub fn device(&self) -> &str {
        match self {
            Wire::Packet { device } | Wire::Xdp { device, .. } => device,
        }
    }
}

/// A software network card.
#[derive(Clone, Debug)]
pub struct Config {
    /// The wire.
    pub wire: Wire,
    /// Name of the TAP device to be created; a free one when there is none.
    pub host: Option<String>,
    /// How many threads, each with a queue of both; 1 to 64.
    pub shards: u16,
    /// The largest packet that is handed to the kernel in one piece, in bytes; 0 turns aggregation off.
    pub aggregate: u16,
    /// Of which flows the card acknowledges what it holds.
    pub active_ack: ActiveAck,
    /// Whether the segments of the kernel's large units leave one after the other.
    pub pace: bool,
    /// What the process gives up once it has opened both; nothing where it is not the card's own.
    pub sandbox: Option<millrace_sandbox::Config>,
}
