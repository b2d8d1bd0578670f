//! Requests to stream sockets: send, receive, shut down and close.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_tcp::{Info, Instant, State};

use super::{
    Kind, Listener, Marks, Options, Socket, SocketId, SocketInfo, SocketState, Stream, View,
    ViewFlags, tcp_info,
};
use crate::config::Buffers;
use crate::connection_table::Tuple;
use crate::error::Error;
use crate::memory::{Lend, Memory, Owner};
use crate::shard::Shard;
use crate::slab::Slab;
use crate::socket::send_ring::SendRing;

/// Which direction to shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// No more will be read.
    Read,
    /// No more will be written: FIN after what was.
    Write,
    /// Both.
    Both,
}

impl<M: Memory> Shard<M> {
    /// Queues bytes for sending, as many as there is room for. `push`: nothing is announced to
    /// follow at once (no `MSG_MORE`).
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is no room, the connection is not established yet or
    /// `TCP_NOTSENT_LOWAT` is reached, the pending error if there is one, [`Error::BrokenPipe`]
    /// when the socket is not connected or shut for writing, [`Error::NoMemory`] at the limit of
    /// send memory.
    pub fn send(&mut self, id: SocketId, bytes: &[u8], push: bool) -> Result<usize, Error> {
        let socket = socket_of_program(&mut self.base.sockets, id)?;
        let low = u64::from(socket.options.notsent_low);
        if low != 0
            && let Some(stream) = socket.stream()
            && !bytes.is_empty()
            && stream.error == 0
            && stream.connection.unsent() >= low
        {
            return Err(Error::WouldBlock);
        }
        let mut rest = bytes;
        let active_senders = Some(self.active_senders.count());
        self.send_through(id, active_senders, bytes.len(), push, |ring, room| {
            ring.fill(room, |piece| {
                let (now, later) = rest.split_at(piece.len());
                piece.copy_from_slice(now);
                rest = later;
            });
            room
        })
    }

