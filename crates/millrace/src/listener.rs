//! Those who accept connections.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};

use millrace_shard::{Options, Request, Reuse, SocketId};

use crate::core::{Core, Side};
use crate::group::Group;
use crate::socket::{OWNER, Socket, each};
use crate::stack::{Stack, system};
use crate::stream::TcpStream;
use crate::tcp_options::TcpOptions;

/// Connections that wait to be accepted, unless said otherwise.
const BACKLOG: u32 = 1024;

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
    pub(crate) sockets: Group,
}

impl TcpListener {
    /// Listens at an address of the stack's. Port 0 takes a free one. `SO_REUSEADDR` is on, as
    /// [`std::net::TcpListener`] has it.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let taken = millrace::TcpListener::bind(&stack, "127.0.0.1:80").expect_err("there is one");
    /// assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let options = millrace::TcpOptions::new().backlog(4096).nodelay(true);
    /// let listener = millrace::TcpListener::bind_with(&stack, "127.0.0.1:80", options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    pub fn bind_with(
        stack: &Stack,
        address: impl ToSocketAddrs,
        options: TcpOptions,
    ) -> io::Result<TcpListener> {
        let listen = |core: &mut Core, address| {
            let id = core
                .shard
                .bind_with(OWNER, address, options.of(core)?)
                .map_err(system)?;
            let backlog = options.backlog.unwrap_or(BACKLOG);
            let listening = core.shard.listen_bound(id, backlog, None);
            if listening.is_err() {
                core.close(id);
            }
            listening.map_err(system)?;
            Ok(id)
        };
        each(address, |address| {
            let sockets = Group::bind(stack, address, listen)?;
            Ok(TcpListener { sockets })
        })
    }

    /// Listens at every address and port of [`crate::Builder::any_address`] that no other listener
    /// is at. Who was meant is [`TcpStream::local_addr`].
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.any_address(true).build()?;
    /// let listener = millrace::TcpListener::anywhere(&stack, millrace::TcpOptions::new())?;
    /// stack.spawn(async move {
    ///     while let Ok((stream, from)) = listener.accept_async().await {
    ///         println!("{from} means {:?}", stream.local_addr());
    ///     }
    /// });
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EADDRINUSE` when there is such a listener.
    pub fn anywhere(stack: &Stack, options: TcpOptions) -> io::Result<TcpListener> {
        TcpListener::anywhere_with(stack, options, false)
    }

    /// As [`TcpListener::anywhere`], and the program says of each connection whether it is wanted:
    /// until then its SYN has no answer. [`TcpListener::request_async`] in place of
    /// [`TcpListener::accept`].
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.any_address(true).build()?;
    /// let listener = millrace::TcpListener::anywhere_asking(&stack, millrace::TcpOptions::new())?;
    /// stack.spawn(async move {
    ///     while let Ok(request) = listener.request_async().await {
    ///         request.refuse();
    ///     }
    /// });
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpListener::anywhere`].
    pub fn anywhere_asking(stack: &Stack, options: TcpOptions) -> io::Result<TcpListener> {
        TcpListener::anywhere_with(stack, options, true)
    }

    fn anywhere_with(stack: &Stack, options: TcpOptions, asks: bool) -> io::Result<TcpListener> {
        let backlog = options.backlog.unwrap_or(BACKLOG);
        let sockets = Group::everywhere(stack, |core| {
            core.shard
                .listen_anywhere(OWNER, options.of(core)?, backlog, asks)
                .map_err(system)
        })?;
        Ok(TcpListener { sockets })
    }

    /// Has connections wait for the program's word before their SYN is answered, or no longer.
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.any_address(true).build()?;
    /// let listener = millrace::TcpListener::anywhere(&stack, millrace::TcpOptions::new())?;
    /// listener.set_asking(true)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` when it was shut.
    pub fn set_asking(&self, on: bool) -> io::Result<()> {
        self.sockets
            .each()
            .try_for_each(|Socket { stack, id, .. }| {
                stack
                    .with(|core| core.shard.set_asks(*id, on))
                    .map_err(system)
            })
    }

    /// The next connection that somebody asks for and that is not answered yet, in a task.
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.any_address(true).build()?;
    /// let listener = millrace::TcpListener::anywhere_asking(&stack, millrace::TcpOptions::new())?;
    /// let handle = stack.spawn(async move {
    ///     let request = listener.request_async().await?;
    ///     request.accept_async().await
    /// });
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub async fn request_async(&self) -> io::Result<Incoming> {
        let request = poll_fn(|cx| {
            self.sockets
                .poll(cx, Side::Read, |core, id| core.shard.next_request(id))
        });
        let (socket, request) = request.await?;
        Ok(Incoming {
            stack: socket.stack.clone(),
            listener: socket.id,
            request,
            settled: false,
        })
    }

    /// The next connection, and who is at its other end.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// let (server, from) = listener.accept()?;
    /// assert_eq!(from, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EAGAIN` when it does not wait, `EINVAL` when it was shut.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = self
            .sockets
            .call(Side::Read, |core, id| core.shard.accept(id))?;
        accept(accepted)
    }

    /// [`TcpListener::accept`] in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// let (server, from) = stack.block_on(listener.accept_async())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// What [`TcpListener::accept_async`] is made of.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// use std::task::{Context, Poll, Waker};
    /// let mut cx = Context::from_waker(Waker::noop());
    /// assert!(listener.poll_accept(&mut cx).is_pending());
    /// let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// assert!(matches!(listener.poll_accept(&mut cx), Poll::Ready(Ok(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let polled = self
            .sockets
            .poll(cx, Side::Read, |core, id| core.shard.accept(id));
        polled.map(|accepted| accept(accepted?))
    }

    /// Connections as they come, for ever.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// for stream in listener.incoming().take(1) {
    ///     assert_eq!(stream?.peer_addr()?, client.local_addr()?);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// Its address.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// assert_eq!(listener.local_addr()?, "127.0.0.1:80".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None while it is open.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.sockets.lead().ends().map(|(local, _)| local)
    }

    /// Whether [`TcpListener::accept`] returns `EAGAIN` instead of waiting.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// listener.set_nonblocking(true);
    /// let error = listener.accept().expect_err("nobody has come");
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_nonblocking(&self, on: bool) {
        self.sockets.set_nonblocking(on);
    }

    /// The pending error (`SO_ERROR`), which is pending no longer.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// assert!(listener.take_error().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_error(&self) -> Option<io::Error> {
        self.sockets.take_error()
    }
}

