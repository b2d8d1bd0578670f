//! What a worker has of the others: a ring each way for what comes with packets, a channel for what happens seldom, and their doorbells.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use millrace_context::SlotRef;
use millrace_context::layout::{ASLEEP, AWAKE, Line};
use millrace_shard::{
    AcceptQueue, Arrival, Error, Flow, Moved, Opt, Options, Owner, Parcel, SocketId, Stray,
};
use millrace_steer::ring::{Reader, Writer, ring};
use millrace_wire::offload::{ChecksumState, Frame};

use crate::doorbell::ring as ring_doorbell;
use crate::migration::buckets::MovedSlot;
use crate::migration::misrouted;
use crate::shared::arenas::ForeignBlock;
use crate::worker::{ProgramSlot, Worker, WorkerCounters};

pub(crate) mod replicas;

/// Of the ring from one shard to another: sixteen of the largest frames.
const RING_BYTES: usize = 1 << 20;
/// Records taken from one ring in one round.
const HANDED_BURST: usize = 64;
/// Looks for an answer before a worker that waits for one sleeps in between.
const LOOKS: u32 = 64;
/// How long it sleeps then.
const LOOK_AGAIN: Duration = Duration::from_micros(20);

/// What one worker asks of another. Each is carried out in its turn, between rounds or while the other waits for an answer itself, so nothing that
/// is asked for here may ask in its turn.
#[derive(Debug)]
pub(crate) enum Request {
    /// The socket at a slot of the asking shard has this address: nobody else may take it. `bound` is what it shares, `options` was set before.
    Bind {
        place: ProgramSlot,
        generation: u32,
        owner: Owner,
        local: SocketAddr,
        bound: Options,
        options: Vec<Opt>,
        /// The asking shard.
        home: u16,
        reply: Sender<Result<(), Error>>,
    },
    /// The same of a socket for datagrams, which come to its own shard only.
    BindDatagram {
        place: ProgramSlot,
        generation: u32,
        owner: Owner,
        local: SocketAddr,
        bound: Options,
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
    Misrouted(misrouted::MisroutedRequest),
    /// A slot that has moved is free again.
    Freed(misrouted::Freed),
    /// A block of an arena, likewise.
    Block(ForeignBlock),
}

/// Another worker, from this one's side.
struct Link {
    writer: Writer,
    written: bool,
    requests: Sender<Request>,
    doorbell: Arc<OwnedFd>,
    /// [`ASLEEP`] while it sleeps.
    state: Arc<Line>,
}

/// Stands in for another shard's bound or listening socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replica {
    pub(crate) id: SocketId,
    /// Generation of the slot that it stands for.
    pub(crate) generation: u32,
    /// The shard that has it.
    pub(crate) home: u16,
}

/// A connection that another shard has accepted for one of this shard's listeners.
pub(crate) struct Accepted {
    pub(crate) program: u32,
    pub(crate) listener: SlotRef,
    pub(crate) slot: SlotRef,
}

/// The other workers. By shard; none at the own place.
pub(crate) struct Peers {
    pub(crate) own: u16,
    links: Vec<Option<Link>>,
    readers: Vec<Option<Reader>>,
    requests: Receiver<Request>,
    state: Arc<Line>,
    /// Others' sockets that this shard stands in for.
    pub(crate) replicas: HashMap<ProgramSlot, Replica>,
    /// The same by their sockets.
    pub(crate) places: HashMap<SocketId, ProgramSlot>,
    /// Connections that others accepted for a listener whose queue is full.
    pub(crate) late: HashMap<ProgramSlot, VecDeque<SlotRef>>,
    /// Listeners with connections that wait for room.
    pub(crate) stuck: Vec<ProgramSlot>,
    /// Frames from others of flows that are on their way here, and flows among those that are over.
    pub(crate) awaited: VecDeque<(u64, Vec<u8>)>,
    pub(crate) unpinned: Vec<(Flow, u16)>,
}

/// Frames from others that wait at most; more are dropped and counted.
const AWAITED_MAX: usize = 256;

const KIND_FRAME: u64 = 0;
const KIND_ACCEPTED: u64 = 1;

fn frame_word(frame: &Frame<'_>, arrival: Arrival) -> u64 {
    // It has been verified on the way here.
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

/// The workers' parts, each with all that it needs of the others.
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
            replicas: HashMap::new(),
            places: HashMap::new(),
            late: HashMap::new(),
            stuck: Vec::new(),
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
    /// Writes a record, to be committed with the others of this round; false if there is no room.
    fn write(&mut self, word: u64, body: &[u8]) -> bool {
        let done = self.writer.write(word, [body]);
        self.written |= done;
        done
    }
}

