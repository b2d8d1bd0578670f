//! What the control thread tells a worker.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use millrace_context::{Region, SlotRef};
use millrace_shard::{Network, Owner};
use millrace_steer::Move;

use crate::migration::bucket_moves::Leaving;
use crate::programs::owners::Process;
use crate::programs::program::SlotShards;
use crate::worker::diagnostics::SocketRow;

/// A command. Those with a `done` are waited for: the program must not go on before they have been carried out.
#[derive(Debug)]
pub enum Command {
    /// A new program.
    AddProgram {
        /// Its number.
        owner: Owner,
        /// The memory shared with it.
        region: Arc<Region>,
        /// Which shard serves each of its slots.
        slot_shards: Arc<SlotShards>,
        /// What the program rings this shard by, and nobody else.
        doorbell: Arc<OwnedFd>,
    },
    /// A program is over: its sockets close as the kernel would close them.
    RemoveProgram {
        /// Its number.
        owner: Owner,
    },
    /// A process uses contexts. A process that exists already (exec) gets its contexts anew.
    AddProcess {
        /// The program.
        owner: Owner,
        /// The process slot.
        process: Process,
        /// Its pid.
        pid: u32,
        /// Indices of the contexts.
        contexts: Vec<u32>,
        /// Told when it is served.
        done: Sender<()>,
    },
    /// All that a program has asked for until now is to be served.
    Serve {
        /// The program.
        owner: Owner,
        /// Told when it is.
        done: Sender<()>,
    },
    /// A child will hold what its parent holds.
    Fork {
        /// The program.
        owner: Owner,
        /// The parent's process slot.
        parent: Process,
        /// The child's.
        child: Process,
        /// Told when it holds them.
        done: Sender<()>,
    },
    /// After an exec: the process holds these and no others.
    Holds {
        /// The program.
        owner: Owner,
        /// The process slot.
        process: Process,
        /// What it holds.
        sockets: Vec<SlotRef>,
        /// It takes hold of those that it did not hold.
        more: bool,
        /// Told when the others have been let go.
        done: Sender<()>,
    },
    /// A process holds as well what another one holds.
    Share {
        /// The program.
        owner: Owner,
        /// The sockets, all of them this shard's.
        sockets: Vec<SlotRef>,
        /// Who must hold them.
        from: Process,
        /// Who holds them then.
        to: Process,
        /// Told for each, in order, whether it does.
        done: Sender<Vec<bool>>,
    },
    /// A process of another program has received a socket that [`crate::programs::owners::IN_FLIGHT`] holds.
    Transfer {
        /// The program that has sent it.
        from: Owner,
        /// What it calls it.
        socket: SlotRef,
        /// The program that has received it.
        to: Owner,
        /// The process that holds it from then on.
        process: Process,
        /// Told what that program calls it, or an errno.
        done: Sender<Result<SlotRef, i32>>,
    },
    /// A program is about to be forgotten: what others hold of its sockets goes to them.
    LeaveToSharers {
        /// The program.
        owner: Owner,
        /// Told when it has gone.
        done: Sender<()>,
    },
    /// A socket is no longer held by a message on its way.
    Arrived {
        /// The program.
        owner: Owner,
        /// The socket.
        socket: SlotRef,
    },
    /// A socket may have a privileged port, once.
    Permit {
        /// The program.
        owner: Owner,
        /// The socket.
        socket: SlotRef,
        /// The port.
        port: u16,
        /// Told when the shard knows.
        done: Sender<()>,
    },
    /// A process is dead.
    ProcessGone {
        /// The program.
        owner: Owner,
        /// The process slot.
        process: Process,
    },
    /// A poller.
    AddPoller {
        /// The program.
        owner: Owner,
        /// Its index.
        poller: u32,
        /// Its eventfd, which the program does not have: see `crate::doorbell`.
        doorbell: Arc<OwnedFd>,
        /// Told when it can be watched with.
        done: Sender<()>,
    },
    /// A poller is not needed any more.
    RemovePoller {
        /// The program.
        owner: Owner,
        /// Its index.
        poller: u32,
    },
    /// These buckets are about to become the worker's, in so many parcels.
    Expect {
        /// Which.
        buckets: Vec<usize>,
        /// From how many others.
        batches: usize,
        /// Told when all of them are here.
        taken: Sender<()>,
        /// Told when it knows.
        done: Sender<()>,
    },
    /// It is to give buckets to other shards, as soon as it has had all that was in its queues when the I/O threads took it off them.
    Give(Leaving),
    /// These buckets have another shard now.
    Assign {
        /// All that moved.
        moves: Arc<[Move]>,
    },
    /// The link has other addresses and routes now.
    Renumber {
        /// All of them.
        network: Network,
        /// Told when it goes by them.
        done: Sender<()>,
    },
    /// All sockets.
    Sockets {
        /// Where to.
        reply: Sender<Vec<SocketRow>>,
    },
    /// Counters and usage as JSON.
    Describe {
        /// Where to.
        reply: Sender<String>,
    },
    /// End once no connection is left that still has something to say, at the latest after `patience_ms`.
    Drain {
        /// Milliseconds.
        patience_ms: u64,
    },
}

impl Command {
    /// The program whose requests until now are to be served first. They may close a socket, open one that a child must hold, be what an image before an exec
    /// or a process that died has left, claim a connection, or be to watch with a poller whose index another will have.
    pub(crate) fn comes_after_requests_of(&self) -> Option<Owner> {
        match self {
            Command::AddProcess { owner, .. }
            | Command::Serve { owner, .. }
            | Command::Fork { owner, .. }
            | Command::Holds { owner, .. }
            | Command::ProcessGone { owner, .. }
            | Command::RemovePoller { owner, .. } => Some(*owner),
            _ => None,
        }
    }
}
