//! The socket calls that all sockets are made of, by numbers: for bindings that have sockets of
//! their own kind.

use std::net::Ipv4Addr;

use millrace_shard::{Error, How, Opt, OptName, Options, SocketId, TCP_INFO_LEN, View};

use crate::core::Core;
use crate::socket::OWNER;

mod datagrams;
mod stream;

/// The sockets of a stack by their numbers, which [`crate::Stack::with_sockets`] lends: Linux's
/// calls, for a binding whose programs hold sockets of another kind. Nothing waits here: what would
/// is [`Error::WouldBlock`], and [`crate::Stack::take_changed`] says when it is worth another try.
/// What a call asks for leaves with the stack's next poll.
///
/// ```
/// use millrace::{Error, How, Options};
///
/// let stack = millrace::Builder::new().build()?;
/// let (address, options) = ("127.0.0.1:80".parse()?, Options::default());
/// // All of one kind together, since a stack may be busy: the closure must leave it alone.
/// let (listener, client) = stack.with_sockets(|sockets| {
///     let listener = sockets.bind(address, &options)?;
///     sockets.listen(listener, 16)?;
///     let client = sockets.stream(&options)?;
///     sockets.connect(client, address)?;
///     Ok::<_, Error>((listener, client))
/// })?;
/// while stack.poll() > 0 {}
/// let read = stack.with_sockets(|sockets| {
///     let server = sockets.accept(listener)?;
///     sockets.shutdown(server, How::Write)?;
///     sockets.recv(client, &mut [0; 8])
/// });
/// assert_eq!(read, Err(Error::WouldBlock));
/// while stack.poll() > 0 {}
/// assert_eq!(stack.with_sockets(|sockets| sockets.recv(client, &mut [0; 8])), Ok(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sockets<'a> {
    core: &'a mut Core,
}

impl<'a> Sockets<'a> {
    pub(crate) fn of(core: &'a mut Core) -> Sockets<'a> {
        Sockets { core }
    }

    /// Makes a socket for a connection, neither bound nor connected.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TooManySockets`]; [`Error::Invalid`] for a congestion control that the stack has
    /// not.
    #[inline]
    pub fn stream(&mut self, options: &Options) -> Result<SocketId, Error> {
        self.core.shard.socket(OWNER, options)
    }

    /// All that was set of a socket.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// let options = stack.with_sockets(|sockets| sockets.options(id)).expect("it is there");
    /// assert_eq!(options.linger, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn options(&self, id: SocketId) -> Option<Options> {
        self.core.shard.options(id)
    }

    /// Sets an option.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// stack.with_sockets(|sockets| sockets.set_option(id, millrace::Opt::NoDelay(true)))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of range.
    #[inline]
    pub fn set_option(&mut self, id: SocketId, option: Opt) -> Result<(), Error> {
        self.core.shard.set_option(id, option, self.core.now)
    }

    /// Reads an option.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// let ttl = stack.with_sockets(|sockets| sockets.option(id, millrace::OptName::Ttl));
    /// assert_eq!(ttl, Ok(millrace::Opt::Ttl(64)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSocket`].
    #[inline]
    pub fn option(&self, id: SocketId, name: OptName) -> Result<Opt, Error> {
        self.core.shard.option(id, name)
    }

    /// What can be known of a socket; none if it is no more.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// let view = stack.with_sockets(|sockets| sockets.view(id)).expect("it is there");
    /// assert_eq!(view.local.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn view(&self, id: SocketId) -> Option<View> {
        self.core.shard.view(id)
    }

    /// The pending error as errno, 0 when there is none; it is pending no longer (`SO_ERROR`).
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// stack.block_on(stack.connect_bound(id, "127.0.0.1:81".parse()?))?;
    /// while stack.poll() > 0 {}
    /// // Nobody listens there: `ECONNREFUSED`.
    /// assert_eq!(stack.with_sockets(|sockets| sockets.take_error(id)), 111);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn take_error(&mut self, id: SocketId) -> i32 {
        self.core.shard.take_error(id)
    }

    /// `TCP_INFO`, as Linux's `struct tcp_info` has it.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// let info = stack.with_sockets(|sockets| sockets.tcp_info(id))?;
    /// // Established.
    /// assert_eq!(info[0], 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSocket`]; [`Error::NotSupported`] for datagrams.
    #[inline]
    pub fn tcp_info(&self, id: SocketId) -> Result<[u8; TCP_INFO_LEN], Error> {
        self.core.shard.linux_tcp_info(id, self.core.now)
    }

    /// The host's IPv4 addresses, each with the bits of its prefix.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let first = stack.with_sockets(|sockets| sockets.addresses()[0]);
    /// assert_eq!(first, (std::net::Ipv4Addr::LOCALHOST, 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn addresses(&self) -> &[(Ipv4Addr, u8)] {
        &self.core.shard.config().addresses
    }

    /// Shuts one direction or both. A listener that is shut for reading listens no longer.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// stack.with_sockets(|sockets| sockets.shutdown(id, millrace::How::Write))?;
    /// while stack.poll() > 0 {}
    /// assert_eq!(server.try_read(&mut [0; 8])?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    #[inline]
    pub fn shutdown(&mut self, id: SocketId, how: How) -> Result<(), Error> {
        self.core.shard.shutdown(id, how, self.core.now)
    }

    /// Closes a socket: the number is gone. What was written is still sent, unless received bytes
    /// were left unread or `SO_LINGER` is 0: then the connection is reset (RFC 2525 2.17).
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// stack.with_sockets(|sockets| sockets.close(id))?;
    /// assert!(stack.with_sockets(|sockets| sockets.view(id)).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSocket`].
    #[inline]
    pub fn close(&mut self, id: SocketId) -> Result<(), Error> {
        self.core.shard.close(id, self.core.now)
    }

    /// Closes a socket and resets its connection.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// # stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// # let (server, _) = listener.accept()?;
    /// stack.with_sockets(|sockets| sockets.abort(id))?;
    /// while stack.poll() > 0 {}
    /// let error = server.try_read(&mut [0; 8]).expect_err("it is reset");
    /// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSocket`].
    #[inline]
    pub fn abort(&mut self, id: SocketId) -> Result<(), Error> {
        self.core.shard.abort(id, self.core.now)
    }
}
