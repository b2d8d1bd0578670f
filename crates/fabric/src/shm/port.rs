//! A port in shared memory: polled, or waited for.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time;

use millrace_tcp::{Duration, Instant};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::directory::{Directory, Greeting, OpenError, Verdict, is_own_user};
use super::memory::{self, CELL_BODY, Reader, Writer};
use crate::endpoint::{Endpoint, Peer};
use crate::ip::IP_PORT;
use crate::record::{Head, Transport};
use crate::types::{
    BufferId, Channel, Counters, Error, Failure, Limits, Payload, PortName, Received, Sent,
};

/// Records taken of one peer before it is the next one's turn.
const BATCH: usize = 256;
/// How many rounds of work without a look at sockets and clock.
const ROUNDS: u32 = 1024;
/// Connections that have not said who they are.
const STRANGERS_MAX: usize = 64;
/// How long one that has left the connecting to its peer waits, and one that has been refused for
/// want of room.
const RETRY: Duration = Duration::from_millis(100);
/// A stranger has to say who it is within this time.
const PATIENCE: Duration = Duration::from_millis(2_000);

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
const STRANGER: u64 = u64::MAX - 2;

/// The transport of one session. Without rings it is not there yet.
#[derive(Debug)]
pub(crate) struct Pair {
    rings: Option<(Writer, Reader)>,
    /// The peer's end of this tells when the peer is gone.
    socket: Option<OwnedFd>,
    /// What wakes the peer: an eventfd that nobody else has.
    bell: Option<OwnedFd>,
    /// What wakes us.
    peer_bell: Option<OwnedFd>,
    /// The peer may have something to do.
    is_dirty: bool,
    retry_at: Instant,
}

impl Transport for Pair {
    #[inline]
    fn push(&mut self, head: Head, body: &[u8]) -> bool {
        let pushed = match &mut self.rings {
            Some((writer, _)) => writer.push(head, body),
            None => false,
        };
        self.is_dirty |= pushed;
        pushed
    }

    fn room(&mut self) -> Option<usize> {
        self.rings.as_mut()?.0.room()
    }

    #[inline]
    fn position(&self) -> u64 {
        0
    }

    /// What is in the pair's memory has been delivered.
    #[inline]
    fn delivered(&self) -> u64 {
        0
    }
}

impl Pair {
    fn empty(retry_at: Instant) -> Pair {
        Pair {
            rings: None,
            socket: None,
            bell: None,
            peer_bell: None,
            is_dirty: false,
            retry_at,
        }
    }

    /// Tells the peer of new records and of new room, if it sleeps. After a full fence.
    fn ring_if_asleep(&mut self) {
        if let (Some((writer, _)), Some(bell)) = (&self.rings, &self.bell)
            && std::mem::take(&mut self.is_dirty)
            && writer.take_sleeper()
        {
            // Full means rung.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }
}

/// A port of this process, which other processes of the same user can send to. It belongs to one
/// thread at a time.
#[derive(Debug)]
pub struct Port {
    core: Endpoint<Pair>,
    directory: Directory,
    listener: OwnedFd,
    /// Holds the name.
    _lock: OwnedFd,
    epoll: OwnedFd,
    strangers: Vec<(OwnedFd, Instant)>,
    started: time::Instant,
    /// The time when it was looked at last.
    now: Instant,
    rounds: u32,
}

/// An eventfd, and an epoll set that is readable when it is rung and gives no way to it.
fn bell() -> io::Result<(OwnedFd, OwnedFd)> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let listener = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&listener, &bell, epoll::EventData::new_u64(0), edge)?;
    Ok((bell, listener))
}

