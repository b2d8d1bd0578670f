//! Making, binding, connecting and closing sockets for datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_sockopt::{Opt, Sockets};
use millrace_tcp::Instant;

use super::socket::Datagram;
use super::state::Udp;
use crate::base::Base;
use crate::connection_table::{Place, Tuple};
use crate::error::Error;
use crate::ip::route::Route;
use crate::link::neighbour::Handle;
use crate::memory::{Memory, Owner};
use crate::socket::local_ports::{Bound, Ports};
use crate::socket::{Kind, Marks, Options, Socket, SocketId};
use crate::steering::{Flow, Steer};

/// Where a socket is that is not bound.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Groups that one socket may join (Linux's `igmp_max_memberships`).
const JOINED_MAX: usize = 20;

impl Udp {
    /// Makes a socket for datagrams, neither bound nor connected.
    pub(crate) fn datagram<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        owner: Owner,
        options: &Options,
        label: u32,
    ) -> Result<SocketId, Error> {
        let mut datagram = Datagram::new(NOWHERE, label);
        datagram.resize(options);
        let options = base.sharing.share(options);
        let index = base.insert_socket(|| Socket {
            owner,
            marks: Marks::empty(),
            options,
            kind: Kind::Datagram(Box::new(datagram)),
        })?;
        Ok(base.id_of(index))
    }

    /// A socket that stands in for the one of shard `home` with this label, at the same addresses.
    pub(crate) fn stand_in_datagram<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        owner: Owner,
        options: &Options,
        (home, label): (u16, u32),
        local: SocketAddr,
    ) -> Result<SocketId, Error> {
        let id = self.datagram(base, owner, options, label)?;
        if let Some(datagram) = base.datagram_mut(id.index()) {
            datagram.home = Some(home);
        }
        self.bind_datagram(base, id, local, options)
            .inspect_err(|_| {
                base.sockets.discard(id.index());
            })?;
        Ok(id)
    }

    /// Binds to a local address and port, as [`Shard::bind`](crate::Shard::bind); groups and the
    /// address of all hosts of the link are addresses too.
    pub(crate) fn bind_datagram<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        local: SocketAddr,
        options: &Options,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        let address = local.ip().to_canonical();
        if base.datagram_of(index)?.1.local.port() != 0 {
            return Err(Error::Invalid);
        }
        if !address.is_unspecified()
            && !base.network.is_bindable(&base.env, address)
            && !base.network.is_multicast_or_broadcast(address)
        {
            return Err(Error::AddressNotAvailable);
        }
        if let Some(socket) = base.sockets.get_mut(index) {
            socket.options = base.sharing.share(&Options {
                reuse: options.reuse,
                v6_only: options.v6_only,
                device: options.device,
                ..**socket.options
            });
        }
        self.hold_port(base, index, SocketAddr::new(address, local.port()), |_| {
            true
        })?;
        if let Some(datagram) = base.datagram_mut(index) {
            datagram.bound = address;
            datagram.bound_by_program = true;
        }
        base.mark_changed(index);
        Ok(())
    }

    /// Registers the socket at `index` at a local address; port 0 takes a free one that is `good`,
    /// if there is one.
    fn hold_port<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        local: SocketAddr,
        good: impl Fn(u16) -> bool,
    ) -> Result<u16, Error> {
        let (socket, datagram) = base.datagram_of(index)?;
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
        if !self.ports.allows(local.port(), socket.owner) {
            base.env.counters.ports_limited += 1;
            return Err(Error::AddressInUse);
        }
        let port = if local.port() != 0 {
            if !self.ports.is_free(local.port(), &bound) {
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
            let chosen = self.ports.choose(&mut base.env.secrets, free, free);
            chosen.ok_or_else(|| {
                base.env.counters.ports_exhausted += 1;
                Error::AddressInUse
            })?
        };
        self.ports.bind(port, bound);
        if let Some(socket) = base.sockets.get_mut(index) {
            socket.marks.insert(Marks::BOUND);
        }
        if let Some(datagram) = base.datagram_mut(index) {
            datagram.local = SocketAddr::new(local.ip(), port);
            datagram.bound = local.ip();
        }
        Ok(port)
    }

    /// The ends of a datagram from the socket at `index` to `remote`, with port 0 where none is
    /// bound; and where to. `from` is the source that the program wants.
    pub(super) fn datagram_endpoints<M: Memory>(
        &self,
        base: &Base<M>,
        index: u32,
        remote: SocketAddr,
        from: Option<IpAddr>,
    ) -> Result<(SocketAddr, SocketAddr, Towards), Error> {
        let (socket, datagram) = base.datagram_of(index)?;
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
            IpAddr::V4(group) if base.network.v4.is_broadcast(group) => {
                // A replica does not know the options that were set before it was bound.
                if !datagram.settings.broadcast && datagram.home.is_none() {
                    return Err(Error::AccessDenied);
                }
                Towards::All
            }
            group if group.is_multicast() => Towards::Group,
            address => match base
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
            (Some(wanted), _) if !base.network.is_bindable(&base.env, wanted) => {
                return Err(Error::Invalid);
            }
            (Some(wanted), _) => wanted,
            (None, own)
                if !own.is_unspecified() && !base.network.is_multicast_or_broadcast(own) =>
            {
                own
            }
            _ if towards == Towards::Here => address,
            _ => base
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

    /// Whether a socket has to have a port before it can send.
    pub(crate) fn is_bound_datagram<M: Memory>(&self, base: &Base<M>, id: SocketId) -> bool {
        let datagram = base.check(id).and_then(|index| base.datagram_of(index));
        datagram.is_ok_and(|(_, datagram)| datagram.local.port() != 0)
    }

    /// Gives a socket a peer, or another one.
    pub(crate) fn connect_datagram<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        remote: SocketAddr,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        let before = base.datagram_of(index)?.1.remote;
        let (mut local, remote, _) = self.datagram_endpoints(base, index, remote, None)?;
        if self.must_change_port(base, index, local, remote) {
            self.release_datagram_port(base, index);
            local = self.datagram_endpoints(base, index, remote, None)?.0;
        }
        self.leave_peer(base, index);
        if local.port() == 0 {
            let endpoints = Tuple::new(local, remote).ok_or(Error::NetworkUnreachable)?;
            // A port that we choose brings the answers to this shard, if any does.
            let steer = base.env.config.steer.clone();
            let anywhere = steer.as_ref().is_none_or(Steer::has_none);
            let own = |port| {
                let is_own = |steer: &Steer| steer.is_own(&endpoints.with_local_port(port));
                anywhere || steer.as_ref().is_some_and(is_own)
            };
            let any = match base.datagram_of(index)?.1.local.ip() {
                address if address.is_unspecified() => local.ip(),
                address => address,
            };
            let port = self
                .hold_port(base, index, SocketAddr::new(any, 0), own)
                .map_err(|_| Error::AddressNotAvailable)?;
            local.set_port(port);
        } else if before.is_some()
            && let Ok((_, datagram)) = base.datagram_of(index)
            && datagram.bound.is_unspecified()
        {
            // The address was chosen for the peer before.
            let bound = SocketAddr::new(datagram.bound, local.port());
            if let Some(datagram) = base.datagram_mut(index) {
                datagram.local = bound;
            }
            local = self.datagram_endpoints(base, index, remote, None)?.0;
        }
        let tuple = Tuple::new(local, remote).ok_or(Error::NetworkUnreachable)?;
        if self.table.get(&tuple).is_none() {
            self.table.insert(tuple, Place::Stream(index));
        }
        if let Some(bound) = self.ports.bound_mut(local.port(), index) {
            bound.listening = false;
        }
        if let Some(datagram) = base.datagram_mut(index) {
            datagram.local = local;
            datagram.remote = Some(remote);
            datagram.hop = Handle::NONE;
        }
        base.mark_changed(index);
        Ok(())
    }

    /// Whether the port that was chosen for the peer before would bring the answers of this one to
    /// another shard, which knows nothing of it.
    fn must_change_port<M: Memory>(
        &self,
        base: &Base<M>,
        index: u32,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> bool {
        let chosen = base
            .datagram_of(index)
            .is_ok_and(|(_, datagram)| datagram.is_only_here());
        let steer = base.env.config.steer.as_ref();
        let tuple = Tuple::new(local, remote).filter(|_| chosen && local.port() != 0);
        steer
            .zip(tuple)
            .is_some_and(|(steer, tuple)| !steer.is_own(&tuple))
    }

    /// Takes a socket back to hearing everybody.
    pub(crate) fn disconnect_datagram<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        let (_, datagram) = base.datagram_of(index)?;
        if datagram.bound_by_program {
            self.leave_peer(base, index);
        } else {
            self.release_datagram_port(base, index);
        }
        base.mark_changed(index);
        Ok(())
    }

    /// Undoes [`Shard::bind_datagram`](crate::Shard::bind_datagram).
    pub(crate) fn unbind_datagram<M: Memory>(&mut self, base: &mut Base<M>, id: SocketId) {
        if let Ok(index) = base.check(id) {
            self.release_datagram_port(base, index);
            base.mark_changed(index);
        }
    }

    /// The socket at `index` has no peer any more.
    fn leave_peer<M: Memory>(&mut self, base: &mut Base<M>, index: u32) {
        let Ok((_, datagram)) = base.datagram_of(index) else {
            return;
        };
        let (local, bound) = (datagram.local, datagram.bound);
        let only_here = datagram.is_only_here();
        let Some(remote) = datagram.remote else {
            return;
        };
        if let Some(datagram) = base.datagram_mut(index) {
            datagram.remote = None;
            datagram.local = SocketAddr::new(bound, local.port());
        }
        if let Some(bound) = self.ports.bound_mut(local.port(), index) {
            bound.listening = true;
        }
        let Some(tuple) = Tuple::new(local, remote) else {
            return;
        };
        if self.table.get(&tuple) != Some(Place::Stream(index)) {
            return;
        }
        self.table.remove(&tuple);
        // Another socket may be connected to the same peer from the same address.
        let other = self.ports.bound(local.port()).iter().find(|bound| {
            base.datagram_of(bound.socket)
                .is_ok_and(|(_, other)| other.remote == Some(remote) && other.local == local)
        });
        if let Some(other) = other {
            self.table.insert(tuple, Place::Stream(other.socket));
        } else if only_here {
            let steer = base.env.config.steer.as_ref();
            base.steering.note_over(steer, Flow::datagrams(tuple));
        }
    }

    fn release_datagram_port<M: Memory>(&mut self, base: &mut Base<M>, index: u32) {
        self.leave_peer(base, index);
        let Ok((_, datagram)) = base.datagram_of(index) else {
            return;
        };
        let port = datagram.local.port();
        if port != 0 {
            self.ports.unbind(port, index);
        }
        if let Some(socket) = base.sockets.get_mut(index) {
            socket.marks.remove(Marks::BOUND);
        }
        if let Some(datagram) = base.datagram_mut(index) {
            datagram.local = NOWHERE;
            datagram.bound = NOWHERE.ip();
            datagram.bound_by_program = false;
        }
    }

    /// A socket joins a group.
    pub(crate) fn join<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        group: IpAddr,
        now: Instant,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        if !group.is_multicast() {
            return Err(Error::Invalid);
        }
        let datagram = base.datagram_mut(index).ok_or(Error::NotSupported)?;
        if datagram.groups.contains(&group) {
            return Err(Error::AddressInUse);
        }
        if datagram.groups.len() >= JOINED_MAX {
            return Err(Error::NoMemory);
        }
        datagram.groups.push(group);
        base.network.join(&mut base.env, group, now);
        Ok(())
    }

    /// A socket leaves a group.
    pub(crate) fn leave<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        group: IpAddr,
        _now: Instant,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        let datagram = base.datagram_mut(index).ok_or(Error::NotSupported)?;
        let at = datagram.groups.iter().position(|joined| *joined == group);
        let at = at.ok_or(Error::AddressNotAvailable)?;
        datagram.groups.swap_remove(at);
        base.network.leave(&mut base.env, group);
        Ok(())
    }

    /// The socket at `index` belongs to `owner` from now on, which calls it `label`.
    pub(crate) fn change_owner<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        owner: Owner,
        label: u32,
    ) -> Result<(), Error> {
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let Kind::Datagram(datagram) = &mut socket.kind else {
            return Err(Error::NotSupported);
        };
        let ring = &mut datagram.recv;
        if !ring.change_owner(&mut base.memory, socket.owner, owner) {
            return Err(Error::NoMemory);
        }
        datagram.label = label;
        socket.owner = owner;
        if let Some(bound) = self.ports.bound_mut(datagram.local.port(), index) {
            bound.owner = owner;
        }
        Ok(())
    }

    /// Nobody holds the socket at `index` any more. Datagrams that it queued are still sent.
    pub(crate) fn discard_datagram<M: Memory>(&mut self, base: &mut Base<M>, index: u32) {
        self.release_datagram_port(base, index);
        if self.any == Some(index) {
            self.any = None;
        }
        if let Some(outgoing) = base
            .datagram_mut(index)
            .and_then(|datagram| datagram.corked.take())
        {
            base.send_memory.free(outgoing.owner, outgoing.block);
        }
        let groups = base
            .datagram_mut(index)
            .map_or_else(Vec::new, |datagram| std::mem::take(&mut datagram.groups));
        for group in groups {
            base.network.leave(&mut base.env, group);
        }
        if let Some(mut socket) = base.sockets.remove(index)
            && let Kind::Datagram(datagram) = &mut socket.kind
        {
            datagram.recv.free(&mut base.memory, socket.owner);
        }
    }

    /// Makes a socket for datagrams what hears all of them that no other socket does, whoever they
    /// are for.
    pub(crate) fn hear_anything<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        if self.is_bound_datagram(base, id) {
            return Err(Error::Invalid);
        }
        base.datagram_of(index)?;
        if self.any.is_some() {
            return Err(Error::AddressInUse);
        }
        self.any = Some(index);
        Ok(())
    }

    pub(crate) fn set_datagram_option<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        option: Opt,
        now: Instant,
    ) -> Result<(), Error> {
        let buffers = base.env.config.buffers;
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let Kind::Datagram(datagram) = &mut socket.kind else {
            return Err(Error::NotSupported);
        };
        let mut options = **socket.options;
        match option {
            Opt::UdpCork(on) => {
                if !on {
                    self.uncork(base, index, now);
                }
                return Ok(());
            }
            Opt::V6Only(_) if socket.marks.contains(Marks::BOUND) => return Err(Error::Invalid),
            // Nobody but the program speaks of congestion here.
            Opt::Tos(tos) => options.tos = tos,
            Opt::TrafficClass(class) => options.traffic_class = class,
            option if option.name().row().sockets == Sockets::DATAGRAM => {
                return datagram.settings.set(option);
            }
            Opt::Broadcast(_) => return datagram.settings.set(option),
            option => options.take_over(option, buffers.send_max, buffers.receive_max)?,
        }
        socket.options = base.sharing.share(&options);
        datagram.resize(&socket.options);
        let (reuse, port) = (socket.options.reuse, datagram.local.port());
        if let Some(bound) = self.ports.bound_mut(port, index) {
            bound.reuse = reuse;
        }
        base.mark_changed(index);
        Ok(())
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Towards {
    /// The destination is this host: the datagram is delivered inside the shard.
    Here,
    /// To, or by, this neighbour.
    Neighbour(IpAddr),
    /// To a group.
    Group,
    /// To all hosts of the link.
    All,
}