/// The stream of a connection that this listener has let in, and who is at its other end.
fn accept((listener, id): (&Socket, SocketId)) -> io::Result<(TcpStream, SocketAddr)> {
    let stream = TcpStream {
        socket: Socket::new(&listener.stack, id),
    };
    let peer = stream.peer_addr()?;
    Ok((stream, peer))
}

/// A connection that somebody asks for. Dropped without an answer, it is refused.
///
/// ```
/// use std::net::Ipv4Addr;
///
/// let stack = millrace::Builder::new()
///     .link(millrace::Link::packets(1500))
///     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
///     .any_address(true)
///     .build()?;
/// let listener = millrace::TcpListener::anywhere_asking(&stack, millrace::TcpOptions::new())?;
/// let here = stack.clone();
/// stack.spawn(async move {
///     while let Ok(request) = listener.request_async().await {
///         // Whom it was meant for decides; without an answer it is refused.
///         match request.local_addr().port() {
///             80 => drop(here.spawn(request.accept_async())),
///             _ => request.refuse(),
///         }
///     }
/// });
/// stack.poll();
/// # stack.cancel_tasks();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Incoming {
    stack: Stack,
    listener: SocketId,
    request: Request,
    /// It is somebody's, or nobody's any more.
    settled: bool,
}

impl Incoming {
    /// Who was meant.
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.any_address(true).build()?;
    /// # let listener = millrace::TcpListener::anywhere_asking(&stack,
    /// #     millrace::TcpOptions::new())?;
    /// # stack.spawn(async move {
    /// while let Ok(request) = listener.request_async().await {
    ///     println!("somebody wants {}", request.local_addr());
    /// }
    /// # });
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.request.local
    }

    /// Who asks.
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.any_address(true).build()?;
    /// # let listener = millrace::TcpListener::anywhere_asking(&stack,
    /// #     millrace::TcpOptions::new())?;
    /// # stack.spawn(async move {
    /// while let Ok(request) = listener.request_async().await {
    ///     println!("{} wants something", request.peer_addr());
    /// }
    /// # });
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peer_addr(&self) -> SocketAddr {
        self.request.remote
    }

    /// Answers, and waits until the handshake is complete.
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.any_address(true).build()?;
    /// # let listener = millrace::TcpListener::anywhere_asking(&stack,
    /// #     millrace::TcpOptions::new())?;
    /// # stack.spawn(async move {
    /// while let Ok(request) = listener.request_async().await {
    ///     if let Ok(stream) = request.accept_async().await {
    ///         let _ = stream.write_all_async(b"hello").await;
    ///     }
    /// }
    /// # });
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `ENOTCONN` when it was taken back, or is not completed.
    pub async fn accept_async(mut self) -> io::Result<TcpStream> {
        let admit = |core: &mut Core| core.shard.admit(&self.request, core.now);
        self.stack.with(admit).map_err(system)?;
        let accepted = poll_fn(|cx| {
            self.stack.attempt(cx, self.listener, Side::Read, |core| {
                core.shard.accept_requested(self.listener, &self.request)
            })
        });
        let id = accepted.await?;
        self.settled = true;
        Ok(TcpStream {
            socket: Socket::new(&self.stack, id),
        })
    }

    /// Refuses it with a reset, as if nobody listened.
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.any_address(true).build()?;
    /// # let listener = millrace::TcpListener::anywhere_asking(&stack,
    /// #     millrace::TcpOptions::new())?;
    /// # stack.spawn(async move {
    /// while let Ok(request) = listener.request_async().await {
    ///     request.refuse();
    /// }
    /// # });
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refuse(self) {}
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        // It may have been admitted, and even be complete.
        self.stack.with(
            |core| match core.shard.accept_requested(self.listener, &self.request) {
                Ok(id) => core.close(id),
                Err(_) => core.shard.turn_away(&self.request),
            },
        );
    }
}
