//! The environment of a shard's parts: configuration, counters and random numbers.

use crate::config::Config;
use crate::counters::Counters;
use crate::secrets::Secrets;

/// Passed to the parts of a shard, so that none of them needs the shard.
pub struct Env {
    /// The configuration.
    pub config: Config,
    /// Counts since the start.
    pub counters: Counters,
    /// Keys of hashes, and random numbers.
    pub secrets: Secrets,
}
