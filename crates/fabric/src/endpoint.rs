//! A port with its queues and the sessions that it has, over any transport.

use std::collections::{HashMap, VecDeque};

use millrace_tcp::Instant;

use crate::buffers::{Buffers, Use};
use crate::queues::Queues;
use crate::record::Transport;
use crate::session::{Kept, Request, Session};
use crate::types::{
    BufferId, CHANNELS, Channel, Counters, Error, Failure, INLINE_MAX, Limits, MESSAGE_MAX,
    Payload, PortName, Received, SYSTEM_MAX, Sent,
};

/// A session and what carries its records.
#[derive(Debug)]
pub(crate) struct Peer<T> {
    pub(crate) session: Session,
    pub(crate) transport: T,
}

/// A port: its queues, its buffers, its peers.
#[derive(Debug)]
pub struct Endpoint<T> {
    name: PortName,
    shared: Queues,
    peers: Vec<Option<Peer<T>>>,
    by_name: HashMap<PortName, usize>,
    /// Who was sent to last.
    last: Option<(PortName, usize)>,
    /// Who is granted buffers first.
    turn: usize,
    next_serial: u32,
    /// Messages of sessions that have ended, whose buffers were not given back.
    orphans: usize,
}

impl<T: Transport> Endpoint<T> {
    /// The port of this name.
    pub fn new(name: PortName, limits: Limits) -> Endpoint<T> {
        let channels = usize::from(CHANNELS);
        Endpoint {
            name,
            shared: Queues {
                limits,
                buffers: Buffers::default(),
                normal: vec![VecDeque::new(); channels],
                open: vec![None; channels],
                sent: VecDeque::new(),
                received: VecDeque::new(),
                outstanding: 0,
                window_writes: 0,
                may_grant: false,
                counters: Counters::default(),
            },
            peers: Vec::new(),
            by_name: HashMap::new(),
            last: None,
            turn: 0,
            next_serial: 1,
            orphans: 0,
        }
    }

    /// Its name.
    pub fn name(&self) -> PortName {
        self.name
    }

