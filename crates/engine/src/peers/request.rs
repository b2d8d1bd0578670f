//! What one worker asks of another.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use millrace_context::{Region, SlotRef, Submission};
use millrace_shard::{AcceptQueue, Error, Flow, FlowBatch, Moved, Opt, Options, Owner, SocketId};

use crate::peers::replica_table::Replica;
use crate::programs::entry::Entry;
use crate::programs::owners::Process;
use crate::programs::slot::ProgramSlot;
use crate::requests::outcome::Outcome;
use crate::shared::arenas::ForeignBlock;

/// A request of one worker to another. It is served between rounds, or while the other worker waits
/// for an answer itself. So serving a request must not send one that has an answer.
#[derive(Debug)]
pub(crate) enum Request {
    /// A socket of the asking shard takes an address.
    Bind {
        bind: Bind,
        reply: Sender<Result<(), Error>>,
    },
    /// The same for a datagram socket. Its datagrams go to its own shard only.
    BindDatagram {
        bind: Bind,
        reply: Sender<Result<(), Error>>,
    },
    /// A datagram socket has a peer now, or has none any more.
    ConnectDatagram {
        place: ProgramSlot,
        remote: Option<SocketAddr>,
        reply: Sender<Result<(), Error>>,
    },
    /// A socket listens. Connections that the other shard accepts are handed to the asking one.
    Listen {
        place: ProgramSlot,
        backlog: u32,
        queue: Option<AcceptQueue>,
        /// The keys of its TCP Fast Open cookies.
        keys: Option<Opt>,
        reply: Sender<Result<(), Error>>,
    },
    /// A socket gets an option, for connections to come.
    SetOption {
        place: ProgramSlot,
        opt: Opt,
        reply: Sender<Result<(), Error>>,
    },
    /// A socket listens no longer. Connections that wait for it are reset.
    StopListening {
        place: ProgramSlot,
        reply: Sender<Result<(), Error>>,
    },
    /// A socket moves to a slot of another program, with the connections in `queue` and those that
    /// no process has claimed.
    Rename {
        from: ProgramSlot,
        to: ProgramSlot,
        generation: u32,
        queue: Arc<HashSet<u64>>,
        /// Told the old and the new slot of each connection.
        reply: Sender<Vec<(SlotRef, SlotRef)>>,
    },
    /// A socket is gone.
    Forget { place: ProgramSlot },
    /// The asking shard opens a connection whose tag names the other shard. The bucket may have
    /// moved to a third shard without the asking one knowing.
    Pin {
        flow: Flow,
        shard: u16,
        reply: Sender<Result<(), Error>>,
    },
    /// A pinned connection is over. Its bucket may have moved too.
    Unpin { flow: Flow, shard: u16 },
    /// Buckets move to the other shard, with the slots of their connections.
    Take {
        batch: FlowBatch,
        slots: Vec<MovedSlot>,
        from: u16,
    },
    /// Connections come back for which the asking shard had no room.
    Back {
        refused: Vec<Moved>,
        slots: Vec<MovedSlot>,
    },
    /// A program asked the wrong shard, since it did not know that a slot has moved.
    Misrouted(MisroutedRequest),
    /// A slot that has moved is free.
    Freed(Freed),
    /// A block of an arena that has moved is free.
    Block(ForeignBlock),
}

/// A request for a slot that another shard serves.
#[derive(Debug)]
pub(crate) struct MisroutedRequest {
    pub(crate) program: u32,
    /// The region of the program, which tells it from a later program of the same number.
    pub(crate) region: Arc<Region>,
    pub(crate) process: Process,
    pub(crate) submission: Submission,
    /// The bytes that were staged with the request.
    pub(crate) bytes: Vec<u8>,
    pub(crate) reply: Sender<Outcome>,
}

/// A slot that was freed by a shard whose part it is not in.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) program: u32,
    pub(crate) region: Arc<Region>,
    pub(crate) slot: SlotRef,
}

/// The slot of a connection that moves to another shard.
#[derive(Debug)]
pub(crate) struct MovedSlot {
    pub(crate) id: SocketId,
    pub(crate) place: ProgramSlot,
    pub(crate) entry: Entry,
}

/// A socket of the asking shard and the address that it is bound to.
#[derive(Debug)]
pub(crate) struct Bind {
    pub(crate) place: ProgramSlot,
    pub(crate) generation: u32,
    pub(crate) owner: Owner,
    pub(crate) local: SocketAddr,
    /// The options that decide with which sockets it shares the address.
    pub(crate) bound: Options,
    /// Options that were set before.
    pub(crate) options: Vec<Opt>,
    /// The asking shard.
    pub(crate) home: u16,
}

impl Bind {
    /// The replica of the socket, whose own socket is `id`.
    pub(crate) fn replica(&self, id: SocketId) -> Replica {
        Replica {
            id,
            generation: self.generation,
            home: self.home,
        }
    }
}