    /// As [`Shard::send`], for bytes that `fill` writes: called at most twice, for consecutive
    /// pieces of the accepted length. `TCP_NOTSENT_LOWAT` is for the caller to keep.
    ///
    /// # Errors
    /// As [`Shard::send`].
    pub fn send_with(
        &mut self,
        id: SocketId,
        len: usize,
        push: bool,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<usize, Error> {
        self.send_through(id, None, len, push, |ring, room| {
            ring.fill(room, fill);
            room
        })
    }

    /// As [`Shard::send`], for bytes that `fill` writes where they will be sent from, in the two
    /// pieces that a ring has, up to `len` of them: what it returns is how many it wrote.
    /// `TCP_NOTSENT_LOWAT` is for the caller to keep.
    ///
    /// # Errors
    /// As [`Shard::send`].
    pub fn send_into(
        &mut self,
        id: SocketId,
        len: usize,
        push: bool,
        fill: impl FnOnce([&mut [u8]; 2]) -> usize,
    ) -> Result<usize, Error> {
        let active_senders = Some(self.active_senders.count());
        self.send_through(id, active_senders, len, push, |ring, room| {
            ring.fill_some(room, fill)
        })
    }

    /// Shows where up to `len` bytes will be sent from, in the two pieces that a ring has, and
    /// sends none. What is written there is sent by [`Shard::send_into`] if nothing comes between
    /// the two; a connection that waits with it keeps a block.
    ///
    /// # Errors
    /// As [`Shard::send`].
    pub fn reserve(&mut self, id: SocketId, len: usize) -> Result<[&mut [u8]; 2], Error> {
        let index = self.base.check(id)?;
        let socket = self.base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let owner = socket.owner;
        let (stream, space) = socket.sending(Some(self.active_senders.count()))?;
        let wanted = len.min(space);
        let room = match wanted {
            0 if len > 0 => return Err(Error::WouldBlock),
            wanted => stream
                .send
                .reserve(wanted, &mut self.base.send_memory, owner),
        };
        if room < wanted {
            self.base.env.counters.send_memory_exhausted += 1;
            if room == 0 {
                return Err(Error::NoMemory);
            }
        }
        Ok(stream.send.spare(room))
    }

    /// How many bytes can be queued for sending now, one at least; the pool of send memory may have
    /// less.
    ///
    /// # Errors
    /// As [`Shard::send`].
    pub fn room_to_send(&mut self, id: SocketId) -> Result<usize, Error> {
        let index = self.base.check(id)?;
        let socket = self.base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let (_, space) = socket.sending(Some(self.active_senders.count()))?;
        match space {
            0 => Err(Error::WouldBlock),
            space => Ok(space),
        }
    }

    /// `active_senders`: of whom the buffer is shared with; none for a program that was shown how
    /// much it may send, and holds to that.
    #[inline(always)]
    fn send_through(
        &mut self,
        id: SocketId,
        active_senders: Option<u32>,
        len: usize,
        push: bool,
        fill: impl FnOnce(&mut SendRing, usize) -> usize,
    ) -> Result<usize, Error> {
        let socket = socket_of_program(&mut self.base.sockets, id)?;
        let owner = socket.owner;
        let (stream, space) = socket.sending(active_senders)?;
        let wanted = len.min(space);
        if wanted == 0 {
            return if len == 0 {
                Ok(0)
            } else {
                Err(Error::WouldBlock)
            };
        }
        let room = stream
            .send
            .reserve(wanted, &mut self.base.send_memory, owner);
        if room < wanted {
            self.base.env.counters.send_memory_exhausted += 1;
            if room == 0 {
                return Err(Error::NoMemory);
            }
        }
        let written = fill(&mut stream.send, room);
        if written == 0 {
            stream.send.trim(&mut self.base.send_memory, owner);
        }
        let end = stream.connection.queued() + written as u64;
        stream.connection.enqueue(end, push || room < len);
        self.ready.add(id.index(), socket);
        Ok(written)
    }

    /// The last byte sent is urgent (`MSG_OOB`).
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn send_urgent(&mut self, id: SocketId) -> Result<(), Error> {
        let index = self.base.check(id)?;
        let socket = self.base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let stream = socket.stream_mut().ok_or(Error::NotConnected)?;
        stream.connection.send_urgent();
        self.ready.add(index, socket);
        Ok(())
    }

    /// Takes received bytes into `out`; 0 is the end of the stream (or of `out`). For receive
    /// memory that the program does not see itself.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when nothing has come, [`Error::NotConnected`], or the pending error
    /// once all bytes are read.
    pub fn recv(&mut self, id: SocketId, out: &mut [u8], now: Instant) -> Result<usize, Error> {
        let socket = socket_of_program(&mut self.base.sockets, id)?;
        let len = socket.peek(&self.base.memory, out)?;
        if len > 0
            && socket.consume(
                &mut self.base.memory,
                len as u32,
                &self.base.env.config.buffers,
                now,
            )
        {
            self.ready.add(id.index(), socket);
        }
        Ok(len)
    }

    /// As [`Shard::recv`], but `take` sees the bytes where they are, in the two pieces that a ring
    /// has, and says how many of them were read. None at all are the end of the stream.
    ///
    /// # Errors
    /// As [`Shard::recv`].
    pub fn recv_with(
        &mut self,
        id: SocketId,
        take: impl FnOnce([&[u8]; 2]) -> usize,
        now: Instant,
    ) -> Result<usize, Error>
    where
        M: Lend,
    {
        let index = self.base.check(id)?;
        let socket = self.base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        // One byte tells whether there is any, and what is to be said if not.
        if socket.peek(&self.base.memory, &mut [0])? == 0 {
            take([&[], &[]]);
            return Ok(0);
        }
        let owner = socket.owner;
        let Some(stream) = socket.stream_mut() else {
            return Err(Error::NotConnected);
        };
        let received = stream.connection.received();
        let len = (received - stream.consumed()) as usize;
        let taken = take(stream.recv.pieces(&self.base.memory, owner, received)).min(len);
        if taken > 0
            && socket.consume(
                &mut self.base.memory,
                taken as u32,
                &self.base.env.config.buffers,
                now,
            )
        {
            self.ready.add(index, socket);
        }
        Ok(taken)
    }

    /// As [`Shard::recv`], but the bytes stay.
    ///
    /// # Errors
    /// As [`Shard::recv`].
    pub fn peek(&mut self, id: SocketId, out: &mut [u8]) -> Result<usize, Error> {
        let index = self.base.check(id)?;
        self.base
            .sockets
            .get_mut(index)
            .ok_or(Error::NoSocket)?
            .peek(&self.base.memory, out)
    }

    /// The program has read the stream up to offset `upto`; less than before is no news.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `upto` is beyond what was received, [`Error::NotConnected`].
    pub fn consumed(&mut self, id: SocketId, upto: u64, now: Instant) -> Result<(), Error> {
        let index = self.base.check(id)?;
        let socket = self.base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let stream = match &mut socket.kind {
            Kind::Stream(stream) => stream,
            Kind::Datagram(datagram) => {
                if upto > datagram.received {
                    return Err(Error::Invalid);
                }
                if upto > datagram.consumed() {
                    let read = upto as u32;
                    datagram
                        .recv
                        .consume(&mut self.base.memory, socket.owner, read);
                }
                return Ok(());
            }
            _ => return Err(Error::NotConnected),
        };
        if upto > stream.connection.received() {
            return Err(Error::Invalid);
        }
        let more = upto.saturating_sub(stream.consumed()) as u32;
        if more > 0
            && socket.consume(
                &mut self.base.memory,
                more,
                &self.base.env.config.buffers,
                now,
            )
        {
            self.ready.add(index, socket);
        }
        Ok(())
    }

    /// Shuts one direction or both. A listener that is shut for reading listens no longer.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn shutdown(&mut self, id: SocketId, how: How, now: Instant) -> Result<(), Error> {
        let index = self.base.check(id)?;
        let (read, write) = (how != How::Write, how != How::Read);
        let socket = self.base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        match &mut socket.kind {
            Kind::Bound { .. } => return Err(Error::NotConnected),
            Kind::Datagram(datagram) => {
                let connected = datagram.remote.is_some();
                let shut = |mark, on| if on { mark } else { Marks::empty() };
                socket.marks |= shut(Marks::READ_SHUT, read) | shut(Marks::WRITE_SHUT, write);
                self.base.mark_changed(index);
                // As Linux has it, without a peer it is an error and shut all the same.
                return connected.then_some(()).ok_or(Error::NotConnected);
            }
            Kind::Listener(_) if !read => return Ok(()),
            Kind::Listener(listener) => {
                let local = listener.local;
                self.stop_listening(index, now);
                if let Some(bound) = self.ports.bound_mut(local.port(), index) {
                    bound.listening = false;
                }
                if let Some(socket) = self.base.sockets.get_mut(index) {
                    socket.kind = Kind::Bound { local };
                }
            }
            Kind::Stream(_) if socket.marks.contains(Marks::DEAD) => {
                return Err(Error::NotConnected);
            }
            Kind::Stream(stream) => {
                socket.marks.set(
                    Marks::READ_SHUT,
                    read || socket.marks.contains(Marks::READ_SHUT),
                );
                if stream.connection.state() == State::SynSent {
                    // Linux gives the attempt up.
                    stream.connection.abort();
                } else if write && !socket.marks.contains(Marks::WRITE_SHUT) {
                    socket.marks.insert(Marks::WRITE_SHUT);
                    stream.connection.shutdown_write(now);
                }
                self.apply_state_change(index);
            }
        }
        self.base.mark_changed(index);
        Ok(())
    }

