//! The other workers: a ring each way for frames and accepted connections, a channel for rare
//! requests, and their doorbells.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{self, Receiver, Sender};

use millrace_context::SlotRef;
use millrace_context::layout::{ASLEEP, AWAKE, Line};
use millrace_shard::{Arrival, Flow, Misrouted};
use millrace_steer::ring::{Reader, Writer, ring};
use millrace_wire::offload::{ChecksumState, Frame};

use crate::doorbell::ring as ring_doorbell;
use crate::peers::accept_backlog::AcceptBacklog;
use crate::peers::replica_table::Replicas;
use crate::peers::request::Request;
use crate::worker::counters::WorkerCounters;

pub(crate) mod accept_backlog;
mod exchange;
pub(crate) mod replica_table;
mod replicas;
pub(crate) mod request;

/// Size of the ring from one shard to another: sixteen of the largest frames.
const RING_BYTES: usize = 1 << 20;

/// The way to another worker.
struct Link {
    writer: Writer,
    written: bool,
    requests: Sender<Request>,
    doorbell: Arc<OwnedFd>,
    /// [`ASLEEP`] while it sleeps.
    state: Arc<Line>,
}

/// A connection that another shard has accepted for a listener of this shard.
pub(crate) struct Accepted {
    pub(crate) program: u32,
    pub(crate) listener: SlotRef,
    pub(crate) slot: SlotRef,
}

/// The other workers, by shard. There is none at this worker's own index.
pub(crate) struct Peers {
    own: u16,
    links: Vec<Option<Link>>,
    readers: Vec<Option<Reader>>,
    requests: Receiver<Request>,
    state: Arc<Line>,
    pub(crate) replicas: Replicas,
    pub(crate) backlog: AcceptBacklog,
    /// Frames for flows that are on their way here, and pinned flows among those that are over.
    awaited: VecDeque<(u64, Vec<u8>)>,
    unpinned: Vec<(Flow, u16)>,
}

/// Frames that wait at most; further frames are dropped and counted.
const AWAITED_MAX: usize = 256;

const KIND_FRAME: u64 = 0;
const KIND_ACCEPTED: u64 = 1;

fn frame_word(frame: &Frame<'_>, arrival: Arrival) -> u64 {
    // The other shard has verified the checksum.
    let partial = frame.checksum == ChecksumState::Partial;
    KIND_FRAME
        | u64::from(arrival.to_bits()) << 8
        | u64::from(partial) << 16
        | u64::from(frame.segment_size) << 32
}

fn frame_of(word: u64, bytes: &[u8]) -> (Frame<'_>, Arrival) {
    let checksum = match word >> 16 & 1 {
        0 => ChecksumState::Valid,
        _ => ChecksumState::Partial,
    };
    let frame = Frame {
        bytes,
        checksum,
        segment_size: (word >> 32) as u16,
    };
    let arrival = Arrival::from_bits((word >> 8) as u8);
    (frame, arrival.unwrap_or_default())
}

/// Connects workers with each other. Returns the part of each.
pub(crate) fn mesh(doorbells: &[Arc<OwnedFd>]) -> Vec<Peers> {
    let count = doorbells.len();
    let states: Vec<Arc<Line>> = doorbells.iter().map(|_| Arc::default()).collect();
    let (senders, receivers): (Vec<_>, Vec<_>) = doorbells.iter().map(|_| mpsc::channel()).unzip();
    let mut all: Vec<Peers> = receivers
        .into_iter()
        .enumerate()
        .map(|(own, requests)| Peers {
            own: own as u16,
            links: Vec::with_capacity(count),
            readers: (0..count).map(|_| None).collect(),
            requests,
            state: states[own].clone(),
            replicas: Replicas::default(),
            backlog: AcceptBacklog::default(),
            awaited: VecDeque::new(),
            unpinned: Vec::new(),
        })
        .collect();
    for from in 0..count {
        for to in 0..count {
            let link = (from != to).then(|| {
                let (writer, reader) = ring(RING_BYTES);
                all[to].readers[from] = Some(reader);
                Link {
                    writer,
                    written: false,
                    requests: senders[to].clone(),
                    doorbell: doorbells[to].clone(),
                    state: states[to].clone(),
                }
            });
            all[from].links.push(link);
        }
    }
    all
}

