//! What may be said to a connection, and what it says of itself.

use std::io;
use std::time::Duration;

use millrace_tcp::Info;

use super::TcpStream;
use crate::core::Side;

impl TcpStream {
    /// Whether reads and writes return `EAGAIN` instead of waiting.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// use std::io::Read;
    /// client.set_nonblocking(true);
    /// let error = (&client).read(&mut [0; 8]).expect_err("nothing has come");
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_nonblocking(&self, on: bool) {
        self.socket.set_nonblocking(on);
    }

    /// How long a read waits; none is for ever. Then it returns `EAGAIN`.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// use std::io::Read;
    /// client.set_read_timeout(Some(std::time::Duration::from_millis(1)))?;
    /// let error = (&client).read(&mut [0; 8]).expect_err("nothing has come");
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for no time at all.
    pub fn set_read_timeout(&self, span: Option<Duration>) -> io::Result<()> {
        self.socket.set_patience(Side::Read, span)
    }

    /// How long a write waits, likewise.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// client.set_write_timeout(Some(std::time::Duration::from_secs(5)))?;
    /// assert!(client.set_write_timeout(Some(std::time::Duration::ZERO)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for no time at all.
    pub fn set_write_timeout(&self, span: Option<Duration>) -> io::Result<()> {
        self.socket.set_patience(Side::Write, span)
    }

    /// How long a read waits.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(client.read_timeout(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_timeout(&self) -> Option<Duration> {
        self.socket.patience(Side::Read)
    }

    /// How long a write waits.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(client.write_timeout(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_timeout(&self) -> Option<Duration> {
        self.socket.patience(Side::Write)
    }

    /// The pending error (`SO_ERROR`), which is pending no longer.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// assert!(client.take_error().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error()
    }

    /// `IP_TTL`: hops that a packet may take, 1 to 255.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// client.set_ttl(3)?;
    /// assert!(client.ttl()? == 3 && client.set_ttl(0).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for another number.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        self.socket.set_ttl(hops)
    }

    /// `IP_TTL`.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// assert_eq!(client.ttl()?, 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None while it is open.
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.ttl()
    }

    /// Everything that the connection knows of itself (`TCP_INFO`); none once it is over.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(client.info().expect("it is connected").state, millrace::State::Established);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn info(&self) -> Option<Info> {
        self.socket
            .stack
            .with(|core| core.shard.tcp_info(self.socket.id, core.now))
    }

    /// Bytes written that the peer has not acknowledged (`SIOCOUTQ`).
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// server.try_write(b"hello")?;
    /// assert_eq!(server.unacknowledged(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unacknowledged(&self) -> u64 {
        self.socket
            .stack
            .with(|core| core.shard.view(self.socket.id))
            .map_or(0, |view| view.queued - view.acked)
    }
}
