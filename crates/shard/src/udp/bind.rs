//! Making, binding, connecting and closing sockets for datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_tcp::Instant;

use super::Datagram;
use crate::connection_table::{Place, Tuple};
use crate::error::Error;
use crate::ip::route::Route;
use crate::link::neighbour::Handle;
use crate::memory::{Memory, Owner};
use crate::shard::Shard;
use crate::socket::local_ports::{Bound, Ports};
use crate::socket::{Kind, Marks, Options, Socket, SocketId};
use crate::steering::{Flow, Steer};

/// Where a socket is that is not bound.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Groups that one socket may join (Linux's `igmp_max_memberships`).
const JOINED_MAX: usize = 20;

impl<M: Memory> Shard<M> {
    /// Makes a socket for datagrams, neither bound nor connected. `label` is what its owner calls
    /// it: see [`Memory::read_upto`].
    ///
    /// # Errors
    /// [`Error::TooManySockets`].
    pub fn datagram(
        &mut self,
        owner: Owner,
        options: &Options,
        label: u32,
    ) -> Result<SocketId, Error> {
        let mut datagram = Datagram::new(NOWHERE, label);
        datagram.resize(options);
        let options = self.sharing.share(options);
        let index = self.insert_socket(|| Socket {
            owner,
            marks: Marks::empty(),
            options,
            kind: Kind::Datagram(Box::new(datagram)),
        })?;
        Ok(SocketId::new(index, self.sockets.generation(index)))
    }

    /// A socket that stands in for the one of shard `home` with this label, at the same addresses:
    /// what comes for it is handed over.
    ///
    /// # Errors
    /// Those of [`Shard::datagram`] and [`Shard::bind_datagram`].
    pub fn stand_in_datagram(
        &mut self,
        owner: Owner,
        options: &Options,
        (home, label): (u16, u32),
        local: SocketAddr,
    ) -> Result<SocketId, Error> {
        let id = self.datagram(owner, options, label)?;
        if let Some(datagram) = self.datagram_mut(id.index()) {
            datagram.home = Some(home);
        }
        self.bind_datagram(id, local, options).inspect_err(|_| {
            self.sockets.discard(id.index());
        })?;
        Ok(id)
    }

    pub(super) fn datagram_mut(&mut self, index: u32) -> Option<&mut Datagram> {
        match &mut self.sockets.get_mut(index)?.kind {
            Kind::Datagram(datagram) => Some(datagram),
            _ => None,
        }
    }

    pub(crate) fn datagram_of(&self, index: u32) -> Result<(&Socket, &Datagram), Error> {
        let socket = self.sockets.get(index).ok_or(Error::NoSocket)?;
        match &socket.kind {
            Kind::Datagram(datagram) => Ok((socket, datagram)),
            _ => Err(Error::NotSupported),
        }
    }