impl Peers {
    /// The shards in their order, the own one among them.
    pub(crate) fn shards(&self) -> std::ops::Range<u32> {
        0..self.links.len() as u32
    }

    /// Hands a frame over as the shard says.
    pub(crate) fn pass(
        &mut self,
        stray: Stray,
        frame: &Frame<'_>,
        whole: Option<&[u8]>,
        counters: &mut WorkerCounters,
    ) {
        // What was put together of fragments has nothing left to the link.
        let whole = whole.map(|bytes| Frame {
            bytes,
            checksum: ChecksumState::Valid,
            segment_size: 0,
        });
        let frame = whole.as_ref().unwrap_or(frame);
        pass(&mut self.links, &mut self.awaited, stray, frame, counters);
    }

    /// Hands a datagram between two sockets of this host to the other's shard, or to all.
    pub(crate) fn cross(&mut self, to: Option<u16>, bytes: &[u8], counters: &mut WorkerCounters) {
        let frame = Frame {
            bytes,
            checksum: ChecksumState::Valid,
            segment_size: 0,
        };
        match to {
            Some(shard) => {
                let stray = Stray::Shard(shard, Arrival::Local);
                pass(&mut self.links, &mut self.awaited, stray, &frame, counters);
            }
            None => {
                for shard in 0..self.links.len() as u16 {
                    let stray = Stray::Shard(shard, Arrival::Local);
                    pass(&mut self.links, &mut self.awaited, stray, &frame, counters);
                }
            }
        }
    }

    /// Whether a connection can be handed to `shard`.
    pub(crate) fn has_room(&mut self, shard: u32) -> bool {
        let link = self.links.get_mut(shard as usize).and_then(Option::as_mut);
        link.is_some_and(|link| link.writer.has_room(16))
    }

    /// Hands a connection to the shard of its listener; [`Peers::has_room`] has been asked.
    pub(crate) fn hand_accepted(&mut self, shard: u32, accepted: &Accepted) {
        if let Some(Some(link)) = self.links.get_mut(shard as usize) {
            let mut body = [0; 16];
            body[..8].copy_from_slice(&accepted.listener.to_bits().to_ne_bytes());
            body[8..].copy_from_slice(&accepted.slot.to_bits().to_ne_bytes());
            link.write(KIND_ACCEPTED | u64::from(accepted.program) << 32, &body);
        }
    }

    /// Gives the others what was written in this round, and wakes those that sleep.
    pub(crate) fn flush(&mut self) {
        if !self.links.iter().flatten().any(|link| link.written) {
            return;
        }
        for link in self.links.iter_mut().flatten().filter(|link| link.written) {
            link.writer.commit();
        }
        // They say that they sleep before they look once more.
        fence(Ordering::SeqCst);
        for link in self.links.iter_mut().flatten().filter(|link| link.written) {
            link.written = false;
            if link.state.0.load(Ordering::Relaxed) == ASLEEP {
                ring_doorbell(link.doorbell.as_fd());
            }
        }
    }

    /// Where the rings to the others have been written up to.
    pub(crate) fn positions(&self) -> Vec<usize> {
        let position = |link: &Option<Link>| link.as_ref().map_or(0, |link| link.writer.position());
        self.links.iter().map(position).collect()
    }

    /// Whether the others have read, and done with, what was written before these positions.
    pub(crate) fn are_read_up_to(&self, positions: &[usize]) -> bool {
        let mut links = self.links.iter().zip(positions);
        links.all(|(link, position)| {
            let link = link.as_ref();
            link.is_none_or(|link| link.writer.is_read_up_to(*position))
        })
    }

    /// Says whether this worker sleeps; a full fence is to follow if so.
    pub(crate) fn sleeps(&self, asleep: bool) {
        let state = if asleep { ASLEEP } else { AWAKE };
        self.state.0.store(state, Ordering::Relaxed);
    }

    /// Whether others have handed something over. Requests come with a doorbell.
    pub(crate) fn pending(&mut self) -> bool {
        self.readers
            .iter_mut()
            .flatten()
            .any(|reader| !reader.is_empty())
    }

    /// Asks another worker for something that has no answer.
    pub(crate) fn tell(&self, shard: u32, request: Request) {
        if let Some(Some(link)) = self.links.get(shard as usize) {
            // One that has ended needs no telling.
            let _ = link.requests.send(request);
            ring_doorbell(link.doorbell.as_fd());
        }
    }

    /// Asks all others.
    pub(crate) fn tell_all(&self, request: impl Fn() -> Request) {
        for shard in self.shards().filter(|shard| *shard != u32::from(self.own)) {
            self.tell(shard, request());
        }
    }

