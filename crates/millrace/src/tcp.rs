//! Connections and those who accept them.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};
use std::time::Duration;

use std::cell::Cell;

use millrace_shard::{Error, How, Opt, OptName, Options, Owner, Reuse, SocketId, ViewFlags};
use millrace_tcp::{Algorithm, Info};

use crate::core::{Core, Side};
use crate::stack::{Stack, system};

/// Everything in a stack of its own has one owner.
pub(crate) const OWNER: Owner = Owner(0);
/// Connections that wait to be accepted, unless said otherwise.
const BACKLOG: u32 = 1024;

/// A socket of a stack. It is closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) stack: Stack,
    pub(crate) id: SocketId,
    nonblocking: Cell<bool>,
    /// How long a call that reads, and one that writes, waits.
    patience: [Cell<Option<Duration>>; 2],
}

impl Socket {
    pub(crate) fn new(stack: &Stack, id: SocketId) -> Socket {
        Socket {
            stack: stack.clone(),
            id,
            nonblocking: Cell::new(false),
            patience: [Cell::new(None), Cell::new(None)],
        }
    }

    /// Does `attempt` as a call of this socket is to: at once, or waiting.
    pub(crate) fn call<T>(
        &self,
        side: Side,
        attempt: impl FnMut(&mut Core, SocketId) -> Result<T, Error>,
    ) -> io::Result<T> {
        let mut attempt = attempt;
        self.stack.blocking(
            self.nonblocking.get(),
            self.patience[side as usize].get(),
            |core| attempt(core, self.id),
        )
    }

    /// Does `attempt` in a task.
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        side: Side,
        attempt: impl FnOnce(&mut Core, SocketId) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        self.stack
            .attempt(cx, self.id, side, |core| attempt(core, self.id))
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.set(on);
    }

    pub(crate) fn set_patience(&self, side: Side, span: Option<Duration>) -> io::Result<()> {
        if span == Some(Duration::ZERO) {
            return Err(io::Error::from_raw_os_error(millrace_shard::errno::EINVAL));
        }
        self.patience[side as usize].set(span);
        Ok(())
    }

    pub(crate) fn patience(&self, side: Side) -> Option<Duration> {
        self.patience[side as usize].get()
    }

    pub(crate) fn set_option(&self, option: Opt) -> io::Result<()> {
        self.stack
            .with(|core| core.shard.set_option(self.id, option, core.now))
            .map_err(system)
    }

    pub(crate) fn option(&self, name: OptName) -> io::Result<Opt> {
        self.stack
            .with(|core| core.shard.option(self.id, name))
            .map_err(system)
    }

    pub(crate) fn take_error(&self) -> Option<io::Error> {
        match self.stack.with(|core| core.shard.take_error(self.id)) {
            0 => None,
            number => Some(io::Error::from_raw_os_error(number)),
        }
    }

    /// The own address and the peer's.
    pub(crate) fn ends(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        self.stack.with(|core| {
            let view = core.shard.view(self.id).ok_or(Error::NoSocket);
            view.map(|view| (view.local, view.remote)).map_err(system)
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.stack.close(self.id);
    }
}

/// Tries each of the addresses that a name has; returns what the last one says if none will do.
pub(crate) fn each<T>(
    addresses: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut outcome = Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "the name has no address",
    ));
    for address in addresses.to_socket_addrs()? {
        outcome = attempt(address);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// What a socket starts with, before it is connected or bound.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct TcpOptions {
    pub(crate) options: Options,
    pub(crate) backlog: Option<u32>,
}

impl TcpOptions {
    /// Linux's defaults.
    pub fn new() -> TcpOptions {
        TcpOptions::default()
    }

    /// All that can be set, in full.
    pub fn options(mut self, options: Options) -> TcpOptions {
        self.options = options;
        self
    }

    /// Of a listener, how many connections wait to be accepted, 0 to 4096; one more does, as on Linux.
    pub fn backlog(mut self, connections: u32) -> TcpOptions {
        self.backlog = Some(connections);
        self
    }

    /// `SO_REUSEPORT`: several listeners share the address, and connections are spread over them.
    pub fn reuse_port(mut self, on: bool) -> TcpOptions {
        self.options.reuse.port = on;
        self
    }

    /// `TCP_CONGESTION`.
    pub fn congestion(mut self, algorithm: millrace_tcp::Algorithm) -> TcpOptions {
        self.options.tcp.congestion = algorithm;
        self
    }

    /// `TCP_NODELAY`.
    pub fn nodelay(mut self, on: bool) -> TcpOptions {
        self.options.tcp.nodelay = on;
        self
    }
}

