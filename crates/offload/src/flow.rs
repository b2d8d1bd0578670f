//! What is known of one flow.

use millrace_wire::tcp::Seq;

use crate::counters::Cause;
use crate::key::Key;
use crate::pool::NONE;
use crate::time::Instant;

/// The descriptor of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) key: Key,
    pub(crate) hash: u64,
    /// The next one in its bucket, or of the free list.
    pub(crate) chain: u32,
    /// The number after the last byte that was handed on; `None` until data came.
    pub(crate) next_seq: Option<Seq>,
    /// What is held, sorted: first and last.
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// How many segments are held, and how many bytes.
    pub(crate) count: u32,
    pub(crate) bytes: u32,
    /// How many of these bytes are in order from `next_seq` on, and the last segment of them.
    pub(crate) run_bytes: u32,
    pub(crate) run_tail: u32,
    /// Whether the sender pushed one of these that is not owed yet.
    pub(crate) pushed: bool,
    /// How many of the held bytes, from the first on, are to be handed on when its turn comes, and
    /// why.
    pub(crate) owed: u32,
    pub(crate) cause: Cause,
    /// Whether it waits for its turn.
    pub(crate) in_turn: bool,
    /// Where it is in the list of flows that hold something; [`NONE`] when it holds nothing.
    pub(crate) held_at: u32,
    /// When the first of what is held came, and until when it is held.
    pub(crate) oldest: Instant,
    pub(crate) deadline: Instant,
    /// Since when the first hole is there.
    pub(crate) hole_since: Instant,
    /// When the last segment came, and how far apart they are on average, in nanoseconds.
    pub(crate) last: Instant,
    pub(crate) average: u64,
    /// Segments in this burst.
    pub(crate) in_burst: u32,
    /// Whether it was used since the search for a victim came by.
    pub(crate) used: bool,
    /// The end of the last segment that was not expected, and how many in a row continued each
    /// other.
    pub(crate) unexpected_end: Seq,
    pub(crate) unexpected: u8,
    /// Since it was taken up.
    pub(crate) segments: u64,
    pub(crate) units: u64,
    pub(crate) total_bytes: u64,
    pub(crate) reordered: u64,
}

impl Flow {
    /// A flow of which nothing came yet.
    pub(crate) fn new(key: Key, hash: u64, now: Instant, average: u64) -> Flow {
        Flow {
            key,
            hash,
            chain: NONE,
            next_seq: None,
            head: NONE,
            tail: NONE,
            count: 0,
            bytes: 0,
            run_bytes: 0,
            run_tail: NONE,
            pushed: false,
            owed: 0,
            cause: Cause::Order,
            in_turn: false,
            held_at: NONE,
            oldest: now,
            deadline: now,
            hole_since: now,
            last: now,
            average,
            in_burst: 0,
            used: true,
            unexpected_end: Seq(0),
            unexpected: 0,
            segments: 0,
            units: 0,
            total_bytes: 0,
            reordered: 0,
        }
    }

    /// Whether something beyond a hole is held.
    pub(crate) fn has_hole(&self) -> bool {
        self.run_bytes != self.bytes
    }
}

/// A flow, as it is shown.
#[derive(Clone, Copy, Debug)]
pub struct FlowInfo {
    /// Whose it is.
    pub key: Key,
    /// Segments that were held since it was taken up.
    pub segments: u64,
    /// Units that they became.
    pub units: u64,
    /// Their payload in bytes.
    pub bytes: u64,
    /// How many of them came out of order.
    pub reordered: u64,
    /// Bytes that are held now.
    pub held: u32,
    /// Bytes that were acknowledged ahead of the host.
    pub ahead: u32,
    /// Average interval between segments, in nanoseconds.
    pub interval: u64,
    /// Nanoseconds since the last one.
    pub idle: u64,
}
