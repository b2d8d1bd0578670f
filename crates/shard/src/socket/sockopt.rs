//! Setting and reading socket options.

use std::num::NonZeroU8;

use millrace_tcp::Instant;

use millrace_sockopt::{Opt, OptName};

use super::options::seconds_of;
use super::{Kind, Marks, Options, SocketId};
use crate::error::Error;
use crate::memory::Memory;
use crate::shard::Shard;
use crate::tcp::segment::{HOPS, IpFields};

/// The segment size that Linux reports for a socket that is not connected.
const DEFAULT_MSS: u16 = 536;

impl<M: Memory> Shard<M> {
    /// Sets an option.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of range, [`Error::NoOption`] for one that the caller
    /// keeps or that such a socket has not, [`Error::NoSocket`].
    pub fn set_option(&mut self, id: SocketId, option: Opt, now: Instant) -> Result<(), Error> {
        let index = self.base.check(id)?;
        let option = option.normal().map_err(|_| Error::Invalid)?;
        let buffers = self.base.env.config.buffers;
        if matches!(option, Opt::Congestion(algorithm) if !self.base.env.config.tcp.has(algorithm))
        {
            return Err(Error::Invalid);
        }
        let socket = self.base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        if let Kind::Datagram(_) = socket.kind {
            return self
                .udp
                .set_datagram_option(&mut self.base, index, option, now);
        }
        if let Opt::FastOpenKeys(keys) = option {
            if let Some(listener) = socket.listener_mut() {
                listener.fast_open_keys = Some(Box::new(keys));
            }
            return Ok(());
        }
        let before = socket.options.clone();
        let is_bound = socket.marks.contains(Marks::BOUND) || socket.stream().is_some();
        if matches!(option, Opt::V6Only(_)) && is_bound {
            return Err(Error::Invalid);
        }
        let mut options = **before;
        options.take_over(option, buffers.send_max, buffers.receive_max)?;
        let options = self.base.sharing.share(&options);
        socket.options = options.clone();
        let (owner_reuse, bound) = (before.reuse, socket.marks.contains(Marks::BOUND));
        socket
            .marks
            .set(Marks::NOTSENT_LOW, options.notsent_low != 0);
        let port = match &mut socket.kind {
            Kind::Bound { local } => local.port(),
            Kind::Datagram(datagram) => datagram.local.port(),
            Kind::Listener(listener) => listener.local.port(),
            Kind::Stream(stream) => {
                let limit = match options.receive_buffer {
                    Some(set) if options.receive_buffer != before.receive_buffer => set.get(),
                    Some(_) => stream.receive_limit,
                    None => stream.receive_limit.max(options.receive_low * 2),
                };
                if limit != stream.receive_limit {
                    stream.receive_limit = limit;
                    stream.connection.set_receive_limit(limit);
                }
                if let Some(limit) = options.send_buffer {
                    stream.send_limit = limit.get();
                }
                stream.fields = IpFields::new(
                    &stream.endpoints.tuple(),
                    &options,
                    stream.fields.flow_label(),
                );
                if options.tcp != before.tcp {
                    stream
                        .connection
                        .configure(&self.base.env.config.tcp, &options.settings, now);
                }
                if let Opt::QuickAck(on) = option {
                    stream.connection.set_quick_ack(on);
                }
                if options.reuse.address != owner_reuse.address
                    && !socket.marks.contains(Marks::DEAD)
                {
                    let local = stream.endpoints.tuple().local();
                    self.ports.remove_connection(local, owner_reuse.address);
                    self.ports.add_connection(local, options.reuse.address);
                }
                stream.endpoints.tuple().ports().0
            }
        };
        if bound && let Some(registered) = self.ports.bound_mut(port, index) {
            registered.reuse = options.reuse;
        }
        self.apply_state_change(index);
        Ok(())
    }

    /// All that was set on a socket.
    pub fn options(&self, id: SocketId) -> Option<Options> {
        let socket = self.base.sockets.get(self.base.check(id).ok()?)?;
        Some(**socket.options)
    }