    /// Closes a socket: the id is gone. What was written is still sent, unless received bytes were
    /// left unread, or `SO_LINGER` is 0: then the connection is reset (RFC 2525 2.17).
    ///
    /// # Errors
    /// [`Error::NoSocket`].
    pub fn close(&mut self, id: SocketId, now: Instant) -> Result<(), Error> {
        let index = self.base.check(id)?;
        self.discard(index, false, now);
        Ok(())
    }

    /// Closes a socket and resets its connection.
    ///
    /// # Errors
    /// [`Error::NoSocket`].
    pub fn abort(&mut self, id: SocketId, now: Instant) -> Result<(), Error> {
        let index = self.base.check(id)?;
        self.discard(index, true, now);
        Ok(())
    }

    /// Closes the socket at `index`, which no program holds any more.
    pub(crate) fn discard(&mut self, index: u32, abort: bool, now: Instant) {
        let Some(socket) = self.base.sockets.get_mut(index) else {
            return;
        };
        let lingers = socket.options.linger == Some(0);
        let (owner, dead) = (socket.owner, socket.marks.contains(Marks::DEAD));
        self.unbind_stream(index);
        let Some(Socket { marks, kind, .. }) = self.base.sockets.get_mut(index) else {
            return;
        };
        match kind {
            Kind::Bound { .. } => self.release_bound(index),
            Kind::Datagram(_) => self.udp.discard_datagram(&mut self.base, index),
            Kind::Listener(listener) => {
                let port = listener.local.port();
                self.stop_listening(index, now);
                self.ports.unbind(port, index);
                self.base.sockets.discard(index);
            }
            Kind::Stream(stream) if dead => {
                stream.recv.free(&mut self.base.memory, owner);
                self.base.sockets.discard(index);
            }
            Kind::Stream(stream) => {
                let unread = stream.connection.received() > stream.consumed();
                self.base.env.counters.aborted_on_close += u64::from(unread);
                let crowded = !self.orphans.allows(owner);
                self.base.env.counters.orphans_refused += u64::from(crowded);
                // Linux's `tcp_check_oom`.
                let starved = self.base.send_memory.is_short(owner) && stream.send.len() > 0;
                self.base.env.counters.orphans_starved += u64::from(starved);
                marks.insert(Marks::ORPHAN);
                if abort || lingers || crowded || starved || unread {
                    stream.connection.abort();
                } else {
                    stream.connection.close(now);
                    marks.insert(Marks::COUNTED);
                    self.orphans.take(owner);
                }
                stream.recv.free(&mut self.base.memory, owner);
                self.apply_state_change(index);
            }
        }
    }

