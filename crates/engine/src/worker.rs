//! A shard's thread.
//!
//! One round: frames in, submissions, timers, frames out, publish. When a round finds nothing to do the worker says that it sleeps, looks
//! once more, and waits for its port, its doorbell or its next deadline.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use millrace_offload::Train;
use millrace_port::Port;
use millrace_port::xdp::{Gauge, Held, missed};
use millrace_shard::{Shard, SocketId};
use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::Mac;
use millrace_wire::offload::{Capabilities, Frame, Offload};
use rustix::event::epoll;

use crate::audit::{self, Outbox};
use crate::command::Command;
use crate::doorbell;
use crate::egress::PortEgress;
use crate::follow::Follow;
use crate::limits::Limits;
use crate::link;
use crate::look::Look;
use crate::losses::{LOOK_US, Losses};
use crate::memory::Arenas;
use crate::moving::Moving;
use crate::nap::Alarm;
use crate::peers::Peers;
use crate::ports::{Permits, PrivilegedPorts};
use crate::program::Program;
use crate::publish::Chosen;
use crate::queues::{Both, Queues};
use crate::reach::Reach;
use crate::serve::Asked;
use crate::transfer::Sharers;

/// Frames taken from the port in one round.
const RECEIVE_BURST: usize = 64;
/// The largest frame: 64 KB of IP and an Ethernet header, with room for a VLAN tag.
const FRAME_MAX: usize = 65_536 + 64;

pub(crate) const TOKEN_PORT: u64 = 1;
pub(crate) const TOKEN_DOORBELL: u64 = 2;
pub(crate) const TOKEN_ALARM: u64 = 3;

/// What a worker counts beside its shard.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct WorkerCounters {
    /// Frames received.
    pub frames_in: u64,
    /// Segments among them that were joined with others, and what they became.
    pub segments_joined: u64,
    /// Frames that the stack was given for these.
    pub units_joined: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Frames received that were of another virtual LAN, or of none, and dropped.
    pub frames_foreign: u64,
    /// Frames that were not received soon enough, where the link tells.
    pub frames_dropped: u64,
    /// Frames that the device had no room for; what can wait is sent later.
    pub send_refused: u64,
    /// Frames that the device took and dropped, where it tells.
    pub send_dropped: u64,
    /// Reads and writes that the device refused.
    pub port_errors: u64,
    /// Links that were lost with their device: what is sent by one goes nowhere.
    pub links_lost: u64,
    /// Submissions served.
    pub submissions: u64,
    /// Rounds run.
    pub rounds: u64,
    /// Times slept.
    pub sleeps: u64,
    /// Doorbells and futexes rung for programs.
    pub wakeups: u64,
    /// Hints given.
    pub hints: u64,
    /// Requests that made no sense: the process was cut off.
    pub nonsense: u64,
    /// Connections that could not be handed to a program, for want of a slot.
    pub slots_exhausted: u64,
    /// Sockets that a program asked for beyond those that it may have.
    pub sockets_refused: u64,
    /// Sends beyond what the socket was allowed.
    pub overruns: u64,
    /// Times that a program came to hold so much send memory that its sockets might queue but little, or that they might again.
    pub send_memory_pressure: u64,
    /// Frames handed to the shard whose they are.
    pub handed: u64,
    /// Frames dropped because that one did not keep up.
    pub handed_dropped: u64,
    /// Submissions handed to the shard whose socket they are about: it had moved there.
    pub strays: u64,
    /// Sockets that went from one program's memory to another's.
    pub transfers: u64,
    /// Sockets that were lost in that, since the program that was left with them had no memory for them.
    pub transfers_failed: u64,
}

/// Where a shard's socket is in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) program: u32,
    pub(crate) slot: u32,
}

/// Where a shard's sockets are in programs, by their index.
#[derive(Default)]
pub(crate) struct Places(Vec<Place>);

impl Places {
    const NOWHERE: Place = Place {
        program: u32::MAX,
        slot: 0,
    };

