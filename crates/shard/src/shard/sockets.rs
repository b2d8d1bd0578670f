//! The requests that all kinds of sockets have: close, shut down, show, set options.

use millrace_sockopt::{Opt, OptName};
use millrace_tcp::{Info, Instant, State};

use crate::connection_table::Tuple;
use crate::error::Error;
use crate::memory::{Memory, Owner};
use crate::shard::Shard;
use crate::socket::marks::Marks;
use crate::socket::options::Options;
use crate::socket::{How, Kind, SocketId, SocketInfo, SocketState, View, ViewFlags, tcp_info};

impl<M: Memory> Shard<M> {
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
                self.tcp.active_senders(),
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
        for (_, pending) in self.tcp.half_open().iter() {
            let owner = self
                .base
                .sockets
                .get(pending.listener)
                .map_or_else(Default::default, |listener| listener.owner);
            visit(&bare(&pending.tuple, owner, State::SynReceived));
        }
        for waiting in self.tcp.time_wait().iter() {
            visit(&bare(&waiting.tuple, Default::default(), State::TimeWait));
        }
    }

    /// All that was set on a socket.
    pub fn options(&self, id: SocketId) -> Option<Options> {
        let socket = self.base.sockets.get(self.base.check(id).ok()?)?;
        Some(**socket.options)
    }

    /// Shuts one direction or both. A listener that is shut for reading listens no longer.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    pub fn shutdown(&mut self, id: SocketId, how: How, now: Instant) -> Result<(), Error> {
        let index = self.base.check(id)?;
        let socket = self.base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let Kind::Datagram(datagram) = &socket.kind else {
            return self.tcp.shutdown_stream(&mut self.base, index, how, now);
        };
        let connected = datagram.remote.is_some();
        socket.marks.set(
            Marks::READ_SHUT,
            how != How::Write || socket.marks.contains(Marks::READ_SHUT),
        );
        socket.marks.set(
            Marks::WRITE_SHUT,
            how != How::Read || socket.marks.contains(Marks::WRITE_SHUT),
        );
        self.base.mark_changed(index);
        // As on Linux: without a peer it is an error, but the socket is shut nevertheless.
        connected.then_some(()).ok_or(Error::NotConnected)
    }

    /// Closes the socket at `index`, which no program holds any more.
    fn discard(&mut self, index: u32, abort: bool, now: Instant) {
        match self.base.sockets.get(index).map(|socket| &socket.kind) {
            Some(Kind::Datagram(_)) => self.udp.discard_datagram(&mut self.base, index),
            _ => self.tcp.discard_stream(&mut self.base, index, abort, now),
        }
    }

    /// Sets an option.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of range, [`Error::NoOption`] for one that the caller
    /// keeps or that such a socket has not, [`Error::NoSocket`].
    pub fn set_option(&mut self, id: SocketId, option: Opt, now: Instant) -> Result<(), Error> {
        let index = self.base.check(id)?;
        let option = option.normal().map_err(|_| Error::Invalid)?;
        let config = &self.base.env.config.tcp;
        if matches!(option, Opt::Congestion(algorithm) if !config.has(algorithm)) {
            return Err(Error::Invalid);
        }
        match self.base.sockets.get(index).map(|socket| &socket.kind) {
            Some(Kind::Datagram(_)) => {
                self.udp
                    .set_datagram_option(&mut self.base, index, option, now)
            }
            _ => self
                .tcp
                .set_stream_option(&mut self.base, index, option, now),
        }
    }

    /// Reads an option.
    ///
    /// # Errors
    /// [`Error::NoOption`] for one that the caller keeps, or that such a socket has not;
    /// [`Error::NoSocket`].
    pub fn option(&self, id: SocketId, name: OptName) -> Result<Opt, Error> {
        let socket = self
            .base
            .sockets
            .get(self.base.check(id)?)
            .ok_or(Error::NoSocket)?;
        socket.option(&self.base.env.config, name)
    }

    /// A socket belongs to `owner` from now on, which calls it `label`: with what has not been
    /// read, and if it listens with the connections that wait here.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when `owner` has no room for what has not been read: then nothing has
    /// changed. Of connections that wait, those are reset that it has no room for.
    pub fn change_owner(
        &mut self,
        id: SocketId,
        owner: Owner,
        label: u32,
        now: Instant,
    ) -> Result<(), Error> {
        let index = self.base.check(id)?;
        match self.base.sockets.get(index).map(|socket| &socket.kind) {
            Some(Kind::Datagram(_)) => self.udp.change_owner(&mut self.base, index, owner, label),
            _ => self
                .tcp
                .change_owner(&mut self.base, index, owner, label, now),
        }
    }
}