    /// A connection whose port the program had bound no longer holds it as a bound socket.
    fn unbind_stream(&mut self, index: u32) {
        if let Some(Socket {
            marks,
            kind: Kind::Stream(stream),
            ..
        }) = self.base.sockets.get_mut(index)
            && marks.contains(Marks::BOUND)
        {
            marks.remove(Marks::BOUND);
            self.ports.unbind(stream.endpoints.tuple().ports().0, index);
        }
    }

    /// The pending error as errno, 0 when there is none; it is pending no longer (`SO_ERROR`).
    pub fn take_error(&mut self, id: SocketId) -> i32 {
        let Ok(index) = self.base.check(id) else {
            return crate::errno::EBADF;
        };
        let error = match self
            .base
            .sockets
            .get_mut(index)
            .map(|socket| &mut socket.kind)
        {
            Some(Kind::Stream(stream)) => std::mem::take(&mut stream.error).into(),
            Some(Kind::Datagram(datagram)) => std::mem::take(&mut datagram.error),
            _ => 0,
        };
        if error != 0 {
            self.base.mark_changed(index);
        }
        error
    }

    /// Looks whether `owner` has come to hold so much send memory, of what owners share
    /// ([`Limits::shared`](crate::Limits::shared)), that its sockets may queue but little, or that
    /// they may again. Returns whether that has changed: their [`View::send_limit`] has.
    #[inline]
    pub fn review_send_memory(&mut self, owner: Owner) -> bool {
        self.base.send_memory.review(owner)
    }

    /// A picture of a socket.
    #[inline]
    pub fn view(&self, id: SocketId) -> Option<View> {
        let socket = self.base.sockets.get(self.base.check(id).ok()?)?;
        let most = self.base.send_memory.socket_limit(socket.owner);
        Some(match &socket.kind {
            Kind::Bound { local } => View {
                local: *local,
                ..View::empty(ViewFlags::HUNG_UP | ViewFlags::WRITABLE)
            },
            Kind::Listener(listener) => View {
                local: listener.local,
                pending_accepts: listener.queue.len() as u32,
                ..View::empty(ViewFlags::LISTENING)
            },
            Kind::Stream(stream) => stream.view(
                socket.marks,
                &socket.options,
                self.active_senders.count(),
                most,
            ),
            Kind::Datagram(datagram) => View {
                mtu: self.udp.datagram_mtu(&self.base, datagram),
                ..datagram.view(socket.marks, most)
            },
        })
    }

    /// The `tcp::Info` of the connection; `None` when the socket has none.
    pub fn tcp_info(&self, id: SocketId, now: Instant) -> Option<Info> {
        let stream = self.base.sockets.get(self.base.check(id).ok()?)?.stream()?;
        Some(stream.connection.info(now))
    }