    /// Notes where a socket is shown.
    pub(crate) fn note(&mut self, id: SocketId, place: Place) {
        let index = id.index() as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, Places::NOWHERE);
        }
        self.0[index] = place;
    }

    /// Where a socket was shown that had this index last.
    #[inline]
    pub(crate) fn get(&self, id: SocketId) -> Option<Place> {
        let place = self.0.get(id.index() as usize).copied()?;
        (place != Places::NOWHERE).then_some(place)
    }
}

/// Where a shard's frames come from and go.
pub(crate) enum Wire {
    /// Queues of the device that are its own.
    Port(Box<dyn Port + Send>),
    /// Virtual queues, from and to I/O threads.
    Queues(Box<Queues>),
    /// Both: virtual queues from I/O threads alone.
    Both(Box<Both>),
}

impl Wire {
    fn port(&self) -> &dyn Port {
        match self {
            Wire::Port(port) => port.as_ref(),
            Wire::Queues(queues) => queues.as_ref(),
            Wire::Both(both) => both.as_ref(),
        }
    }

    fn port_mut(&mut self) -> &mut dyn Port {
        match self {
            Wire::Port(port) => port.as_mut(),
            Wire::Queues(queues) => queues.as_mut(),
            Wire::Both(both) => both.as_mut(),
        }
    }

    /// The virtual queues, if there are any.
    pub(crate) fn queues(&self) -> Option<&Queues> {
        match self {
            Wire::Port(_) => None,
            Wire::Queues(queues) => Some(queues),
            Wire::Both(both) => Some(&both.queues),
        }
    }

    /// Whether anything has come by virtual queues.
    pub(crate) fn look(&mut self) -> bool {
        match self {
            Wire::Port(_) => false,
            Wire::Queues(queues) => queues.look(),
            Wire::Both(both) => both.queues.look(),
        }
    }
}

/// An address that another station has, and which that is if it is known.
pub type Conflict = (IpAddr, Option<Mac>);

/// A worker. Everything in it belongs to its thread.
pub struct Worker {
    pub(crate) shard: Shard<Arenas>,
    /// Which of the engine's shards it is.
    pub(crate) own: u32,
    /// Which ports take a privilege.
    pub(crate) permits: Permits,
    /// Where refusals are written.
    pub(crate) audit: Outbox,
    /// The others, if there are others.
    pub(crate) peers: Option<Box<Peers>>,
    pub(crate) programs: Vec<Option<Program>>,
    /// By the shard's socket index.
    pub(crate) places: Places,
    pub(crate) changed: Vec<SocketId>,
    /// Buckets on their way to this shard, or from it.
    pub(crate) moving: Moving,
    /// Sockets that several programs hold.
    pub(crate) sharers: Sharers,
    /// Slots whose program must be told although the shard did not change them.
    pub(crate) touched: Vec<Place>,
    /// Pollers that alone have been told of something since the last ringing.
    pub(crate) chosen: Vec<Chosen>,
    pub(crate) counters: WorkerCounters,
    pub(crate) now: Instant,
    pub(crate) follow: Follow,
    pub(crate) reach: Reach,
    pub(crate) held: Option<Arc<Held>>,
    pub(crate) wire: Option<Wire>,
    buffer: Box<[u8]>,
    /// Joins the segments of a port that gives them one by one.
    train: Option<Box<Train>>,
    pub(crate) epoll: OwnedFd,
    doorbell: Arc<OwnedFd>,
    commands: Receiver<Command>,
    start: std::time::Instant,
    pub(crate) draining: Option<Instant>,
    /// Told when the shard's addresses can be used.
    settled: Option<Sender<Option<Conflict>>>,
    /// The port may have frames.
    pub(crate) readable: bool,
    /// The port had no room for all that was to be sent.
    pub(crate) full: bool,
    /// The port's device is gone.
    lost: bool,
    losses: Losses,
    /// Which limits it has spoken of.
    limits: Limits,
    /// The command that waits until requests before it have been served.
    waiting: Option<(Command, Vec<Asked>)>,
    /// When it looks for losses.
    losses_at: Instant,
    /// `counters.wakeups` when it slept last.
    pub(crate) wakeups_before: u64,
    pub(crate) look: Look,
    /// Sockets on whose behalf it asks other shards now, and serves these meanwhile.
    pub(crate) asking_for: Vec<Place>,
    /// Ends naps.
    pub(crate) alarm: Alarm,
}