impl Link {
    /// Writes a record, which is committed at the end of the round. Returns false if there is no
    /// room.
    fn write(&mut self, word: u64, body: &[u8]) -> bool {
        let done = self.writer.write(word, [body]);
        self.written |= done;
        done
    }
}

impl Peers {
    /// All shards in order, this one included.
    pub(crate) fn shards(&self) -> std::ops::Range<u32> {
        0..self.links.len() as u32
    }

    /// Hands a frame to the shard that it belongs to. `whole` replaces a frame that was
    /// reassembled.
    pub(crate) fn pass(
        &mut self,
        misrouted: Misrouted,
        frame: &Frame<'_>,
        whole: Option<&[u8]>,
        counters: &mut WorkerCounters,
    ) {
        // Reassembly has verified the checksum, and nothing is left to offload.
        let whole = whole.map(|bytes| Frame {
            bytes,
            checksum: ChecksumState::Valid,
            segment_size: 0,
        });
        let frame = whole.as_ref().unwrap_or(frame);
        pass(
            &mut self.links,
            &mut self.awaited,
            misrouted,
            frame,
            counters,
        );
    }

    /// Hands a datagram between two sockets of this host to the shard of the receiver, or to all
    /// shards.
    pub(crate) fn cross(&mut self, to: Option<u16>, bytes: &[u8], counters: &mut WorkerCounters) {
        let frame = Frame {
            bytes,
            checksum: ChecksumState::Valid,
            segment_size: 0,
        };
        let shards = match to {
            Some(shard) => shard..shard + 1,
            None => 0..self.links.len() as u16,
        };
        for shard in shards {
            let misrouted = Misrouted::Shard(shard, Arrival::Local);
            pass(
                &mut self.links,
                &mut self.awaited,
                misrouted,
                &frame,
                counters,
            );
        }
    }

    /// Whether the ring to `shard` takes an accepted connection.
    pub(crate) fn has_room(&mut self, shard: u32) -> bool {
        let link = self.links.get_mut(shard as usize).and_then(Option::as_mut);
        link.is_some_and(|link| link.writer.has_room(16))
    }

    /// Hands an accepted connection to the shard of its listener. [`Peers::has_room`] must be true.
    pub(crate) fn hand_accepted(&mut self, shard: u32, accepted: &Accepted) {
        if let Some(Some(link)) = self.links.get_mut(shard as usize) {
            let mut body = [0; 16];
            body[..8].copy_from_slice(&accepted.listener.to_bits().to_ne_bytes());
            body[8..].copy_from_slice(&accepted.slot.to_bits().to_ne_bytes());
            link.write(KIND_ACCEPTED | u64::from(accepted.program) << 32, &body);
        }
    }

    /// Commits the records of this round, and wakes the workers that sleep.
    pub(crate) fn flush(&mut self) {
        if !self.links.iter().flatten().any(|link| link.written) {
            return;
        }
        for link in self.links.iter_mut().flatten().filter(|link| link.written) {
            link.writer.commit();
        }
        // A worker says that it sleeps before it checks its rings again.
        fence(Ordering::SeqCst);
        for link in self.links.iter_mut().flatten().filter(|link| link.written) {
            link.written = false;
            if link.state.0.load(Ordering::Relaxed) == ASLEEP {
                ring_doorbell(link.doorbell.as_fd());
            }
        }
    }

    /// The write positions of the rings to the others.
    pub(crate) fn positions(&self) -> Vec<usize> {
        let position = |link: &Option<Link>| link.as_ref().map_or(0, |link| link.writer.position());
        self.links.iter().map(position).collect()
    }

    /// Whether the others have served all records before these positions.
    pub(crate) fn are_read_up_to(&self, positions: &[usize]) -> bool {
        let mut links = self.links.iter().zip(positions);
        links.all(|(link, position)| {
            let link = link.as_ref();
            link.is_none_or(|link| link.writer.is_read_up_to(*position))
        })
    }

    /// Sets whether this worker sleeps. If it sleeps, a full fence must follow.
    pub(crate) fn sleeps(&self, asleep: bool) {
        let state = if asleep { ASLEEP } else { AWAKE };
        self.state.0.store(state, Ordering::Relaxed);
    }

    /// Whether other workers have written records. Their requests come with a doorbell.
    pub(crate) fn pending(&mut self) -> bool {
        self.readers
            .iter_mut()
            .flatten()
            .any(|reader| !reader.is_empty())
    }

