//! Binding, listening and accepting.

use std::net::SocketAddr;

use millrace_tcp::{Connection, HalfOpen, Instant, Settings, Shared};

use crate::base::Base;
use crate::connection_table::{Place, Tuple};
use crate::error::Error;
use crate::memory::{Memory, Owner};
use crate::socket::local_ports::{Bound, Ports};
use crate::socket::{
    AcceptQueue, Backlog, Kind, Listener, Marks, Options, Reuse, SharedOptions, Socket, SocketId,
    Stream,
};
use crate::tcp::autotuning;
use crate::tcp::input::largest_segment;
use crate::tcp::state::Tcp;

/// A larger backlog means this. (What `net.core.somaxconn` says is the shim's to know.)
const BACKLOG_MAX: u32 = 65_535;

impl Tcp {
    /// Makes a socket that holds a local address and port.
    pub(crate) fn bind<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        owner: Owner,
        local: SocketAddr,
        reuse: Reuse,
    ) -> Result<SocketId, Error> {
        let options = Options {
            reuse,
            ..Options::default()
        };
        self.bind_with(base, owner, local, &options)
    }

    /// As [`Shard::bind`](crate::Shard::bind), with options that were set before.
    pub(crate) fn bind_with<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        owner: Owner,
        local: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        let address = local.ip().to_canonical();
        if !address.is_unspecified() && !base.network.is_bindable(&base.env, address) {
            return Err(Error::AddressNotAvailable);
        }
        // Nobody has this index: the socket does not exist yet.
        let mut bound = Bound {
            socket: u32::MAX,
            owner,
            address,
            v6_only: options.v6_only,
            reuse: options.reuse,
            listening: false,
            rank: 0,
            device: options.device,
            home: None,
            datagrams: false,
        };
        let without_port = local.port() == 0 && options.address_only;
        if !without_port && !self.ports.allows(local.port(), owner) {
            base.env.counters.ports_limited += 1;
            return Err(Error::AddressInUse);
        }
        let port = if local.port() != 0 {
            if !self.ports.is_free(local.port(), &bound) {
                return Err(Error::AddressInUse);
            }
            local.port()
        } else if options.address_only {
            0
        } else {
            let free = |ports: &Ports, port| ports.is_free(port, &bound);
            self.ports
                .choose(&mut base.env.secrets, free, free)
                .ok_or(Error::AddressInUse)?
        };
        let local = SocketAddr::new(address, port);
        let options = base.sharing.share(options);
        let index = base.insert_socket(|| Socket {
            owner,
            marks: Marks::BOUND,
            options,
            kind: Kind::Bound { local },
        })?;
        bound.socket = index;
        if port != 0 {
            self.ports.bind(port, bound);
        }
        Ok(base.id_of(index))
    }

    /// [`Shard::bind`](crate::Shard::bind) and [`Shard::listen_bound`](crate::Shard::listen_bound)
    /// in one.
    pub(crate) fn listen<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        owner: Owner,
        local: SocketAddr,
        backlog: u32,
        reuse: Reuse,
    ) -> Result<SocketId, Error> {
        let id = self.bind(base, owner, local, reuse)?;
        self.listen_bound(base, id, backlog, None)
            .inspect_err(|_| self.release_bound(base, id.index()))?;
        Ok(id)
    }

    /// Lets a bound socket listen; a listening one gets a new backlog.
    pub(crate) fn listen_bound<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        backlog: u32,
        queue: Option<AcceptQueue>,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        let backlog = backlog.min(BACKLOG_MAX);
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let local = match &mut socket.kind {
            Kind::Listener(listener) => {
                listener.backlog.limit = backlog;
                return Ok(());
            }
            Kind::Bound { local } => *local,
            Kind::Stream(_) => return Err(Error::Invalid),
            Kind::Datagram(_) => return Err(Error::NotSupported),
        };
        let bound = Bound {
            socket: index,
            owner: socket.owner,
            address: local.ip(),
            v6_only: socket.options.v6_only,
            reuse: socket.options.reuse,
            listening: true,
            rank: 0,
            device: socket.options.device,
            home: queue.as_ref().map(AcceptQueue::home),
            datagrams: false,
        };
        if !self.ports.is_free(local.port(), &bound) {
            return Err(Error::AddressInUse);
        }
        let backlog = Backlog::new(backlog, queue);
        socket.kind = Kind::Listener(Listener::new(local, backlog));
        if let Some(registered) = self.ports.bound_mut(local.port(), index) {
            *registered = bound;
        }
        base.mark_changed(index);
        Ok(())
    }

    /// The oldest connection that waits to be accepted.
    pub(crate) fn accept<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
    ) -> Result<SocketId, Error> {
        let index = base.check(id)?;
        let listener = base
            .sockets
            .get_mut(index)
            .and_then(Socket::listener_mut)
            .ok_or(Error::Invalid)?;
        let accepted = listener.queue.pop_front().ok_or(Error::WouldBlock)?;
        listener.backlog.hand_over();
        base.mark_changed(index);
        if let Some(socket) = base.sockets.get_mut(accepted) {
            socket.marks.remove(Marks::UNACCEPTED);
        }
        Ok(base.id_of(accepted))
    }

    /// Makes the connection that a handshake has completed, and queues it at its listener. `None`
    /// when there is no room; then nothing has happened, and the peer will come again.
    pub(crate) fn establish<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        listener: u32,
        tuple: Tuple,
        state: &HalfOpen,
        now: Instant,
    ) -> Option<u32> {
        self.establish_with(base, listener, tuple, now, |config, settings| {
            state.establish(config, settings, now)
        })
    }

    /// As `establish`, with a connection that `make` makes.
    pub(crate) fn establish_with<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        listener: u32,
        tuple: Tuple,
        now: Instant,
        make: impl FnOnce(&millrace_tcp::Config, &Shared<Settings>) -> Connection,
    ) -> Option<u32> {
        let socket = base.sockets.get_mut(listener)?;
        let (owner, options) = (socket.owner, socket.options.clone());
        if !socket.listener_mut()?.backlog.admit(&base.memory, owner) {
            base.env.counters.accept_queue_full += 1;
            return None;
        }
        let made = self.make_accepted(base, listener, (owner, options), tuple, now, make);
        if let Some(listener) = base
            .sockets
            .get_mut(listener)
            .and_then(Socket::listener_mut)
        {
            match made {
                Some(index) => listener.queue.push_back(index),
                None => listener.backlog.retract(),
            }
        }
        base.mark_changed(listener);
        made
    }

    #[inline]
    fn make_accepted<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        listener: u32,
        (owner, options): (Owner, Shared<SharedOptions>),
        tuple: Tuple,
        now: Instant,
        make: impl FnOnce(&millrace_tcp::Config, &Shared<Settings>) -> Connection,
    ) -> Option<u32> {
        let known = base.network.path_mtus.get(tuple.remote_ip(), now);
        let fields = self.fields(base, &tuple, &options);
        let mut marks = Marks::UNACCEPTED;
        marks.set(Marks::LOCAL, base.network.is_local(tuple.remote_ip()));
        marks.set(Marks::NOTSENT_LOW, options.notsent_low != 0);
        let hop = base
            .network
            .first_hop(&mut base.env.counters, tuple.remote_ip(), owner, now);
        let (config, buffers) = (&base.env.config.tcp, &base.env.config.buffers);
        let reuse = options.reuse.address;
        let endpoints = tuple.into();
        let made = base.sockets.insert_with(|| {
            let mut connection = make(config, &options.settings);
            if let Some(mtu) = known {
                let limit = largest_segment(mtu, tuple.remote_ip());
                connection.start_with_path_limit(config, limit, now);
            }
            let limits =
                autotuning::first_limits(&options, buffers, connection.announced_segment());
            let mut stream = Stream::new(connection, endpoints, fields, limits, now);
            stream.listener = listener;
            stream.hop = hop;
            Socket {
                owner,
                marks,
                options,
                kind: Kind::Stream(stream),
            }
        });
        let Some(index) = made else {
            base.env.counters.sockets_refused += 1;
            return None;
        };
        self.table.insert(tuple, Place::Stream(index));
        self.ports.add_connection(tuple.local(), reuse);
        base.env.counters.passive_opens += 1;
        Some(index)
    }

    /// How many connections wait at a listener, here and with its program, and its backlog; `None`
    /// for another socket.
    pub(crate) fn accept_queue<M: Memory>(
        &self,
        base: &Base<M>,
        id: SocketId,
    ) -> Option<(u64, u32)> {
        let socket = base.sockets.get(base.check(id).ok()?)?;
        match &socket.kind {
            Kind::Listener(Listener { backlog, .. }) => {
                Some((backlog.waiting(&base.memory, socket.owner), backlog.limit))
            }
            _ => None,
        }
    }

    /// Takes a listener out of service: what it has not handed over is reset, half-open connections
    /// are forgotten.
    pub(crate) fn stop_listening<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        now: Instant,
    ) {
        let Some(listener) = base.sockets.get_mut(index).and_then(Socket::listener_mut) else {
            return;
        };
        let half_open = listener.half_open;
        if self.catch_all_listener == Some(index) {
            self.catch_all_listener = None;
        }
        for waiting in std::mem::take(&mut listener.queue) {
            if let Some(socket) = base.sockets.get_mut(waiting) {
                socket.marks.remove(Marks::UNACCEPTED);
                self.discard_stream(base, waiting, true, now);
            }
        }
        if half_open > 0 {
            // Rare enough to look at all of them.
            let own: Vec<u32> = self
                .half_open
                .iter()
                .filter(|(_, pending)| pending.listener == index)
                .map(|(at, _)| at)
                .collect();
            for at in own {
                self.forget_half_open(base, at);
            }
        }
    }

    /// Gives up a socket that is neither connected nor listening, with the address that it may
    /// hold.
    pub(crate) fn release_bound<M: Memory>(&mut self, base: &mut Base<M>, index: u32) {
        if let Some(Socket {
            marks,
            kind: Kind::Bound { local },
            ..
        }) = base.sockets.get(index)
            && marks.contains(Marks::BOUND)
        {
            self.ports.unbind(local.port(), index);
        }
        base.sockets.discard(index);
    }
}