/// What a worker is made of.
pub struct Parts {
    /// The stack.
    pub shard: Shard<Arenas>,
    /// Which of the engine's shards it is, from 0.
    pub own: u32,
    pub(crate) peers: Option<Peers>,
    /// Its queues of the link; none for an engine without one.
    pub(crate) wire: Option<Wire>,
    /// Rung by programs, the control thread and the other workers.
    pub doorbell: Arc<OwnedFd>,
    /// From the control thread.
    pub commands: Receiver<Command>,
    /// The zero of the shards' time.
    pub start: std::time::Instant,
    /// The ports that are the engine's, where it shares its addresses with the kernel.
    pub held: Option<Arc<Held>>,
    /// Whether the thread follows its program's.
    pub follow: bool,
    /// Whether segments are joined, where the port gives them one by one.
    pub join: bool,
    pub(crate) reach: Reach,
    pub(crate) permits: Permits,
    pub(crate) audit: Outbox,
}

impl Parts {
    /// Those of an engine's only shard, which has no link.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn alone(shard: Shard<Arenas>, commands: Receiver<Command>) -> io::Result<Parts> {
        let (audit, _) = audit::channel(false)?;
        Ok(Parts {
            shard,
            own: 0,
            peers: None,
            wire: None,
            doorbell: doorbell::doorbell()?,
            commands,
            start: std::time::Instant::now(),
            held: None,
            follow: false,
            join: false,
            reach: Reach::default(),
            permits: Permits::new(PrivilegedPorts::new().shared()),
            audit,
        })
    }
}

