//! The requests to sockets for streams.

use std::net::SocketAddr;

use millrace_tcp::Instant;

use crate::error::Error;
use crate::memory::{Lend, Memory, Owner};
use crate::shard::Shard;
use crate::socket::AcceptQueue;
use crate::socket::id::SocketId;
use crate::socket::options::{Options, Reuse};
use crate::tcp::catch_all::Request;

impl<M: Memory> Shard<M> {
    /// Listens at every address and port that nothing else listens at. There is one such socket.
    /// With `asks` a SYN gets no answer until the program has said what it is to be:
    /// [`Shard::next_request`].
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::TooManySockets`].
    #[inline]
    pub fn listen_anywhere(
        &mut self,
        owner: Owner,
        options: &Options,
        backlog: u32,
        asks: bool,
    ) -> Result<SocketId, Error> {
        self.tcp
            .listen_anywhere(&mut self.base, owner, options, backlog, asks)
    }

    /// Has the program asked about each connection to a listener before its SYN is answered, or no
    /// longer.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the socket does not listen.
    #[inline]
    pub fn set_asks(&mut self, id: SocketId, asks: bool) -> Result<(), Error> {
        self.tcp.set_asks(&mut self.base, id, asks)
    }

    /// The next connection about which the program is asked; [`Shard::admit`] or
    /// [`Shard::turn_away`] is the answer. Without one the SYN is forgotten after a minute.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is none, [`Error::Invalid`] when the socket does not
    /// listen.
    #[inline]
    pub fn next_request(&mut self, id: SocketId) -> Result<Request, Error> {
        self.tcp.next_request(&mut self.base, id)
    }

    /// Answers the SYN: the connection comes to [`Shard::accept_requested`] when its handshake is
    /// complete.
    ///
    /// # Errors
    /// [`Error::NotConnected`] when it was taken back.
    #[inline]
    pub fn admit(&mut self, request: &Request, now: Instant) -> Result<(), Error> {
        self.tcp.admit(&mut self.base, request, now)
    }

    /// Refuses the SYN with a reset, as if nobody listened.
    #[inline]
    pub fn turn_away(&mut self, request: &Request) {
        self.tcp.turn_away(&mut self.base, request);
    }

    /// The connection that was admitted, once its handshake is complete.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] until then, [`Error::NotConnected`] when it will not come,
    /// [`Error::Invalid`] when the socket does not listen.
    #[inline]
    pub fn accept_requested(&mut self, id: SocketId, request: &Request) -> Result<SocketId, Error> {
        self.tcp.accept_requested(&mut self.base, id, request)
    }

    /// Makes a socket and begins to connect it. `local` may leave the address unspecified and the
    /// port 0; without it both are chosen. The result shows in the view: `CONNECTED`, or `ERROR`.
    ///
    /// # Errors
    /// Those of [`Shard::bind`] and [`Shard::connect_bound`]; nothing is left then.
    #[inline]
    pub fn connect(
        &mut self,
        owner: Owner,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: &Options,
        now: Instant,
    ) -> Result<SocketId, Error> {
        self.tcp
            .connect(&mut self.base, owner, local, remote, options, now)
    }

    /// Makes a socket that is neither bound nor connected.
    ///
    /// # Errors
    /// [`Error::TooManySockets`].
    #[inline]
    pub fn socket(&mut self, owner: Owner, options: &Options) -> Result<SocketId, Error> {
        self.tcp.socket(&mut self.base, owner, options)
    }

    /// Begins to connect a bound or unconnected socket, or one whose last attempt failed.
    ///
    /// # Errors
    /// [`Error::InProgress`], [`Error::AlreadyConnected`], [`Error::NotSupported`] on a listener,
    /// [`Error::NetworkUnreachable`], [`Error::AddressInUse`] when the bound port is connected to
    /// this peer already, [`Error::AddressNotAvailable`] when no port is free.
    #[inline]
    pub fn connect_bound(
        &mut self,
        id: SocketId,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<(), Error> {
        self.tcp.connect_bound(&mut self.base, id, remote, now)
    }

    /// A connection that has just begun, and of which nothing was sent yet, is to open fast.
    /// Returns how many bytes its SYN can take along: the SYN then waits for the first of them. 0:
    /// it does not wait, but asks for a cookie for the next time.
    ///
    /// # Errors
    /// [`Error::NoSocket`], [`Error::NotConnected`].
    #[inline]
    pub fn open_fast(&mut self, id: SocketId, now: Instant) -> Result<u16, Error> {
        self.tcp.open_fast(&mut self.base, id, now)
    }

    /// The largest packet that is known to reach the peer of a connection: as large as the first
    /// link takes, or what a router said (`IP_MTU`).
    ///
    /// # Errors
    /// [`crate::Error::NoSocket`], [`crate::Error::NotConnected`].
    #[inline]
    pub fn path_mtu(&self, id: SocketId, now: Instant) -> Result<u16, crate::Error> {
        self.tcp.path_mtu(&self.base, id, now)
    }

    /// Makes a socket that holds a local address and port. An unspecified address means all of its
    /// family, `::` all of both unless `IPV6_V6ONLY` is set; port 0 picks a free one, unless
    /// `IP_BIND_ADDRESS_NO_PORT` leaves that to connect.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::AddressNotAvailable`] for an address that is not of this
    /// shard, [`Error::TooManySockets`].
    #[inline]
    pub fn bind(
        &mut self,
        owner: Owner,
        local: SocketAddr,
        reuse: Reuse,
    ) -> Result<SocketId, Error> {
        self.tcp.bind(&mut self.base, owner, local, reuse)
    }

    /// As [`Shard::bind`], with options that were set before.
    ///
    /// # Errors
    /// As [`Shard::bind`].
    #[inline]
    pub fn bind_with(
        &mut self,
        owner: Owner,
        local: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        self.tcp.bind_with(&mut self.base, owner, local, options)
    }

    /// [`Shard::bind`] and [`Shard::listen_bound`] in one.
    ///
    /// # Errors
    /// Those of both.
    #[inline]
    pub fn listen(
        &mut self,
        owner: Owner,
        local: SocketAddr,
        backlog: u32,
        reuse: Reuse,
    ) -> Result<SocketId, Error> {
        self.tcp
            .listen(&mut self.base, owner, local, backlog, reuse)
    }

    /// Lets a bound socket listen; a listening one gets a new backlog. At most `backlog` + 1
    /// connections wait: until [`Shard::accept`] returns them, or, with a `queue`, until the
    /// program has taken them from that. A socket that listens keeps the queue that it has.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the socket is connected or connecting, [`Error::AddressInUse`] when
    /// another has come to listen there.
    #[inline]
    pub fn listen_bound(
        &mut self,
        id: SocketId,
        backlog: u32,
        queue: Option<AcceptQueue>,
    ) -> Result<(), Error> {
        self.tcp.listen_bound(&mut self.base, id, backlog, queue)
    }

    /// The oldest connection that waits to be accepted. Look at its view: it may have data already,
    /// or be over.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when none waits, [`Error::Invalid`] when the socket does not listen.
    #[inline]
    pub fn accept(&mut self, id: SocketId) -> Result<SocketId, Error> {
        self.tcp.accept(&mut self.base, id)
    }

    /// How many connections wait at a listener, here and with its program, and its backlog; `None`
    /// for another socket.
    #[inline]
    pub fn accept_queue(&self, id: SocketId) -> Option<(u64, u32)> {
        self.tcp.accept_queue(&self.base, id)
    }

    /// Queues bytes for sending, as many as there is room for. `push`: nothing is announced to
    /// follow at once (no `MSG_MORE`).
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is no room, the connection is not established yet or
    /// `TCP_NOTSENT_LOWAT` is reached, the pending error if there is one, [`Error::BrokenPipe`]
    /// when the socket is not connected or shut for writing, [`Error::NoMemory`] at the limit of
    /// send memory.
    #[inline]
    pub fn send(&mut self, id: SocketId, bytes: &[u8], push: bool) -> Result<usize, Error> {
        self.tcp.send(&mut self.base, id, bytes, push)
    }

    /// As [`Shard::send`], for bytes that `fill` writes: called at most twice, for consecutive
    /// pieces of the accepted length. `TCP_NOTSENT_LOWAT` is for the caller to keep.
    ///
    /// # Errors
    /// As [`Shard::send`].
    #[inline]
    pub fn send_with(
        &mut self,
        id: SocketId,
        len: usize,
        push: bool,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<usize, Error> {
        self.tcp.send_with(&mut self.base, id, len, push, fill)
    }

    /// As [`Shard::send`], for bytes that `fill` writes where they will be sent from, in the two
    /// pieces that a ring has, up to `len` of them: what it returns is how many it wrote.
    /// `TCP_NOTSENT_LOWAT` is for the caller to keep.
    ///
    /// # Errors
    /// As [`Shard::send`].
    #[inline]
    pub fn send_into(
        &mut self,
        id: SocketId,
        len: usize,
        push: bool,
        fill: impl FnOnce([&mut [u8]; 2]) -> usize,
    ) -> Result<usize, Error> {
        self.tcp.send_into(&mut self.base, id, len, push, fill)
    }

    /// Shows where up to `len` bytes will be sent from, in the two pieces that a ring has, and
    /// sends none. What is written there is sent by [`Shard::send_into`] if nothing comes between
    /// the two; a connection that waits with it keeps a block.
    ///
    /// # Errors
    /// As [`Shard::send`].
    #[inline]
    pub fn reserve(&mut self, id: SocketId, len: usize) -> Result<[&mut [u8]; 2], Error> {
        self.tcp.reserve(&mut self.base, id, len)
    }

    /// How many bytes can be queued for sending now, one at least; the pool of send memory may have
    /// less.
    ///
    /// # Errors
    /// As [`Shard::send`].
    #[inline]
    pub fn room_to_send(&mut self, id: SocketId) -> Result<usize, Error> {
        self.tcp.room_to_send(&mut self.base, id)
    }

    /// The last byte sent is urgent (`MSG_OOB`).
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    #[inline]
    pub fn send_urgent(&mut self, id: SocketId) -> Result<(), Error> {
        self.tcp.send_urgent(&mut self.base, id)
    }

    /// Takes received bytes into `out`; 0 is the end of the stream (or of `out`). For receive
    /// memory that the program does not see itself.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when nothing has come, [`Error::NotConnected`], or the pending error
    /// once all bytes are read.
    #[inline]
    pub fn recv(&mut self, id: SocketId, out: &mut [u8], now: Instant) -> Result<usize, Error> {
        self.tcp.recv(&mut self.base, id, out, now)
    }

    /// As [`Shard::recv`], but `take` sees the bytes where they are, in the two pieces that a ring
    /// has, and says how many of them were read. None at all are the end of the stream.
    ///
    /// # Errors
    /// As [`Shard::recv`].
    #[inline]
    pub fn recv_with(
        &mut self,
        id: SocketId,
        take: impl FnOnce([&[u8]; 2]) -> usize,
        now: Instant,
    ) -> Result<usize, Error>
    where
        M: Lend,
    {
        self.tcp.recv_with(&mut self.base, id, take, now)
    }

    /// As [`Shard::recv`], but the bytes stay.
    ///
    /// # Errors
    /// As [`Shard::recv`].
    #[inline]
    pub fn peek(&mut self, id: SocketId, out: &mut [u8]) -> Result<usize, Error> {
        self.tcp.peek(&mut self.base, id, out)
    }

    /// The program has read the stream up to offset `upto`; less than before is no news.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `upto` is beyond what was received, [`Error::NotConnected`].
    #[inline]
    pub fn consumed(&mut self, id: SocketId, upto: u64, now: Instant) -> Result<(), Error> {
        self.tcp.consumed(&mut self.base, id, upto, now)
    }
}
