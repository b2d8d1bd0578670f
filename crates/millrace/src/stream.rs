//! Connections.

mod settings;
mod tasks;

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use millrace_shard::{Error, How, SocketId, ViewFlags};

use crate::core::{Core, Side};
use crate::opening::{open, open_bound};
use crate::socket::{OWNER, Socket, each};
use crate::stack::{Stack, system};
use crate::tcp_options::TcpOptions;

/// A connection, as [`std::net::TcpStream`].
///
/// It has three ways to be used. [`Read`] and [`Write`] wait, running the stack meanwhile, unless
/// [`TcpStream::set_nonblocking`] says otherwise. What ends in `_async` is for tasks.
/// [`TcpStream::read_with`] and [`TcpStream::write_with`] show the bytes where they are, uncopied.
///
/// Dropped, it is closed: what was written is still sent, unless received bytes were left unread,
/// which resets the connection (RFC 2525 2.17).
///
/// ```
/// use std::io::{Read, Write};
///
/// let stack = millrace::Builder::new().build()?;
/// let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// let mut client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// let (server, _) = listener.accept()?;
/// client.write_all(b"hello")?;
/// stack.block_on(server.readable_async())?;
/// // Where they were received, in two pieces since a ring wraps.
/// let len = server.read_with(|[one, two]| {
///     assert_eq!([one, two].concat(), b"hello");
///     one.len() + two.len()
/// })?;
/// assert_eq!(len, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TcpStream {
    pub(crate) socket: Socket,
}

impl TcpStream {
    /// Connects, and waits until it is.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let stream = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// let refused = millrace::TcpStream::connect(&stack, "127.0.0.1:81")
    ///     .expect_err("nobody listens");
    /// assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `connect`, as Linux has them: `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`, ...
    pub fn connect(stack: &Stack, address: impl ToSocketAddrs) -> io::Result<TcpStream> {
        each(address, |address| {
            let stream = TcpStream::connect_nonblocking(stack, address, TcpOptions::new())?;
            stream.socket.call(Side::Write, connected)?;
            Ok(stream)
        })
    }