impl Worker {
    /// A worker for a shard and its port.
    pub fn new(parts: Parts) -> io::Result<Worker> {
        let Parts {
            shard,
            own,
            peers,
            wire,
            doorbell,
            commands,
            start,
            held,
            follow,
            join,
            reach,
            permits,
            audit,
        } = parts;
        let port = wire.as_ref().map(Wire::port);
        let gives_segments = port.is_some_and(Port::gives_segments);
        let train = (join && gives_segments).then(Box::default);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &doorbell,
            epoll::EventData::new_u64(TOKEN_DOORBELL),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        let alarm = Alarm::new()?;
        epoll::add(
            &epoll,
            &alarm,
            epoll::EventData::new_u64(TOKEN_ALARM),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        if let Some(descriptor) = port.and_then(Port::descriptor) {
            epoll::add(
                &epoll,
                descriptor,
                epoll::EventData::new_u64(TOKEN_PORT),
                epoll::EventFlags::IN,
            )?;
        }
        Ok(Worker {
            shard,
            own,
            peers: peers.map(Box::new),
            programs: Vec::new(),
            places: Places::default(),
            changed: Vec::new(),
            touched: Vec::new(),
            chosen: Vec::new(),
            moving: Moving::default(),
            sharers: Sharers::default(),
            counters: WorkerCounters::default(),
            now: Instant::from_micros(0),
            follow: Follow::new(follow),
            reach,
            permits,
            audit,
            held,
            wire,
            buffer: vec![0; FRAME_MAX].into_boxed_slice(),
            train,
            epoll,
            doorbell,
            commands,
            start,
            draining: None,
            settled: None,
            readable: true,
            full: false,
            lost: false,
            losses: Losses::default(),
            limits: Limits::default(),
            waiting: None,
            losses_at: Instant::from_micros(LOOK_US),
            wakeups_before: 0,
            look: Look::default(),
            asking_for: Vec::new(),
            alarm,
        })
    }

    pub(crate) fn clock(&mut self) {
        self.now = Instant::from_micros(self.start.elapsed().as_micros() as u64);
    }

    /// Has `to` told when the shard's addresses can be used, or that one cannot.
    pub fn tell_when_settled(&mut self, to: Sender<Option<Conflict>>) {
        self.settled = Some(to);
    }

    /// Runs until told to drain and drained.
    pub fn run(&mut self) {
        loop {
            self.clock();
            if self.round(self.now) {
                continue;
            }
            if self.drained() {
                return;
            }
            self.sleep();
        }
    }

    /// Does what there is to do at `now`, without waiting. Whether there was anything.
    pub fn round(&mut self, now: Instant) -> bool {
        self.now = now;
        let received = self.receive() + self.take_handed();
        let served = self.serve();
        if self
            .shard
            .deadline()
            .is_some_and(|deadline| deadline <= self.now)
        {
            self.shard.advance(self.now);
            if self.shard.has_freed_much() {
                trim();
            }
        }
        if self.settled.is_some() && !self.shard.is_tentative() {
            // Nobody may be waiting any more.
            let _ = self.settled.take().map(|to| to.send(self.shard.conflict()));
        }
        self.tell_reach();
        if self.losses_at <= self.now {
            self.look_for_losses();
        }
        let sent = self.transmit();
        self.publish();
        self.pass_on();
        self.give_ports_back();
        let gave = self.moving.is_leaving() && self.give_buckets();
        self.counters.rounds += 1;
        let commanded = self.command();
        commanded || gave || received + served + sent > 0
    }

    /// Takes a burst of frames.
    pub(crate) fn receive(&mut self) -> usize {
        match &mut self.wire {
            Some(Wire::Queues(queues)) => self.readable = queues.look(),
            Some(Wire::Both(both)) => self.readable |= both.queues.look(),
            _ => {}
        }
        if !self.readable || self.lost {
            return 0;
        }
        match &self.wire {
            None => 0,
            Some(_) if self.train.is_some() => self.receive_segments(),
            Some(Wire::Port(_) | Wire::Both(_)) => self.receive_frames(),
            Some(Wire::Queues(_)) => self.receive_queued(),
        }
    }

    /// From virtual queues, where frames need not be copied.
    fn receive_queued(&mut self) -> usize {
        let Some(Wire::Queues(queues)) = &mut self.wire else {
            return 0;
        };
        for count in 0..RECEIVE_BURST {
            let Some(frame) = queues.next() else {
                return count;
            };
            self.shard.input(&frame, self.now);
            self.counters.frames_in += 1;
            if let Some(peers) = &mut self.peers
                && let Some((stray, whole)) = self.shard.take_stray()
            {
                peers.pass(stray, &frame, whole.as_deref(), &mut self.counters);
            }
        }
        RECEIVE_BURST
    }

    /// From queues of its own.
    fn receive_frames(&mut self) -> usize {
        let Some(wire) = &mut self.wire else {
            return 0;
        };
        let port = wire.port_mut();
        for count in 0..RECEIVE_BURST {
            match port.receive(&mut self.buffer) {
                Ok(Some(meta)) => {
                    let frame = Frame {
                        bytes: &self.buffer[..meta.len],
                        checksum: meta.checksum,
                        segment_size: meta.segment_size,
                    };
                    self.shard.input(&frame, self.now);
                    self.counters.frames_in += 1;
                    if let Some(peers) = &mut self.peers
                        && let Some((stray, whole)) = self.shard.take_stray()
                    {
                        peers.pass(stray, &frame, whole.as_deref(), &mut self.counters);
                    }
                }
                Ok(None) => {
                    self.readable = false;
                    return count;
                }
                Err(error) => {
                    self.readable = false;
                    self.refused(&error);
                    return count;
                }
            }
        }
        RECEIVE_BURST
    }

    /// From what gives segments one by one.
    fn receive_segments(&mut self) -> usize {
        let (Some(wire), Some(train)) = (&mut self.wire, &mut self.train) else {
            return 0;
        };
        let port = wire.port_mut();
        let (shard, peers, now) = (&mut self.shard, &mut self.peers, self.now);
        let counters = &mut self.counters;
        let mut input = |frame: &Frame<'_>| {
            shard.input(frame, now);
            if let Some(peers) = peers
                && let Some((stray, whole)) = shard.take_stray()
            {
                peers.pass(stray, frame, whole.as_deref(), counters);
            }
        };
        let mut count = 0;
        let mut failed = None;
        while count < RECEIVE_BURST {
            match port.receive(train.buffer()) {
                Ok(Some(meta)) => {
                    train.frame(meta.len, meta.checksum, meta.segment_size, &mut input);
                    count += 1;
                }
                Ok(None) => {
                    self.readable = false;
                    break;
                }
                Err(error) => {
                    self.readable = false;
                    failed = Some(error);
                    break;
                }
            }
        }
        if count > 0 {
            train.end_of_burst(&mut input);
        }
        self.counters.frames_in += count as u64;
        if let Some(error) = failed {
            self.refused(&error);
        }
        count
    }

