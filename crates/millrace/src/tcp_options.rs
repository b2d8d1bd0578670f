//! What a listener or a connection is to be like.

use std::io;

use millrace_shard::{Error, Options};

use crate::core::Core;
use crate::stack::system;

/// What a socket starts with, before it is connected or bound.
///
/// ```
/// let stack = millrace::Builder::new().build()?;
/// let options = millrace::TcpOptions::new().backlog(16).nodelay(true);
/// let listener = millrace::TcpListener::bind_with(&stack, "127.0.0.1:80", options)?;
/// let stream = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// let (accepted, _) = listener.accept()?;
/// // Connections have what their listener was given.
/// assert_eq!(accepted.nodelay()?, true);
/// assert_eq!(stream.nodelay()?, false);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct TcpOptions {
    pub(crate) options: Options,
    pub(crate) backlog: Option<u32>,
}

impl TcpOptions {
    /// Linux's defaults.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let listener = millrace::TcpListener::bind_with(&stack, "127.0.0.1:80",
    ///     millrace::TcpOptions::new())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new() -> TcpOptions {
        TcpOptions::default()
    }

    /// All that can be set, in full.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let options = millrace::Options { ttl: std::num::NonZeroU8::new(3),
    ///     ..millrace::Options::default() };
    /// let options = millrace::TcpOptions::new().options(options);
    /// let listener = millrace::TcpListener::bind_with(&stack, "127.0.0.1:80", options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn options(mut self, options: Options) -> TcpOptions {
        self.options = options;
        self
    }

    /// Of a listener, how many connections wait to be accepted, 0 to 4096; one more does, as on
    /// Linux.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let options = millrace::TcpOptions::new().backlog(16);
    /// let listener = millrace::TcpListener::bind_with(&stack, "127.0.0.1:80", options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backlog(mut self, connections: u32) -> TcpOptions {
        self.backlog = Some(connections);
        self
    }

    /// `SO_REUSEPORT`: several listeners share the address, and connections are spread over them.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let options = millrace::TcpOptions::new().reuse_port(true);
    /// let one = millrace::TcpListener::bind_with(&stack, "127.0.0.1:80", options)?;
    /// let two = millrace::TcpListener::bind_with(&stack, "127.0.0.1:80", options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reuse_port(mut self, on: bool) -> TcpOptions {
        self.options.reuse.port = on;
        self
    }

    /// `TCP_CONGESTION`.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let options = millrace::TcpOptions::new().congestion(millrace::Algorithm::Bbr);
    /// let listener = millrace::TcpListener::bind_with(&stack, "127.0.0.1:80", options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn congestion(mut self, algorithm: millrace_tcp::Algorithm) -> TcpOptions {
        self.options.tcp.congestion = Some(algorithm);
        self
    }

    /// `TCP_NODELAY`.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let options = millrace::TcpOptions::new().nodelay(true);
    /// let listener = millrace::TcpListener::bind_with(&stack, "127.0.0.1:80", options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn nodelay(mut self, on: bool) -> TcpOptions {
        self.options.tcp.nodelay = on;
        self
    }

    /// What a socket of this stack starts with, if the stack has it.
    pub(crate) fn of(&self, core: &Core) -> io::Result<&Options> {
        let config = &core.shard.config().tcp;
        match self.options.tcp.congestion {
            Some(algorithm) if !config.has(algorithm) => Err(system(Error::Invalid)),
            _ => Ok(&self.options),
        }
    }
}
