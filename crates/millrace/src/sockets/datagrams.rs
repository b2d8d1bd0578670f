//! Sockets for datagrams, by their numbers.

use std::net::{IpAddr, SocketAddr};

use millrace_shard::{Error, Options, SendTo, SocketId};
use millrace_wire::record::Record;

use super::Sockets;
use crate::socket::OWNER;

impl Sockets<'_> {
    /// Makes a socket for datagrams, not bound.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let id = stack.with_sockets(|sockets| sockets.datagrams(&Default::default()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TooManySockets`].
    #[inline]
    pub fn datagrams(&mut self, options: &Options) -> Result<SocketId, Error> {
        self.core.shard.datagram(OWNER, options, u32::MAX)
    }

    /// Binds a socket for datagrams. Port 0 takes a free one.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.datagrams(&Default::default()))?;
    /// let local = "127.0.0.1:53".parse()?;
    /// stack.with_sockets(|sockets| sockets.bind_datagrams(id, local, &Default::default()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::AddressNotAvailable`], [`Error::Invalid`] when it is
    /// bound.
    #[inline]
    pub fn bind_datagrams(
        &mut self,
        id: SocketId,
        local: SocketAddr,
        options: &Options,
    ) -> Result<(), Error> {
        self.core.shard.bind_datagram(id, local, options)
    }

    /// Has a socket for datagrams speak with one peer. One that is not bound takes a port whose
    /// answers come to this shard.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.datagrams(&Default::default()))?;
    /// let peer = "127.0.0.1:53".parse()?;
    /// stack.with_sockets(|sockets| sockets.connect_datagrams(id, peer))?;
    /// assert_eq!(stack.with_sockets(|sockets| sockets.view(id)).map(|view| view.remote),
    ///     Some(peer));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NetworkUnreachable`], [`Error::AddressNotAvailable`].
    #[inline]
    pub fn connect_datagrams(&mut self, id: SocketId, remote: SocketAddr) -> Result<(), Error> {
        self.core.shard.connect_datagram(id, remote)
    }

    /// Has it speak with everybody again.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.datagrams(&Default::default()))?;
    /// # stack.with_sockets(|sockets| sockets.connect_datagrams(id, ([127, 0, 0, 1], 53).into()))?;
    /// stack.with_sockets(|sockets| sockets.disconnect_datagrams(id))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSocket`].
    #[inline]
    pub fn disconnect_datagrams(&mut self, id: SocketId) -> Result<(), Error> {
        self.core.shard.disconnect_datagram(id)
    }

    /// Sends a datagram of `len` bytes, which `fill` writes.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.datagrams(&Default::default()))?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # stack.with_sockets(|sockets| sockets.bind_datagrams(id, ([127, 0, 0, 1], 0).into(),
    /// #     &Default::default()))?;
    /// let what = millrace::SendTo { to: Some(server.local_addr()?), ..Default::default() };
    /// stack.with_sockets(|sockets| sockets.send_to(id, &what, 6,
    ///     |out| out.copy_from_slice(b"where?")))?;
    /// assert_eq!(server.recv(&mut [0; 512])?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`crate::UdpSocket::send_as`].
    #[inline]
    pub fn send_to(
        &mut self,
        id: SocketId,
        what: &SendTo,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        self.core.shard.send_to(id, what, len, fill, self.core.now)
    }

    /// Takes the oldest datagram into `out`, cut to its length, or leaves it where it is if only
    /// looked at (`peek`).
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.datagrams(&Default::default()))?;
    /// # stack.with_sockets(|sockets| sockets.bind_datagrams(id, ([127, 0, 0, 1], 53).into(),
    /// #     &Default::default()))?;
    /// let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.send_to(b"where?", "127.0.0.1:53")?;
    /// while stack.poll() > 0 {}
    /// let record = stack.with_sockets(|sockets| sockets.recv_from(id, &mut [0; 512], false))?;
    /// assert_eq!((record.from, record.payload_len), (client.local_addr()?, 6));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`], or the pending error.
    #[inline]
    pub fn recv_from(&mut self, id: SocketId, out: &mut [u8], peek: bool) -> Result<Record, Error> {
        self.core.shard.recv_from(id, out, peek)
    }

    /// Joins a group.
    ///
    /// ```
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// # let stack = builder.address([10, 0, 0, 2], 24).build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.datagrams(&Default::default()))?;
    /// stack.with_sockets(|sockets| sockets.join(id, [239, 1, 2, 3].into()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no group, [`Error::AddressInUse`] when it has joined it,
    /// [`Error::NoMemory`] when it has joined too many.
    #[inline]
    pub fn join(&mut self, id: SocketId, group: IpAddr) -> Result<(), Error> {
        self.core.shard.join(id, group, self.core.now)
    }

    /// Leaves a group.
    ///
    /// ```
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// # let stack = builder.address([10, 0, 0, 2], 24).build()?;
    /// # let id = stack.with_sockets(|sockets| sockets.datagrams(&Default::default()))?;
    /// # stack.with_sockets(|sockets| sockets.join(id, [239, 1, 2, 3].into()))?;
    /// stack.with_sockets(|sockets| sockets.leave(id, [239, 1, 2, 3].into()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AddressNotAvailable`] when it has not joined it.
    #[inline]
    pub fn leave(&mut self, id: SocketId, group: IpAddr) -> Result<(), Error> {
        self.core.shard.leave(id, group, self.core.now)
    }
}