    /// The port has refused to be read.
    fn refused(&mut self, error: &io::Error) {
        self.counters.port_errors += 1;
        if link::is_gone(error) {
            self.lose_link(error);
        }
    }

    /// The device is gone: its descriptor, which would be ready for ever, is waited for no more. Connections find out as if a cable had been pulled.
    fn lose_link(&mut self, error: &io::Error) {
        self.lost = true;
        self.counters.links_lost += 1;
        if let Some(descriptor) = self.wire.as_ref().and_then(|wire| wire.port().descriptor()) {
            // If the kernel has taken it out already, all is well.
            let _ = epoll::delete(&self.epoll, descriptor);
        }
        link::tell_lost(&format!("shard {}", self.own), error);
    }

    fn transmit(&mut self) -> usize {
        let Some(wire) = &mut self.wire else {
            self.shard.transmit(&mut { NOWHERE }, self.now);
            return 0;
        };
        let port = wire.port_mut();
        if self.lost {
            let mut nowhere = Nowhere(port.capabilities());
            self.shard.transmit(&mut nowhere, self.now);
            return 0;
        }
        let mut egress = PortEgress {
            port: &mut *port,
            errors: &mut self.counters.port_errors,
            gone: None,
            sent: 0,
            full: false,
        };
        self.shard.transmit(&mut egress, self.now);
        self.counters.frames_out += egress.sent;
        self.full = egress.full;
        let sent = egress.sent as usize;
        let mut gone = egress.gone;
        match port.flush() {
            Ok(all) => self.full |= !all,
            Err(error) => {
                self.counters.port_errors += 1;
                gone = Some(error).filter(link::is_gone).or(gone);
            }
        }
        if let Some(error) = gone {
            self.full = false;
            self.lose_link(&error);
        }
        sent
    }

    /// Gives the other shards what is theirs.
    fn pass_on(&mut self) {
        if self.peers.is_some() {
            self.unpin();
        }
        if let Some(peers) = &mut self.peers {
            while let Some((to, bytes)) = self.shard.take_crossing() {
                peers.cross(to, &bytes, &mut self.counters);
                self.shard.return_crossing(bytes);
            }
            peers.flush();
        }
    }

    /// Carries out a command when what it comes after has been served; until then it waits, and those behind it.
    fn carry_on(&mut self, command: Command, mut asked: Vec<Asked>) {
        asked.retain(|asked| !self.is_served(asked));
        if asked.is_empty() {
            self.execute(command);
        } else {
            self.waiting = Some((command, asked));
        }
    }

