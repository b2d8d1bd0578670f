//! What the engine believes of one slot, in private memory.

use millrace_shard::{Opt, SocketId};
use smallvec::SmallVec;

/// A process slot of a program.
pub type Process = u16;

/// A poller that wants hints of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Index of the poller.
    pub poller: u32,
    /// epoll bits that matter to it.
    pub mask: u32,
    /// Where its last hint for this socket stands in the poller's ring.
    pub hint: Option<u32>,
}

/// Where an accepted socket waits for its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The listener's slot.
    pub listener: u32,
    /// Its place in the listener's queue.
    pub position: u64,
}

/// A listener's queue in the program's memory. What does not fit waits in the shard.
#[derive(Clone, Copy, Debug)]
pub struct AcceptRing {
    /// Offset of its ring in the arena.
    pub at: u64,
    /// The ring has 2^`log2` bytes.
    pub log2: u8,
    /// Connections put in so far.
    pub pushed: u64,
}

impl AcceptRing {
    /// Connections that the ring holds at most.
    pub fn capacity(&self) -> u64 {
        1 << (self.log2 - 3)
    }
}

/// One slot.
#[derive(Debug, Default)]
pub struct Entry {
    /// Goes up with each use.
    pub generation: u32,
    /// Whether it is in use.
    pub open: bool,
    /// Whether another shard serves it: then nothing else here means anything.
    pub away: bool,
    /// Whether it is for datagrams: then it has a socket from the start.
    pub datagrams: bool,
    /// The shard's socket, once there is one.
    pub socket: Option<SocketId>,
    /// Options set before there was one.
    #[expect(
        clippy::box_collection,
        reason = "most slots have none: a word for them, not three"
    )]
    options: Option<Box<Vec<Opt>>>,
    /// Processes that hold it. Empty while it waits to be accepted.
    pub holders: SmallVec<[Process; 4]>,
    /// Pollers that want hints: one as a rule, which needs no memory of its own.
    pub watches: SmallVec<[Watch; 1]>,
    /// Set while it waits to be accepted.
    pub waiting: Option<Waiting>,
    /// Set for a listener.
    pub accepts: Option<Box<AcceptRing>>,
    /// Other shards have replicas of it.
    pub replicated: bool,
    /// The view's error has been published: the count and the errno.
    pub error: u32,
    /// `send_wanted` that has been answered.
    pub send_wanted: u32,
    /// What was published last, to tell what has changed.
    pub seen: Seen,
}

/// The part of a slot's published state that decides which hints are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes received: the low half, as no buffer holds so much that it could come round between two looks.
    pub received: u32,
    /// Bytes acknowledged, likewise.
    pub acked: u32,
    /// Status bits.
    pub status: u32,
    /// Error word.
    pub error: u32,
}

impl Entry {
    /// Options set before there was a socket.
    pub fn options(&self) -> &[Opt] {
        self.options.as_deref().map_or(&[], Vec::as_slice)
    }

    /// One more of them, in place of an earlier one of its kind.
    pub fn set_option(&mut self, opt: Opt) {
        let options = self.options.get_or_insert_default();
        options.retain(|set| std::mem::discriminant(set) != std::mem::discriminant(&opt));
        options.push(opt);
    }

    /// Takes the slot into use, keeping the vectors' memory.
    pub fn open(&mut self) {
        self.generation = self.generation.wrapping_add(1).max(1);
        self.open = true;
        self.datagrams = false;
        self.socket = None;
        self.options = None;
        self.holders.clear();
        self.watches.clear();
        self.waiting = None;
        self.accepts = None;
        self.replicated = false;
        self.error = 0;
        self.send_wanted = 0;
        self.seen = Seen::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each connection has one in private memory.
    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry>() <= 136, "{}", size_of::<Entry>());
    }
}
