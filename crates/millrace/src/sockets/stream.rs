//! Connections, by their numbers.

use std::net::SocketAddr;

use millrace_shard::{Error, Options, SocketId};

use super::Sockets;
use crate::socket::OWNER;

impl Sockets<'_> {
    /// Makes a socket for a connection that is bound to an address. Port 0 takes a free one.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let local = "127.0.0.1:80".parse()?;
    /// let id = stack.with_sockets(|sockets| sockets.bind(local, &Default::default()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::AddressNotAvailable`], and those of [`Sockets::stream`].
    #[inline]
    pub fn bind(&mut self, local: SocketAddr, options: &Options) -> Result<SocketId, Error> {
        self.core.shard.bind_with(OWNER, local, options)
    }

    /// Has a bound socket listen, with so many connections that wait to be accepted; again, a new
    /// number.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let local = "127.0.0.1:80".parse()?;
    /// # let id = stack.with_sockets(|sockets| sockets.bind(local, &Default::default()))?;
    /// stack.with_sockets(|sockets| sockets.listen(id, 16))?;
    /// assert!(millrace::TcpStream::connect(&stack, local).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that is not bound, or connected; [`Error::AddressInUse`].
    #[inline]
    pub fn listen(&mut self, id: SocketId, backlog: u32) -> Result<(), Error> {
        self.core.shard.listen_bound(id, backlog, None)
    }

    /// The next connection of a listener.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let local = "127.0.0.1:80".parse()?;
    /// # let id = stack.with_sockets(|sockets| sockets.bind(local, &Default::default()))?;
    /// # stack.with_sockets(|sockets| sockets.listen(id, 16))?;
    /// let client = millrace::TcpStream::connect(&stack, local)?;
    /// let accepted = stack.with_sockets(|sockets| sockets.accept(id))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`]; [`Error::Invalid`] for one that does not listen.
    #[inline]
    pub fn accept(&mut self, id: SocketId) -> Result<SocketId, Error> {
        self.core.shard.accept(id)
    }

    /// Begins to connect a socket, bound or not: how that goes shows in its [`crate::View`]. From a
    /// bound port whose answers come to another shard of the engine, as
    /// [`Sockets::leads_elsewhere`] says, it is [`crate::Stack::connect_bound`] that does.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// let address = "127.0.0.1:80".parse()?;
    /// stack.with_sockets(|sockets| sockets.connect(id, address))?;
    /// let (server, _) = listener.accept()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `connect` that can be told at once.
    #[inline]
    pub fn connect(&mut self, id: SocketId, remote: SocketAddr) -> Result<(), Error> {
        self.core.shard.connect_bound(id, remote, self.core.now)
    }

    /// Whether answers to a bound socket's connection would come to another shard of the engine,
    /// which knows nothing of it.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let (local, remote) = ("127.0.0.1:1234".parse()?, "127.0.0.1:80".parse()?);
    /// let id = stack.with_sockets(|sockets| sockets.bind(local, &Default::default()))?;
    /// // There is only one.
    /// assert!(!stack.with_sockets(|sockets| sockets.leads_elsewhere(id, remote)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn leads_elsewhere(&self, id: SocketId, remote: SocketAddr) -> bool {
        self.core.shard.leads_elsewhere(id, remote)
    }

    /// Queues bytes, as many as there is room for. `push`: nothing is announced to follow at once
    /// (no `MSG_MORE`).
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(stack.with_sockets(|sockets| sockets.send(id, b"hello", true)), Ok(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is no room, the connection is not made yet or
    /// `TCP_NOTSENT_LOWAT` is reached, the pending error if there is one, [`Error::BrokenPipe`]
    /// when it is not connected or shut for writing, [`Error::NoMemory`] at the limit of send
    /// memory.
    #[inline]
    pub fn send(&mut self, id: SocketId, bytes: &[u8], push: bool) -> Result<usize, Error> {
        self.core.shard.send(id, bytes, push)
    }

    /// As [`Sockets::send`], for `len` bytes that `fill` writes: called at most twice, for
    /// consecutive pieces of what there is room for. `TCP_NOTSENT_LOWAT` is for the caller to keep.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// let sent = stack.with_sockets(|sockets| sockets.send_with(id, 5, true,
    ///     |piece| piece.fill(b'x')));
    /// assert_eq!(sent, Ok(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Sockets::send`].
    #[inline]
    pub fn send_with(
        &mut self,
        id: SocketId,
        len: usize,
        push: bool,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<usize, Error> {
        self.core.shard.send_with(id, len, push, fill)
    }

    /// Shows where up to `len` bytes will be sent from, in the two pieces that a ring has, and
    /// sends none: [`Sockets::commit`] does, if nothing comes between the two.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// stack.with_sockets(|sockets| {
    ///     sockets.reserve(id, 5)?[0].copy_from_slice(b"hello");
    ///     sockets.commit(id, 5)
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Sockets::send`].
    #[inline]
    pub fn reserve(&mut self, id: SocketId, len: usize) -> Result<[&mut [u8]; 2], Error> {
        self.core.shard.reserve(id, len)
    }

    /// Sends the first `len` bytes of what [`Sockets::reserve`] has shown, as many as it had room
    /// for.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// stack.with_sockets(|sockets| {
    ///     sockets.reserve(id, 2048)?[0][..2].copy_from_slice(b"hi");
    ///     assert_eq!(sockets.commit(id, 2), Ok(2));
    ///     Ok::<_, millrace::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Sockets::send`].
    #[inline]
    pub fn commit(&mut self, id: SocketId, len: usize) -> Result<usize, Error> {
        // They are where it would have them written.
        self.core.shard.send_into(id, len, true, |_| len)
    }

    /// Takes received bytes into `out`; 0 is the end of the stream, or of `out`.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// # server.try_write(b"hello")?;
    /// # while stack.poll() > 0 {}
    /// assert_eq!(stack.with_sockets(|sockets| sockets.recv(id, &mut [0; 8])), Ok(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::NotConnected`], or the pending error once all bytes are
    /// read.
    #[inline]
    pub fn recv(&mut self, id: SocketId, out: &mut [u8]) -> Result<usize, Error> {
        self.core.shard.recv(id, out, self.core.now)
    }

    /// As [`Sockets::recv`], but the bytes stay.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// # server.try_write(b"hello")?;
    /// # while stack.poll() > 0 {}
    /// stack.with_sockets(|sockets| {
    ///     assert_eq!(sockets.peek(id, &mut [0; 8]), Ok(5));
    ///     assert_eq!(sockets.recv(id, &mut [0; 8]), Ok(5));
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Sockets::recv`].
    #[inline]
    pub fn peek(&mut self, id: SocketId, out: &mut [u8]) -> Result<usize, Error> {
        self.core.shard.peek(id, out)
    }

    /// As [`Sockets::recv`], but `take` sees the bytes where they are, in the two pieces that a
    /// ring has, and says how many of them were read. None at all are the end of the stream.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// # server.try_write(b"hello")?;
    /// # while stack.poll() > 0 {}
    /// let read = stack.with_sockets(|sockets| {
    ///     sockets.recv_with(id, |[one, two]| one.len() + two.len())
    /// });
    /// assert_eq!(read, Ok(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Sockets::recv`].
    #[inline]
    pub fn recv_with(
        &mut self,
        id: SocketId,
        take: impl FnOnce([&[u8]; 2]) -> usize,
    ) -> Result<usize, Error> {
        self.core.shard.recv_with(id, take, self.core.now)
    }

    /// The program has read the stream up to this offset, which [`crate::View::consumed`] is then;
    /// less than before is no news.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// # server.try_write(b"hello")?;
    /// # while stack.poll() > 0 {}
    /// stack.with_sockets(|sockets| {
    ///     // Looked at first, and read when they have been understood.
    ///     let _ = sockets.recv_with(id, |_| 0)?;
    ///     let upto = sockets.view(id).map_or(0, |view| view.received);
    ///     sockets.consumed(id, upto)
    /// })?;
    /// assert!(stack.with_sockets(|sockets| sockets.consumed(id, 6)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond what was received, [`Error::NotConnected`].
    #[inline]
    pub fn consumed(&mut self, id: SocketId, upto: u64) -> Result<(), Error> {
        self.core.shard.consumed(id, upto, self.core.now)
    }
}
