//! Requests to stream sockets: send, receive, shut down and close.

use millrace_tcp::{Instant, State};

use crate::base::Base;
use crate::error::Error;
use crate::memory::{Lend, Memory};
use crate::slab::Slab;
use crate::socket::send_ring::SendRing;
use crate::socket::stream::How;
use crate::socket::{Kind, Marks, Socket, SocketId};
use crate::tcp::state::Tcp;

impl Tcp {
    /// Queues bytes for sending, as many as there is room for.
    pub(crate) fn send<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        bytes: &[u8],
        push: bool,
    ) -> Result<usize, Error> {
        let socket = socket_of_program(&mut base.sockets, id)?;
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
        self.send_through(base, id, active_senders, bytes.len(), push, |ring, room| {
            ring.fill(room, |piece| {
                let (now, later) = rest.split_at(piece.len());
                piece.copy_from_slice(now);
                rest = later;
            });
            room
        })
    }

    /// As [`Shard::send`](crate::Shard::send), for bytes that `fill` writes.
    pub(crate) fn send_with<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        len: usize,
        push: bool,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<usize, Error> {
        self.send_through(base, id, None, len, push, |ring, room| {
            ring.fill(room, fill);
            room
        })
    }

    /// As [`Shard::send`](crate::Shard::send), for bytes that `fill` writes where they will be sent
    /// from, in the two pieces that a ring has, up to `len` of them.
    pub(crate) fn send_into<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        len: usize,
        push: bool,
        fill: impl FnOnce([&mut [u8]; 2]) -> usize,
    ) -> Result<usize, Error> {
        let active_senders = Some(self.active_senders.count());
        self.send_through(base, id, active_senders, len, push, |ring, room| {
            ring.fill_some(room, fill)
        })
    }

    /// Shows where up to `len` bytes will be sent from, in the two pieces that a ring has, and
    /// sends none.
    pub(crate) fn reserve<'a, M: Memory>(
        &self,
        base: &'a mut Base<M>,
        id: SocketId,
        len: usize,
    ) -> Result<[&'a mut [u8]; 2], Error> {
        let index = base.check(id)?;
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let owner = socket.owner;
        let (stream, space) = socket.sending(Some(self.active_senders.count()))?;
        let wanted = len.min(space);
        let room = match wanted {
            0 if len > 0 => return Err(Error::WouldBlock),
            wanted => stream.send.reserve(wanted, &mut base.send_memory, owner),
        };
        if room < wanted {
            base.env.counters.send_memory_exhausted += 1;
            if room == 0 {
                return Err(Error::NoMemory);
            }
        }
        Ok(stream.send.spare(room))
    }

    /// How many bytes can be queued for sending now, one at least; the pool of send memory may have
    /// less.
    pub(crate) fn room_to_send<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
    ) -> Result<usize, Error> {
        let index = base.check(id)?;
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let (_, space) = socket.sending(Some(self.active_senders.count()))?;
        match space {
            0 => Err(Error::WouldBlock),
            space => Ok(space),
        }
    }

    /// `active_senders`: of whom the buffer is shared with; none for a program that was shown how
    /// much it may send, and holds to that.
    #[inline(always)]
    fn send_through<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        active_senders: Option<u32>,
        len: usize,
        push: bool,
        fill: impl FnOnce(&mut SendRing, usize) -> usize,
    ) -> Result<usize, Error> {
        let socket = socket_of_program(&mut base.sockets, id)?;
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
        let room = stream.send.reserve(wanted, &mut base.send_memory, owner);
        if room < wanted {
            base.env.counters.send_memory_exhausted += 1;
            if room == 0 {
                return Err(Error::NoMemory);
            }
        }
        let written = fill(&mut stream.send, room);
        if written == 0 {
            stream.send.trim(&mut base.send_memory, owner);
        }
        let end = stream.connection.queued() + written as u64;
        stream.connection.enqueue(end, push || room < len);
        self.ready.add(id.index(), socket);
        Ok(written)
    }

    /// The last byte sent is urgent (`MSG_OOB`).
    pub(crate) fn send_urgent<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let stream = socket.stream_mut().ok_or(Error::NotConnected)?;
        stream.connection.send_urgent();
        self.ready.add(index, socket);
        Ok(())
    }

    /// Takes received bytes into `out`; 0 is the end of the stream (or of `out`).
    pub(crate) fn recv<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        out: &mut [u8],
        now: Instant,
    ) -> Result<usize, Error> {
        let socket = socket_of_program(&mut base.sockets, id)?;
        let len = socket.peek(&base.memory, out)?;
        if len > 0 && socket.consume(&mut base.memory, len as u32, &base.env.config.buffers, now) {
            self.ready.add(id.index(), socket);
        }
        Ok(len)
    }

    /// As [`Shard::recv`](crate::Shard::recv), but `take` sees the bytes where they are, in the two
    /// pieces that a ring has, and says how many of them were read.
    pub(crate) fn recv_with<M: Lend>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        take: impl FnOnce([&[u8]; 2]) -> usize,
        now: Instant,
    ) -> Result<usize, Error> {
        let index = base.check(id)?;
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        // One byte tells whether there is any, and what is to be said if not.
        if socket.peek(&base.memory, &mut [0])? == 0 {
            take([&[], &[]]);
            return Ok(0);
        }
        let owner = socket.owner;
        let Some(stream) = socket.stream_mut() else {
            return Err(Error::NotConnected);
        };
        let received = stream.connection.received();
        let len = (received - stream.consumed()) as usize;
        let taken = take(stream.recv.pieces(&base.memory, owner, received)).min(len);
        if taken > 0
            && socket.consume(
                &mut base.memory,
                taken as u32,
                &base.env.config.buffers,
                now,
            )
        {
            self.ready.add(index, socket);
        }
        Ok(taken)
    }

    /// As [`Shard::recv`](crate::Shard::recv), but the bytes stay.
    pub(crate) fn peek<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let index = base.check(id)?;
        base.sockets
            .get_mut(index)
            .ok_or(Error::NoSocket)?
            .peek(&base.memory, out)
    }

    /// The program has read the stream up to offset `upto`; less than before is no news.
    pub(crate) fn consumed<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        upto: u64,
        now: Instant,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let stream = match &mut socket.kind {
            Kind::Stream(stream) => stream,
            Kind::Datagram(datagram) => {
                if upto > datagram.received {
                    return Err(Error::Invalid);
                }
                if upto > datagram.consumed() {
                    let read = upto as u32;
                    datagram.recv.consume(&mut base.memory, socket.owner, read);
                }
                return Ok(());
            }
            _ => return Err(Error::NotConnected),
        };
        if upto > stream.connection.received() {
            return Err(Error::Invalid);
        }
        let more = upto.saturating_sub(stream.consumed()) as u32;
        if more > 0 && socket.consume(&mut base.memory, more, &base.env.config.buffers, now) {
            self.ready.add(index, socket);
        }
        Ok(())
    }

    /// Shuts one direction or both of the socket at `index` for streams.
    pub(crate) fn shutdown_stream<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        how: How,
        now: Instant,
    ) -> Result<(), Error> {
        let (read, write) = (how != How::Write, how != How::Read);
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        match &mut socket.kind {
            Kind::Bound { .. } => return Err(Error::NotConnected),
            Kind::Datagram(_) => return Err(Error::NotSupported),
            Kind::Listener(_) if !read => return Ok(()),
            Kind::Listener(listener) => {
                let local = listener.local;
                self.stop_listening(base, index, now);
                if let Some(bound) = self.ports.bound_mut(local.port(), index) {
                    bound.listening = false;
                }
                if let Some(socket) = base.sockets.get_mut(index) {
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
                self.apply_state_change(base, index);
            }
        }
        base.mark_changed(index);
        Ok(())
    }

    /// Closes the socket at `index` for streams, which no program holds any more.
    #[inline(always)]
    pub(crate) fn discard_stream<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        abort: bool,
        now: Instant,
    ) {
        let Some(socket) = base.sockets.get_mut(index) else {
            return;
        };
        let lingers = socket.options.linger == Some(0);
        let (owner, dead) = (socket.owner, socket.marks.contains(Marks::DEAD));
        self.unbind_stream(base, index);
        let Some(Socket { marks, kind, .. }) = base.sockets.get_mut(index) else {
            return;
        };
        match kind {
            Kind::Bound { .. } => self.release_bound(base, index),
            Kind::Datagram(_) => {}
            Kind::Listener(listener) => {
                let port = listener.local.port();
                self.stop_listening(base, index, now);
                self.ports.unbind(port, index);
                base.sockets.discard(index);
            }
            Kind::Stream(stream) if dead => {
                stream.recv.free(&mut base.memory, owner);
                base.sockets.discard(index);
            }
            Kind::Stream(stream) => {
                let unread = stream.connection.received() > stream.consumed();
                base.env.counters.aborted_on_close += u64::from(unread);
                let crowded = !self.orphans.allows(owner);
                base.env.counters.orphans_refused += u64::from(crowded);
                // Linux's `tcp_check_oom`.
                let starved = base.send_memory.is_short(owner) && stream.send.len() > 0;
                base.env.counters.orphans_starved += u64::from(starved);
                marks.insert(Marks::ORPHAN);
                if abort || lingers || crowded || starved || unread {
                    stream.connection.abort();
                } else {
                    stream.connection.close(now);
                    marks.insert(Marks::COUNTED);
                    self.orphans.take(owner);
                }
                stream.recv.free(&mut base.memory, owner);
                self.apply_state_change(base, index);
            }
        }
    }

    /// A connection whose port the program had bound no longer holds it as a bound socket.
    fn unbind_stream<M: Memory>(&mut self, base: &mut Base<M>, index: u32) {
        if let Some(Socket {
            marks,
            kind: Kind::Stream(stream),
            ..
        }) = base.sockets.get_mut(index)
            && marks.contains(Marks::BOUND)
        {
            marks.remove(Marks::BOUND);
            self.ports.unbind(stream.endpoints.tuple().ports().0, index);
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