    /// Notes that a listener's connections wait for room.
    pub(crate) fn note_stuck(&mut self, place: ProgramSlot) {
        if !self.stuck.contains(&place) {
            self.stuck.push(place);
        }
    }
}

fn pass(
    links: &mut [Option<Link>],
    awaited: &mut VecDeque<(u64, Vec<u8>)>,
    stray: Stray,
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
    match stray {
        Stray::Shard(to, arrival) => {
            if let Some(Some(link)) = links.get_mut(usize::from(to)) {
                hand(link, arrival);
            }
        }
        Stray::Awaited if awaited.len() < AWAITED_MAX => {
            awaited.push_back((frame_word(frame, Arrival::ByTag), frame.bytes.to_vec()));
        }
        Stray::Awaited => counters.handed_dropped += 1,
        Stray::Everyone => {
            for link in links.iter_mut().flatten() {
                hand(link, Arrival::Copy);
            }
        }
    }
}

impl Worker {
    /// Takes in what others have handed over, and does what they have asked for. How much that was.
    pub(crate) fn take_handed(&mut self) -> usize {
        let Some(peers) = &self.peers else {
            return 0;
        };
        let mut taken = 0;
        for from in 0..peers.readers.len() {
            for _ in 0..HANDED_BURST {
                match self.take_record(from) {
                    Some(Some(accepted)) => self.queue_accepted_elsewhere(&accepted),
                    Some(None) => {}
                    None => break,
                }
                taken += 1;
            }
        }
        taken + self.drain_requests()
    }

    /// Takes one record: a frame goes to the shard, anything else is returned.
    fn take_record(&mut self, from: usize) -> Option<Option<Accepted>> {
        let Peers {
            readers,
            links,
            awaited,
            ..
        } = self.peers.as_deref_mut()?;
        let (word, body) = readers.get_mut(from)?.as_mut()?.next()?;
        if word & 0xff == KIND_ACCEPTED {
            let (listener, slot) = body.split_at(8);
            let reference = |half: &[u8]| {
                SlotRef::from_bits(u64::from_ne_bytes(half.try_into().unwrap_or_default()))
            };
            return Some(Some(Accepted {
                program: (word >> 32) as u32,
                listener: reference(listener),
                slot: reference(slot),
            }));
        }
        let (frame, arrival) = frame_of(word, body);
        self.shard.input_handed(&frame, arrival, self.now);
        // What comes by a ring is whole.
        if let Some((stray, _)) = self.shard.take_stray() {
            pass(links, awaited, stray, &frame, &mut self.counters);
        }
        Some(None)
    }

    /// Takes frames in again that have waited for what was on its way here.
    pub(crate) fn take_awaited(&mut self) {
        let Some(peers) = &mut self.peers else {
            return;
        };
        for (word, bytes) in std::mem::take(&mut peers.awaited) {
            let (frame, arrival) = frame_of(word, &bytes);
            self.shard.input_handed(&frame, arrival, self.now);
            if let Some((stray, whole)) = self.shard.take_stray() {
                peers.pass(stray, &frame, whole.as_deref(), &mut self.counters);
            }
        }
    }

    /// Does what the others have asked for. How much that was.
    pub(crate) fn drain_requests(&mut self) -> usize {
        let mut done = 0;
        while let Some(Ok(request)) = self.peers.as_ref().map(|peers| peers.requests.try_recv()) {
            self.serve_peer_request(request);
            done += 1;
        }
        done
    }

    /// Asks another worker and waits for the answer, doing meanwhile what others ask for.
    pub(crate) fn ask_peer(
        &mut self,
        shard: u32,
        request: impl FnOnce(Sender<Result<(), Error>>) -> Request,
    ) -> Result<(), Error> {
        // It has ended: it has nothing against it.
        self.ask_peer_for(shard, request).unwrap_or(Ok(()))
    }

    /// The same for any answer; none from a worker that has ended.
    pub(crate) fn ask_peer_for<T>(
        &mut self,
        shard: u32,
        request: impl FnOnce(Sender<T>) -> Request,
    ) -> Option<T> {
        let (reply, answer) = mpsc::channel();
        if let Some(peers) = &self.peers {
            peers.tell(shard, request(reply));
        }
        let mut looks = 0;
        loop {
            match answer.try_recv() {
                Ok(outcome) => return Some(outcome),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            if self.drain_requests() > 0 {
                continue;
            }
            looks += 1;
            if looks < LOOKS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(LOOK_AGAIN);
            }
        }
    }
}