    /// As [`TcpStream::connect`], for so long at most.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let address = "127.0.0.1:80".parse()?;
    /// let stream = millrace::TcpStream::connect_timeout(&stack, &address,
    ///     std::time::Duration::from_secs(5))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`TcpStream::connect`]; [`io::ErrorKind::TimedOut`],
    /// [`io::ErrorKind::InvalidInput`] for no time at all.
    pub fn connect_timeout(
        stack: &Stack,
        address: &SocketAddr,
        span: Duration,
    ) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_nonblocking(stack, *address, TcpOptions::new())?;
        stream.socket.set_patience(Side::Write, Some(span))?;
        let connected = stream.socket.call(Side::Write, connected);
        connected.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })?;
        stream.socket.set_patience(Side::Write, None)?;
        Ok(stream)
    }

    /// [`TcpStream::connect`] in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let stream = stack.block_on(millrace::TcpStream::connect_async(&stack,
    ///     "127.0.0.1:80".parse()?))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    pub async fn connect_async(stack: &Stack, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_nonblocking(stack, address, TcpOptions::new())?;
        stream.connected_async().await?;
        Ok(stream)
    }

    /// Begins to connect: [`TcpStream::connected_async`] or the first read or write says how it
    /// went.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let options = millrace::TcpOptions::new().nodelay(true);
    /// let stream = millrace::TcpStream::connect_nonblocking(&stack, "127.0.0.1:80".parse()?,
    ///     options)?;
    /// stack.block_on(stream.connected_async())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What can be told at once: `ENETUNREACH`, `EADDRNOTAVAIL`, `ENFILE`.
    pub fn connect_nonblocking(
        stack: &Stack,
        address: SocketAddr,
        options: TcpOptions,
    ) -> io::Result<TcpStream> {
        TcpStream::connect_nonblocking_from(stack, None, address, options)
    }

    /// As [`TcpStream::connect_nonblocking`], from a local address, which chooses its link; its
    /// address may be unspecified and its port 0, which takes a free one whose answers come to this
    /// shard.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let from = Some("127.0.0.9:1234".parse()?);
    /// let stream = millrace::TcpStream::connect_nonblocking_from(&stack, from,
    ///     "127.0.0.1:80".parse()?, Default::default())?;
    /// assert_eq!(stream.local_addr()?, "127.0.0.9:1234".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`TcpStream::connect_nonblocking`] and of `bind`. `EADDRNOTAVAIL` for a port from
    /// which the peer's answers would come to another shard of the engine, of N shards that is so
    /// for N - 1 in N: [`TcpStream::connect_from`] has that shard hand them over, which this cannot
    /// wait for. Nothing is sent then.
    pub fn connect_nonblocking_from(
        stack: &Stack,
        local: Option<SocketAddr>,
        address: SocketAddr,
        options: TcpOptions,
    ) -> io::Result<TcpStream> {
        let stack = &stack.way(local, address)?;
        if let Some(local) = local.filter(|local| local.port() != 0) {
            let stream = TcpStream::bound(stack, local, &options)?;
            let id = stream.socket.id;
            if stack.with(|core| core.shard.leads_elsewhere(id, address)) {
                return Err(system(Error::AddressNotAvailable));
            }
            stack.with(|core| open(core, id, address)).map_err(system)?;
            return Ok(stream);
        }
        stack.with(|core| {
            core.read_clock();
            let mut options = *options.of(core)?;
            // Which port is a good one depends on the peer.
            options.address_only = true;
            let (shard, now) = (&mut core.shard, core.now);
            let id = shard.connect(OWNER, local, address, &options, now);
            Ok(TcpStream {
                socket: Socket::new(stack, id.map_err(system)?),
            })
        })
    }

    /// Connects from a local address and a port, whichever shard the answers come to: that one
    /// hands them over to this. Waits until it is connected.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let stream = millrace::TcpStream::connect_from(&stack, "127.0.0.9:1234".parse()?,
    ///     "127.0.0.1:80".parse()?, Default::default())?;
    /// assert_eq!(stream.local_addr()?, "127.0.0.9:1234".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`TcpStream::connect`] and of `bind`. `EADDRNOTAVAIL` if the other shard has a
    /// connection with these ends, or is no more; `ENOBUFS` if it hands over as many flows as it
    /// may have sockets.
    pub fn connect_from(
        stack: &Stack,
        local: SocketAddr,
        address: SocketAddr,
        options: TcpOptions,
    ) -> io::Result<TcpStream> {
        stack.block_on(TcpStream::connect_from_async(
            stack, local, address, options,
        ))
    }

    /// [`TcpStream::connect_from`] in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let (from, to) = ("127.0.0.9:1234".parse()?, "127.0.0.1:80".parse()?);
    /// let stream = stack.block_on(millrace::TcpStream::connect_from_async(&stack, from, to,
    ///     Default::default()))?;
    /// assert_eq!(stream.peer_addr()?, to);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::connect_from`].
    pub async fn connect_from_async(
        stack: &Stack,
        local: SocketAddr,
        address: SocketAddr,
        options: TcpOptions,
    ) -> io::Result<TcpStream> {
        let stack = &stack.way(Some(local), address)?;
        let stream = if local.port() == 0 {
            TcpStream::connect_nonblocking_from(stack, Some(local), address, options)?
        } else {
            let stream = TcpStream::bound(stack, local, &options)?;
            let opened = open_bound(stack, stream.socket.id, address).await;
            opened.map_err(system)?;
            stream
        };
        stream.connected_async().await?;
        Ok(stream)
    }

    /// One that has its own end, and no connection yet.
    fn bound(stack: &Stack, local: SocketAddr, options: &TcpOptions) -> io::Result<TcpStream> {
        let id = stack.with(|core| {
            let options = *options.of(core)?;
            core.shard.bind_with(OWNER, local, &options).map_err(system)
        })?;
        Ok(TcpStream {
            socket: Socket::new(stack, id),
        })
    }

    /// Waits until the connection that was begun is made.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let stream = millrace::TcpStream::connect_nonblocking(&stack, "127.0.0.1:80".parse()?,
    ///     Default::default())?;
    /// stack.block_on(stream.connected_async())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    pub async fn connected_async(&self) -> io::Result<()> {
        poll_fn(|cx| self.socket.poll(cx, Side::Write, connected)).await
    }

    /// The peer's address.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(client.peer_addr()?, "127.0.0.1:80".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None while it is open.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.ends().map(|(_, remote)| remote)
    }

    /// Its own address. Of an accepted connection, the one that the peer asked for.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(server.local_addr()?, "127.0.0.1:80".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None while it is open.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.ends().map(|(local, _)| local)
    }

    /// Reads what has come, up to a buffer full; 0 is the end of the stream. Never waits.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// let error = client.try_read(&mut [0; 8]).expect_err("nothing has come");
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EAGAIN` when nothing has come; what the connection died of, once.
    pub fn try_read(&self, out: &mut [u8]) -> io::Result<usize> {
        self.socket
            .stack
            .with(|core| core.shard.recv(self.socket.id, out, core.now))
            .map_err(system)
    }

    /// Queues bytes to send, as many as there is room for. Never waits. They leave when the stack
    /// runs.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(server.try_write(b"hello")?, 5);
    /// stack.poll();
    /// assert_eq!(client.try_read(&mut [0; 8])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EAGAIN` when there is no room or no connection yet; `EPIPE`; what the connection died of,
    /// once.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.socket
            .stack
            .with(|core| core.shard.send(self.socket.id, bytes, true))
            .map_err(system)
    }

    /// Shows what has come to `take`, where it is, in the two pieces that a ring has; what `take`
    /// returns is how many bytes of it were read. No bytes mean the end of the stream. `take` must
    /// leave the stack and its sockets alone. Never waits.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// server.try_write(b"hello")?;
    /// stack.block_on(client.readable_async())?;
    /// // Shown, and left there.
    /// client.read_with(|[one, _]| {
    ///     assert!(b"hello".starts_with(one));
    ///     0
    /// })?;
    /// assert_eq!(client.try_read(&mut [0; 8])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::try_read`].
    pub fn read_with(&self, take: impl FnOnce([&[u8]; 2]) -> usize) -> io::Result<usize> {
        self.socket
            .stack
            .with(|core| core.shard.recv_with(self.socket.id, take, core.now))
            .map_err(system)
    }

    /// Has `fill` write up to `len` bytes where they will be sent from, in the two pieces that a
    /// ring has; what `fill` returns is how many it wrote. `fill` must leave the stack and its
    /// sockets alone. Never waits.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// let len = server.write_with(5, |[one, two]| {
    ///     for (place, byte) in one.iter_mut().chain(two).zip(b"hello") {
    ///         *place = *byte;
    ///     }
    ///     5
    /// })?;
    /// stack.poll();
    /// assert_eq!(client.try_read(&mut [0; 8])?, len);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub fn write_with(
        &self,
        len: usize,
        fill: impl FnOnce([&mut [u8]; 2]) -> usize,
    ) -> io::Result<usize> {
        self.socket
            .stack
            .with(|core| core.shard.send_into(self.socket.id, len, true, fill))
            .map_err(system)
    }

    /// Reads without taking, up to a buffer full.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// server.try_write(b"hello")?;
    /// assert_eq!(client.peek(&mut [0; 8])?, 5);
    /// assert_eq!(client.try_read(&mut [0; 8])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn peek(&self, out: &mut [u8]) -> io::Result<usize> {
        self.socket
            .call(Side::Read, |core, id| core.shard.peek(id, out))
    }

    /// Shuts a direction: for writing, the peer reads the end of the stream after what was written.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// server.shutdown(std::net::Shutdown::Write)?;
    /// // The end of the stream.
    /// assert_eq!(stack.block_on(client.read_async(&mut [0; 8]))?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => How::Read,
            Shutdown::Write => How::Write,
            Shutdown::Both => How::Both,
        };
        self.socket
            .stack
            .with(|core| core.shard.shutdown(self.socket.id, how, core.now))
            .map_err(system)
    }

    /// Resets the connection.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// server.abort();
    /// let error = stack.block_on(client.read_async(&mut [0; 8])).expect_err("it was reset");
    /// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn abort(self) {
        self.socket.stack.with(|core| {
            // Closed by the drop that follows if it cannot be.
            let _ = core.shard.abort(self.socket.id, core.now);
        });
    }
}

/// Whether a connection that was begun is made.
fn connected(core: &mut Core, id: SocketId) -> Result<(), Error> {
    let view = core.shard.view(id).ok_or(Error::NoSocket)?;
    if view.error != 0 {
        return Err(Error::Connection(core.shard.take_error(id)));
    }
    if view.flags.contains(ViewFlags::CONNECTED) {
        return Ok(());
    }
    if view.flags.contains(ViewFlags::CONNECTING) {
        return Err(Error::WouldBlock);
    }
    Err(Error::NotConnected)
}

impl Read for &TcpStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.socket
            .call(Side::Read, |core, id| core.shard.recv(id, out, core.now))
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket
            .call(Side::Write, |core, id| core.shard.send(id, bytes, true))
    }

    /// Nothing is held back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (&*self).read(out)
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
