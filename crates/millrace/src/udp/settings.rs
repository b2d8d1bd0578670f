//! What can be set and asked of a socket for datagrams.

use std::io;
use std::time::Duration;

use super::UdpSocket;
use crate::core::Side;

impl UdpSocket {
    /// The pending error (`SO_ERROR`), which is pending no longer.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// assert!(client.take_error().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_error(&self) -> Option<io::Error> {
        self.sockets.take_error()
    }

    /// Whether calls return `EAGAIN` instead of waiting.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// server.set_nonblocking(true);
    /// let error = server.recv(&mut [0; 512]).expect_err("nothing has come");
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_nonblocking(&self, on: bool) {
        self.sockets.set_nonblocking(on);
    }

    /// How long a call that receives waits; none is for ever. Then it returns `EAGAIN`.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// server.set_read_timeout(Some(std::time::Duration::from_millis(1)))?;
    /// assert!(server.recv(&mut [0; 512]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for no time at all.
    pub fn set_read_timeout(&self, span: Option<Duration>) -> io::Result<()> {
        self.sockets.set_patience(Side::Read, span)
    }

    /// `IP_TTL`: hops that a datagram may take, 1 to 255.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.set_ttl(3)?;
    /// assert!(client.ttl()? == 3 && client.set_ttl(0).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for another number.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        self.sockets
            .each()
            .try_for_each(|socket| socket.set_ttl(hops))
    }

    /// `IP_TTL`.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// assert_eq!(client.ttl()?, 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None while it is open.
    pub fn ttl(&self) -> io::Result<u32> {
        self.sockets.lead().ttl()
    }

    /// How long a call that sends waits, likewise.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.set_write_timeout(Some(std::time::Duration::from_secs(5)))?;
    /// assert!(client.set_write_timeout(Some(std::time::Duration::ZERO)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for no time at all.
    pub fn set_write_timeout(&self, span: Option<Duration>) -> io::Result<()> {
        self.sockets.set_patience(Side::Write, span)
    }

    /// How long a call that receives waits.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// assert_eq!(server.read_timeout(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_timeout(&self) -> Option<Duration> {
        self.sockets.lead().patience(Side::Read)
    }

    /// How long a call that sends waits.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// assert_eq!(server.write_timeout(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_timeout(&self) -> Option<Duration> {
        self.sockets.lead().patience(Side::Write)
    }
}
