//! The socket calls, as Linux has them, on a stack of the thread's own.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace::{How, Opt, Options, Poll, Record, SendTo, SocketId, Sockets, View, ViewFlags};

use crate::host::Host;
use crate::outcome::Outcome;
use crate::packets::PACKET_MAX;
use crate::things::{Socket, Thing};

/// Bytes of a stream that one call looks at in pieces.
const PEEK_MAX: usize = 1 << 20;

/// Which direction a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Read,
    Write,
}

/// How a call that receives is to behave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receive {
    /// `MSG_PEEK`.
    pub peek: bool,
    /// `MSG_WAITALL`.
    pub all: bool,
    /// `MSG_DONTWAIT`.
    pub at_once: bool,
    /// `MSG_TRUNC`: of a datagram, the length that it has.
    pub full_len: bool,
    /// The call has received something already: what the connection died of is for the next one to
    /// tell.
    pub goes_on: bool,
}

/// What a call has received.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Bytes; of a datagram the length that it has, if that was asked for.
    pub len: usize,
    /// What is known of the datagram.
    pub record: Option<Record>,
    /// It did not fit.
    pub cut: bool,
}

/// How a call that sends is to behave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Send {
    /// `MSG_MORE`.
    pub more: bool,
    /// `MSG_DONTWAIT`.
    pub at_once: bool,
}

fn number(error: millrace::Error) -> c_int {
    error.errno()
}

impl Host {
    fn sockets<T>(
        &self,
        body: impl FnOnce(&mut Sockets<'_>) -> Result<T, millrace::Error>,
    ) -> Outcome<T> {
        self.stack.with_sockets(body).map_err(number)
    }

    pub fn view(&self, id: SocketId) -> Outcome<View> {
        self.stack
            .with_sockets(|sockets| sockets.view(id))
            .ok_or(libc::EBADF)
    }

    /// What a socket of ours is, for a short look. One that has died says what of, once, and then
    /// that it is not connected.
    fn look<T>(&self, key: u32, look: impl FnOnce(&mut Socket) -> T) -> Outcome<T> {
        let mut things = self.things.borrow_mut();
        let socket = things.socket_mut(key)?;
        match socket.dead {
            Some(0) => Err(libc::ENOTCONN),
            Some(error) => {
                socket.dead = Some(0);
                Err(error)
            }
            None => Ok(look(socket)),
        }
    }

    /// The family of a socket.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK` for a set and a pipe.
    pub fn family(&self, key: u32) -> Outcome<c_int> {
        self.things.borrow().socket(key).map(|socket| socket.family)
    }

    /// Whether it is a socket for datagrams.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn is_datagrams(&self, key: u32) -> Outcome<bool> {
        self.things
            .borrow()
            .socket(key)
            .map(|socket| socket.datagrams)
    }

