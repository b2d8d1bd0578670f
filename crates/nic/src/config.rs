//! What can be chosen.

/// A software network card.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device of the wire.
    pub wire: String,
    /// Name of the TAP device to be created; a free one when there is none.
    pub host: Option<String>,
    /// How many threads, each with a queue of both; 1 to 64.
    pub shards: u16,
    /// The largest packet that is handed to the kernel in one piece, in bytes; 0 turns aggregation off.
    pub aggregate: u16,
    /// Whether what the card holds is acknowledged by the card.
    pub active_ack: bool,
}
