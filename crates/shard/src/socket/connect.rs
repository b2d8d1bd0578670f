//! Active opens.

use std::net::{Ipv4Addr, SocketAddrV4};

use millrace_tcp::{Connection, Duration, Instant};

use super::{Kind, Marks, Options, Socket, SocketId, Stream, Tuning};
use crate::error::Error;
use crate::memory::{Memory, Owner};
use crate::neighbour::Handle;
use crate::ports::Ports;
use crate::recv_ring::RecvRing;
use crate::route::Route;
use crate::send_ring::SendRing;
use crate::shard::Shard;
use crate::table::{Place, Tuple};
use crate::tuning;

/// How long an old connection is in TIME-WAIT before a new one to the same peer may take its place (Linux's `tcp_tw_reuse`).
const REUSE_AFTER: Duration = Duration::from_secs(1);

impl<M: Memory> Shard<M> {
    /// Makes a socket and begins to connect it. `local` may leave the address unspecified and the port 0; without it both are chosen. The result shows in
    /// the view: `CONNECTED`, or `ERROR`.
    ///
    /// # Errors
    /// Those of [`Shard::bind`] and [`Shard::connect_bound`]; nothing is left then.
    pub fn connect(
        &mut self,
        owner: Owner,
        local: Option<SocketAddrV4>,
        remote: SocketAddrV4,
        options: &Options,
        now: Instant,
    ) -> Result<SocketId, Error> {
        let wanted = local.filter(|local| local.port() != 0 || !local.ip().is_unspecified());
        let id = match wanted {
            Some(local) => self.bind(owner, local, options.reuse)?,
            None => self.socket(owner, options)?,
        };
        if let Some(socket) = self.sockets.get_mut(id.index()) {
            socket.options = *options;
        }
        self.connect_bound(id, remote, now)
            .inspect_err(|_| self.release_bound(id.index()))?;
        Ok(id)
    }

    /// Makes a socket that is neither bound nor connected.
    ///
    /// # Errors
    /// [`Error::TooManySockets`].
    pub fn socket(&mut self, owner: Owner, options: &Options) -> Result<SocketId, Error> {
        let local = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        let index = self.insert_socket(Socket {
            owner,
            marks: Marks::empty(),
            options: *options,
            kind: Kind::Bound { local },
        })?;
        Ok(SocketId::new(index, self.sockets.generation(index)))
    }

    /// Begins to connect a bound or unconnected socket, or one whose last attempt failed.
    ///
    /// # Errors
    /// [`Error::InProgress`], [`Error::AlreadyConnected`], [`Error::NotSupported`] on a listener, [`Error::NetworkUnreachable`],
    /// [`Error::AddressInUse`] when the bound port is connected to this peer already,
    /// [`Error::AddressNotAvailable`] when no port is free.
    pub fn connect_bound(
        &mut self,
        id: SocketId,
        remote: SocketAddrV4,
        now: Instant,
    ) -> Result<(), Error> {
        let index = self.check(id)?;
        // Linux: the unspecified address is this host.
        let remote = match remote.ip().is_unspecified() {
            true => SocketAddrV4::new(Ipv4Addr::LOCALHOST, remote.port()),
            false => remote,
        };
        let socket = self.sockets.get(index).ok_or(Error::NoSocket)?;
        let bound = match &socket.kind {
            Kind::Bound { local } => *local,
            Kind::Listener(_) => return Err(Error::AlreadyConnected),
            Kind::Stream(stream)
                if socket.marks.contains(Marks::DEAD)
                    && !socket.marks.contains(Marks::ESTABLISHED) =>
            {
                // The last attempt failed. A port that was chosen for it is chosen anew.
                match socket.marks.contains(Marks::BOUND) {
                    true => stream.tuple.local(),
                    false => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
                }
            }
            Kind::Stream(_) if socket.marks.contains(Marks::ESTABLISHED) => {
                return Err(Error::AlreadyConnected);
            }
            Kind::Stream(_) => return Err(Error::InProgress),
        };
        let options = socket.options;
        let route = self
            .routes
            .find(*remote.ip())
            .filter(|_| remote.port() != 0);
        let address = match route.ok_or(Error::NetworkUnreachable)? {
            _ if !bound.ip().is_unspecified() => *bound.ip(),
            Route::Local => *remote.ip(),
            Route::Link(_) => self.config.address,
        };
        // From loopback only to this host (RFC 1122 3.2.1.3 (g)).
        if address.is_loopback() && route != Some(Route::Local) {
            return Err(Error::Invalid);
        }
        let tuple = self.choose_tuple(bound.port(), address, remote, now)?;
        let open = self
            .open_parameters(&tuple, &options, now)
            .ok_or(Error::NetworkUnreachable)?;
        let connection = Connection::connect(&self.config.tcp, &options.tcp, open, now);
        let limits = tuning::first_limits(&options, &self.config.buffers, open.mss);
        let stream = Stream::new(connection, tuple, limits, now);
        let socket = self.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        socket.marks &= Marks::BOUND | Marks::CHANGED;
        socket.marks.set(Marks::LOCAL, route == Some(Route::Local));
        socket.kind = Kind::Stream(stream);
        self.table.insert(tuple, Place::Stream(index));
        self.ports
            .add_connection(tuple.local(), options.reuse.address);
        self.counters.active_opens += 1;
        self.mark_changed(index);
        self.mark_ready(index);
        Ok(())
    }

    /// The tuple of a new connection. When none is free, that of a connection in TIME-WAIT will do if timestamps tell old
    /// segments from new ones (RFC 6191, as Linux's `tcp_tw_reuse`).
    fn choose_tuple(
        &mut self,
        port: u16,
        address: Ipv4Addr,
        remote: SocketAddrV4,
        now: Instant,
    ) -> Result<Tuple, Error> {
        let (table, time_wait) = (&self.table, &self.time_wait);
        let with_port = |port| Tuple::new(SocketAddrV4::new(address, port), remote);
        let free = |port| table.get(&with_port(port)).is_none();
        let reusable = |port| match table.get(&with_port(port)) {
            Some(Place::TimeWait(at)) => time_wait
                .get(at)
                .is_some_and(|old| old.timestamps && now - old.since >= REUSE_AFTER),
            _ => false,
        };
        let chosen = if port != 0 {
            (free(port) || reusable(port)).then_some(port)
        } else {
            let unbound = |ports: &Ports, port| !ports.is_bound(port, address);
            self.ports.choose(
                &mut self.secrets,
                |ports, port| unbound(ports, port) && free(port),
                |ports, port| unbound(ports, port) && (free(port) || reusable(port)),
            )
        };
        let Some(port) = chosen else {
            self.counters.ports_exhausted += 1;
            return Err(Error::AddressNotAvailable);
        };
        let tuple = with_port(port);
        if let Some(Place::TimeWait(at)) = self.table.get(&tuple) {
            self.forget_time_wait(at);
        }
        Ok(tuple)
    }
}

impl Stream {
    pub fn new(
        connection: Connection,
        tuple: Tuple,
        (send_limit, receive_limit): (u32, u32),
        now: Instant,
    ) -> Stream {
        Stream {
            connection,
            tuple,
            hop: Handle::NONE,
            send: SendRing::default(),
            recv: RecvRing::default(),
            send_limit,
            receive_limit,
            error: 0,
            listener: u32::MAX,
            tuning: Tuning {
                since: now,
                from: 0,
                span_us: 0,
                best: 0,
            },
        }
    }
}
