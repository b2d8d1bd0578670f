//! Sockets for datagrams.

mod settings;

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};

use millrace_shard::{Error, Options, Reuse, SendTo, SocketId};
use millrace_wire::record::Record;

use crate::core::{Core, Side};
use crate::group::Group;
use crate::socket::{OWNER, Socket, each};
use crate::stack::{Stack, system};

/// A socket for datagrams, as [`std::net::UdpSocket`].
///
/// ```
/// let stack = millrace::Builder::new().build()?;
/// let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
/// let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
/// client.send_to(b"where?", "127.0.0.1:53")?;
/// let mut buffer = [0; 512];
/// let (len, from) = server.recv_from(&mut buffer)?;
/// assert_eq!((&buffer[..len], from), (&b"where?"[..], client.local_addr()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct UdpSocket {
    pub(crate) sockets: Group,
}

/// What is known of a datagram that has come.
///
/// ```
/// let stack = millrace::Builder::new().build()?;
/// let server = millrace::UdpSocket::bind(&stack, "0.0.0.0:53")?;
/// let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
/// client.send_to(b"where?", "127.0.0.2:53")?;
/// let received = server.recv_with_info(&mut [0; 3])?;
/// assert_eq!((received.len, received.full_len), (3, 6));
/// assert_eq!(received.to, "127.0.0.2:53".parse()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were copied.
    pub len: usize,
    /// Bytes that it had: more than `len` if the buffer was too small.
    pub full_len: usize,
    /// Who sent it.
    pub from: SocketAddr,
    /// The address and port that it was sent to.
    pub to: SocketAddr,
    /// Datagrams that were dropped before it for want of room, since the socket was made, modulo
    /// 2^32 (`SO_RXQ_OVFL`).
    pub dropped: u32,
    /// The link by which it came, from 0 on in the order in which the builder was told of them: see
    /// [`Stack::on_link`].
    pub link: usize,
}

impl Received {
    fn of((socket, record): (&Socket, Record), room: usize) -> Received {
        let full_len = record.payload_len as usize;
        Received {
            len: full_len.min(room),
            full_len,
            from: socket.stack.scoped(record.from),
            to: SocketAddr::new(record.to, record.to_port),
            dropped: record.dropped,
            link: socket.stack.link.into(),
        }
    }
}

impl UdpSocket {
    /// A socket at an address of the stack's. Port 0 takes a free one.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let socket = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// assert_ne!(socket.local_addr()?.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `bind`, as Linux has them.
    pub fn bind(stack: &Stack, address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        each(address, |address| {
            UdpSocket::bind_with(stack, address, &Options::default())
        })
    }