    /// Carries out one command. Whether there was one.
    fn command(&mut self) -> bool {
        if let Some((command, asked)) = self.waiting.take() {
            self.carry_on(command, asked);
            return true;
        }
        match self.commands.try_recv() {
            Ok(Command::Drain { patience_ms }) => {
                self.draining = Some(self.now + Duration::from_micros(patience_ms * 1000));
                true
            }
            Ok(command) => {
                // What others have given is here before anything that the control thread has said since.
                self.oblige();
                let asked = self.asked_before(&command);
                self.carry_on(command, asked);
                true
            }
            Err(TryRecvError::Empty) => false,
            // The control thread is gone: nothing will come any more.
            Err(TryRecvError::Disconnected) => {
                self.draining.get_or_insert(self.now);
                false
            }
        }
    }

    /// Whether it was told to end and nothing is left to say.
    fn drained(&mut self) -> bool {
        let Some(until) = self.draining else {
            return false;
        };
        if self.now >= until {
            return true;
        }
        let mut talking = false;
        self.shard.for_each_socket(self.now, |socket| {
            use millrace_shard::SocketState::Tcp;
            use millrace_tcp::State::{Closed, FinWait2, TimeWait};
            talking |= matches!(socket.state, Tcp(state) if !matches!(state, TimeWait | Closed | FinWait2));
        });
        !talking
    }

    /// The counters, with what the port has counted.
    pub(crate) fn counters(&self) -> WorkerCounters {
        let port = self.wire.as_ref().map(|wire| wire.port().counters());
        let port = port.unwrap_or_default();
        let joined = self.train.as_ref().map(|train| train.counters());
        let joined = joined.unwrap_or_default();
        WorkerCounters {
            segments_joined: joined.segments,
            units_joined: joined.units,
            frames_foreign: port.rx_foreign,
            frames_dropped: port.rx_dropped + missed(&self.gauges()),
            send_refused: port.tx_refused,
            send_dropped: port.tx_dropped,
            ..self.counters
        }
    }

    /// What the kernel has counted at the queues of its own.
    pub(crate) fn gauges(&self) -> Vec<Gauge> {
        let port = self.wire.as_ref().map(Wire::port);
        port.map_or_else(Vec::new, Port::gauges)
    }

    /// Says what the link has lost, if that is new.
    #[cold]
    fn look_for_losses(&mut self) {
        self.losses_at = self.now + Duration::from_micros(LOOK_US);
        self.limits.look(self.shard.counters(), &self.counters);
        if let Some(wire) = &self.wire {
            let thread = format!("shard {}", self.own);
            self.losses.look(&thread, wire.port());
        }
        for program in self.programs.iter().flatten() {
            let (owner, what) = (program.owner, "receive_memory_failures");
            let (_, failures) = self.shard.memory().usage(owner);
            self.audit
                .count(owner.0, what, failures, self.now.as_micros());
        }
    }

    /// The doorbell that wakes this worker.
    pub fn doorbell(&self) -> &Arc<OwnedFd> {
        &self.doorbell
    }

    /// The descriptor it waits on, for a loop that is not its own.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The way out where there is no link, or none any more: loopback traffic turns round in the shard.
struct Nowhere(Capabilities);

/// Of an engine that never had one.
const NOWHERE: Nowhere = Nowhere(Capabilities {
    mac: Mac([2, 0, 0, 0, 0, 1]),
    mtu: 65_535,
    tx_checksum: true,
    tx_segmentation_max: 65_536,
    rx_aggregated: true,
    trusted_checksum: true,
    queues: 1,
});

impl millrace_shard::Egress for Nowhere {
    fn send(&mut self, _head: &[u8], _payload: [&[u8]; 2], _offload: Offload) -> bool {
        true
    }
    fn capabilities(&self) -> Capabilities {
        self.0
    }
}

/// Has the allocator give its free memory back to the machine: it keeps what is below a piece in use.
#[cold]
fn trim() {
    // SAFETY: the call takes no pointer and may be made by any thread at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