impl Port {
    /// Opens the port `name` in the directory of its user.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(name: PortName, limits: Limits) -> Result<Port, OpenError> {
        Port::open_in(&Directory::of_user(), name, limits)
    }

    /// Opens the port `name` in a directory.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_in(
        directory: &Directory,
        name: PortName,
        limits: Limits,
    ) -> Result<Port, OpenError> {
        match name.port {
            IP_PORT => Err(OpenError::Reserved(name)),
            _ => Port::open_any_in(directory, name, limits),
        }
    }

    /// As [`Port::open_in`], the IP port, too.
    pub(crate) fn open_any_in(
        directory: &Directory,
        name: PortName,
        limits: Limits,
    ) -> Result<Port, OpenError> {
        let (listener, lock) = directory.listen(name)?;
        let epoll = || -> io::Result<OwnedFd> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let token = epoll::EventData::new_u64(LISTENER);
            epoll::add(&epoll, &listener, token, epoll::EventFlags::IN)?;
            Ok(epoll)
        };
        let epoll = epoll().map_err(|error| OpenError::Io("epoll".into(), error))?;
        Ok(Port {
            core: Endpoint::new(name, limits),
            directory: directory.clone(),
            listener,
            _lock: lock,
            epoll,
            strangers: Vec::new(),
            started: time::Instant::now(),
            now: Instant::from_micros(0),
            rounds: 0,
        })
    }

    /// Its name.
    pub fn name(&self) -> PortName {
        self.core.name()
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        self.core.counters()
    }

    /// The ports that it speaks with.
    pub fn peers(&self) -> Vec<PortName> {
        self.core.remotes()
    }

    /// The ports of that number that are there, but this one.
    pub(crate) fn present(&self, number: u16) -> Vec<PortName> {
        let mut ports = self.directory.list().unwrap_or_default();
        ports.retain(|port| port.port == number && *port != self.name());
        ports
    }

    /// As [`Endpoint::register`].
    ///
    /// # Errors
    /// As there.
    pub fn register(&mut self, len: usize) -> Result<BufferId, Error> {
        self.core.register(len)
    }

    /// As [`Endpoint::free`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn free(&mut self, buffer: BufferId) -> Result<(), Error> {
        self.core.free(buffer)
    }

    /// As [`Endpoint::bytes`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn bytes(&self, buffer: BufferId) -> Result<&[u8], Error> {
        self.core.bytes(buffer)
    }

    /// As [`Endpoint::bytes_mut`].
    ///
    /// # Errors
    /// As there.
    pub fn bytes_mut(&mut self, buffer: BufferId) -> Result<&mut [u8], Error> {
        self.core.bytes_mut(buffer)
    }

    /// As [`Endpoint::message`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn message(&self, message: &Received) -> Result<&[u8], Error> {
        self.core.message(message)
    }

    /// As [`Endpoint::post`].
    ///
    /// # Errors
    /// As there.
    pub fn post(&mut self, channel: Channel, buffer: BufferId) -> Result<(), Error> {
        self.core.post(channel, buffer)
    }

    /// As [`Endpoint::offer`].
    ///
    /// # Errors
    /// As there.
    pub fn offer(&mut self, channel: Channel, buffer: BufferId) -> Result<(), Error> {
        self.core.offer(channel, buffer)
    }

    /// As [`Endpoint::withdraw`].
    ///
    /// # Errors
    /// As there.
    pub fn withdraw(&mut self, channel: Channel) -> Result<Option<BufferId>, Error> {
        self.core.withdraw(channel)
    }

    /// Asks for a message to be sent. A peer that polls sees it at once; one that sleeps is woken
    /// by the next [`Port::poll`] or [`Port::wait`].
    ///
    /// # Errors
    /// Those of a request that cannot be; nothing is under way then.
    #[inline]
    pub fn send(
        &mut self,
        to: PortName,
        channel: Channel,
        offset: u64,
        payload: Payload<'_>,
        tag: u64,
    ) -> Result<(), Error> {
        self.core.check(to, channel, &payload)?;
        let index = match self.core.find(to) {
            Some(index) => index,
            None => {
                self.look_at_clock();
                let index = self.core.add(to, Pair::empty(self.now))?;
                self.connect(index, to);
                index
            }
        };
        self.core
            .send_by(index, channel, offset, payload, tag, self.now)
    }

    /// The next entry of the send-completion queue.
    #[inline]
    pub fn poll_sent(&mut self) -> Option<Sent> {
        self.core.poll_sent()
    }

    /// The next entry of the receive-completion queue.
    #[inline]
    pub fn poll_received(&mut self) -> Option<Received> {
        self.core.poll_received()
    }

    /// Does what there is to do: takes what peers have sent, sends what can be sent, wakes those
    /// who sleep. Returns how many records came.
    #[inline]
    pub fn poll(&mut self) -> usize {
        self.rounds += 1;
        if self.rounds >= ROUNDS {
            self.look_around(Some(Duration::ZERO));
        }
        self.work()
    }

    fn work(&mut self) -> usize {
        let mut taken = 0;
        for index in 0..self.core.indices() {
            match self.take_records(index) {
                Some(records) => taken += records,
                None => self.end(index, Failure::Violation),
            }
        }
        while let Some(index) = self.core.grant() {
            self.end(index, Failure::Violation);
        }
        let mut is_dirty = false;
        for index in 0..self.core.indices() {
            self.core.pump(index);
            if let Some(Peer { transport, .. }) = self.core.peer(index)
                && let Some((writer, reader)) = &mut transport.rings
            {
                transport.is_dirty |= reader.tell(false);
                is_dirty |= transport.is_dirty;
                if writer.is_broken {
                    self.end(index, Failure::Violation);
                }
            }
        }
        if is_dirty {
            // Between what was written and the question who sleeps.
            fence(Ordering::SeqCst);
            for index in 0..self.core.indices() {
                if let Some(peer) = self.core.peer(index) {
                    peer.transport.ring_if_asleep();
                }
            }
        }
        taken
    }

    /// Takes a batch of a peer's records; none if they are not to be believed.
    #[inline]
    fn take_records(&mut self, index: usize) -> Option<usize> {
        let Some((Peer { session, transport }, shared)) = self.core.peer_and_shared(index) else {
            return Some(0);
        };
        let Some((_, reader)) = &mut transport.rings else {
            return Some(0);
        };
        let mut taken = 0;
        while taken < BATCH
            && let Some((head, body)) = reader.next().ok()?
        {
            session.on_record(shared, head, &body).ok()?;
            taken += 1;
            if matches!(head, Head::Data { .. }) {
                transport.is_dirty |= reader.tell(true);
            }
        }
        Some(taken)
    }

    /// Waits until a completion queue has an entry, or for `timeout` at most. Whether one has.
    ///
    /// # Errors
    /// Those of the kernel's wait.
    pub fn wait(&mut self, timeout: Option<time::Duration>) -> io::Result<bool> {
        self.look_at_clock();
        let until = match timeout {
            Some(timeout) => self.now + Duration::from_micros(timeout.as_micros() as u64),
            None => Instant::NEVER,
        };
        let mut has_looked = false;
        loop {
            let came = self.poll();
            if self.core.has_completions() {
                return Ok(true);
            }
            if came > 0 {
                continue;
            }
            self.look_at_clock();
            if self.now >= until {
                if has_looked {
                    return Ok(false);
                }
                // Peers may ask for a pair, or be gone.
                has_looked = true;
                self.look_around(Some(Duration::ZERO));
                continue;
            }
            self.set_asleep(true);
            fence(Ordering::SeqCst);
            let is_idle = !self.has_records();
            let left = until.min(self.deadline());
            let left = match is_idle {
                true if left == Instant::NEVER => None,
                true => Some(Duration::from_micros(
                    left.as_micros().saturating_sub(self.now.as_micros()),
                )),
                false => Some(Duration::ZERO),
            };
            self.look_around(left);
            self.set_asleep(false);
        }
    }

    /// What becomes readable when there may be something to do, once [`Port::prepare_to_wait`] has
    /// said so.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Asks peers to ring from now on: for those who wait for [`Port::descriptor`] themselves.
    /// False if there is something to do already. Afterwards [`Port::wait`] with a time-out of zero
    /// does it.
    pub fn prepare_to_wait(&mut self) -> bool {
        self.work();
        self.set_asleep(true);
        fence(Ordering::SeqCst);
        !self.has_records() && !self.core.has_completions()
    }

    fn set_asleep(&mut self, is_asleep: bool) {
        for index in 0..self.core.indices() {
            if let Some(peer) = self.core.peer(index)
                && let Some((_, reader)) = &mut peer.transport.rings
            {
                // The peer may wait for room.
                peer.transport.is_dirty |= is_asleep && reader.tell(true);
                reader.set_asleep(is_asleep);
            }
        }
        if is_asleep {
            fence(Ordering::SeqCst);
            for index in 0..self.core.indices() {
                if let Some(peer) = self.core.peer(index) {
                    peer.transport.ring_if_asleep();
                }
            }
        }
    }

    fn has_records(&mut self) -> bool {
        (0..self.core.indices()).any(|index| {
            let rings = self.core.peer(index).map(|peer| &peer.transport.rings);
            matches!(rings, Some(Some((_, reader))) if reader.has_next())
        })
    }

    fn look_at_clock(&mut self) {
        self.now = Instant::from_micros(self.started.elapsed().as_micros() as u64);
    }

    /// When there is something to do though nobody rings.
    fn deadline(&mut self) -> Instant {
        let mut deadline = self.core.deadline();
        for index in 0..self.core.indices() {
            if let Some(peer) = self.core.peer(index)
                && peer.transport.socket.is_none()
            {
                deadline = deadline.min(peer.transport.retry_at);
            }
        }
        let strangers = self.strangers.iter().map(|(_, until)| *until);
        strangers.fold(deadline, Instant::min)
    }

    /// Looks at sockets and clock, and waits there for so long at most.
    fn look_around(&mut self, timeout: Option<Duration>) {
        self.rounds = 0;
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: (timeout.as_micros() / 1_000_000) as i64,
            tv_nsec: (timeout.as_micros() % 1_000_000 * 1_000) as i64,
        });
        let mut space = [const { MaybeUninit::uninit() }; 32];
        let tokens: Vec<u64> = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(_) => Vec::new(),
        };
        self.look_at_clock();
        for token in tokens {
            match token {
                LISTENER => self.accept(),
                STRANGER => self.hear_strangers(),
                BELL => {}
                index => self.hear_peer(index as usize),
            }
        }
        let now = self.now;
        if self.strangers.iter().any(|(_, until)| *until <= now) {
            self.strangers.retain(|(_, until)| *until > now);
        }
        self.core.expire(now);
        for index in 0..self.core.indices() {
            let Some(Peer { session, transport }) = self.core.peer(index) else {
                continue;
            };
            let remote = session.remote;
            if !session.is_up() && session.is_idle() {
                // Nobody waits for it any more.
                self.end(index, Failure::NoSuchPort);
            } else if transport.socket.is_none() && transport.retry_at <= now {
                self.connect(index, remote);
            }
        }
    }

    /// Ends a session.
    fn end(&mut self, index: usize, failure: Failure) {
        // Descriptors leave the epoll set as they are closed; the peer's bell is the peer's, too,
        // and has to be taken out.
        if let Some(peer) = self.core.peer(index)
            && let Some(bell) = &peer.transport.peer_bell
        {
            let _ = epoll::delete(&self.epoll, bell);
        }
        self.core.remove(index, failure);
    }

    /// Asks the peer of a session for a pair.
    fn connect(&mut self, index: usize, to: PortName) {
        let now = self.now;
        let outcome = self.directory.connect(to).and_then(|socket| {
            let file = memory::create()?;
            let rings = memory::map(file.as_fd(), true)?;
            let (bell, listener) = bell()?;
            let greeting = Greeting {
                verdict: Verdict::Asks,
                from: self.core.name(),
                to,
            };
            greeting.send(&socket, &[file.as_fd(), listener.as_fd()])?;
            let token = epoll::EventData::new_u64(index as u64);
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
            epoll::add(&self.epoll, &socket, token, flags)?;
            Ok(Pair {
                rings: Some(rings),
                socket: Some(socket),
                bell: Some(bell),
                peer_bell: None,
                is_dirty: false,
                retry_at: now,
            })
        });
        match outcome {
            Ok(pair) => {
                if let Some(peer) = self.core.peer(index) {
                    peer.transport = pair;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Some(peer) = self.core.peer(index) {
                    peer.transport.retry_at = now + RETRY;
                }
            }
            // The request is ended where its completion is read: not in the call that makes it.
            Err(_) => {
                if let Some(peer) = self.core.peer(index) {
                    peer.session.give_up();
                    peer.transport.retry_at = Instant::NEVER;
                }
                self.rounds = ROUNDS;
            }
        }
    }

    /// The socket of a session has something to say.
    fn hear_peer(&mut self, index: usize) {
        let Some(Peer { session, transport }) = self.core.peer(index) else {
            return;
        };
        let Some(socket) = &transport.socket else {
            return;
        };
        let answer = Greeting::receive(socket);
        if session.is_up() {
            // Nothing more is said there: the peer is gone, or as good as that. What it has sent
            // before is taken.
            if !matches!(answer, Ok(None)) {
                // No more than the ring holds: a peer that lives on could go on for ever.
                for _ in 0..=memory::CELLS as usize / BATCH {
                    self.take_records(index);
                }
                self.end(index, Failure::PeerLost);
            }
            return;
        }
        let (greeting, mut descriptors) = match answer {
            Ok(None) => return,
            Ok(Some(answer)) => answer,
            Err(_) => {
                self.end(index, Failure::NoSuchPort);
                return;
            }
        };
        match (greeting.verdict, descriptors.pop()) {
            (Verdict::Accepted, Some(bell)) if self.hear_bell(&bell) => {
                if let Some(Peer { session, transport }) = self.core.peer(index) {
                    transport.peer_bell = Some(bell);
                    session.come_up();
                }
            }
            // The peer connects, or we try again.
            (Verdict::Crossed, None) => {
                let retry_at = self.now + RETRY;
                if let Some(peer) = self.core.peer(index) {
                    peer.transport = Pair::empty(retry_at);
                }
            }
            (Verdict::Refused, None) => self.end(index, Failure::Refused),
            _ => self.end(index, Failure::Violation),
        }
    }

    /// Is woken by a peer's bell from now on; false if that cannot be.
    fn hear_bell(&self, bell: &OwnedFd) -> bool {
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, bell, epoll::EventData::new_u64(BELL), edge).is_ok()
    }

    fn accept(&mut self) {
        while let Ok(socket) =
            rustix::net::accept_with(&self.listener, rustix::net::SocketFlags::CLOEXEC)
        {
            let token = epoll::EventData::new_u64(STRANGER);
            if self.strangers.len() < STRANGERS_MAX
                && is_own_user(&socket)
                && epoll::add(&self.epoll, &socket, token, epoll::EventFlags::IN).is_ok()
            {
                self.strangers.push((socket, self.now + PATIENCE));
            }
        }
        self.hear_strangers();
    }

    fn hear_strangers(&mut self) {
        for (socket, until) in std::mem::take(&mut self.strangers) {
            match Greeting::receive(&socket) {
                Ok(None) => self.strangers.push((socket, until)),
                Ok(Some((greeting, descriptors))) => self.on_request(socket, greeting, descriptors),
                Err(_) => {}
            }
        }
    }

    /// Somebody asks for a pair.
    fn on_request(&mut self, socket: OwnedFd, request: Greeting, descriptors: Vec<OwnedFd>) {
        let (local, remote) = (self.core.name(), request.from);
        let is_ours = request.to == local && request.from != local;
        let Ok([file, peer_bell]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return;
        };
        if request.verdict != Verdict::Asks || !is_ours {
            return;
        }
        let answer = |verdict, descriptors: &[BorrowedFd<'_>]| {
            let (from, to) = (local, remote);
            Greeting { verdict, from, to }.send(&socket, descriptors)
        };
        let mut found = self.core.find(remote);
        if let Some(index) = found {
            self.hear_peer(index);
            found = self.core.find(remote);
        }
        if let Some(index) = found
            && let Some(Peer { session, transport }) = self.core.peer(index)
        {
            let verdict = match (session.is_up(), transport.socket.is_some()) {
                (true, _) => Some(Verdict::Refused),
                (false, true) if local < remote => Some(Verdict::Crossed),
                _ => None,
            };
            if let Some(verdict) = verdict {
                let _ = answer(verdict, &[]);
                return;
            }
        }
        let index = match found {
            Some(index) => index,
            None => match self.core.add(remote, Pair::empty(self.now)) {
                Ok(index) => index,
                Err(_) => {
                    let _ = answer(Verdict::Refused, &[]);
                    return;
                }
            },
        };
        let outcome = memory::map(file.as_fd(), false).and_then(|rings| {
            let (bell, listener) = bell()?;
            let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(
                &self.epoll,
                &peer_bell,
                epoll::EventData::new_u64(BELL),
                edge,
            )?;
            let token = epoll::EventData::new_u64(index as u64);
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
            epoll::modify(&self.epoll, &socket, token, flags)?;
            answer(Verdict::Accepted, &[listener.as_fd()])?;
            Ok((rings, bell))
        });
        match outcome {
            Ok((rings, bell)) => {
                if let Some(Peer { session, transport }) = self.core.peer(index) {
                    *transport = Pair {
                        rings: Some(rings),
                        socket: Some(socket),
                        bell: Some(bell),
                        peer_bell: Some(peer_bell),
                        is_dirty: true,
                        retry_at: self.now,
                    };
                    session.come_up();
                }
            }
            Err(_) => self.end(index, Failure::Violation),
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.directory.leave(self.core.name());
    }
}

const _: () = assert!(CELL_BODY >= crate::types::INLINE_MAX);
