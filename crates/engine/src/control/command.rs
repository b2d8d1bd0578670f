//! Commands of the control thread to a worker.

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

/// A command. If it has a `done`, the control thread waits until it is executed.
#[derive(Debug)]
pub enum Command {
    /// A new program.
    AddProgram {
        /// Number of the program.
        owner: Owner,
        /// The memory shared with it.
        region: Arc<Region>,
        /// The shard that serves each of its slots.
        slot_shards: Arc<SlotShards>,
        /// The doorbell of this shard. Only the program rings it.
        doorbell: Arc<OwnedFd>,
    },
    /// A program has ended. Its sockets close as the kernel would close them.
    RemoveProgram {
        /// Number of the program.
        owner: Owner,
    },
    /// A process uses contexts. A process that has called exec gets its contexts anew.
    AddProcess {
        /// The program.
        owner: Owner,
        /// Its process slot.
        process: Process,
        /// Its pid.
        pid: u32,
        /// Indices of the contexts.
        contexts: Vec<u32>,
        /// Told when the contexts are served.
        done: Sender<()>,
    },
    /// Serve all requests that a program has made until now.
    Serve {
        /// The program.
        owner: Owner,
        /// Told when they are served.
        done: Sender<()>,
    },
    /// A child holds what its parent holds.
    Fork {
        /// The program.
        owner: Owner,
        /// The process slot of the parent.
        parent: Process,
        /// The process slot of the child.
        child: Process,
        /// Told when the child holds the sockets.
        done: Sender<()>,
    },
    /// After an exec: the process holds these sockets and no others.
    Holds {
        /// The program.
        owner: Owner,
        /// The process slot.
        process: Process,
        /// The sockets that it holds.
        sockets: Vec<SlotRef>,
        /// Whether it also takes hold of sockets that it did not hold.
        more: bool,
        /// Told when the other sockets are released.
        done: Sender<()>,
    },
    /// A process takes hold of sockets that another process holds.
    Share {
        /// The program.
        owner: Owner,
        /// The sockets. This shard serves all of them.
        sockets: Vec<SlotRef>,
        /// The process that must hold them.
        from: Process,
        /// The process that takes hold of them.
        to: Process,
        /// Told for each socket, in order, whether `to` holds it.
        done: Sender<Vec<bool>>,
    },
    /// A process of another program has received a socket that
    /// [`crate::programs::owners::IN_FLIGHT`] holds.
    Transfer {
        /// The program that has sent it.
        from: Owner,
        /// The socket, as that program knows it.
        socket: SlotRef,
        /// The program that has received it.
        to: Owner,
        /// The process that takes hold of it.
        process: Process,
        /// Told the socket as the receiving program knows it, or an errno.
        done: Sender<Result<SlotRef, i32>>,
    },
    /// A program is about to be forgotten. Its shared sockets go to the other programs that hold
    /// them.
    LeaveToSharers {
        /// The program.
        owner: Owner,
        /// Told when they have gone.
        done: Sender<()>,
    },
    /// One of the messages that hold a socket is gone.
    Arrived {
        /// The program.
        owner: Owner,
        /// The socket.
        socket: SlotRef,
    },
    /// A socket may be bound to a privileged port, once.
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
    /// A new poller.
    AddPoller {
        /// The program.
        owner: Owner,
        /// Its index.
        poller: u32,
        /// Its eventfd, which the program does not have: see `crate::doorbell`.
        doorbell: Arc<OwnedFd>,
        /// Told when requests can name the poller.
        done: Sender<()>,
    },
    /// No process uses a poller any more.
    RemovePoller {
        /// The program.
        owner: Owner,
        /// Its index.
        poller: u32,
    },
    /// Buckets are about to come to this worker.
    Expect {
        /// The buckets.
        buckets: Vec<usize>,
        /// How many other workers send them.
        batches: usize,
        /// Told when all of them are here.
        taken: Sender<()>,
        /// Told when the worker is ready for them.
        done: Sender<()>,
    },
    /// Give buckets to other shards, once all frames are served that were queued before the I/O
    /// threads moved the buckets.
    Give(Leaving),
    /// Buckets have moved to other shards.
    Assign {
        /// All that moved.
        moves: Arc<[Move]>,
    },
    /// The link has other addresses and routes.
    Renumber {
        /// All addresses and routes.
        network: Network,
        /// Told when the shard uses them.
        done: Sender<()>,
    },
    /// List all sockets.
    Sockets {
        /// Told the list.
        reply: Sender<Vec<SocketRow>>,
    },
    /// Report counters and memory use as JSON.
    Describe {
        /// Told the report.
        reply: Sender<String>,
    },
    /// End when no connection has data to send any more, or when the patience is over.
    Drain {
        /// Patience in milliseconds.
        patience_ms: u64,
    },
}

impl Command {
    /// The program whose requests until now must be served before this command. Such a request may
    /// close a socket, open one that a child must hold, claim a connection, or watch with a poller
    /// whose index another poller will have. It may also be left by a process that has died, or by
    /// the image before an exec.
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
