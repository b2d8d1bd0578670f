//! What a stack is made of, once for each link: the shard, its link, its clock, and who waits for
//! what.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::task::Waker;

use millrace_offload::Train;
#[cfg(feature = "xdp")]
use millrace_port::xdp::missed;
use millrace_port::{BUFFER_LEN, Port};
use millrace_shard::{Egress, HeapMemory, Shard, SocketId};
use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::Mac;
use millrace_wire::offload::{Capabilities, Frame, Offload};

use crate::peers::Peers;
use crate::plan::Ready;

/// Frames taken from the link in one round.
const RECEIVE_BURST: usize = 64;
/// How soon a link that had no room is tried again: nothing says when it has.
const FULL_LOOK: Duration = Duration::from_micros(100);

/// Where a stack's time comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The machine's, from this moment on.
    Real(std::time::Instant),
    /// The caller's: it stands still in between.
    Callers,
}

/// Which readiness a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Bytes, connections or the end.
    Read,
    /// Room, or the end of a connect.
    Write,
}

/// The tasks that wait for one socket.
#[derive(Debug, Default)]
struct Waiting {
    read: Waiters,
    write: Waiters,
}

impl Waiting {
    fn wake(&mut self) {
        self.read.wake();
        self.write.wake();
    }
}

/// The tasks that wait for one side of a socket. Who was woken is remembered: it is mostly the same
/// who waits next, and need not be counted anew.
#[derive(Debug, Default)]
struct Waiters {
    wakers: Vec<Waker>,
    /// They have not been woken since they were added.
    waiting: bool,
}

impl Waiters {
    #[inline]
    fn add(&mut self, waker: &Waker) {
        match &*self.wakers {
            [last] if last.will_wake(waker) => self.waiting = true,
            _ => self.add_another(waker),
        }
    }

    fn add_another(&mut self, waker: &Waker) {
        if !self.waiting {
            self.waiting = true;
            self.wakers.clear();
        }
        if !self.wakers.iter().any(|present| present.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }

    #[inline]
    fn wake(&mut self) {
        if self.waiting {
            self.waiting = false;
            self.wakers.iter().for_each(Waker::wake_by_ref);
        }
    }
}

/// Frames that were lost on this side of the link.
///
/// ```
/// let stack = millrace::Builder::new().build()?;
/// assert_eq!(stack.link_errors(), millrace::LinkErrors::default());
/// # Ok::<(), millrace::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkErrors {
    /// Reads and writes of frames that failed. What they carried is lost as on any link.
    pub refused: u64,
    /// What the system said last, as errno; 0 for nothing. Of several links, the last one that has
    /// something to say.
    pub last: i32,
    /// Frames for another shard of the engine that it did not take in time.
    pub handed_dropped: u64,
    /// Frames that came and that this stack did not take in time, where the link tells (AF_XDP).
    pub receive_dropped: u64,
    /// Frames that the device took and dropped, where it tells (AF_XDP).
    pub send_dropped: u64,
}

impl LinkErrors {
    fn note(&mut self, error: &io::Error) {
        self.refused += 1;
        self.last = error.raw_os_error().unwrap_or(0);
    }

    /// Adds those of another link.
    pub(crate) fn add(&mut self, other: &LinkErrors) {
        self.refused += other.refused;
        self.handed_dropped += other.handed_dropped;
        self.receive_dropped += other.receive_dropped;
        self.send_dropped += other.send_dropped;
        if other.last != 0 {
            self.last = other.last;
        }
    }
}

/// Everything that a thread needs to be a host on one link.
pub(crate) struct Core {
    pub(crate) shard: Shard<HeapMemory>,
    pub(crate) now: Instant,
    errors: LinkErrors,
    clock: Clock,
    port: Option<Box<dyn Port + Send>>,
    /// The port had no room for all that was to be sent, or has some that has not left.
    full: bool,
    /// Joins what the port gives one by one.
    train: Option<Box<Train>>,
    /// Frames leave when the caller comes for them.
    callers: bool,
    buffer: Box<[u8]>,
    changed: Vec<SocketId>,
    /// Those that have changed, for a caller who asked for them.
    kept: Option<Vec<SocketId>>,
    /// By the shard's socket index.
    waiting: Vec<Waiting>,
    timers: BTreeMap<(Instant, u64), Waker>,
    timers_made: u64,
    /// The other shards, if there are any.
    pub(crate) peers: Option<Peers>,
}