    /// What it may hold.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        self.shared.counters
    }

    /// Registers a buffer of `len` bytes, zeroed.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn register(&mut self, len: usize) -> Result<BufferId, Error> {
        let Limits {
            buffers, memory, ..
        } = self.shared.limits;
        self.shared
            .buffers
            .register(len.min(MESSAGE_MAX), buffers, memory)
    }

    /// Frees a buffer: one of the program's, or one of the pool with a message that has been read.
    ///
    /// # Errors
    /// [`Error::NoSuchBuffer`], [`Error::BufferInUse`].
    #[inline]
    pub fn free(&mut self, buffer: BufferId) -> Result<(), Error> {
        if let Some(key) = self.shared.buffers.free(buffer)? {
            match self.peers.get_mut(key as u32 as usize) {
                Some(Some(peer)) if peer.session.key() == key => peer.session.message_freed(),
                _ => self.orphans -= 1,
            }
        }
        Ok(())
    }

    /// What is in a buffer.
    ///
    /// # Errors
    /// [`Error::NoSuchBuffer`].
    #[inline]
    pub fn bytes(&self, buffer: BufferId) -> Result<&[u8], Error> {
        self.shared.buffers.bytes(buffer)
    }

    /// The bytes of a message.
    ///
    /// # Errors
    /// [`Error::NoSuchBuffer`] when its buffer was freed.
    #[inline]
    pub fn message(&self, message: &Received) -> Result<&[u8], Error> {
        let bytes = self.bytes(message.buffer)?;
        bytes
            .get(message.offset..message.offset + message.len)
            .ok_or(Error::NoSuchBuffer)
    }

    /// A buffer to be written: not while it is posted or sent. A window can be written at any time.
    ///
    /// # Errors
    /// [`Error::NoSuchBuffer`], [`Error::BufferInUse`].
    pub fn bytes_mut(&mut self, buffer: BufferId) -> Result<&mut [u8], Error> {
        match self.shared.buffers.usage(buffer)? {
            Use::Posted | Use::Sending(_) => Err(Error::BufferInUse),
            _ => self.shared.buffers.bytes_mut(buffer),
        }
    }

    fn take_idle(&self, buffer: BufferId) -> Result<(), Error> {
        match self.shared.buffers.usage(buffer)? {
            Use::Idle => Ok(()),
            _ => Err(Error::BufferInUse),
        }
    }

    /// Posts a buffer: the next message on that normal channel is received into it. Buffers are
    /// used in the order in which they were posted.
    ///
    /// # Errors
    /// [`Error::BadChannel`], [`Error::NoSuchBuffer`], [`Error::BufferInUse`] when it is posted
    /// already.
    pub fn post(&mut self, channel: Channel, buffer: BufferId) -> Result<(), Error> {
        let Channel::Normal(number @ 0..CHANNELS) = channel else {
            return Err(Error::BadChannel(channel));
        };
        self.take_idle(buffer)?;
        self.shared.buffers.set_usage(buffer, Use::Posted);
        self.shared.normal[usize::from(number)].push_back(buffer);
        self.shared.may_grant = true;
        Ok(())
    }

    /// Offers a buffer as the window of an open channel: anybody may write into it.
    ///
    /// # Errors
    /// [`Error::BadChannel`] (when the channel has a window already, too), [`Error::NoSuchBuffer`],
    /// [`Error::BufferInUse`].
    pub fn offer(&mut self, channel: Channel, buffer: BufferId) -> Result<(), Error> {
        let Channel::Open(number @ 0..CHANNELS) = channel else {
            return Err(Error::BadChannel(channel));
        };
        self.take_idle(buffer)?;
        let window = &mut self.shared.open[usize::from(number)];
        if window.is_some() {
            return Err(Error::BadChannel(channel));
        }
        *window = Some(buffer);
        self.shared.buffers.set_usage(buffer, Use::Offered);
        self.shared.may_grant = true;
        Ok(())
    }

    /// Takes back the buffer that was posted last on a normal channel and has no message yet, or
    /// the window of an open one; none if there is none.
    ///
    /// # Errors
    /// [`Error::BadChannel`]; [`Error::BufferInUse`] while a message is being received into the
    /// window.
    pub fn withdraw(&mut self, channel: Channel) -> Result<Option<BufferId>, Error> {
        let buffer = match channel {
            Channel::Normal(number @ 0..CHANNELS) => {
                self.shared.normal[usize::from(number)].pop_back()
            }
            Channel::Open(number @ 0..CHANNELS) => {
                let mut peers = self.peers.iter().flatten();
                if peers.any(|peer| peer.session.is_receiving(channel)) {
                    return Err(Error::BufferInUse);
                }
                self.shared.open[usize::from(number)].take()
            }
            _ => return Err(Error::BadChannel(channel)),
        };
        if let Some(buffer) = buffer {
            self.shared.buffers.set_usage(buffer, Use::Idle);
        }
        Ok(buffer)
    }

    /// Checks a request, all but whether there is a session.
    #[inline]
    pub(crate) fn check(
        &mut self,
        to: PortName,
        channel: Channel,
        payload: &Payload<'_>,
    ) -> Result<(), Error> {
        let most = match (payload, channel) {
            (Payload::Inline(_), _) => INLINE_MAX,
            (_, Channel::System) => SYSTEM_MAX,
            _ => MESSAGE_MAX,
        };
        let len = payload.len();
        if len > most {
            return Err(Error::TooLong { len, max: most });
        }
        if to == self.name {
            return Err(Error::ToItself);
        }
        let requests = self.shared.limits.requests;
        if self.shared.outstanding + self.shared.sent.len() >= requests {
            self.shared.counters.queue_full += 1;
            return Err(Error::QueueFull(requests));
        }
        Ok(())
    }

    /// Sends by a session that there is, after [`Endpoint::check`].
    #[inline]
    pub(crate) fn send_by(
        &mut self,
        index: usize,
        channel: Channel,
        offset: u64,
        payload: Payload<'_>,
        tag: u64,
        now: Instant,
    ) -> Result<(), Error> {
        let payload = match payload {
            Payload::Inline(bytes) => {
                let mut kept = [0; INLINE_MAX];
                kept[..bytes.len()].copy_from_slice(bytes);
                Kept::Inline(bytes.len() as u8, kept)
            }
            Payload::Buffer(buffer, len) => {
                self.shared.buffers.begin_send(buffer, len)?;
                Kept::Buffer(buffer, len as u32)
            }
        };
        let request = Request {
            tag,
            channel,
            offset,
            payload,
            deadline: now + self.shared.limits.wait,
        };
        if let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) {
            let Peer { session, transport } = peer;
            session.send(&mut self.shared, transport, request);
        }
        Ok(())
    }

    /// The next entry of the send-completion queue.
    #[inline]
    pub fn poll_sent(&mut self) -> Option<Sent> {
        self.shared.sent.pop_front()
    }

    /// The next entry of the receive-completion queue.
    #[inline]
    pub fn poll_received(&mut self) -> Option<Received> {
        let message = self.shared.received.pop_front()?;
        if matches!(message.channel, Channel::Open(_)) {
            self.shared.window_writes -= 1;
            self.shared.may_grant = true;
        }
        Some(message)
    }

    /// Whether a completion queue has an entry.
    pub fn has_completions(&self) -> bool {
        !self.shared.sent.is_empty() || !self.shared.received.is_empty()
    }

    /// The index of the session with that port.
    #[inline]
    pub(crate) fn find(&mut self, remote: PortName) -> Option<usize> {
        if let Some((name, index)) = self.last
            && name == remote
        {
            return Some(index);
        }
        let index = *self.by_name.get(&remote)?;
        self.last = Some((remote, index));
        Some(index)
    }

    /// Makes a session. There must be none with that port.
    pub(crate) fn add(&mut self, remote: PortName, transport: T) -> Result<usize, Error> {
        let Limits {
            peers,
            system_buffers,
            ..
        } = self.shared.limits;
        let live = self.by_name.len() + 1;
        // Messages of those that are gone count, as long as the program keeps them.
        if live + self.orphans.div_ceil(system_buffers.max(1)) > peers {
            self.shared.counters.peers_refused += 1;
            return Err(Error::TooManyPeers(peers));
        }
        let pool = live * system_buffers + self.orphans;
        self.shared.buffers.grow_pool(pool);
        let free = self.peers.iter().position(Option::is_none);
        let index = free.unwrap_or(self.peers.len());
        let key = u64::from(self.next_serial) << 32 | index as u64;
        self.next_serial = self.next_serial.wrapping_add(1);
        let peer = Peer {
            session: Session::new(remote, key),
            transport,
        };
        match free {
            Some(index) => self.peers[index] = Some(peer),
            None => self.peers.push(Some(peer)),
        }
        self.by_name.insert(remote, index);
        Ok(index)
    }

    /// Ends a session; returns its transport.
    pub(crate) fn remove(&mut self, index: usize, failure: Failure) -> Option<T> {
        let mut peer = self.peers.get_mut(index)?.take()?;
        self.by_name.remove(&peer.session.remote);
        self.last = None;
        self.orphans += peer.session.messages_held();
        let counters = &mut self.shared.counters;
        counters.peers_lost += u64::from(peer.session.is_up());
        counters.violations += u64::from(failure == Failure::Violation);
        peer.session.fail(&mut self.shared, failure);
        Some(peer.transport)
    }

    /// The session of that index.
    #[inline]
    pub(crate) fn peer(&mut self, index: usize) -> Option<&mut Peer<T>> {
        self.peers.get_mut(index)?.as_mut()
    }

    /// The session of that index, and what all share.
    #[inline]
    pub(crate) fn peer_and_shared(&mut self, index: usize) -> Option<(&mut Peer<T>, &mut Queues)> {
        let peer = self.peers.get_mut(index)?.as_mut()?;
        Some((peer, &mut self.shared))
    }

    /// Indices of sessions are below this.
    #[inline]
    pub(crate) fn indices(&self) -> usize {
        self.peers.len()
    }

    /// Sends what can be sent by this session.
    #[inline]
    pub(crate) fn pump(&mut self, index: usize) {
        if let Some((Peer { session, transport }, shared)) = self.peer_and_shared(index) {
            session.pump(shared, transport);
        }
    }

    /// Hands out buffers and windows to those who wait, each peer first in its turn. Returns a peer
    /// that has to be given up.
    #[inline]
    pub(crate) fn grant(&mut self) -> Option<usize> {
        if !std::mem::take(&mut self.shared.may_grant) {
            return None;
        }
        let count = self.peers.len();
        self.turn = (self.turn + 1) % count.max(1);
        for index in (self.turn..count).chain(0..self.turn) {
            if let Some(peer) = &mut self.peers[index]
                && peer.session.grant(&mut self.shared).is_err()
            {
                self.shared.may_grant = true;
                return Some(index);
            }
        }
        None
    }

    /// Ends the requests that have waited for too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        for peer in self.peers.iter_mut().flatten() {
            peer.session.expire(&mut self.shared, now);
        }
    }

    /// When that is to be done next.
    pub(crate) fn deadline(&self) -> Instant {
        let deadlines = self.peers.iter().flatten();
        let deadlines = deadlines.map(|peer| peer.session.deadline());
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    /// How many sessions there are.
    pub(crate) fn remotes_len(&self) -> usize {
        self.by_name.len()
    }

    /// A peer was refused before there was a session.
    pub(crate) fn count_refused(&mut self) {
        self.shared.counters.peers_refused += 1;
    }

    /// The ports that there are sessions with.
    pub fn remotes(&self) -> Vec<PortName> {
        let mut names: Vec<_> = self.by_name.keys().copied().collect();
        names.sort();
        names
    }
}