    /// Sends a request to another worker.
    pub(crate) fn tell(&self, shard: u32, request: Request) {
        if let Some(Some(link)) = self.links.get(shard as usize) {
            // A worker that has ended needs no request.
            let _ = link.requests.send(request);
            ring_doorbell(link.doorbell.as_fd());
        }
    }

    /// Sends a request to all other workers.
    pub(crate) fn tell_all(&self, request: impl Fn() -> Request) {
        for shard in self.shards().filter(|shard| *shard != u32::from(self.own)) {
            self.tell(shard, request());
        }
    }

    /// Which shard this is.
    pub(crate) fn own(&self) -> u16 {
        self.own
    }

    /// The next request of another worker.
    pub(crate) fn next_request(&self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// The next record of worker `from`, with the way to pass it on.
    pub(crate) fn next_record(&mut self, from: usize) -> Option<Record<'_>> {
        let (word, body) = self.readers.get_mut(from)?.as_mut()?.next()?;
        if word & 0xff == KIND_ACCEPTED {
            let (listener, slot) = body.split_at(8);
            let reference = |half: &[u8]| {
                SlotRef::from_bits(u64::from_ne_bytes(half.try_into().unwrap_or_default()))
            };
            return Some(Record::Accepted(Accepted {
                program: (word >> 32) as u32,
                listener: reference(listener),
                slot: reference(slot),
            }));
        }
        let (frame, arrival) = frame_of(word, body);
        let forward = Forward {
            links: &mut self.links,
            awaited: &mut self.awaited,
        };
        Some(Record::Frame(frame, arrival, forward))
    }

    /// Takes the frames that have waited for flows on their way here.
    pub(crate) fn take_awaited(&mut self) -> AwaitedFrames {
        AwaitedFrames(std::mem::take(&mut self.awaited))
    }

    /// A flow is over that is on its way to this shard: it is unpinned when it has come.
    pub(crate) fn defer_unpin(&mut self, flow: Flow, shard: u16) {
        self.unpinned.push((flow, shard));
    }

    /// Unpins each flow that has come.
    pub(crate) fn retry_unpin(&mut self, mut unpin: impl FnMut(&Flow, u16) -> bool) {
        self.unpinned.retain(|(flow, shard)| !unpin(flow, *shard));
    }
}

/// What another worker has handed over.
pub(crate) enum Record<'a> {
    /// A frame, how it came to the other shard, and the way on to a third.
    Frame(Frame<'a>, Arrival, Forward<'a>),
    /// A connection for a listener of this shard.
    Accepted(Accepted),
}

/// The way on for a frame that another worker has handed over.
pub(crate) struct Forward<'a> {
    links: &'a mut [Option<Link>],
    awaited: &'a mut VecDeque<(u64, Vec<u8>)>,
}

impl Forward<'_> {
    /// Hands the frame to the shard that it belongs to.
    pub(crate) fn pass(
        self,
        misrouted: Misrouted,
        frame: &Frame<'_>,
        counters: &mut WorkerCounters,
    ) {
        pass(self.links, self.awaited, misrouted, frame, counters);
    }
}

/// Frames that have waited for flows on their way to this shard.
pub(crate) struct AwaitedFrames(VecDeque<(u64, Vec<u8>)>);

impl AwaitedFrames {
    /// Each frame, and how it came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Frame<'_>, Arrival)> {
        self.0.iter().map(|(word, bytes)| frame_of(*word, bytes))
    }
}

fn pass(
    links: &mut [Option<Link>],
    awaited: &mut VecDeque<(u64, Vec<u8>)>,
    misrouted: Misrouted,
    frame: &Frame<'_>,
    counters: &mut WorkerCounters,
) {
    let mut hand = |link: &mut Link, arrival| {
        if link.write(frame_word(frame, arrival), frame.bytes) {
            counters.handed += 1;
        } else {
            counters.handed_dropped += 1;
        }
    };
    match misrouted {
        Misrouted::Shard(to, arrival) => {
            if let Some(Some(link)) = links.get_mut(usize::from(to)) {
                hand(link, arrival);
            }
        }
        Misrouted::Awaited if awaited.len() < AWAITED_MAX => {
            awaited.push_back((frame_word(frame, Arrival::ByTag), frame.bytes.to_vec()));
        }
        Misrouted::Awaited => counters.handed_dropped += 1,
        Misrouted::AllShards => {
            for link in links.iter_mut().flatten() {
                hand(link, Arrival::Copy);
            }
        }
    }
}