    /// `TCP_INFO`: what Linux says of a stream, of a listener, or of a socket that is neither yet.
    ///
    /// # Errors
    /// [`Error::NoSocket`].
    pub fn linux_tcp_info(
        &self,
        id: SocketId,
        now: Instant,
    ) -> Result<[u8; tcp_info::TCP_INFO_LEN], Error> {
        self.view(id).ok_or(Error::NoSocket)?;
        Ok(match self.tcp_info(id, now) {
            Some(info) => tcp_info::connected(&info, self.path_mtu(id, now).unwrap_or(0)),
            None => tcp_info::unconnected(self.accept_queue(id)),
        })
    }

    /// Shows every socket, orphan, half-open connection and connection in TIME-WAIT to `visit`, as
    /// for `ss`.
    pub fn for_each_socket(&self, now: Instant, mut visit: impl FnMut(&SocketInfo)) {
        for (index, socket) in self.base.sockets.iter() {
            let known = !socket.marks.intersects(Marks::ORPHAN | Marks::UNACCEPTED);
            let id = known.then(|| self.base.id_of(index));
            visit(&socket.info(id, &self.base.memory, now));
        }
        let bare = |tuple: &Tuple, owner, state| SocketInfo {
            id: None,
            owner,
            state: SocketState::Tcp(state),
            local: tuple.local(),
            remote: tuple.remote(),
            receive_queue: 0,
            send_queue: 0,
            dropped: 0,
            tcp: None,
        };
        for (_, pending) in self.half_open.iter() {
            let owner = self
                .base
                .sockets
                .get(pending.listener)
                .map_or_else(Default::default, |listener| listener.owner);
            visit(&bare(&pending.tuple, owner, State::SynReceived));
        }
        for waiting in self.time_wait.iter() {
            visit(&bare(&waiting.tuple, Default::default(), State::TimeWait));
        }
    }
}

impl Stream {
    /// Whether no more bytes will come.
    fn is_at_end(&self, marks: Marks) -> bool {
        marks.intersects(Marks::PEER_CLOSED | Marks::READ_SHUT | Marks::DEAD | Marks::ENDING)
    }

    #[inline(always)]
    fn view(&self, marks: Marks, options: &Options, active_senders: u32, most: u32) -> View {
        let notsent_low = options.notsent_low;
        let send_limit = match options.send_buffer {
            Some(_) => self.send_limit,
            None => self.send_share(active_senders),
        };
        let send_limit = send_limit.min(most);
        let mut flags = ViewFlags::empty();
        let state = self.connection.state();
        let over = marks.intersects(Marks::DEAD | Marks::ENDING);
        let write_shut = marks.contains(Marks::WRITE_SHUT) || over;
        let at_end = self.is_at_end(marks);
        flags.set(
            ViewFlags::CONNECTING,
            !marks.contains(Marks::ESTABLISHED) && !over,
        );
        flags.set(ViewFlags::CONNECTED, marks.contains(Marks::ESTABLISHED));
        flags.set(ViewFlags::END_OF_STREAM, at_end);
        flags.set(ViewFlags::WRITE_SHUT, write_shut);
        flags.set(ViewFlags::HUNG_UP, at_end && write_shut);
        flags.set(ViewFlags::ERROR, self.error != 0);
        let queued = self.send.len();
        let writable = marks.contains(Marks::ESTABLISHED)
            && queued * 3 <= u64::from(send_limit) * 2
            && (notsent_low == 0 || self.connection.unsent() * 2 < u64::from(notsent_low));
        flags.set(ViewFlags::WRITABLE, writable);
        let (local, remote) = self.endpoints.addresses();
        let received = self.connection.received();
        let end = self.connection.queued();
        View {
            state: Some(state),
            flags,
            received,
            consumed: self.recv.consumed(received),
            ring: self.recv.block(),
            queued: end,
            acked: end - queued,
            sent: end - self.connection.unsent(),
            send_limit,
            notsent_low,
            error: self.error.into(),
            local,
            remote,
            pending_accepts: 0,
            mtu: 0,
            urgent: self.connection.urgent(),
        }
    }
}

