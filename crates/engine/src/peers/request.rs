//! What one worker asks of another.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use millrace_context::{Region, SlotRef, Submission};
use millrace_shard::{AcceptQueue, Error, Flow, Moved, Opt, Options, Owner, Parcel, SocketId};

use crate::programs::entry::Entry;
use crate::programs::owners::Process;
use crate::programs::slot::ProgramSlot;
use crate::requests::outcome::Outcome;
use crate::shared::arenas::ForeignBlock;

/// What one worker asks of another. Each is carried out in its turn, between rounds or while the other waits for an answer itself, so nothing that
/// is asked for here may ask in its turn.
#[derive(Debug)]
pub(crate) enum Request {
    /// The socket at a slot of the asking shard has this address: nobody else may take it. `bound` is what it shares, `options` was set before.
    Bind {
        bind: Bind,
        reply: Sender<Result<(), Error>>,
    },
    /// The same for a datagram socket. Its datagrams go to its own shard only.
    BindDatagram {
        bind: Bind,
        reply: Sender<Result<(), Error>>,
    },
    /// It has a peer, or none any more.
    ConnectDatagram {
        place: ProgramSlot,
        remote: Option<SocketAddr>,
        reply: Sender<Result<(), Error>>,
    },
    /// It listens: connections that the other shard accepts are to be handed to the asking one.
    Listen {
        place: ProgramSlot,
        backlog: u32,
        queue: Option<AcceptQueue>,
        /// For its cookies of TCP Fast Open.
        keys: Option<Opt>,
        reply: Sender<Result<(), Error>>,
    },
    /// An option of it, for connections to come.
    SetOption {
        place: ProgramSlot,
        opt: Opt,
        reply: Sender<Result<(), Error>>,
    },
    /// It listens no longer: what waits for it is reset.
    StopListening {
        place: ProgramSlot,
        reply: Sender<Result<(), Error>>,
    },
    /// It is another program's, at another slot, and so are those of `queue` that the other shard has accepted for it, and those that nobody has claimed.
    Rename {
        from: ProgramSlot,
        to: ProgramSlot,
        generation: u32,
        queue: Arc<HashSet<u64>>,
        /// By their old names, the new ones.
        reply: Sender<Vec<(SlotRef, SlotRef)>>,
    },
    /// It is gone.
    Forget { place: ProgramSlot },
    /// The asking shard opens a connection that is the other's by its tag, or yet another's, if the asking one has not heard that its bucket moved.
    Pin {
        flow: Flow,
        shard: u16,
        reply: Sender<Result<(), Error>>,
    },
    /// It is over. Likewise.
    Unpin { flow: Flow, shard: u16 },
    /// Buckets that the asking shard gives, and what programs know the connections in them by.
    Take {
        parcel: Parcel,
        slots: Vec<MovedSlot>,
        from: u16,
    },
    /// What the asking shard had no room for of what it was given.
    Back {
        refused: Vec<Moved>,
        slots: Vec<MovedSlot>,
    },
    /// What the asking shard was asked for, or yet another one, by who did not know yet that a slot has moved.
    Misrouted(MisroutedRequest),
    /// A slot that has moved is free again.
    Freed(Freed),
    /// A block of an arena, likewise.
    Block(ForeignBlock),
}

/// A request for a slot that another shard may serve.
#[derive(Debug)]
pub(crate) struct MisroutedRequest {
    pub(crate) program: u32,
    /// The program's, by which it is known that it is still that one.
    pub(crate) region: Arc<Region>,
    pub(crate) process: Process,
    pub(crate) submission: Submission,
    /// What was staged with it.
    pub(crate) bytes: Vec<u8>,
    pub(crate) reply: Sender<Outcome>,
}

/// A slot that was freed away from home.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) program: u32,
    pub(crate) region: Arc<Region>,
    pub(crate) slot: SlotRef,
}

/// What a program knows a connection by, on its way.
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
    /// What the socket shares.
    pub(crate) bound: Options,
    /// Options that were set before.
    pub(crate) options: Vec<Opt>,
    /// The asking shard.
    pub(crate) home: u16,
}
