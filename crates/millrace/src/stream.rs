//! Connections.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};
use std::time::Duration;

use millrace_shard::{Error, How, Opt, OptName, SocketId, ViewFlags};
use millrace_tcp::{Algorithm, Info};

use crate::core::{Core, Side};
use crate::listener::TcpOptions;
use crate::socket::{OWNER, Socket, each};
use crate::stack::{Stack, system};

/// A connection, as [`std::net::TcpStream`].
///
/// It has three ways to be used. [`Read`] and [`Write`] wait, running the stack meanwhile, unless [`TcpStream::set_nonblocking`] says otherwise. What ends in
/// `_async` is for tasks. [`TcpStream::read_with`] and [`TcpStream::write_with`] show the bytes where they are, uncopied.
///
/// Dropped, it is closed: what was written is still sent, unless received bytes were left unread, which resets the connection (RFC 2525 2.17).
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
/// // Where they were received, in two pieces since a ring wraps; they have been read as far as is said.
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

    /// As [`TcpStream::begin`], from a local address; its address may be unspecified and its port 0, which takes a free one whose answers come to this shard.
    ///
    /// # Errors
    /// Those of [`TcpStream::begin`] and of `bind`. `EADDRNOTAVAIL` for a port from which the peer's answers would come to another shard of the engine, of N shards that is
    /// so for N - 1 in N: take another port, or another shard. Nothing is sent then.
    pub fn begin_from(
        stack: &Stack,
        local: Option<SocketAddr>,
        address: SocketAddr,
        options: TcpOptions,
    ) -> io::Result<TcpStream> {
        stack.with(|core| {
            core.read_clock();
            let mut options = *options.of(core)?;
            // Which port is a good one depends on the peer.
            options.address_only = true;
            let (shard, now) = (&mut core.shard, core.now);
            let id = match local.filter(|local| local.port() != 0) {
                None => shard.connect(OWNER, local, address, &options, now),
                Some(local) => shard.bind_with(OWNER, local, &options).and_then(|id| {
                    let begun = match shard.leads_elsewhere(id, address) {
                        true => Err(Error::AddressNotAvailable),
                        false => shard.connect_bound(id, address, now),
                    };
                    if begun.is_err() {
                        // It is there: it has just been bound.
                        let _ = shard.close(id, now);
                    }
                    begun.map(|()| id)
                }),
            };
            let id = id.map_err(system)?;
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
                core.shard.room_to_send(id).map(drop)
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
    /// `EINVAL` for one that was added to another stack ([`crate::Builder::add_congestion`]).
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