impl Socket {
    /// The connection, if it can be written to, and for how many bytes its send buffer has room, or
    /// its share of what those who send have.
    #[inline(always)]
    fn sending(&mut self, active_senders: Option<u32>) -> Result<(&mut Stream, usize), Error> {
        let marks = self.marks;
        let Kind::Stream(stream) = &mut self.kind else {
            return Err(Error::BrokenPipe);
        };
        if stream.error != 0 {
            return Err(Error::Connection(std::mem::take(&mut stream.error).into()));
        }
        if marks.intersects(Marks::WRITE_SHUT | Marks::DEAD | Marks::ENDING) {
            return Err(Error::BrokenPipe);
        }
        if !marks.contains(Marks::ESTABLISHED) && !stream.connection.takes_early() {
            return Err(Error::WouldBlock);
        }
        let limit = match active_senders {
            Some(active_senders) if self.options.send_buffer.is_none() => {
                stream.send_share(active_senders)
            }
            _ => stream.send_limit,
        };
        let space = u64::from(limit).saturating_sub(stream.send.len());
        Ok((stream, space as usize))
    }

    /// Copies unread bytes into `out`; 0 is the end of the stream.
    #[inline]
    fn peek<M: Memory>(&mut self, memory: &M, out: &mut [u8]) -> Result<usize, Error> {
        let Kind::Stream(stream) = &mut self.kind else {
            return Err(Error::NotConnected);
        };
        if out.is_empty() {
            return Ok(0);
        }
        let len = stream
            .recv
            .peek(memory, self.owner, stream.connection.received(), out);
        if len > 0 {
            return Ok(len);
        }
        // As in Linux: who has read to the peer's end is told that, whatever became of the
        // connection then.
        if stream.error != 0 && !self.marks.contains(Marks::PEER_CLOSED) {
            return Err(Error::Connection(std::mem::take(&mut stream.error).into()));
        }
        if stream.is_at_end(self.marks) {
            Ok(0)
        } else {
            Err(Error::WouldBlock)
        }
    }

    /// So many of the unread bytes have been read. Returns whether the connection may have
    /// something to send now.
    #[inline]
    fn consume<M: Memory>(
        &mut self,
        memory: &mut M,
        bytes: u32,
        buffers: &Buffers,
        now: Instant,
    ) -> bool {
        let Kind::Stream(stream) = &mut self.kind else {
            return false;
        };
        let upto = stream.recv.mark().wrapping_add(bytes);
        stream.recv.consume(memory, self.owner, upto);
        if self.marks.contains(Marks::DEAD) {
            return false;
        }
        stream.connection.consumed_more(bytes);
        if self.options.receive_buffer.is_none() {
            stream.tune_receive(buffers, now);
        }
        true
    }

    fn info<M: Memory>(&self, id: Option<SocketId>, memory: &M, now: Instant) -> SocketInfo {
        let view = match &self.kind {
            Kind::Stream(stream) => stream.view(self.marks, &self.options, 1, u32::MAX),
            Kind::Datagram(datagram) => datagram.view(self.marks, u32::MAX),
            Kind::Bound { local } | Kind::Listener(Listener { local, .. }) => View {
                local: *local,
                remote: nowhere(local),
                ..View::empty(ViewFlags::empty())
            },
        };
        let (state, receive_queue, send_queue, tcp) = match &self.kind {
            Kind::Bound { .. } => (SocketState::Unconnected, 0, 0, None),
            Kind::Datagram(datagram) => (
                SocketState::Udp {
                    connected: datagram.remote.is_some(),
                },
                view.received - view.consumed,
                datagram.unsent(),
                None,
            ),
            Kind::Listener(listener) => (
                SocketState::Listen,
                listener.backlog.waiting(memory, self.owner),
                u64::from(listener.backlog.limit),
                None,
            ),
            Kind::Stream(stream) => {
                let info = stream.connection.info(now);
                (
                    SocketState::Tcp(info.state),
                    view.received - view.consumed,
                    view.queued - view.acked,
                    Some(info),
                )
            }
        };
        SocketInfo {
            id,
            owner: self.owner,
            state,
            local: view.local,
            remote: view.remote,
            receive_queue,
            send_queue,
            dropped: match &self.kind {
                Kind::Datagram(datagram) => datagram.dropped,
                _ => 0,
            },
            tcp,
        }
    }
}

/// The socket of a program that holds it, to change.
#[inline(always)]
fn socket_of_program(sockets: &mut Slab<Socket>, id: SocketId) -> Result<&mut Socket, Error> {
    match sockets.get_of_generation_mut(id.index(), id.generation) {
        Some(socket) if socket.has_program() => Ok(socket),
        _ => Err(Error::NoSocket),
    }
}

/// No address, in the family of another.
fn nowhere(of: &SocketAddr) -> SocketAddr {
    match of {
        SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}
