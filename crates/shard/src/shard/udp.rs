//! The requests to sockets for datagrams.

use std::net::{IpAddr, SocketAddr};

use millrace_tcp::Instant;
use millrace_wire::record::Record;

use crate::error::Error;
use crate::memory::{Memory, Owner};
use crate::network::reply_queue::Reply;
use crate::shard::Shard;
use crate::socket::{Options, SocketId};
use crate::udp::{Report, SendTo};

impl<M: Memory> Shard<M> {
    /// Makes a socket for datagrams, neither bound nor connected. `label` is what its owner calls
    /// it: see [`Memory::read_upto`].
    ///
    /// # Errors
    /// [`Error::TooManySockets`].
    #[inline]
    pub fn datagram(
        &mut self,
        owner: Owner,
        options: &Options,
        label: u32,
    ) -> Result<SocketId, Error> {
        self.udp.datagram(&mut self.base, owner, options, label)
    }

    /// A socket that stands in for the one of shard `home` with this label, at the same addresses:
    /// what comes for it is handed over.
    ///
    /// # Errors
    /// Those of [`Shard::datagram`] and [`Shard::bind_datagram`].
    #[inline]
    pub fn stand_in_datagram(
        &mut self,
        owner: Owner,
        options: &Options,
        (home, label): (u16, u32),
        local: SocketAddr,
    ) -> Result<SocketId, Error> {
        self.udp
            .stand_in_datagram(&mut self.base, owner, options, (home, label), local)
    }

    /// Binds to a local address and port, as [`Shard::bind`]; groups and the address of all hosts
    /// of the link are addresses too.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is bound, [`Error::AddressInUse`],
    /// [`Error::AddressNotAvailable`].
    #[inline]
    pub fn bind_datagram(
        &mut self,
        id: SocketId,
        local: SocketAddr,
        options: &Options,
    ) -> Result<(), Error> {
        self.udp.bind_datagram(&mut self.base, id, local, options)
    }

    /// Whether a socket has to have a port before it can send. [`Shard::bind_datagram`] gives it
    /// one that all shards know; [`Shard::connect_datagram`] one that brings the answers here.
    #[inline]
    pub fn is_bound_datagram(&self, id: SocketId) -> bool {
        self.udp.is_bound_datagram(&self.base, id)
    }

    /// Gives a socket a peer, or another one: datagrams go there, and only what comes from there is
    /// heard.
    ///
    /// # Errors
    /// [`Error::NetworkUnreachable`], [`Error::AccessDenied`] for all hosts of the link without
    /// [`crate::Opt::Broadcast`], [`Error::AddressNotAvailable`] when no port is free,
    /// [`Error::Invalid`].
    #[inline]
    pub fn connect_datagram(&mut self, id: SocketId, remote: SocketAddr) -> Result<(), Error> {
        self.udp.connect_datagram(&mut self.base, id, remote)
    }

    /// Takes a socket back to hearing everybody. A port that was chosen for it is given up.
    ///
    /// # Errors
    /// [`Error::NoSocket`], [`Error::NotSupported`] on a stream.
    #[inline]
    pub fn disconnect_datagram(&mut self, id: SocketId) -> Result<(), Error> {
        self.udp.disconnect_datagram(&mut self.base, id)
    }

    /// Undoes [`Shard::bind_datagram`].
    #[inline]
    pub fn unbind_datagram(&mut self, id: SocketId) {
        self.udp.unbind_datagram(&mut self.base, id);
    }

    /// A socket joins a group.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that is no group, [`Error::AddressInUse`] when the socket
    /// has joined it already, [`Error::NoMemory`] when it has joined too many.
    #[inline]
    pub fn join(&mut self, id: SocketId, group: IpAddr, now: Instant) -> Result<(), Error> {
        self.udp.join(&mut self.base, id, group, now)
    }

    /// A socket leaves a group.
    ///
    /// # Errors
    /// [`Error::AddressNotAvailable`] when the socket has not joined it.
    #[inline]
    pub fn leave(&mut self, id: SocketId, group: IpAddr, now: Instant) -> Result<(), Error> {
        self.udp.leave(&mut self.base, id, group, now)
    }

    /// Makes a socket for datagrams what hears all of them that no other socket does, whoever they
    /// are for.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::Invalid`] for a socket that is bound,
    /// [`Error::NotSupported`] on a stream.
    #[inline]
    pub fn hear_anything(&mut self, id: SocketId) -> Result<(), Error> {
        self.udp.hear_anything(&mut self.base, id)
    }

    /// The next datagram that another shard is to deliver, or with none all others, as
    /// [`crate::Arrival::Local`].
    #[inline]
    pub fn take_crossing(&mut self) -> Option<(Option<u16>, Vec<u8>)> {
        self.udp.take_crossing()
    }

    /// Takes its buffer back.
    #[inline]
    pub fn return_crossing(&mut self, bytes: Vec<u8>) {
        self.base.network.replies.recycle(Reply::Packet(bytes));
    }

    /// The oldest error that waits, with its particulars (`MSG_ERRQUEUE`); once.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is none, [`Error::NotSupported`] on a stream.
    #[inline]
    pub fn take_report(&mut self, id: SocketId) -> Result<Report, Error> {
        self.udp.take_report(&mut self.base, id)
    }

    /// Takes the oldest datagram, or looks at it: its particulars, with the length that it has,
    /// however much of it fits into `out`. For receive memory that the program does not see itself.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is none, or the pending error.
    #[inline]
    pub fn recv_from(&mut self, id: SocketId, out: &mut [u8], peek: bool) -> Result<Record, Error> {
        self.udp.recv_from(&mut self.base, id, out, peek)
    }

    /// Queues a datagram of `len` bytes, which `fill` writes.
    ///
    /// # Errors
    /// [`Error::DestinationRequired`], [`Error::MessageSize`], [`Error::NetworkUnreachable`],
    /// [`Error::AccessDenied`], [`Error::BrokenPipe`] when it is shut for writing,
    /// [`Error::WouldBlock`] when the send buffer is full, [`Error::NoMemory`], [`Error::Invalid`]
    /// for a socket that is not bound, a source that is not ours, or pieces that do not fit.
    #[inline]
    pub fn send_to(
        &mut self,
        id: SocketId,
        what: &SendTo,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
        now: Instant,
    ) -> Result<(), Error> {
        self.udp.send_to(&mut self.base, id, what, len, fill, now)
    }

    /// A datagram of `len` bytes that the program believes to be sent was refused: it counts as
    /// sent and lost.
    #[inline]
    pub fn lose_datagram(&mut self, id: SocketId, len: usize) {
        self.udp.lose_datagram(&mut self.base, id, len);
    }
}