    /// Makes a socket.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`, `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`, `EINVAL` for flags that there are not,
    /// `ENFILE` at the limit of sockets.
    pub fn socket(&self, family: c_int, kind: c_int, protocol: c_int) -> Outcome<u32> {
        let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        if family != libc::AF_INET && family != libc::AF_INET6 {
            return Err(libc::EAFNOSUPPORT);
        }
        let datagrams = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => false,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => true,
            (libc::SOCK_STREAM | libc::SOCK_DGRAM, _) => return Err(libc::EPROTONOSUPPORT),
            (kind, _) if kind & !0xf != 0 => return Err(libc::EINVAL),
            _ => return Err(libc::ESOCKTNOSUPPORT),
        };
        self.ensure_room(1)?;
        let options = Options::default();
        let id = self.sockets(|sockets| match datagrams {
            true => sockets.datagrams(&options),
            false => sockets.stream(&options),
        })?;
        let mut socket = Socket::new(id, family, datagrams, self.stack.now());
        socket.nonblocking = flags & libc::SOCK_NONBLOCK != 0;
        Ok(self.things.borrow_mut().insert(Thing::Socket(socket)))
    }

    /// Binds a socket.
    ///
    /// # Errors
    /// `EINVAL` when it is bound, and those of Linux.
    pub fn bind(&self, key: u32, local: SocketAddr) -> Outcome<()> {
        let (id, datagrams, taken) =
            self.look(key, |socket| (socket.id, socket.datagrams, socket.bound))?;
        let view = self.view(id)?;
        if taken || view.local.port() != 0 {
            return Err(libc::EINVAL);
        }
        let options =
            self.sockets(|sockets| sockets.options(id).ok_or(millrace::Error::NoSocket))?;
        if datagrams {
            self.sockets(|sockets| sockets.bind_datagrams(id, local, &options))?;
            return self.look(key, |socket| socket.bound = true);
        }
        let bound = self.sockets(|sockets| {
            let bound = sockets.bind(local, &options)?;
            // It takes the place of the one that was never bound.
            let _ = sockets.close(id);
            Ok(bound)
        })?;
        let mut things = self.things.borrow_mut();
        let socket = things.socket_mut(key)?;
        (socket.id, socket.bound) = (bound, true);
        socket.port_free = local.port() == 0;
        things.index(bound, key);
        Ok(())
    }

    /// The address that means every one of ours.
    fn anywhere(family: c_int) -> SocketAddr {
        match family {
            libc::AF_INET6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
            _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    /// Listens; a socket that is not bound takes a free port.
    ///
    /// # Errors
    /// Those of Linux.
    pub fn listen(&self, key: u32, backlog: c_int) -> Outcome<()> {
        let (id, family, datagrams) =
            self.look(key, |socket| (socket.id, socket.family, socket.datagrams))?;
        if datagrams {
            return Err(libc::EOPNOTSUPP);
        }
        if self.view(id)?.state.is_none() && self.view(id)?.local.port() == 0 {
            self.bind(key, Host::anywhere(family))?;
        }
        let (id, opening) = self.look(key, |socket| (socket.id, socket.opening.is_some()))?;
        if opening {
            return Err(libc::EINVAL);
        }
        // As on Linux, a negative one is the largest.
        let backlog = u32::try_from(backlog).unwrap_or(4096).min(4096);
        self.sockets(|sockets| sockets.listen(id, backlog))
    }

    /// Does `attempt` until it need not wait any longer, if the socket waits at all; what it asked
    /// for leaves at once then.
    fn waiting<T>(
        &self,
        key: u32,
        side: Side,
        at_once: bool,
        mut attempt: impl FnMut(SocketId) -> Outcome<T>,
    ) -> Outcome<T> {
        let (id, nonblocking, patience) = self.look(key, |socket| {
            let patience = socket.patience[side as usize];
            (socket.id, socket.nonblocking || at_once, patience)
        })?;
        let mut until = None;
        let mut outcome = attempt(id);
        while outcome.as_ref().err() == Some(&libc::EAGAIN) && !nonblocking {
            if until.is_none() {
                until = self.until(patience);
            }
            let waited = self.wait(until);
            if let Err(error) = waited
                && error != libc::EAGAIN
            {
                return Err(error);
            }
            outcome = attempt(id);
            if waited.is_err() {
                break;
            }
        }
        if !nonblocking {
            self.flush();
        }
        outcome
    }

    /// Connects: waits until it is, or returns `EINPROGRESS`. No address: a socket for datagrams
    /// forgets its peer.
    ///
    /// # Errors
    /// Those of Linux.
    pub fn connect(&self, key: u32, remote: Option<SocketAddr>) -> Outcome<()> {
        let (id, datagrams, connecting) = self.look(key, |socket| {
            (socket.id, socket.datagrams, socket.connecting)
        })?;
        let Some(remote) = remote else {
            return match datagrams {
                true => self.sockets(|sockets| sockets.disconnect_datagrams(id)),
                false => Err(libc::EAFNOSUPPORT),
            };
        };
        if datagrams {
            return self.sockets(|sockets| sockets.connect_datagrams(id, remote));
        }
        if !connecting {
            self.stack.read_clock();
            // Answers to this port may be another shard's by their tag, and that one would refuse
            // them.
            let elsewhere = self
                .stack
                .with_sockets(|sockets| sockets.leads_elsewhere(id, remote));
            let port_free = self.look(key, |socket| socket.port_free)?;
            match elsewhere {
                true if !port_free => self.open_elsewhere(key, id, remote)?,
                _ => {
                    let id = if elsewhere {
                        self.leave_port_open(key, id)?
                    } else {
                        id
                    };
                    self.sockets(|sockets| sockets.connect(id, remote))?;
                }
            }
            self.look(key, |socket| socket.connecting = true)?;
        }
        let nonblocking = self.look(key, |socket| socket.nonblocking)?;
        let done = self.waiting(key, Side::Write, false, |id| {
            self.ensure_opened(key)?;
            self.connected(id)
        });
        match done {
            Err(libc::EAGAIN) if connecting => Err(libc::EALREADY),
            Err(libc::EAGAIN) if nonblocking => {
                // The SYN is on its way before the program waits.
                self.flush();
                self.starve(key);
                Err(libc::EINPROGRESS)
            }
            Err(libc::EAGAIN) => Err(libc::EINPROGRESS),
            Err(libc::EINTR) => Err(libc::EINTR),
            done => {
                self.look(key, |socket| socket.connecting = false)?;
                done
            }
        }
    }

    /// Gives up the port of a bound socket, which the program left to the stack to choose: connect
    /// chooses one that leads back here.
    fn leave_port_open(&self, key: u32, id: SocketId) -> Outcome<SocketId> {
        let local = SocketAddr::new(self.view(id)?.local.ip(), 0);
        let bound = self.sockets(|sockets| {
            let mut options = sockets.options(id).ok_or(millrace::Error::NoSocket)?;
            let said = std::mem::replace(&mut options.address_only, true);
            let bound = sockets.bind(local, &options)?;
            // It is for this bind alone.
            sockets.set_option(bound, Opt::AddressOnly(said))?;
            let _ = sockets.close(id);
            Ok(bound)
        })?;
        let mut things = self.things.borrow_mut();
        things.socket_mut(key)?.id = bound;
        things.index(bound, key);
        Ok(bound)
    }

    /// Whether a connection that was begun is made.
    fn connected(&self, id: SocketId) -> Outcome<()> {
        let view = self.view(id)?;
        if view.error != 0 {
            return Err(self.stack.with_sockets(|sockets| sockets.take_error(id)));
        }
        if view.flags.contains(ViewFlags::CONNECTED) {
            return Ok(());
        }
        if view.flags.contains(ViewFlags::CONNECTING) {
            return Err(libc::EAGAIN);
        }
        Err(libc::ECONNABORTED)
    }

    /// The next connection of a listener, and who it is with.
    ///
    /// # Errors
    /// Those of Linux.
    pub fn accept(&self, key: u32, nonblocking: bool) -> Outcome<(u32, SocketAddr)> {
        let (family, datagrams) = self.look(key, |socket| (socket.family, socket.datagrams))?;
        if datagrams {
            return Err(libc::EOPNOTSUPP);
        }
        self.ensure_room(1)?;
        let id = self.waiting(key, Side::Read, false, |id| {
            self.sockets(|sockets| sockets.accept(id))
        })?;
        let mut socket = Socket::new(id, family, false, self.stack.now());
        socket.nonblocking = nonblocking;
        let remote = self.view(id)?.remote;
        Ok((
            self.things.borrow_mut().insert(Thing::Socket(socket)),
            remote,
        ))
    }

    /// A write has to wait: room will be news.
    pub fn starve(&self, key: u32) {
        if let Ok(socket) = self.things.borrow_mut().socket_mut(key) {
            socket.known.starved = true;
        }
    }

    /// Sends the pieces, one after the other, on a connection; as many bytes as there is room for,
    /// or all if the socket waits.
    ///
    /// # Errors
    /// Those of Linux; no signal is raised.
    pub fn send(&self, key: u32, pieces: &[&[u8]], how: Send) -> Outcome<usize> {
        let total = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let mut done = 0;
        loop {
            let sent = self.waiting(key, Side::Write, how.at_once, |id| {
                self.ensure_opened(key)?;
                // What it died of is for the next call to tell: this one has sent something.
                if done > 0 {
                    let error = self.view(id)?.error;
                    if error != 0 {
                        return Err(error);
                    }
                }
                self.send_some(id, pieces, done, total - done, !how.more)
            });
            match sent {
                Ok(len) => done += len,
                Err(error) => {
                    if error == libc::EAGAIN || error == libc::ENOBUFS {
                        self.starve(key);
                    }
                    return if done > 0 { Ok(done) } else { Err(error) };
                }
            }
            let nonblocking = self.look(key, |socket| socket.nonblocking)? || how.at_once;
            if done < total && nonblocking {
                self.starve(key);
            }
            if done == total || nonblocking {
                return Ok(done);
            }
        }
    }

    fn send_some(
        &self,
        id: SocketId,
        pieces: &[&[u8]],
        skip: usize,
        len: usize,
        push: bool,
    ) -> Outcome<usize> {
        if let [piece] = pieces {
            return self.sockets(|sockets| sockets.send(id, &piece[skip..], push));
        }
        let mut bytes = Cursor::new(pieces, skip);
        self.sockets(|sockets| sockets.send_with(id, len, push, |out| bytes.fill(out)))
    }

    /// Sends a datagram made of the pieces, to an address or to the peer.
    ///
    /// # Errors
    /// Those of Linux.
    pub fn send_to(
        &self,
        key: u32,
        pieces: &[&[u8]],
        to: Option<SocketAddr>,
        how: Send,
    ) -> Outcome<usize> {
        let what = SendTo {
            to,
            ..SendTo::default()
        };
        self.send_as(key, pieces, what, how)
    }

    /// As [`Host::send_to`], with all that can be said of a datagram.
    ///
    /// # Errors
    /// As [`Host::send_to`].
    pub fn send_as(&self, key: u32, pieces: &[&[u8]], what: SendTo, how: Send) -> Outcome<usize> {
        if self.is_pipe(key) {
            return self.write_pipe(key, &pieces.concat());
        }
        let (id, family, datagrams) =
            self.look(key, |socket| (socket.id, socket.family, socket.datagrams))?;
        if !datagrams {
            // As Linux has it for a connection: the address means nothing.
            return self.send(key, pieces, how);
        }
        let view = self.view(id)?;
        if what.to.is_none() && view.remote.port() == 0 {
            return Err(libc::EDESTADDRREQ);
        }
        if view.local.port() == 0 {
            let options =
                self.sockets(|sockets| sockets.options(id).ok_or(millrace::Error::NoSocket))?;
            let local = Host::anywhere(family);
            self.sockets(|sockets| sockets.bind_datagrams(id, local, &options))?;
        }
        let len = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let what = SendTo {
            more: how.more,
            ..what
        };
        let sent = self.waiting(key, Side::Write, how.at_once, |id| {
            let fill = |out: &mut [u8]| Cursor::new(pieces, 0).fill(out);
            self.sockets(|sockets| sockets.send_to(id, &what, len, fill))
        });
        if sent == Err(libc::EAGAIN) {
            self.starve(key);
        }
        sent.map(|()| len)
    }

    /// Receives into a buffer: bytes of a stream, 0 at its end; or a datagram, and what is known of
    /// it.
    ///
    /// # Errors
    /// Those of Linux.
    pub fn receive(
        &self,
        key: u32,
        out: &mut [u8],
        how: Receive,
    ) -> Outcome<(usize, Option<Record>)> {
        if self.is_pipe(key) {
            return Ok((self.read_pipe(key, out)?, None));
        }
        if self.look(key, |socket| socket.datagrams)? {
            let record = self.waiting(key, Side::Read, how.at_once, |id| {
                self.sockets(|sockets| sockets.recv_from(id, out, how.peek))
            })?;
            let full = record.payload_len as usize;
            let len = if how.full_len {
                full
            } else {
                full.min(out.len())
            };
            return Ok((len, Some(record)));
        }
        if how.full_len {
            return Err(libc::EOPNOTSUPP);
        }
        let mut done = 0;
        loop {
            let room = &mut out[done..];
            let goes_on = how.goes_on || done > 0;
            let some = self.waiting(key, Side::Read, how.at_once, |id| {
                self.ensure_opened(key)?;
                if goes_on {
                    let view = self.view(id)?;
                    if view.error != 0 && view.received == view.consumed {
                        return Err(view.error);
                    }
                }
                self.sockets(|sockets| match how.peek {
                    true => sockets.peek(id, room),
                    false => sockets.recv(id, room),
                })
            });
            match some {
                Ok(len) => done += len,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok((done, None)),
            }
            let more = how.all && !how.peek && done < out.len();
            if !more || some == Ok(0) {
                return Ok((done, None));
            }
        }
    }

    /// Receives into pieces, one after the other: what has come of a stream or a pipe, or a
    /// datagram. They have room for `total` bytes.
    ///
    /// # Errors
    /// Those of Linux.
    pub fn receive_pieces<'a>(
        &self,
        key: u32,
        total: usize,
        mut pieces: impl Iterator<Item = &'a mut [u8]>,
    ) -> Outcome<usize> {
        if self.is_pipe(key) {
            // What has come is enough.
            let first = pieces.find(|piece| !piece.is_empty());
            return first.map_or(Ok(0), |first| self.read_pipe(key, first));
        }
        let message = self.receive_message(key, total, pieces, Receive::default())?;
        Ok(message.len)
    }

    /// As [`Host::receive_pieces`], of sockets alone, with all that there is to say of it.
    ///
    /// # Errors
    /// Those of Linux.
    pub fn receive_message<'a>(
        &self,
        key: u32,
        total: usize,
        pieces: impl Iterator<Item = &'a mut [u8]>,
        how: Receive,
    ) -> Outcome<Message> {
        let datagrams = self.look(key, |socket| socket.datagrams)?;
        if datagrams || how.peek {
            let most = if datagrams { PACKET_MAX } else { PEEK_MAX };
            let mut whole = vec![0; total.min(most)];
            let full_len = datagrams;
            let (full, record) = self.receive(key, &mut whole, Receive { full_len, ..how })?;
            let copied = full.min(whole.len());
            let mut rest = &whole[..copied];
            for piece in pieces {
                let (now, later) = rest.split_at(piece.len().min(rest.len()));
                piece[..now.len()].copy_from_slice(now);
                rest = later;
            }
            return Ok(Message {
                len: if how.full_len { full } else { copied },
                record,
                cut: full > copied,
            });
        }
        let mut done = 0;
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            let how = Receive {
                at_once: how.at_once || (done > 0 && !how.all),
                goes_on: done > 0,
                ..how
            };
            match self.receive(key, piece, how) {
                Ok((len, _)) => {
                    done += len;
                    if len < piece.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Message {
            len: done,
            record: None,
            cut: false,
        })
    }

    /// Whether calls of this socket, or end of a pipe, return at once.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn is_nonblocking(&self, key: u32) -> Outcome<bool> {
        match self.things.borrow().get(key) {
            Some(Thing::Socket(socket)) => Ok(socket.nonblocking),
            Some(Thing::Pipe(end)) => Ok(end.nonblocking),
            Some(Thing::Set(_)) => Ok(false),
            None => Err(libc::EBADF),
        }
    }

    /// Has calls of this socket, or end of a pipe, return at once, or wait.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` for a set.
    pub fn set_nonblocking(&self, key: u32, on: bool) -> Outcome<()> {
        match self.things.borrow_mut().get_mut(key) {
            Some(Thing::Socket(socket)) => socket.nonblocking = on,
            Some(Thing::Pipe(end)) => end.nonblocking = on,
            Some(Thing::Set(_)) => return Err(libc::EINVAL),
            None => return Err(libc::EBADF),
        }
        Ok(())
    }

    /// `FIONREAD`: bytes to read, of datagrams those of the first; `SIOCOUTQ`: bytes that are not
    /// acknowledged.
    ///
    /// # Errors
    /// `EINVAL` for other requests, and for a listener.
    pub fn query(&self, key: u32, request: libc::c_ulong) -> Outcome<c_int> {
        let (id, datagrams) = self.look(key, |socket| (socket.id, socket.datagrams))?;
        let view = self.view(id)?;
        if view.flags.contains(ViewFlags::LISTENING) {
            return Err(libc::EINVAL);
        }
        let bytes = match request {
            libc::FIONREAD if datagrams && view.error != 0 => 0,
            libc::FIONREAD if datagrams => {
                let first = self.sockets(|sockets| sockets.recv_from(id, &mut [], true));
                first.map_or(0, |record| record.payload_len.into())
            }
            libc::FIONREAD => view.received - view.consumed,
            libc::TIOCOUTQ => view.queued - view.acked,
            _ => return Err(libc::EINVAL),
        };
        Ok(c_int::try_from(bytes).unwrap_or(c_int::MAX))
    }

    /// Shuts a connection's directions: `SHUT_RD`, `SHUT_WR`, `SHUT_RDWR`.
    ///
    /// # Errors
    /// `EINVAL`, `ENOTCONN`.
    pub fn shutdown(&self, key: u32, how: c_int) -> Outcome<()> {
        let id = self.look(key, |socket| socket.id)?;
        let how = match how {
            libc::SHUT_RD => How::Read,
            libc::SHUT_WR => How::Write,
            libc::SHUT_RDWR => How::Both,
            _ => return Err(libc::EINVAL),
        };
        if self.give_up_opening(key) {
            return Ok(());
        }
        self.stack.read_clock();
        self.sockets(|sockets| sockets.shutdown(id, how))?;
        if !self.look(key, |socket| socket.nonblocking)? {
            self.flush();
        }
        Ok(())
    }

    /// Closes whatever the key names. What a connection has been given to send is still sent while
    /// the stack works; with `SO_LINGER` a socket that waits is closed when that is done.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&self, key: u32) -> Outcome<()> {
        self.linger(key);
        self.remove(key, false)
    }

    /// Closes whatever the key names, a connection with a reset if that is wanted, and waits for
    /// nothing.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn remove(&self, key: u32, abort: bool) -> Outcome<()> {
        let mut things = self.things.borrow_mut();
        things.forget_opening(key);
        match things.remove(key).ok_or(libc::EBADF)? {
            Thing::Socket(socket) => {
                things.forget_watchers(&socket.watchers);
                drop(things);
                self.stack.read_clock();
                if socket.dead.is_none() {
                    self.sockets(|sockets| match abort {
                        true => sockets.abort(socket.id),
                        false => sockets.close(socket.id),
                    })?;
                }
                if !socket.nonblocking {
                    self.flush();
                }
            }
            Thing::Set(set) => things.forget_set(key, &set),
            Thing::Pipe(end) => {
                things.forget_watchers(&end.watchers);
                drop(things);
                self.hang_up(&end);
            }
        }
        Ok(())
    }

    /// Waits until all that was written is acknowledged, if that was asked for.
    fn linger(&self, key: u32) {
        let Ok((id, true)) = self.look(key, |socket| {
            (socket.id, !socket.nonblocking && !socket.datagrams)
        }) else {
            return;
        };
        let options = self.stack.with_sockets(|sockets| sockets.options(id));
        let seconds = options.and_then(|options| options.linger).unwrap_or(0);
        if seconds == 0 || self.view(id).is_ok_and(|view| view.state.is_none()) {
            return;
        }
        let _ = self.sockets(|sockets| sockets.shutdown(id, How::Write));
        let until = self.until(u64::from(seconds) * 1_000_000);
        while self
            .view(id)
            .is_ok_and(|view| view.acked < view.queued && !view.poll().contains(Poll::HUP))
        {
            if self.wait(until).is_err() {
                break;
            }
        }
    }

    /// The own address, and the peer's.
    ///
    /// # Errors
    /// `ENOTCONN` where there is no peer.
    pub fn name(&self, key: u32, peer: bool) -> Outcome<(SocketAddr, c_int)> {
        let (id, family) = self.look(key, |socket| (socket.id, socket.family))?;
        let view = self.view(id)?;
        if !peer {
            return Ok((view.local, family));
        }
        let over =
            !view.flags.contains(ViewFlags::CONNECTED) || view.flags.contains(ViewFlags::HUNG_UP);
        if view.remote.port() == 0 || (over && !view.flags.contains(ViewFlags::DATAGRAM)) {
            return Err(libc::ENOTCONN);
        }
        Ok((view.remote, family))
    }
}

/// A way through pieces of bytes.
struct Cursor<'a> {
    pieces: &'a [&'a [u8]],
    /// Bytes of the first piece that are done with.
    at: usize,
}

impl Cursor<'_> {
    fn new<'a>(pieces: &'a [&'a [u8]], skip: usize) -> Cursor<'a> {
        Cursor { pieces, at: skip }
    }

    /// Fills `out` with what comes next; there is enough.
    fn fill(&mut self, mut out: &mut [u8]) {
        while let Some((first, rest)) = self.pieces.split_first() {
            if self.at >= first.len() {
                self.at -= first.len();
                self.pieces = rest;
                continue;
            }
            let piece = &first[self.at..];
            let len = piece.len().min(out.len());
            if len == 0 {
                return;
            }
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(&piece[..len]);
            out = later;
            self.at += len;
        }
    }
}

#[cfg(test)]
mod tests;