/// Those of a stack, one for each link. Most stacks have one: it is found without a search, and
/// goes round no loop.
pub(crate) struct Cores {
    first: RefCell<Core>,
    more: Box<[RefCell<Core>]>,
}

impl Cores {
    /// Of one link at least.
    pub(crate) fn new(mut links: impl Iterator<Item = Core>) -> Cores {
        Cores {
            first: RefCell::new(links.next().expect("there is one from the start")),
            more: links.map(RefCell::new).collect(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, link: usize) -> &RefCell<Core> {
        match link.checked_sub(1) {
            None => &self.first,
            Some(other) => &self.more[other],
        }
    }

    pub(crate) fn count(&self) -> usize {
        1 + self.more.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RefCell<Core>> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Says what time it is.
    #[inline]
    pub(crate) fn set_now(&self, now: Instant) {
        self.first.borrow_mut().set_now(now);
        for core in &self.more {
            core.borrow_mut().set_now(now);
        }
    }

    /// Timers of all; returns how many sockets they changed.
    #[inline]
    pub(crate) fn run_timers(&self) -> usize {
        let first = self.first.borrow_mut().run_timers();
        match self.more.is_empty() {
            true => first,
            false => first + self.others(Core::run_timers),
        }
    }

    /// Frames in, and timers, of all; returns how much that was.
    #[inline]
    pub(crate) fn take_in(&self) -> usize {
        let first = self.first.borrow_mut().take_in();
        match self.more.is_empty() {
            true => first,
            false => first + self.others(Core::take_in),
        }
    }

    /// Sends what may leave now, on all.
    pub(crate) fn transmit(&self) {
        self.iter().for_each(|core| {
            core.borrow_mut().transmit();
        });
    }

    /// Frames out of all; returns how much that was.
    #[inline]
    pub(crate) fn send_out(&self) -> usize {
        let first = self.first.borrow_mut().send_out();
        match self.more.is_empty() {
            true => first,
            false => first + self.others(Core::send_out),
        }
    }

    #[inline(never)]
    fn others(&self, each: fn(&mut Core) -> usize) -> usize {
        let others = self.more.iter();
        others.map(|core| each(&mut core.borrow_mut())).sum()
    }
}

impl Core {
    pub(crate) fn new(ready: Ready, clock: Clock) -> Core {
        let Ready {
            config,
            memory,
            link,
            peers,
        } = ready;
        let callers = link.is_manual();
        let port = link.into_port();
        let gives_segments = port.as_ref().is_some_and(|port| port.gives_segments());
        let start = Instant::from_micros(0);
        Core {
            train: gives_segments.then(Box::default),
            shard: Shard::new(config, HeapMemory::new(memory), start),
            now: start,
            errors: LinkErrors::default(),
            clock,
            port,
            full: false,
            callers,
            buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
            changed: Vec::new(),
            kept: None,
            waiting: Vec::new(),
            timers: BTreeMap::new(),
            timers_made: 0,
            peers,
        }
    }

    /// Reads the clock, unless it is the caller's.
    pub(crate) fn read_clock(&mut self) {
        if let Clock::Real(start) = self.clock {
            self.now = Instant::from_micros(start.elapsed().as_micros() as u64);
        }
    }

    /// Time does not go back.
    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Runs what is due; returns how many sockets that changed.
    #[inline(always)]
    fn run_timers(&mut self) -> usize {
        self.advance();
        self.wake()
    }

    /// Takes in what has come and runs what is due; returns how much that was. Where a stack of one
    /// link calls it there is no other call.
    #[inline(always)]
    fn take_in(&mut self) -> usize {
        self.read_clock();
        self.receive() + self.run_timers()
    }

    /// Sends what may leave; returns how much that was. What turned round inside is news.
    #[inline(always)]
    fn send_out(&mut self) -> usize {
        self.transmit() + self.wake()
    }

    /// Takes frames in, as many as one round does; returns how many.
    #[inline]
    pub(crate) fn receive(&mut self) -> usize {
        let handed = match &mut self.peers {
            Some(peers) => peers.take(&mut self.shard, self.now),
            None => 0,
        };
        let received = match self.train {
            Some(_) => self.receive_segments(),
            None => self.receive_from_link(),
        };
        handed + received
    }

    /// As [`Core::receive_from_link`], from a port that gives segments one by one.
    fn receive_segments(&mut self) -> usize {
        let (Some(port), Some(train)) = (&mut self.port, &mut self.train) else {
            return 0;
        };
        let (shard, peers, now) = (&mut self.shard, &mut self.peers, self.now);
        let mut input = |frame: &Frame<'_>| {
            shard.input(frame, now);
            if let Some(peers) = peers {
                peers.pass_stray(shard, frame);
            }
        };
        let mut count = 0;
        while count < RECEIVE_BURST {
            match port.receive(train.buffer()) {
                Ok(Some(meta)) => {
                    train.frame(meta.len, meta.checksum, meta.segment_size, &mut input);
                    count += 1;
                }
                Ok(None) => break,
                Err(error) => {
                    self.errors.note(&error);
                    break;
                }
            }
        }
        if count > 0 {
            train.end_of_burst(&mut input);
        }
        count
    }

    fn receive_from_link(&mut self) -> usize {
        let Some(port) = &mut self.port else {
            return 0;
        };
        for count in 0..RECEIVE_BURST {
            match port.receive(&mut self.buffer) {
                Ok(Some(meta)) => {
                    let frame = Frame {
                        bytes: &self.buffer[..meta.len],
                        checksum: meta.checksum,
                        segment_size: meta.segment_size,
                    };
                    self.shard.input(&frame, self.now);
                    if let Some(peers) = &mut self.peers {
                        peers.pass_stray(&mut self.shard, &frame);
                    }
                }
                Ok(None) => return count,
                Err(error) => {
                    self.errors.note(&error);
                    return count;
                }
            }
        }
        RECEIVE_BURST
    }

    /// Takes in one frame that the caller brings.
    pub(crate) fn input(&mut self, frame: &Frame<'_>) {
        self.shard.input(frame, self.now);
    }

    /// Runs the timers that are due, the stack's and the tasks'.
    pub(crate) fn advance(&mut self) {
        if self
            .shard
            .deadline()
            .is_some_and(|deadline| deadline <= self.now)
        {
            self.shard.advance(self.now);
        }
        while let Some(first) = self.timers.first_entry() {
            if first.key().0 > self.now {
                break;
            }
            first.remove().wake();
        }
    }

    /// Wakes those whose socket has changed; returns how many sockets have.
    #[inline]
    pub(crate) fn wake(&mut self) -> usize {
        match self.shard.has_changed() {
            true => self.wake_changed(),
            false => 0,
        }
    }

    fn wake_changed(&mut self) -> usize {
        self.shard.take_changed(&mut self.changed);
        let changed = self.changed.len();
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(&self.changed);
        }
        for id in self.changed.drain(..) {
            if let Some(waiting) = self.waiting.get_mut(id.index() as usize) {
                waiting.wake();
            }
        }
        changed
    }

    /// Whether those that have changed are kept for [`Core::take_kept`].
    pub(crate) fn keep_changed(&mut self, on: bool) {
        self.kept = on.then(Vec::new);
    }

    /// Those that have changed; [`Core::put_kept`] returns the room that they took.
    pub(crate) fn take_kept(&mut self) -> Vec<SocketId> {
        self.kept.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Undoes [`Core::take_kept`], with what was taken left out.
    pub(crate) fn put_kept(&mut self, mut room: Vec<SocketId>) {
        if let Some(kept) = &mut self.kept {
            room.append(kept);
            *kept = room;
        }
    }

    /// Sends what may leave now; returns how many frames did.
    pub(crate) fn transmit(&mut self) -> usize {
        let Some(port) = self.port.as_deref_mut() else {
            if !self.callers {
                self.shard.transmit(&mut Nowhere, self.now);
            }
            // What stays in this host may be another shard's all the same.
            if let Some(peers) = &mut self.peers {
                peers.flush(&mut self.shard);
            }
            return 0;
        };
        let mut egress = Outlet {
            port,
            errors: &mut self.errors,
            sent: 0,
            full: false,
        };
        self.shard.transmit(&mut egress, self.now);
        let sent = egress.sent;
        self.full = egress.full;
        match port.flush() {
            Ok(all) => self.full |= !all,
            Err(error) => self.errors.note(&error),
        }
        if let Some(peers) = &mut self.peers {
            peers.flush(&mut self.shard);
        }
        sent
    }

    /// Sends what may leave now to a way out of the caller's.
    pub(crate) fn transmit_to(&mut self, egress: &mut impl Egress) {
        self.shard.transmit(egress, self.now);
    }

    /// What was lost on the way.
    pub(crate) fn link_errors(&self) -> LinkErrors {
        let port = self.port.as_deref();
        let counted = port.map(Port::counters).unwrap_or_default();
        #[cfg(feature = "xdp")]
        let missed = missed(&port.map(Port::gauges).unwrap_or_default());
        #[cfg(not(feature = "xdp"))]
        let missed = 0;
        LinkErrors {
            receive_dropped: counted.rx_dropped + missed,
            send_dropped: counted.tx_dropped,
            handed_dropped: self.peers.as_ref().map_or(0, Peers::dropped),
            ..self.errors
        }
    }

    /// When the stack or a task has something to do without being asked.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.first_key_value().map(|(&(at, _), _)| at);
        let again = self.full.then(|| self.now + FULL_LOOK);
        let all = [self.shard.deadline(), timer, again];
        // A comparison of `Option`s may read the value of one that has none; valgrind reports that.
        let all = all.map(|at| at.unwrap_or(Instant::NEVER));
        all.into_iter().min().and_then(Instant::reached_ever)
    }

    /// The link, to wait for it.
    pub(crate) fn port(&self) -> Option<&(dyn Port + Send)> {
        self.port.as_deref()
    }

    /// Has `waker` woken when the socket changes.
    #[inline]
    pub(crate) fn wait_for(&mut self, id: SocketId, side: Side, waker: &Waker) {
        let index = id.index() as usize;
        if self.waiting.len() <= index {
            self.waiting.resize_with(index + 1, Waiting::default);
        }
        let waiting = &mut self.waiting[index];
        match side {
            Side::Read => waiting.read.add(waker),
            Side::Write => waiting.write.add(waker),
        }
    }

    /// Closes a socket. Who waits for it is woken, and finds it gone.
    pub(crate) fn close(&mut self, id: SocketId) {
        if let Some(waiting) = self.waiting.get_mut(id.index() as usize) {
            std::mem::take(waiting).wake();
        }
        // It is gone already if it never came to be.
        let _ = self.shard.close(id, self.now);
    }

    /// Has `waker` woken at `at`; returns the name of the timer.
    pub(crate) fn add_timer(&mut self, at: Instant, waker: &Waker) -> (Instant, u64) {
        self.timers_made += 1;
        let key = (at, self.timers_made);
        self.timers.insert(key, waker.clone());
        key
    }

    /// Undoes [`Core::add_timer`], if it is not too late.
    pub(crate) fn remove_timer(&mut self, key: (Instant, u64)) {
        self.timers.remove(&key);
    }
}

/// A link as the shard's way out.
struct Outlet<'a> {
    port: &'a mut (dyn Port + Send),
    errors: &'a mut LinkErrors,
    sent: usize,
    /// There was no room for one.
    full: bool,
}

impl Egress for Outlet<'_> {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> bool {
        match self.port.send(head, payload, offload) {
            Ok(taken) => {
                self.sent += usize::from(taken);
                self.full |= !taken;
                taken
            }
            // The frame is lost as on any link, and TCP repairs it.
            Err(error) => {
                self.errors.note(&error);
                true
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }
}

/// The way out of a stack without a link: what is for itself turns round inside, and nothing else
/// is routed.
struct Nowhere;

impl Egress for Nowhere {
    fn send(&mut self, _head: &[u8], _payload: [&[u8]; 2], _offload: Offload) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu: u16::MAX,
            tx_checksum: true,
            tx_segmentation_max: 65_536,
            rx_aggregated: true,
            trusted_checksum: true,
            queues: 1,
        }
    }
}
