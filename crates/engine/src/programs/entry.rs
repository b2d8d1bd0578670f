//! What the engine believes of one slot, in private memory.

use millrace_context::Status;
use millrace_shard::{Opt, SocketId};

use crate::programs::owners::Owners;
use crate::programs::watches::Watches;

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
    /// Other shards have replicas of it.
    pub replicated: bool,
    /// The shard's socket, once there is one.
    pub socket: Option<SocketId>,
    /// What most slots do not have.
    rare: Option<Box<Rare>>,
    /// Who holds it, or whose queue it waits in.
    pub owners: Owners,
    /// Pollers that want hints.
    pub watches: Watches,
    /// The view's error has been published: the count and the errno.
    pub error: u32,
    /// `send_wanted` that has been answered.
    pub send_wanted: u32,
    /// What was published last, to tell what has changed.
    pub seen: Seen,
}

/// What is kept of a slot that listens, or whose options were set before it had a socket, or whose socket is another program's now.
#[derive(Debug, Default)]
struct Rare {
    options: Vec<Opt>,
    accepts: Option<AcceptRing>,
    elsewhere: bool,
}

/// The part of a slot's published state that decides which hints are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes received: the low half, as no buffer holds so much that it could come round between two looks.
    pub received: u32,
    /// Status bits: all that there are.
    pub status: u16,
    /// The count of errors in the error word.
    pub errors: u16,
}

const _: () = assert!(Status::all().bits() <= u16::MAX as u32);

impl Entry {
    /// Options set before there was a socket.
    pub fn options(&self) -> &[Opt] {
        self.rare.as_ref().map_or(&[], |rare| &rare.options)
    }

    /// One more of them, in place of an earlier one of its kind.
    pub fn set_option(&mut self, opt: Opt) {
        let options = &mut self.rare.get_or_insert_default().options;
        options.retain(|set| std::mem::discriminant(set) != std::mem::discriminant(&opt));
        options.push(opt);
    }

    /// The queue of a listener.
    #[inline]
    pub fn accepts(&self) -> Option<&AcceptRing> {
        self.rare.as_ref()?.accepts.as_ref()
    }

    /// The same, to change it.
    pub fn accepts_mut(&mut self) -> Option<&mut AcceptRing> {
        self.rare.as_mut()?.accepts.as_mut()
    }

    /// It listens from now on.
    pub fn set_accepts(&mut self, ring: AcceptRing) {
        self.rare.get_or_insert_default().accepts = Some(ring);
    }

    /// It listens no more.
    pub fn take_accepts(&mut self) -> Option<AcceptRing> {
        self.rare.as_mut()?.accepts.take()
    }

    /// Whether another program that holds its socket has it: see `crate::migration::socket_transfer`.
    pub fn is_elsewhere(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.elsewhere)
    }

    /// The socket goes to another program's slot.
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

    /// Each connection has one in private memory.
    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry>() <= 72, "{}", size_of::<Entry>());
    }
}
