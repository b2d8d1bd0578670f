//! One shard with all that it serves: its link, the programs, the other shards.
//!
//! Each part keeps its own data: the parts are wired here. What programs ask for is in
//! `requests`, what other shards ask for in `peers`, what moves in `migration`.

use millrace_context::SlotRef;
use millrace_shard::{Error, Shard, SocketId, ViewFlags};
use millrace_tcp::Instant;
use millrace_wire::offload::Frame;

use crate::control::audit::Outbox;
use crate::links::shard_link::ShardLink;
use crate::migration::bucket_moves::BucketMoves;
use crate::migration::shared_sockets::SharedSockets;
use crate::peers::Peers;
use crate::programs::program::Program;
use crate::programs::slot::ProgramSlot;
use crate::programs::table::Programs;
use crate::requests::port_permits::PortPermits;
use crate::shared::arenas::Arenas;
use crate::worker::counters::WorkerCounters;
use crate::worker::cpu_follow::CpuFollow;
use crate::worker::publisher::{Output, Publisher};
use crate::worker::reserved_ports::ReservedPorts;

mod accept;
mod close;

/// One shard with all that it serves. It belongs to the thread of its worker.
pub(crate) struct ShardServer {
    pub(crate) shard: Shard<Arenas>,
    /// Which of the shards of the engine it is, from 0.
    pub(crate) own: u32,
    pub(crate) now: Instant,
    pub(crate) counters: WorkerCounters,
    pub(crate) audit: Outbox,
    pub(crate) link: ShardLink,
    pub(crate) programs: Programs,
    pub(crate) publisher: Publisher,
    /// The other shards, if there are others.
    pub(crate) peers: Option<Box<Peers>>,
    pub(crate) bucket_moves: BucketMoves,
    pub(crate) shared_sockets: SharedSockets,
    pub(crate) reserved_ports: ReservedPorts,
    pub(crate) port_permits: PortPermits,
    pub(crate) cpu_follow: CpuFollow,
    /// Slots for which it asks other shards now. It serves those meanwhile.
    pub(crate) asking_for: Vec<ProgramSlot>,
}

/// Gives a frame to the shard, and hands it to another shard if it belongs there.
fn take_in(
    shard: &mut Shard<Arenas>,
    peers: &mut Option<Box<Peers>>,
    frame: &Frame<'_>,
    now: Instant,
    counters: &mut WorkerCounters,
) {
    shard.input(frame, now);
    if let Some(peers) = peers
        && let Some((misrouted, whole)) = shard.take_misrouted()
    {
        peers.pass(misrouted, frame, whole.as_deref(), counters);
    }
}

impl ShardServer {
    /// The server of an only shard that has no link.
    pub(crate) fn alone(
        shard: Shard<Arenas>,
        audit: Outbox,
        port_permits: PortPermits,
    ) -> ShardServer {
        ShardServer {
            shard,
            own: 0,
            now: Instant::from_micros(0),
            counters: WorkerCounters::default(),
            audit,
            link: ShardLink::new(None, 0, false),
            programs: Programs::default(),
            publisher: Publisher::default(),
            peers: None,
            bucket_moves: BucketMoves::default(),
            shared_sockets: SharedSockets::default(),
            reserved_ports: ReservedPorts::new(None, 0),
            port_permits,
            cpu_follow: CpuFollow::new(false),
            asking_for: Vec::new(),
        }
    }

    /// Takes a burst of frames. Returns how many came.
    pub(crate) fn receive(&mut self) -> usize {
        let (shard, peers, now) = (&mut self.shard, &mut self.peers, self.now);
        self.link.receive(&mut self.counters, |frame, counters| {
            take_in(shard, peers, frame, now, counters);
        })
    }

    /// Takes in frames that were kept for buckets which have come.
    pub(crate) fn take_kept(&mut self, buckets: &[usize], last: bool) {
        let (shard, peers, now) = (&mut self.shard, &mut self.peers, self.now);
        let counters = &mut self.counters;
        self.link
            .release_frames_of(buckets, last, counters, |frame, counters| {
                take_in(shard, peers, frame, now, counters);
            });
    }