    /// Reads an option.
    ///
    /// # Errors
    /// [`Error::NoOption`] for one that the caller keeps, or that such a socket has not;
    /// [`Error::NoSocket`].
    pub fn option(&self, id: SocketId, name: OptName) -> Result<Opt, Error> {
        let socket = self
            .base
            .sockets
            .get(self.base.check(id)?)
            .ok_or(Error::NoSocket)?;
        let options = &socket.options;
        let (send, receive) = match &socket.kind {
            Kind::Stream(stream) => (stream.send_limit, stream.receive_limit),
            Kind::Datagram(datagram) => (datagram.send_limit, datagram.receive_limit),
            _ => (
                self.base.env.config.buffers.send_default,
                self.base.env.config.buffers.receive_default,
            ),
        };
        Ok(match name {
            OptName::NoDelay => Opt::NoDelay(options.tcp.nodelay),
            OptName::Cork => Opt::Cork(options.tcp.cork),
            OptName::KeepAlive => Opt::KeepAlive(options.tcp.keepalive.is_some()),
            OptName::KeepIdle => Opt::KeepIdle(options.keepalive.idle_s),
            OptName::KeepInterval => Opt::KeepInterval(options.keepalive.interval_s),
            OptName::KeepCount => Opt::KeepCount(options.keepalive.probes),
            OptName::UserTimeout => Opt::UserTimeout(options.tcp.user_timeout_ms.unwrap_or(0)),
            OptName::MaxSegment => Opt::MaxSegment(match socket.stream() {
                Some(stream) => stream.connection.send_mss(),
                None => options.tcp.max_segment.unwrap_or(DEFAULT_MSS),
            }),
            OptName::SynCount => Opt::SynCount(
                options
                    .tcp
                    .syn_retries
                    .unwrap_or(self.base.env.config.tcp.syn_retries),
            ),
            OptName::Linger2 => Opt::Linger2(match options.tcp.fin_wait_s {
                None => self.base.env.config.tcp.fin_wait_timeout.as_secs() as i16,
                Some(0) => -1,
                Some(seconds) => seconds as i16,
            }),
            OptName::Linger => Opt::Linger(options.linger),
            OptName::ReceiveBuffer => {
                Opt::ReceiveBuffer(options.receive_buffer.map_or(receive, |set| set.get() * 2))
            }
            OptName::SendBuffer => {
                Opt::SendBuffer(options.send_buffer.map_or(send, |set| set.get() * 2))
            }
            OptName::ReceiveLowWater => Opt::ReceiveLowWater(options.receive_low.max(1)),
            OptName::Congestion => Opt::Congestion(
                options
                    .tcp
                    .congestion
                    .unwrap_or(self.base.env.config.tcp.congestion),
            ),
            OptName::QuickAck => {
                Opt::QuickAck(socket.stream().map_or(!options.tcp.interactive, |stream| {
                    stream.connection.quick_ack()
                }))
            }
            OptName::MaxPacingRate => Opt::MaxPacingRate(options.tcp.max_pacing_rate),
            OptName::DeferAccept => Opt::DeferAccept(seconds_of(options.tcp.defer_accept)),
            OptName::ReuseAddress => Opt::ReuseAddress(options.reuse.address),
            OptName::ReusePort => Opt::ReusePort(options.reuse.port),
            OptName::V6Only => Opt::V6Only(options.v6_only),
            OptName::NotSentLowWater => Opt::NotSentLowWater(options.notsent_low),
            OptName::FastOpen => Opt::FastOpen(options.fast_open),
            OptName::FastOpenNoCookie => Opt::FastOpenNoCookie(options.no_cookie),
            OptName::MtuDiscover => Opt::MtuDiscover(options.discovery[0]),
            OptName::MtuDiscoverV6 => Opt::MtuDiscoverV6(options.discovery[1]),
            OptName::AddressOnly => Opt::AddressOnly(options.address_only),
            OptName::Ttl => Opt::Ttl(options.ttl.map_or(HOPS, NonZeroU8::get)),
            OptName::Tos => Opt::Tos(options.tos),
            OptName::HopLimit => Opt::HopLimit(Some(options.hop_limit.unwrap_or(HOPS))),
            OptName::TrafficClass => Opt::TrafficClass(options.traffic_class),
            name => match &socket.kind {
                Kind::Datagram(datagram) => datagram.settings.get(name).ok_or(Error::NoOption)?,
                _ => return Err(Error::NoOption),
            },
        })
    }
}