/// Waits for connections, as [`std::net::TcpListener`] does.
///
/// ```
/// use std::io::{Read, Write};
///
/// let stack = millrace::Builder::new().build()?;
/// let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// let mut client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// let (mut server, from) = listener.accept()?;
/// assert_eq!(from, client.local_addr()?);
/// client.write_all(b"hello")?;
/// let mut buffer = [0; 5];
/// server.read_exact(&mut buffer)?;
/// assert_eq!(&buffer, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TcpListener {
    socket: Socket,
}

impl TcpListener {
    /// Listens at an address of the stack's. Port 0 takes a free one. `SO_REUSEADDR` is on, as [`std::net::TcpListener`] has it.
    ///
    /// # Errors
    /// Those of `bind` and `listen`, as Linux has them: `EADDRINUSE`, `EADDRNOTAVAIL`, ...
    pub fn bind(stack: &Stack, address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let options = Options {
            reuse: Reuse {
                address: true,
                port: false,
            },
            ..Options::default()
        };
        TcpListener::bind_with(stack, address, TcpOptions::new().options(options))
    }

    /// As [`TcpListener::bind`], with options, which connections inherit.
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    pub fn bind_with(
        stack: &Stack,
        address: impl ToSocketAddrs,
        options: TcpOptions,
    ) -> io::Result<TcpListener> {
        each(address, |address| {
            stack.with(|core| {
                let id = core
                    .shard
                    .bind_with(OWNER, address, &options.options)
                    .map_err(system)?;
                let backlog = options.backlog.unwrap_or(BACKLOG);
                let listening = core.shard.listen_bound(id, backlog, None);
                if listening.is_err() {
                    core.close(id);
                }
                listening.map_err(system)?;
                Ok(TcpListener {
                    socket: Socket::new(stack, id),
                })
            })
        })
    }

    /// The next connection, and who is at its other end.
    ///
    /// # Errors
    /// `EAGAIN` when it does not wait, `EINVAL` when it was shut.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let id = self
            .socket
            .call(Side::Read, |core, id| core.shard.accept(id))?;
        self.accepted(id)
    }

    /// [`TcpListener::accept`] in a task.
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// What [`TcpListener::accept_async`] is made of.
    pub fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let polled = self
            .socket
            .poll(cx, Side::Read, |core, id| core.shard.accept(id));
        polled.map(|accepted| self.accepted(accepted?))
    }

    fn accepted(&self, id: SocketId) -> io::Result<(TcpStream, SocketAddr)> {
        let stream = TcpStream {
            socket: Socket::new(&self.socket.stack, id),
        };
        let peer = stream.peer_addr()?;
        Ok((stream, peer))
    }

    /// Connections as they come, for ever.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// Its address.
    ///
    /// # Errors
    /// None while it is open.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.ends().map(|(local, _)| local)
    }

    /// Whether [`TcpListener::accept`] returns `EAGAIN` instead of waiting.
    pub fn set_nonblocking(&self, on: bool) {
        self.socket.set_nonblocking(on);
    }

    /// Sets an option: any of those that Linux has and [`Opt`] names.
    ///
    /// # Errors
    /// `EINVAL` for a value out of range.
    pub fn set_option(&self, option: Opt) -> io::Result<()> {
        self.socket.set_option(option)
    }

    /// Reads an option.
    ///
    /// # Errors
    /// None while it is open.
    pub fn option(&self, name: OptName) -> io::Result<Opt> {
        self.socket.option(name)
    }

    /// The pending error (`SO_ERROR`), which is pending no longer.
    pub fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error()
    }
}

/// A connection, as [`std::net::TcpStream`].
///
/// It has three ways to be used. [`Read`] and [`Write`] wait, running the stack meanwhile, unless [`TcpStream::set_nonblocking`] says otherwise. What ends in
/// `_async` is for tasks. [`TcpStream::read_with`] and [`TcpStream::write_with`] show the bytes where they are, uncopied.
///
/// Dropped, it is closed: what was written is still sent, unless received bytes were left unread, which resets the connection (RFC 2525 2.17).
#[derive(Debug)]
pub struct TcpStream {
    socket: Socket,
}

impl TcpStream {
    /// Connects, and waits until it is.
    ///
    /// # Errors
    /// Those of `connect`, as Linux has them: `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`, ...
    pub fn connect(stack: &Stack, address: impl ToSocketAddrs) -> io::Result<TcpStream> {
        each(address, |address| {
            let stream = TcpStream::begin(stack, address, TcpOptions::new())?;
            stream.socket.call(Side::Write, connected)?;
            Ok(stream)
        })
    }