    /// As [`UdpSocket::bind`], with options.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let options = millrace::Options { ttl: std::num::NonZeroU8::new(3),
    ///     ..millrace::Options::default() };
    /// let socket = millrace::UdpSocket::bind_with(&stack, "127.0.0.1:53".parse()?, &options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    pub fn bind_with(
        stack: &Stack,
        address: SocketAddr,
        options: &Options,
    ) -> io::Result<UdpSocket> {
        let sockets = Group::bind(stack, address, |core, address| {
            let bind = |core: &mut Core, id| core.shard.bind_datagram(id, address, options);
            datagrams(core, options, bind)
        })?;
        Ok(UdpSocket { sockets })
    }

    /// A socket with a peer, at a port that brings the answers back here.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// let socket = millrace::UdpSocket::connected(&stack, server.local_addr()?)?;
    /// assert_eq!(socket.peer_addr()?, server.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`UdpSocket::connect`].
    pub fn connected(stack: &Stack, peer: SocketAddr) -> io::Result<UdpSocket> {
        let stack = stack.way(None, peer)?;
        let connect = |core: &mut Core, id| core.shard.connect_datagram(id, peer);
        let id = stack.with(|core| datagrams(core, &Options::default(), connect))?;
        Ok(UdpSocket {
            sockets: Group::of(Socket::new(&stack, id)),
        })
    }

    /// A socket that hears every datagram which no other one does, to whatever address and port it
    /// was sent: see [`crate::Builder::any_address`]. It cannot send: [`UdpSocket::answering`]
    /// makes one that can.
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.any_address(true).build()?;
    /// let socket = millrace::UdpSocket::anywhere(&stack)?;
    /// stack.spawn(async move {
    ///     while let Ok(received) = socket.recv_with_info_async(&mut [0; 512]).await {
    ///         println!("{} means {}", received.from, received.to);
    ///     }
    /// });
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EADDRINUSE` when there is such a socket.
    pub fn anywhere(stack: &Stack) -> io::Result<UdpSocket> {
        let sockets = Group::everywhere(stack, |core| {
            let hear = |core: &mut Core, id| core.shard.hear_anything(id);
            datagrams(core, &Options::default(), hear)
        })?;
        Ok(UdpSocket { sockets })
    }

    /// A socket that speaks as whoever a datagram was meant for, to whoever has sent it, by the
    /// link by which it came, and hears what that one sends from now on.
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.any_address(true).build()?;
    /// let socket = millrace::UdpSocket::anywhere(&stack)?;
    /// let here = stack.clone();
    /// stack.spawn(async move {
    ///     while let Ok(received) = socket.recv_with_info_async(&mut [0; 512]).await {
    ///         if let Ok(answering) = millrace::UdpSocket::answering(&here, &received) {
    ///             let _ = answering.send(b"nobody is here");
    ///         }
    ///     }
    /// });
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`UdpSocket::bind`] and [`UdpSocket::connect`].
    pub fn answering(stack: &Stack, received: &Received) -> io::Result<UdpSocket> {
        // Others may answer others as the same.
        let options = Options {
            reuse: Reuse {
                address: true,
                port: false,
            },
            ..Options::default()
        };
        let stack = stack.on_link(received.link)?;
        let socket = UdpSocket::bind_with(&stack, received.to, &options)?;
        socket.connect(received.from)?;
        Ok(socket)
    }

    /// Gives it a peer: only what comes from there is heard, and [`UdpSocket::send`] goes there.
    /// One that was bound on several links is from now on on the one that leads to this peer, and
    /// has no peer by another.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.connect("127.0.0.1:53")?;
    /// assert_eq!(client.send(b"where?")?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `ENETUNREACH`, `EINVAL`, ...
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        each(address, |address| {
            let socket = self.towards(None, address)?;
            let connect = |core: &mut Core| core.shard.connect_datagram(socket.id, address);
            socket.stack.with(connect).map_err(system)?;
            self.sockets.keep_only(socket);
            Ok(())
        })
    }

    /// The one that sends this.
    fn way(&self, what: &SendTo) -> io::Result<&Socket> {
        match (self.sockets.single(), what.to) {
            (Some(single), _) => Ok(single),
            (None, Some(to)) => self.towards(what.from, to),
            (None, None) => Err(system(Error::DestinationRequired)),
        }
    }

    fn towards(&self, from: Option<IpAddr>, to: SocketAddr) -> io::Result<&Socket> {
        let from = from.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        self.sockets.towards(from, to).map_err(system)
    }

    /// Sends a datagram; returns its length. It waits while the send buffer is full.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// assert_eq!(client.send_to(b"where?", "127.0.0.1:53")?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EMSGSIZE`, `ENETUNREACH`, ...; what ICMP said of one before, once.
    pub fn send_to(&self, bytes: &[u8], address: impl ToSocketAddrs) -> io::Result<usize> {
        each(address, |address| self.send_as(bytes, &to(address)))
    }

    /// Sends a datagram to the peer.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// let error = client.send(b"where?").expect_err("it has no peer");
    /// assert_eq!(error.raw_os_error(), Some(89), "EDESTADDRREQ");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EDESTADDRREQ` without one, and those of [`UdpSocket::send_to`].
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_as(bytes, &SendTo::default())
    }

    /// Sends a datagram with all that can be said of it: source address, hops, and cutting into
    /// several.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// let to = Some("127.0.0.1:53".parse()?);
    /// client.send_as(b"where?", &millrace::SendTo { to, hops: Some(1), ..Default::default() })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`].
    pub fn send_as(&self, bytes: &[u8], what: &SendTo) -> io::Result<usize> {
        let socket = self.way(what)?;
        socket.call(Side::Write, |core, id| send(core, id, bytes, what))
    }

    /// [`UdpSocket::send_to`] in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// stack.block_on(client.send_to_async(b"where?", "127.0.0.1:53".parse()?))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`].
    pub async fn send_to_async(&self, bytes: &[u8], address: SocketAddr) -> io::Result<usize> {
        self.send_as_async(bytes, &to(address)).await
    }

    /// [`UdpSocket::send_as`] in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// let to = Some("127.0.0.1:53".parse()?);
    /// stack.block_on(client.send_as_async(b"where?", &millrace::SendTo { to,
    ///     ..Default::default() }))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`].
    pub async fn send_as_async(&self, bytes: &[u8], what: &SendTo) -> io::Result<usize> {
        let socket = self.way(what)?;
        poll_fn(|cx| socket.poll(cx, Side::Write, |core, id| send(core, id, bytes, what))).await
    }

    /// The oldest datagram that has come: its length, cut to the buffer's, and who sent it.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.send_to(b"where?", "127.0.0.1:53")?;
    /// assert_eq!(server.recv_from(&mut [0; 512])?, (6, client.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What ICMP said of one that was sent, once.
    pub fn recv_from(&self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.recv_with_info(out)?;
        Ok((received.len, received.from))
    }

    /// The oldest datagram from the peer.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.send_to(b"where?", "127.0.0.1:53")?;
    /// assert_eq!(server.recv(&mut [0; 512])?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv(&self, out: &mut [u8]) -> io::Result<usize> {
        self.recv_with_info(out).map(|received| received.len)
    }

    /// As [`UdpSocket::recv_from`], with all that is known of it.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.send_to(b"where?", "127.0.0.1:53")?;
    /// assert_eq!(server.recv_with_info(&mut [0; 512])?.to, server.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_with_info(&self, out: &mut [u8]) -> io::Result<Received> {
        let record = self
            .sockets
            .call(Side::Read, |core, id| core.shard.recv_from(id, out, false))?;
        Ok(Received::of(record, out.len()))
    }

    /// As [`UdpSocket::recv_from`], but the datagram stays.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.send_to(b"where?", "127.0.0.1:53")?;
    /// assert_eq!(server.peek_from(&mut [0; 4])?, (4, client.local_addr()?));
    /// assert_eq!(server.recv_from(&mut [0; 512])?.0, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn peek_from(&self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let record = self
            .sockets
            .call(Side::Read, |core, id| core.shard.recv_from(id, out, true))?;
        let received = Received::of(record, out.len());
        Ok((received.len, received.from))
    }

    /// As [`UdpSocket::recv`], but the datagram stays.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.send_to(b"where?", "127.0.0.1:53")?;
    /// assert_eq!(server.peek(&mut [0; 512])?, 6);
    /// assert_eq!(server.recv(&mut [0; 512])?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn peek(&self, out: &mut [u8]) -> io::Result<usize> {
        self.peek_from(out).map(|(len, _)| len)
    }

    /// [`UdpSocket::recv_with_info`] in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.send_to(b"where?", "127.0.0.1:53")?;
    /// let received = stack.block_on(server.recv_with_info_async(&mut [0; 4]))?;
    /// assert_eq!((received.len, received.full_len), (4, 6));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub async fn recv_with_info_async(&self, out: &mut [u8]) -> io::Result<Received> {
        poll_fn(|cx| self.poll_recv(cx, out)).await
    }

    /// [`UdpSocket::recv_from`] in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// client.send_to(b"where?", "127.0.0.1:53")?;
    /// assert_eq!(stack.block_on(server.recv_from_async(&mut [0; 512]))?.0, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub async fn recv_from_async(&self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.recv_with_info_async(out).await?;
        Ok((received.len, received.from))
    }

    /// What [`UdpSocket::recv_with_info_async`] is made of.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    /// assert!(server.poll_recv(&mut cx, &mut [0; 512]).is_pending());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_recv(&self, cx: &Context<'_>, out: &mut [u8]) -> Poll<io::Result<Received>> {
        let room = out.len();
        let polled = self.sockets.poll(cx, Side::Read, |core, id| {
            core.shard.recv_from(id, out, false)
        });
        polled.map_ok(|record| Received::of(record, room))
    }

    /// Hears what is sent to a group, too, on every link that the socket is on and that has
    /// addresses of the group's family.
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.build()?;
    /// # let socket = millrace::UdpSocket::bind(&stack, "0.0.0.0:53")?;
    /// socket.join_multicast("239.1.2.3".parse()?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for what is no group, `EADDRINUSE` for one that it hears already.
    pub fn join_multicast(&self, group: IpAddr) -> io::Result<()> {
        self.on_some(|core, id| core.shard.join(id, group, core.now))
    }

    /// Undoes [`UdpSocket::join_multicast`].
    ///
    /// ```
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.build()?;
    /// # let socket = millrace::UdpSocket::bind(&stack, "0.0.0.0:53")?;
    /// socket.join_multicast("239.1.2.3".parse()?)?;
    /// socket.leave_multicast("239.1.2.3".parse()?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for a group that it does not hear.
    pub fn leave_multicast(&self, group: IpAddr) -> io::Result<()> {
        self.on_some(|core, id| core.shard.leave(id, group, core.now))
    }

    /// Does something on every link that can; an error is one if none can.
    fn on_some(&self, act: impl Fn(&mut Core, SocketId) -> Result<(), Error>) -> io::Result<()> {
        let mut outcome = Err(Error::NoSocket);
        for Socket { stack, id, .. } in self.sockets.each() {
            let one = stack.with(|core| act(core, *id));
            if outcome.is_err() {
                outcome = one;
            }
        }
        outcome.map_err(system)
    }

    /// Its address.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// assert_eq!(server.local_addr()?, "127.0.0.1:53".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None while it is open.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.sockets.lead().ends().map(|(local, _)| local)
    }

    /// Its peer's.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
    /// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
    /// assert!(client.peer_addr().is_err());
    /// client.connect("127.0.0.1:53")?;
    /// assert_eq!(client.peer_addr()?, server.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `ENOTCONN` without one.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let (_, remote) = self.sockets.lead().ends()?;
        match remote.port() {
            0 => Err(system(Error::NotConnected)),
            _ => Ok(remote),
        }
    }
}

/// A socket that `then` has bound, connected or the like.
fn datagrams(
    core: &mut Core,
    options: &Options,
    then: impl FnOnce(&mut Core, SocketId) -> Result<(), Error>,
) -> io::Result<SocketId> {
    // Nobody reads its ring but through the shard, which knows how far: it needs no name.
    let id = core.shard.datagram(OWNER, options, u32::MAX);
    let id = id.map_err(system)?;
    let outcome = then(core, id);
    if outcome.is_err() {
        core.close(id);
    }
    outcome.map_err(system)?;
    Ok(id)
}

fn to(address: SocketAddr) -> SendTo {
    SendTo {
        to: Some(address),
        ..SendTo::default()
    }
}

fn send(core: &mut Core, id: SocketId, bytes: &[u8], what: &SendTo) -> Result<usize, Error> {
    let fill = |out: &mut [u8]| out.copy_from_slice(bytes);
    core.shard.send_to(id, what, bytes.len(), fill, core.now)?;
    Ok(bytes.len())
}
