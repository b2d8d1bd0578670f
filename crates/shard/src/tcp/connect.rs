//! Active opens: `connect`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_tcp::{Config, Connection, Duration, Instant, Open, Settings, Shared};
use millrace_wire::tcp::Seq;

use crate::base::Base;
use crate::connection_table::{Place, Tuple};
use crate::error::Error;
use crate::ip::route::Route;
use crate::memory::{Memory, Owner};
use crate::socket::local_ports::Ports;
use crate::socket::note_changed;
use crate::socket::{Kind, Marks, Options, Socket, SocketId, Stream};
use crate::steering::{Flow, Steer};
use crate::tcp::autotuning;
use crate::tcp::endpoints::Endpoints;
use crate::tcp::input::largest_segment;
use crate::tcp::segment::IpFields;
use crate::tcp::state::Tcp;

/// How long an old connection is in TIME-WAIT before a new one to the same peer may take its place
/// (Linux's `tcp_tw_reuse`).
const REUSE_AFTER: Duration = Duration::from_secs(1);
/// Where a socket is that is not bound.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Tcp {
    /// Makes a socket and begins to connect it.
    pub(crate) fn connect<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        owner: Owner,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: &Options,
        now: Instant,
    ) -> Result<SocketId, Error> {
        let wanted = local.filter(|local| local.port() != 0 || !local.ip().is_unspecified());
        if let Some(local) = wanted {
            let id = self.bind_with(base, owner, local, options)?;
            self.connect_bound(base, id, remote, now)
                .inspect_err(|_| self.release_bound(base, id.index()))?;
            return Ok(id);
        }
        if base.sockets.is_full() {
            base.env.counters.sockets_refused += 1;
            return Err(Error::TooManySockets);
        }
        let start = self.start(base, NOWHERE, options, remote, now)?;
        let config = &base.env.config.tcp;
        let shared = base.sharing.share(options);
        let settings = shared.settings.clone();
        let endpoints = start.tuple.into();
        let Some(index) = base.sockets.insert_with(|| Socket {
            owner,
            marks: start.marks,
            options: shared,
            kind: Kind::Stream(start.stream(endpoints, config, &settings, now)),
        }) else {
            return Err(Error::TooManySockets);
        };
        self.begun(base, index, start.tuple, options.reuse.address, now);
        Ok(base.id_of(index))
    }

    /// Makes a socket that is neither bound nor connected.
    pub(crate) fn socket<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        owner: Owner,
        options: &Options,
    ) -> Result<SocketId, Error> {
        let local = NOWHERE;
        let options = base.sharing.share(options);
        let index = base.insert_socket(|| Socket {
            owner,
            marks: Marks::empty(),
            options,
            kind: Kind::Bound { local },
        })?;
        Ok(base.id_of(index))
    }

    /// Begins to connect a bound or unconnected socket, or one whose last attempt failed.
    pub(crate) fn connect_bound<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        let bound = self.bound_endpoint(base, index)?;
        let socket = base.sockets.get(index).ok_or(Error::NoSocket)?;
        let options = socket.options.clone();
        let start = self.start(base, bound, &options, remote, now)?;
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        socket.marks &= Marks::BOUND | Marks::CHANGED;
        socket.marks |= start.marks;
        let endpoints = start.tuple.into();
        socket.kind =
            Kind::Stream(start.stream(endpoints, &base.env.config.tcp, &options.settings, now));
        self.begun(base, index, start.tuple, options.reuse.address, now);
        Ok(())
    }

    /// Decides about a connection to `remote`, from `bound` or what is left open there.
    fn start<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        bound: SocketAddr,
        options: &Options,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<Start, Error> {
        let (local, remote, route) = self.endpoints_from(base, bound, options, remote)?;
        let (tuple, old) = self.choose_tuple(base, local, remote, now)?;
        let mut open = self
            .open_parameters(base, &tuple, options, now)
            .ok_or(Error::NetworkUnreachable)?;
        if let Some(old) = old {
            base.env.counters.time_wait_reused += 1;
            open.begin_after(old);
        }
        let mut marks = Marks::empty();
        marks.set(Marks::LOCAL, route == Some(Route::Local));
        marks.set(Marks::NOTSENT_LOW, options.notsent_low != 0);
        let known = base.network.path_mtus.get(tuple.remote_ip(), now);
        Ok(Start {
            tuple,
            open,
            marks,
            limits: autotuning::first_limits(options, &base.env.config.buffers, open.mss),
            fields: self.fields(base, &tuple, options),
            path: known.map(|mtu| largest_segment(mtu, tuple.remote_ip())),
        })
    }

    /// The socket at `index` has begun to connect.
    #[inline(always)]
    fn begun<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        tuple: Tuple,
        reuse: bool,
        now: Instant,
    ) {
        self.table.add(tuple, Place::Stream(index));
        self.ports.add_connection(tuple.local(), reuse);
        base.env.counters.active_opens += 1;
        let owner = base
            .sockets
            .get(index)
            .map_or_else(Owner::default, |socket| socket.owner);
        let hop = base
            .network
            .first_hop(&mut base.env.counters, tuple.remote_ip(), owner, now);
        if let Some((socket, generation)) = base.sockets.get_mut_with_generation(index) {
            note_changed(&mut base.changed, SocketId::new(index, generation), socket);
            self.ready.add(index, socket);
            if let Some(stream) = socket.stream_mut() {
                stream.hop = hop;
            }
        }
    }

    /// The ends that a connection of the socket at `index` to `remote` has, with port 0 where it is
    /// to be chosen, and the way there.
    pub(crate) fn endpoints<M: Memory>(
        &self,
        base: &Base<M>,
        index: u32,
        remote: SocketAddr,
    ) -> Result<(SocketAddr, SocketAddr, Option<Route>), Error> {
        let bound = self.bound_endpoint(base, index)?;
        let options = &base.sockets.get(index).ok_or(Error::NoSocket)?.options;
        self.endpoints_from(base, bound, options, remote)
    }

    /// The local address of the socket at `index`, if the socket may connect.
    fn bound_endpoint<M: Memory>(&self, base: &Base<M>, index: u32) -> Result<SocketAddr, Error> {
        let socket = base.sockets.get(index).ok_or(Error::NoSocket)?;
        match &socket.kind {
            Kind::Bound { local } => Ok(*local),
            Kind::Listener(_) => Err(Error::AlreadyConnected),
            Kind::Datagram(_) => Err(Error::NotSupported),
            Kind::Stream(stream)
                if socket.marks.contains(Marks::DEAD)
                    && !socket.marks.contains(Marks::ESTABLISHED) =>
            {
                // The last attempt failed. A port that was chosen for it is chosen anew.
                Ok(match socket.marks.contains(Marks::BOUND) {
                    true => stream.endpoints.tuple().local(),
                    false => NOWHERE,
                })
            }
            Kind::Stream(_) if socket.marks.contains(Marks::ESTABLISHED) => {
                Err(Error::AlreadyConnected)
            }
            Kind::Stream(_) => Err(Error::InProgress),
        }
    }

    /// As `endpoints`, of a socket with these options that is
    /// bound there.
    fn endpoints_from<M: Memory>(
        &self,
        base: &Base<M>,
        bound: SocketAddr,
        options: &Options,
        remote: SocketAddr,
    ) -> Result<(SocketAddr, SocketAddr, Option<Route>), Error> {
        // Linux: the unspecified address is this host.
        let address = match remote.ip().to_canonical() {
            IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            address => address,
        };
        let remote = SocketAddr::new(address, remote.port());
        let route = base
            .network
            .route(remote.ip())
            .filter(|_| remote.port() != 0 && !(remote.is_ipv4() && options.v6_only));
        let address = match (route.ok_or(Error::NetworkUnreachable)?, remote.ip()) {
            _ if !bound.ip().is_unspecified() => bound.ip(),
            (Route::Local, address) => address,
            (Route::Link(_), address) => base
                .network
                .source_for(address)
                .ok_or(Error::AddressNotAvailable)?,
        };
        if address.is_ipv4() != remote.is_ipv4() {
            return Err(Error::NetworkUnreachable);
        }
        // From loopback only to this host (RFC 1122 3.2.1.3 (g)).
        if address.is_loopback() && route != Some(Route::Local) {
            return Err(Error::Invalid);
        }
        let local = SocketAddr::new(address, bound.port());
        Ok((local, remote, route))
    }

    /// The tuple of a new connection. When none is free, that of a connection in TIME-WAIT will do
    /// if timestamps tell old segments from new ones (RFC 6191, as Linux's `tcp_tw_reuse`): with it
    /// comes the number after which ours have to begin.
    fn choose_tuple<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<(Tuple, Option<Seq>), Error> {
        let (table, time_wait, pins) = (&self.table, &self.time_wait, base.steering.pins());
        let (address, port) = (local.ip(), local.port());
        let endpoints = Tuple::new(local, remote).ok_or(Error::NetworkUnreachable)?;
        let with_port = |port| endpoints.with_local_port(port);
        let steer = &base.env.config.steer;
        let free = |port| {
            let tuple = with_port(port);
            // A connection that is about to move here may have this tuple.
            let awaited = steer.as_ref().is_some_and(|steer| steer.is_awaited(&tuple));
            !awaited && table.get(&tuple).is_none() && pins.get(&Flow::stream(tuple)).is_none()
        };
        // A port that we choose brings the answers to this shard, if any does.
        let anywhere = steer.as_ref().is_none_or(Steer::has_none);
        let own = |port| {
            let is_own = |steer: &Steer| steer.is_own(&with_port(port));
            anywhere || steer.as_ref().is_some_and(is_own)
        };
        let reusable = |port| match table.get(&with_port(port)) {
            Some(Place::TimeWait(at)) => time_wait
                .get(at)
                .is_some_and(|old| old.timestamps && now - old.since >= REUSE_AFTER),
            _ => false,
        };
        let chosen = if port != 0 {
            (free(port) || reusable(port)).then_some(port)
        } else {
            let unbound = |ports: &Ports, port| own(port) && !ports.is_bound(port, address);
            self.ports.choose(
                &mut base.env.secrets,
                |ports, port| unbound(ports, port) && free(port),
                |ports, port| unbound(ports, port) && (free(port) || reusable(port)),
            )
        };
        let Some(port) = chosen else {
            base.env.counters.ports_exhausted += 1;
            return Err(Error::AddressNotAvailable);
        };
        let tuple = with_port(port);
        let old = match self.table.get(&tuple) {
            Some(Place::TimeWait(at)) => self.forget_time_wait(base, at),
            _ => None,
        };
        Ok((tuple, old.map(|old| old.state.after())))
    }
}

/// The decisions about a connection before it exists.
struct Start {
    tuple: Tuple,
    open: Open,
    /// Those of its socket.
    marks: Marks,
    /// Its send and receive buffer.
    limits: (u32, u32),
    fields: IpFields,
    /// The largest segment that is known to reach the peer.
    path: Option<u16>,
}

impl Start {
    /// Makes the connection. `endpoints` are made of the tuple before that, so that what is made
    /// need not be moved.
    #[inline(always)]
    fn stream(
        &self,
        endpoints: Endpoints,
        config: &Config,
        settings: &Shared<Settings>,
        now: Instant,
    ) -> Stream {
        let mut connection = Connection::connect(config, settings, self.open, now);
        if let Some(limit) = self.path {
            connection.start_with_path_limit(config, limit, now);
        }
        Stream::new(connection, endpoints, self.fields, self.limits, now)
    }
}