    /// Binds to a local address and port, as [`Shard::bind`]; groups and the address of all hosts
    /// of the link are addresses too.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is bound, [`Error::AddressInUse`],
    /// [`Error::AddressNotAvailable`].
    pub fn bind_datagram(
        &mut self,
        id: SocketId,
        local: SocketAddr,
        options: &Options,
    ) -> Result<(), Error> {
        let index = self.check(id)?;
        let address = local.ip().to_canonical();
        if self.datagram_of(index)?.1.local.port() != 0 {
            return Err(Error::Invalid);
        }
        if !address.is_unspecified()
            && !self.network.is_bindable(&self.env, address)
            && !self.network.is_multicast_or_broadcast(address)
        {
            return Err(Error::AddressNotAvailable);
        }
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.options = self.sharing.share(&Options {
                reuse: options.reuse,
                v6_only: options.v6_only,
                device: options.device,
                ..**socket.options
            });
        }
        self.hold_port(index, SocketAddr::new(address, local.port()), |_| true)?;
        if let Some(datagram) = self.datagram_mut(index) {
            datagram.bound = address;
            datagram.bound_by_program = true;
        }
        self.mark_changed(index);
        Ok(())
    }

    /// Registers the socket at `index` at a local address; port 0 takes a free one that is `good`,
    /// if there is one.
    fn hold_port(
        &mut self,
        index: u32,
        local: SocketAddr,
        good: impl Fn(u16) -> bool,
    ) -> Result<u16, Error> {
        let (socket, datagram) = self.datagram_of(index)?;
        let bound = Bound {
            socket: index,
            owner: socket.owner,
            address: local.ip(),
            v6_only: socket.options.v6_only,
            reuse: socket.options.reuse,
            listening: true,
            rank: datagram.label,
            device: socket.options.device,
            home: None,
            datagrams: true,
        };
        if !self.udp.ports.allows(local.port(), socket.owner) {
            self.env.counters.ports_limited += 1;
            return Err(Error::AddressInUse);
        }
        let port = if local.port() != 0 {
            if !self.udp.ports.is_free(local.port(), &bound) {
                return Err(Error::AddressInUse);
            }
            local.port()
        } else {
            // A port that we choose is shared with nobody.
            let alone = Bound {
                reuse: Default::default(),
                ..bound
            };
            let free = |ports: &Ports, port| good(port) && ports.is_free(port, &alone);
            let chosen = self.udp.ports.choose(&mut self.env.secrets, free, free);
            chosen.ok_or_else(|| {
                self.env.counters.ports_exhausted += 1;
                Error::AddressInUse
            })?
        };
        self.udp.ports.bind(port, bound);
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.marks.insert(Marks::BOUND);
        }
        if let Some(datagram) = self.datagram_mut(index) {
            datagram.local = SocketAddr::new(local.ip(), port);
            datagram.bound = local.ip();
        }
        Ok(port)
    }

    /// The ends of a datagram from the socket at `index` to `remote`, with port 0 where none is
    /// bound; and where to. `from` is the source that the program wants.
    pub(super) fn datagram_endpoints(
        &self,
        index: u32,
        remote: SocketAddr,
        from: Option<IpAddr>,
    ) -> Result<(SocketAddr, SocketAddr, Towards), Error> {
        let (socket, datagram) = self.datagram_of(index)?;
        // Linux: the unspecified address is this host.
        let address = match remote.ip().to_canonical() {
            IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            address => address,
        };
        let remote = SocketAddr::new(address, remote.port());
        if remote.port() == 0 {
            return Err(Error::Invalid);
        }
        if remote.is_ipv4() && socket.options.v6_only {
            return Err(Error::NetworkUnreachable);
        }
        let towards = match address {
            IpAddr::V4(group) if self.network.v4.is_broadcast(group) => {
                // A replica does not know the options that were set before it was bound.
                if !datagram.settings.broadcast && datagram.home.is_none() {
                    return Err(Error::AccessDenied);
                }
                Towards::All
            }
            group if group.is_multicast() => Towards::Group,
            address => match self
                .network
                .route(address)
                .ok_or(Error::NetworkUnreachable)?
            {
                Route::Local => Towards::Here,
                Route::Link(next) => Towards::Neighbour(next),
            },
        };
        let wanted = from
            .map(|from| from.to_canonical())
            .filter(|from| !from.is_unspecified());
        let source = match (wanted, datagram.local.ip()) {
            (Some(wanted), _) if !self.network.is_bindable(&self.env, wanted) => {
                return Err(Error::Invalid);
            }
            (Some(wanted), _) => wanted,
            (None, own)
                if !own.is_unspecified() && !self.network.is_multicast_or_broadcast(own) =>
            {
                own
            }
            _ if towards == Towards::Here => address,
            _ => self
                .network
                .source_for(address)
                .ok_or(Error::AddressNotAvailable)?,
        };
        if source.is_ipv4() != address.is_ipv4() {
            return Err(Error::NetworkUnreachable);
        }
        // From loopback only to this host (RFC 1122 3.2.1.3 (g)).
        if source.is_loopback() && !matches!(towards, Towards::Here | Towards::Group) {
            return Err(Error::Invalid);
        }
        let local = SocketAddr::new(source, datagram.local.port());
        Ok((local, remote, towards))
    }

    /// Whether a socket has to have a port before it can send. [`Shard::bind_datagram`] gives it
    /// one that all shards know; [`Shard::connect_datagram`] one that brings the answers here.
    pub fn is_bound_datagram(&self, id: SocketId) -> bool {
        let datagram = self.check(id).and_then(|index| self.datagram_of(index));
        datagram.is_ok_and(|(_, datagram)| datagram.local.port() != 0)
    }

    /// Gives a socket a peer, or another one: datagrams go there, and only what comes from there is
    /// heard.
    ///
    /// # Errors
    /// [`Error::NetworkUnreachable`], [`Error::AccessDenied`] for all hosts of the link without
    /// [`crate::Opt::Broadcast`], [`Error::AddressNotAvailable`] when no port is free,
    /// [`Error::Invalid`].
    pub fn connect_datagram(&mut self, id: SocketId, remote: SocketAddr) -> Result<(), Error> {
        let index = self.check(id)?;
        let before = self.datagram_of(index)?.1.remote;
        let (mut local, remote, _) = self.datagram_endpoints(index, remote, None)?;
        if self.must_change_port(index, local, remote) {
            self.release_datagram_port(index);
            local = self.datagram_endpoints(index, remote, None)?.0;
        }
        self.leave_peer(index);
        if local.port() == 0 {
            let endpoints = Tuple::new(local, remote).ok_or(Error::NetworkUnreachable)?;
            // A port that we choose brings the answers to this shard, if any does.
            let steer = self.env.config.steer.clone();
            let anywhere = steer.as_ref().is_none_or(Steer::has_none);
            let own = |port| {
                let is_own = |steer: &Steer| steer.is_own(&endpoints.with_local_port(port));
                anywhere || steer.as_ref().is_some_and(is_own)
            };
            let any = match self.datagram_of(index)?.1.local.ip() {
                address if address.is_unspecified() => local.ip(),
                address => address,
            };
            let port = self
                .hold_port(index, SocketAddr::new(any, 0), own)
                .map_err(|_| Error::AddressNotAvailable)?;
            local.set_port(port);
        } else if before.is_some()
            && let Ok((_, datagram)) = self.datagram_of(index)
            && datagram.bound.is_unspecified()
        {
            // The address was chosen for the peer before.
            let bound = SocketAddr::new(datagram.bound, local.port());
            if let Some(datagram) = self.datagram_mut(index) {
                datagram.local = bound;
            }
            local = self.datagram_endpoints(index, remote, None)?.0;
        }
        let tuple = Tuple::new(local, remote).ok_or(Error::NetworkUnreachable)?;
        if self.udp.table.get(&tuple).is_none() {
            self.udp.table.insert(tuple, Place::Stream(index));
        }
        if let Some(bound) = self.udp.ports.bound_mut(local.port(), index) {
            bound.listening = false;
        }
        if let Some(datagram) = self.datagram_mut(index) {
            datagram.local = local;
            datagram.remote = Some(remote);
            datagram.hop = Handle::NONE;
        }
        self.mark_changed(index);
        Ok(())
    }

    /// Whether the port that was chosen for the peer before would bring the answers of this one to
    /// another shard, which knows nothing of it.
    fn must_change_port(&self, index: u32, local: SocketAddr, remote: SocketAddr) -> bool {
        let chosen = self
            .datagram_of(index)
            .is_ok_and(|(_, datagram)| datagram.is_only_here());
        let steer = self.env.config.steer.as_ref();
        let tuple = Tuple::new(local, remote).filter(|_| chosen && local.port() != 0);
        steer
            .zip(tuple)
            .is_some_and(|(steer, tuple)| !steer.is_own(&tuple))
    }

    /// Takes a socket back to hearing everybody. A port that was chosen for it is given up.
    ///
    /// # Errors
    /// [`Error::NoSocket`], [`Error::NotSupported`] on a stream.
    pub fn disconnect_datagram(&mut self, id: SocketId) -> Result<(), Error> {
        let index = self.check(id)?;
        let (_, datagram) = self.datagram_of(index)?;
        if datagram.bound_by_program {
            self.leave_peer(index);
        } else {
            self.release_datagram_port(index);
        }
        self.mark_changed(index);
        Ok(())
    }

    /// Undoes [`Shard::bind_datagram`].
    pub fn unbind_datagram(&mut self, id: SocketId) {
        if let Ok(index) = self.check(id) {
            self.release_datagram_port(index);
            self.mark_changed(index);
        }
    }

    /// The socket at `index` has no peer any more.
    fn leave_peer(&mut self, index: u32) {
        let Ok((_, datagram)) = self.datagram_of(index) else {
            return;
        };
        let (local, bound) = (datagram.local, datagram.bound);
        let only_here = datagram.is_only_here();
        let Some(remote) = datagram.remote else {
            return;
        };
        if let Some(datagram) = self.datagram_mut(index) {
            datagram.remote = None;
            datagram.local = SocketAddr::new(bound, local.port());
        }
        if let Some(bound) = self.udp.ports.bound_mut(local.port(), index) {
            bound.listening = true;
        }
        let Some(tuple) = Tuple::new(local, remote) else {
            return;
        };
        if self.udp.table.get(&tuple) != Some(Place::Stream(index)) {
            return;
        }
        self.udp.table.remove(&tuple);
        // Another socket may be connected to the same peer from the same address.
        let other = self.udp.ports.bound(local.port()).iter().find(|bound| {
            self.datagram_of(bound.socket)
                .is_ok_and(|(_, other)| other.remote == Some(remote) && other.local == local)
        });
        if let Some(other) = other {
            self.udp.table.insert(tuple, Place::Stream(other.socket));
        } else if only_here {
            let steer = self.env.config.steer.as_ref();
            self.steering.note_over(steer, Flow::datagrams(tuple));
        }
    }

    fn release_datagram_port(&mut self, index: u32) {
        self.leave_peer(index);
        let Ok((_, datagram)) = self.datagram_of(index) else {
            return;
        };
        let port = datagram.local.port();
        if port != 0 {
            self.udp.ports.unbind(port, index);
        }
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.marks.remove(Marks::BOUND);
        }
        if let Some(datagram) = self.datagram_mut(index) {
            datagram.local = NOWHERE;
            datagram.bound = NOWHERE.ip();
            datagram.bound_by_program = false;
        }
    }

    /// A socket joins a group.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that is no group, [`Error::AddressInUse`] when the socket
    /// has joined it already, [`Error::NoMemory`] when it has joined too many.
    pub fn join(&mut self, id: SocketId, group: IpAddr, now: Instant) -> Result<(), Error> {
        let index = self.check(id)?;
        if !group.is_multicast() {
            return Err(Error::Invalid);
        }
        let datagram = self.datagram_mut(index).ok_or(Error::NotSupported)?;
        if datagram.groups.contains(&group) {
            return Err(Error::AddressInUse);
        }
        if datagram.groups.len() >= JOINED_MAX {
            return Err(Error::NoMemory);
        }
        datagram.groups.push(group);
        self.network.join(&mut self.env, group, now);
        Ok(())
    }

    /// A socket leaves a group.
    ///
    /// # Errors
    /// [`Error::AddressNotAvailable`] when the socket has not joined it.
    pub fn leave(&mut self, id: SocketId, group: IpAddr, _now: Instant) -> Result<(), Error> {
        let index = self.check(id)?;
        let datagram = self.datagram_mut(index).ok_or(Error::NotSupported)?;
        let at = datagram.groups.iter().position(|joined| *joined == group);
        let at = at.ok_or(Error::AddressNotAvailable)?;
        datagram.groups.swap_remove(at);
        self.network.leave(&mut self.env, group);
        Ok(())
    }

    /// Nobody holds the socket at `index` any more. What it has given to send still leaves.
    pub(crate) fn discard_datagram(&mut self, index: u32) {
        self.release_datagram_port(index);
        if self.udp.any == Some(index) {
            self.udp.any = None;
        }
        if let Some(outgoing) = self
            .datagram_mut(index)
            .and_then(|datagram| datagram.corked.take())
        {
            self.send_memory.free(outgoing.owner, outgoing.block);
        }
        let groups = self
            .datagram_mut(index)
            .map_or_else(Vec::new, |datagram| std::mem::take(&mut datagram.groups));
        for group in groups {
            self.network.leave(&mut self.env, group);
        }
        if let Some(mut socket) = self.sockets.remove(index)
            && let Kind::Datagram(datagram) = &mut socket.kind
        {
            datagram.recv.free(&mut self.memory, socket.owner);
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Towards {
    /// It turns round inside the shard.
    Here,
    /// To, or by, this neighbour.
    Neighbour(IpAddr),
    /// To a group.
    Group,
    /// To all hosts of the link.
    All,
}
