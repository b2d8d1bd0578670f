//! What the engine knows of one slot, in private memory.

use millrace_context::Status;
use millrace_shard::{Opt, SocketId};

use crate::programs::owners::Owners;
use crate::programs::watches::Watches;

/// The accept queue of a listener, in the program's memory. Connections that do not fit wait in the
/// shard.
#[derive(Clone, Copy, Debug)]
pub struct AcceptRing {
    /// Offset of the ring in the arena.
    pub at: u64,
    /// The ring has 2^`log2` bytes.
    pub log2: u8,
    /// Connections put in so far.
    pub pushed: u64,
}

impl AcceptRing {
    /// Connections that the ring holds.
    pub fn capacity(&self) -> u64 {
        1 << (self.log2 - 3)
    }
}

/// The private state of one slot.
#[derive(Debug, Default)]
pub struct Entry {
    /// Counts the uses of the slot.
    pub generation: u32,
    /// Whether it is in use.
    pub open: bool,
    /// Whether another shard serves it. Then no other field means anything.
    pub away: bool,
    /// Whether it is a datagram socket. Such a slot has a socket from the start.
    pub datagrams: bool,
    /// Whether other shards have replicas of it.
    pub replicated: bool,
    /// The socket in the shard. None: there is none yet.
    pub socket: Option<SocketId>,
    /// State that most slots do not have.
    rare: Option<Box<Rare>>,
    /// The processes that hold it, or the accept queue that it waits in.
    pub owners: Owners,
    /// The pollers that watch it.
    pub watches: Watches,
    /// The error that was published last: its count and its errno.
    pub error: u32,
    /// The last `send_wanted` of the program that was answered.
    pub send_wanted: u32,
    /// What was published last, to tell what has changed since.
    pub seen: Seen,
}

/// State of a slot that listens, that had options before it had a socket, or whose socket is in
/// another program.
#[derive(Debug, Default)]
struct Rare {
    options: Vec<Opt>,
    accepts: Option<AcceptRing>,
    elsewhere: bool,
}

/// The part of the published state that decides which hints are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes received, the low half. No buffer is so large that this could come round between two
    /// rounds.
    pub received: u32,
    /// The status bits.
    pub status: u16,
    /// The count in the error word.
    pub errors: u16,
}

const _: () = assert!(Status::all().bits() <= u16::MAX as u32);

impl Entry {
    /// Options that were set before there was a socket.
    pub fn options(&self) -> &[Opt] {
        self.rare.as_ref().map_or(&[], |rare| &rare.options)
    }

    /// Sets such an option. It replaces an earlier one of its kind.
    pub fn set_option(&mut self, opt: Opt) {
        let options = &mut self.rare.get_or_insert_default().options;
        options.retain(|set| std::mem::discriminant(set) != std::mem::discriminant(&opt));
        options.push(opt);
    }

    /// The accept queue of a listener.
    #[inline]
    pub fn accepts(&self) -> Option<&AcceptRing> {
        self.rare.as_ref()?.accepts.as_ref()
    }

    /// The accept queue of a listener, to change it.
    pub fn accepts_mut(&mut self) -> Option<&mut AcceptRing> {
        self.rare.as_mut()?.accepts.as_mut()
    }

    /// Makes it a listener.
    pub fn set_accepts(&mut self, ring: AcceptRing) {
        self.rare.get_or_insert_default().accepts = Some(ring);
    }

    /// Makes it a listener no more. Returns the queue.
    pub fn take_accepts(&mut self) -> Option<AcceptRing> {
        self.rare.as_mut()?.accepts.take()
    }

    /// Whether its socket is in another program: see `crate::migration::socket_transfer`.
    pub fn is_elsewhere(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.elsewhere)
    }

    /// Moves the state of the socket to a slot of another program.
    pub fn leave_for(&mut self, other: &mut Entry) {
        let rare = self.rare.get_or_insert_default();
        rare.elsewhere = true;
        let options = std::mem::take(&mut rare.options);
        if let Some(rare) = &mut other.rare {
            (rare.elsewhere, rare.options) = (false, Vec::new());
        }
        if !options.is_empty() {
            other.rare.get_or_insert_default().options = options;
        }
        other.socket = self.socket.take();
        other.replicated = std::mem::take(&mut self.replicated);
        (other.datagrams, other.error) = (self.datagrams, self.error);
    }

    /// Takes the slot into use.
    pub fn open(&mut self) {
        *self = Entry {
            generation: self.generation.wrapping_add(1).max(1),
            open: true,
            ..Entry::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The engine has an entry for each connection.
    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry>() <= 72, "{}", size_of::<Entry>());
    }
}