    /// Sends what the shard has to send. Returns how many frames left.
    pub(crate) fn transmit(&mut self) -> usize {
        let (shard, now) = (&mut self.shard, self.now);
        self.link.transmit(shard, &mut self.counters, now)
    }

    /// Runs the timers of the shard that are due.
    pub(crate) fn run_timers(&mut self) {
        let deadline = self.shard.deadline();
        if deadline.is_some_and(|deadline| deadline <= self.now) {
            self.shard.advance(self.now);
            if self.shard.has_freed_much() {
                trim();
            }
        }
    }

    /// Publishes everything that changed since the last call.
    pub(crate) fn publish(&mut self) {
        let mut changed = self.publisher.take_changed(&mut self.shard);
        for id in changed.drain(..) {
            if let Some(place) = self.slot_of(id) {
                let view = self.shard.view(id);
                if view.is_some_and(|view| view.flags.contains(ViewFlags::LISTENING)) {
                    self.fill_accept_ring(place);
                } else {
                    self.publisher.mark(place);
                }
            } else if self.peers.is_some() {
                self.relay_accepted(id);
            }
        }
        self.publisher.keep_list(changed);
        if self.peers.is_some() {
            self.retry_stuck();
        }
        let published = self.publisher.publish(&mut Output {
            own: self.own,
            shard: &mut self.shard,
            programs: &mut self.programs,
            shared_sockets: &self.shared_sockets,
            counters: &mut self.counters,
        });
        if published && self.peers.is_some() {
            self.return_foreign_blocks();
        }
    }

    /// The slot that shows a socket.
    pub(crate) fn slot_of(&self, id: SocketId) -> Option<ProgramSlot> {
        self.publisher.slot_of(id, &self.programs)
    }

    /// Shows a socket in a slot.
    pub(crate) fn attach_socket(&mut self, id: SocketId, place: ProgramSlot) {
        self.publisher.note_slot(id, place);
        if let Some(program) = self.programs.get_mut(place.program) {
            program.entries[place.slot].socket = Some(id);
        }
    }

    /// Marks a slot to be published in this round.
    pub(crate) fn mark_changed(&mut self, place: ProgramSlot) {
        self.publisher.mark(place);
    }

    /// Shows an error in a slot: a request failed, and the program does not wait for its reply.
    pub(crate) fn fail(&mut self, place: ProgramSlot, error: Error) {
        if let Some(program) = self.programs.get_mut(place.program) {
            program.show_error(place.slot, error.errno());
        }
        self.mark_changed(place);
    }

    /// The slot that a request names.
    pub(crate) fn find(&self, program: u32, slot: SlotRef) -> Result<ProgramSlot, i32> {
        self.programs.find(program, slot)
    }

    /// The program that a request came from.
    pub(crate) fn program(&mut self, program: u32) -> &mut Program {
        self.programs
            .get_mut(program)
            .expect("a submission comes from a program that exists")
    }

    /// A program has reached a limit.
    #[cold]
    pub(crate) fn audit_limit(&mut self, program: u32, limit: &'static str) {
        self.audit.limit(program, limit, self.now.as_micros());
    }

    /// Says what the link has lost, and writes to the audit log which programs had no memory.
    #[cold]
    pub(crate) fn check_for_drops(&mut self) {
        self.link.check_for_drops();
        for program in self.programs.iter() {
            let (owner, what) = (program.owner, "receive_memory_failures");
            let (_, failures) = self.shard.memory().usage(owner);
            self.audit
                .count(owner.0, what, failures, self.now.as_micros());
        }
    }
}

/// Has the allocator give its free memory back to the machine. It keeps memory that lies below a
/// block in use.
#[cold]
fn trim() {
    // SAFETY: the call takes no pointer and may be made by any thread at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