    /// [`TcpStream::connect`] in a task.
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    pub async fn connect_async(stack: &Stack, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::begin(stack, address, TcpOptions::new())?;
        stream.connected_async().await?;
        Ok(stream)
    }

    /// Begins to connect: [`TcpStream::connected_async`] or the first read or write says how it went.
    ///
    /// # Errors
    /// What can be told at once: `ENETUNREACH`, `EADDRNOTAVAIL`, `ENFILE`.
    pub fn begin(stack: &Stack, address: SocketAddr, options: TcpOptions) -> io::Result<TcpStream> {
        TcpStream::begin_from(stack, None, address, options)
    }

    /// As [`TcpStream::begin`], from a local address; its address may be unspecified and its port 0.
    ///
    /// # Errors
    /// Those of [`TcpStream::begin`] and of `bind`.
    pub fn begin_from(
        stack: &Stack,
        local: Option<SocketAddr>,
        address: SocketAddr,
        options: TcpOptions,
    ) -> io::Result<TcpStream> {
        stack.with(|core| {
            core.read_clock();
            let id = core
                .shard
                .connect(OWNER, local, address, &options.options, core.now)
                .map_err(system)?;
            Ok(TcpStream {
                socket: Socket::new(stack, id),
            })
        })
    }

    /// Waits until the connection that was begun is made.
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    pub async fn connected_async(&self) -> io::Result<()> {
        poll_fn(|cx| self.socket.poll(cx, Side::Write, connected)).await
    }

