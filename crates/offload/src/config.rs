//! What can be chosen.

use crate::active_ack::ActiveAck;

/// Sizes and times of one [`crate::Receive`].
#[derive(Clone, Debug)]
pub struct Config {
    /// The largest IP packet that a unit may be, in bytes, up to 65,535; 0 turns aggregation off,
    /// and frames pass as they are.
    pub aggregate: u16,
    /// How many flows are known at a time.
    pub flows: usize,
    /// How many frames can be held, over all flows.
    pub buffers: usize,
    /// Length of a buffer in bytes: the largest frame that is held.
    pub buffer_len: usize,
    /// A flow's unit is handed on when nothing has come for this many times the flow's average
    /// interval.
    pub patience: u64,
    /// For how long, in nanoseconds, bytes in order are held at most while frames keep coming, of
    /// whatever flow.
    pub hold_max: u64,
    /// For how long, in nanoseconds, they are held at most when there is no further frame; a flow
    /// that would not have gone on by then does not wait at all.
    pub idle_hold_max: u64,
    /// For how long, in nanoseconds, bytes beyond a hole are held at most.
    pub reorder_max: u64,
    /// For how long, in nanoseconds, a flow without a segment is known.
    pub age_max: u64,
    /// Whether whoever takes the units wants finished checksums, and not the sum of the
    /// pseudo-header alone.
    pub finish_checksums: bool,
    /// Of which flows what is held is acknowledged here, ahead of the host: if of any,
    /// [`crate::Receive::from_host`] must see all that the host sends.
    pub active_ack: ActiveAck,
    /// Key of the hash of flows: random, so that no peer can choose what collides.
    pub hash_key: [u64; 2],
}

impl Default for Config {
    fn default() -> Self {
        Config {
            aggregate: u16::MAX,
            flows: 4096,
            buffers: 4096,
            buffer_len: 2048,
            patience: 10,
            hold_max: 4_000_000,
            idle_hold_max: 50_000,
            reorder_max: 1_000_000,
            age_max: 60_000_000_000,
            finish_checksums: false,
            active_ack: ActiveAck::Off,
            hash_key: [0; 2],
        }
    }
}