    /// The peer's address.
    ///
    /// # Errors
    /// None while it is open.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.ends().map(|(_, remote)| remote)
    }

    /// Its own address. Of an accepted connection, the one that the peer asked for.
    ///
    /// # Errors
    /// None while it is open.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.ends().map(|(local, _)| local)
    }

    /// Reads what has come, up to a buffer full; 0 is the end of the stream. Never waits.
    ///
    /// # Errors
    /// `EAGAIN` when nothing has come; what the connection died of, once.
    pub fn try_read(&self, out: &mut [u8]) -> io::Result<usize> {
        self.socket
            .stack
            .with(|core| core.shard.recv(self.socket.id, out, core.now))
            .map_err(system)
    }

    /// Queues bytes to send, as many as there is room for. Never waits. They leave when the stack runs.
    ///
    /// # Errors
    /// `EAGAIN` when there is no room or no connection yet; `EPIPE`; what the connection died of, once.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.socket
            .stack
            .with(|core| core.shard.send(self.socket.id, bytes, true))
            .map_err(system)
    }

    /// Reads in a task: up to a buffer full, 0 is the end of the stream.
    ///
    /// # Errors
    /// What the connection died of.
    pub async fn read_async(&self, out: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, out)).await
    }

    /// Fills the whole buffer in a task.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`], or what the connection died of.
    pub async fn read_exact_async(&self, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.read_async(&mut out[done..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => done += len,
            }
        }
        Ok(())
    }

    /// Writes in a task: as many of the bytes as there is room for, one at least.
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub async fn write_async(&self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write(cx, bytes)).await
    }

    /// Writes all bytes in a task.
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub async fn write_all_async(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let done = self.write_async(bytes).await?;
            bytes = &bytes[done..];
        }
        Ok(())
    }

    /// What [`TcpStream::read_async`] is made of.
    pub fn poll_read(&self, cx: &Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        self.socket.poll(cx, Side::Read, |core, id| {
            core.shard.recv(id, out, core.now)
        })
    }

    /// What [`TcpStream::write_async`] is made of.
    pub fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.socket
            .poll(cx, Side::Write, |core, id| core.shard.send(id, bytes, true))
    }

    /// Shows what has come to `take`, where it is, in the two pieces that a ring has; what `take` returns is how many bytes of it were read. No bytes mean the
    /// end of the stream. `take` must leave the stack and its sockets alone. Never waits.
    ///
    /// # Errors
    /// As [`TcpStream::try_read`].
    pub fn read_with(&self, take: impl FnOnce([&[u8]; 2]) -> usize) -> io::Result<usize> {
        self.socket
            .stack
            .with(|core| core.shard.recv_with(self.socket.id, take, core.now))
            .map_err(system)
    }

    /// Waits until [`TcpStream::read_with`] has something to show, in a task.
    ///
    /// # Errors
    /// What the connection died of.
    pub async fn readable_async(&self) -> io::Result<()> {
        poll_fn(|cx| {
            self.socket.poll(cx, Side::Read, |core, id| {
                core.shard.recv_with(id, |_| 0, core.now).map(drop)
            })
        })
        .await
    }

    /// Has `fill` write up to `len` bytes where they will be sent from, in the two pieces that a ring has; what `fill` returns is how many it wrote. `fill` must leave
    /// the stack and its sockets alone. Never waits.
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

    /// Waits until there is room to write, in a task.
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub async fn writable_async(&self) -> io::Result<()> {
        poll_fn(|cx| {
            self.socket.poll(cx, Side::Write, |core, id| {
                core.shard.send_into(id, 1, true, |_| 0).map(drop)
            })
        })
        .await
    }

    /// Reads without taking, up to a buffer full.
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn peek(&self, out: &mut [u8]) -> io::Result<usize> {
        self.socket
            .call(Side::Read, |core, id| core.shard.peek(id, out))
    }

    /// Shuts a direction: for writing, the peer reads the end of the stream after what was written.
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
    pub fn abort(self) {
        self.socket.stack.with(|core| {
            // Closed by the drop that follows if it cannot be.
            let _ = core.shard.abort(self.socket.id, core.now);
        });
    }

    /// Whether reads and writes return `EAGAIN` instead of waiting.
    pub fn set_nonblocking(&self, on: bool) {
        self.socket.set_nonblocking(on);
    }

    /// How long a read waits; none is for ever. Then it returns `EAGAIN`.
    ///
    /// # Errors
    /// `EINVAL` for no time at all.
    pub fn set_read_timeout(&self, span: Option<Duration>) -> io::Result<()> {
        self.socket.set_patience(Side::Read, span)
    }

    /// How long a write waits, likewise.
    ///
    /// # Errors
    /// `EINVAL` for no time at all.
    pub fn set_write_timeout(&self, span: Option<Duration>) -> io::Result<()> {
        self.socket.set_patience(Side::Write, span)
    }

    /// How long a read waits.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.socket.patience(Side::Read)
    }

    /// How long a write waits.
    pub fn write_timeout(&self) -> Option<Duration> {
        self.socket.patience(Side::Write)
    }

    /// Sets an option: any of those that Linux has and [`Opt`] names.
    ///
    /// # Errors
    /// `EINVAL` for a value out of range.
    pub fn set_option(&self, option: Opt) -> io::Result<()> {
        self.socket.set_option(option)
    }

    /// Reads an option.
    ///
    /// # Errors
    /// None while it is open.
    pub fn option(&self, name: OptName) -> io::Result<Opt> {
        self.socket.option(name)
    }

    /// The pending error (`SO_ERROR`), which is pending no longer.
    pub fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error()
    }

    /// `TCP_NODELAY`: short segments leave at once instead of one a round trip.
    ///
    /// # Errors
    /// None while it is open.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.set_option(Opt::NoDelay(on))
    }

    /// `TCP_NODELAY`.
    ///
    /// # Errors
    /// None while it is open.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.option(OptName::NoDelay)? == Opt::NoDelay(true))
    }

    /// `TCP_CONGESTION`.
    ///
    /// # Errors
    /// None while it is open.
    pub fn set_congestion(&self, algorithm: Algorithm) -> io::Result<()> {
        self.set_option(Opt::Congestion(algorithm))
    }

    /// Everything that the connection knows of itself (`TCP_INFO`); none once it is over.
    pub fn info(&self) -> Option<Info> {
        self.socket
            .stack
            .with(|core| core.shard.tcp_info(self.socket.id, core.now))
    }

    /// Bytes written that the peer has not acknowledged (`SIOCOUTQ`).
    pub fn unacknowledged(&self) -> u64 {
        self.socket
            .stack
            .with(|core| core.shard.view(self.socket.id))
            .map_or(0, |view| view.queued - view.acked)
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

#[cfg(feature = "futures")]
impl futures_io::AsyncRead for TcpStream {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        TcpStream::poll_read(&self, cx, out)
    }
}

#[cfg(feature = "futures")]
impl futures_io::AsyncWrite for TcpStream {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        TcpStream::poll_write(&self, cx, bytes)
    }

    fn poll_flush(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown(Shutdown::Write))
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncRead for TcpStream {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = TcpStream::poll_read(&self, cx, out.initialize_unfilled());
        polled.map_ok(|len| out.advance(len))
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncWrite for TcpStream {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        TcpStream::poll_write(&self, cx, bytes)
    }

    fn poll_flush(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown(Shutdown::Write))
    }
}
