//! Setting and reading socket options.

use std::num::{NonZeroU8, NonZeroU32};

use millrace_tcp::{Instant, Keepalive};

use millrace_sockopt::{Opt, OptName, Sockets};

use super::{Kind, Marks, Options, SocketId};
use crate::error::Error;
use crate::memory::Memory;
use crate::shard::Shard;
use crate::tcp::segment::{HOPS, IpFields};

/// Least buffers that can be set, in bytes (Linux: 4608 and 2304 with their overhead).
const SEND_BUFFER_MIN: u32 = 2304;
const RECEIVE_BUFFER_MIN: u32 = 1152;
/// The bits of type of service and traffic class that are ECN's.
const ECN: u8 = 3;

impl<M: Memory> Shard<M> {
    /// Sets an option.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of range, [`Error::NoOption`] for one that the caller
    /// keeps or that such a socket has not, [`Error::NoSocket`].
    pub fn set_option(&mut self, id: SocketId, option: Opt, now: Instant) -> Result<(), Error> {
        let index = self.check(id)?;
        let option = option.normal().map_err(|_| Error::Invalid)?;
        let buffers = self.env.config.buffers;
        if matches!(option, Opt::Congestion(algorithm) if !self.env.config.tcp.has(algorithm)) {
            return Err(Error::Invalid);
        }
        let socket = self.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        if let Kind::Datagram(_) = socket.kind {
            return self.set_datagram_option(index, option, now);
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
        let options = self.sharing.share(&options);
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
                        .configure(&self.env.config.tcp, &options.settings, now);
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
        let socket = self.sockets.get(self.check(id).ok()?)?;
        Some(**socket.options)
    }

    fn set_datagram_option(&mut self, index: u32, option: Opt, now: Instant) -> Result<(), Error> {
        let buffers = self.env.config.buffers;
        let socket = self.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let Kind::Datagram(datagram) = &mut socket.kind else {
            return Err(Error::NotSupported);
        };
        let mut options = **socket.options;
        match option {
            Opt::UdpCork(on) => {
                if !on {
                    self.uncork(index, now);
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
        socket.options = self.sharing.share(&options);
        datagram.resize(&socket.options);
        let (reuse, port) = (socket.options.reuse, datagram.local.port());
        if let Some(bound) = self.udp.ports.bound_mut(port, index) {
            bound.reuse = reuse;
        }
        self.mark_changed(index);
        Ok(())
    }

    /// Reads an option.
    ///
    /// # Errors
    /// [`Error::NoOption`] for one that the caller keeps, or that such a socket has not;
    /// [`Error::NoSocket`].
    pub fn option(&self, id: SocketId, name: OptName) -> Result<Opt, Error> {
        let socket = self.sockets.get(self.check(id)?).ok_or(Error::NoSocket)?;
        let options = &socket.options;
        let (send, receive) = match &socket.kind {
            Kind::Stream(stream) => (stream.send_limit, stream.receive_limit),
            Kind::Datagram(datagram) => (datagram.send_limit, datagram.receive_limit),
            _ => (
                self.env.config.buffers.send_default,
                self.env.config.buffers.receive_default,
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
                    .unwrap_or(self.env.config.tcp.syn_retries),
            ),
            OptName::Linger2 => Opt::Linger2(match options.tcp.fin_wait_s {
                None => self.env.config.tcp.fin_wait_timeout.as_secs() as i16,
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
                    .unwrap_or(self.env.config.tcp.congestion),
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

/// Seconds after which a SYN-ACK times out first, and at most (Linux's `TCP_TIMEOUT_INIT` and
/// `TCP_RTO_MAX`).
const TIMEOUT_FIRST_S: u32 = 1;
const TIMEOUT_MAX_S: u32 = 120;

/// How long each of the time-outs of a SYN-ACK takes, in seconds.
fn timeouts() -> impl Iterator<Item = u32> {
    std::iter::successors(Some(TIMEOUT_FIRST_S), |last| {
        Some((last * 2).min(TIMEOUT_MAX_S))
    })
}

/// The time-outs that so many seconds take at least.
fn timeouts_in(seconds: u32) -> u8 {
    let mut passed = 0;
    let within = timeouts().take(usize::from(u8::MAX)).take_while(|wait| {
        let more = passed < seconds;
        passed += wait;
        more
    });
    within.count() as u8
}

/// The seconds that so many time-outs take.
fn seconds_of(count: u8) -> u32 {
    timeouts().take(usize::from(count)).sum()
}

/// The segment size that Linux reports for a socket that is not connected.
const DEFAULT_MSS: u16 = 536;

impl Options {
    /// Sets one option, with buffers of at most these sizes.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// let mut options = millrace::Options::default();
    /// options.set(millrace::Opt::KeepIdle(60), 1 << 20, 1 << 20)?;
    /// assert_eq!(options.keepalive.idle_s, 60);
    /// # Ok::<(), millrace::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of range, [`Error::NoOption`] for an option that is none
    /// of these.
    pub fn set(&mut self, option: Opt, send_max: u32, receive_max: u32) -> Result<(), Error> {
        let option = option.normal().map_err(|_| Error::Invalid)?;
        self.take_over(option, send_max, receive_max)
    }

    /// Sets one option, whose value is in range.
    fn take_over(&mut self, option: Opt, send_max: u32, receive_max: u32) -> Result<(), Error> {
        match option {
            Opt::NoDelay(on) => self.tcp.nodelay = on,
            Opt::Cork(on) => self.tcp.cork = on,
            Opt::KeepAlive(on) => self.tcp.keepalive = on.then_some(self.keepalive),
            Opt::KeepIdle(idle_s) => {
                self.set_keepalive(Keepalive {
                    idle_s,
                    ..self.keepalive
                });
            }
            Opt::KeepInterval(interval_s) => {
                self.set_keepalive(Keepalive {
                    interval_s,
                    ..self.keepalive
                });
            }
            Opt::KeepCount(probes) => {
                self.set_keepalive(Keepalive {
                    probes,
                    ..self.keepalive
                });
            }
            Opt::UserTimeout(ms) => self.tcp.user_timeout_ms = (ms != 0).then_some(ms),
            Opt::MaxSegment(bytes) => self.tcp.max_segment = (bytes != 0).then_some(bytes),
            Opt::SynCount(count) => self.tcp.syn_retries = Some(count),
            Opt::Linger2(0) => self.tcp.fin_wait_s = None,
            Opt::Linger2(seconds) => {
                self.tcp.fin_wait_s = Some(u16::try_from(seconds).unwrap_or(0));
            }
            Opt::Linger(linger) => self.linger = linger,
            Opt::ReceiveBuffer(bytes) => {
                self.receive_buffer = NonZeroU32::new(bytes.clamp(RECEIVE_BUFFER_MIN, receive_max));
            }
            Opt::SendBuffer(bytes) => {
                self.send_buffer = NonZeroU32::new(bytes.clamp(SEND_BUFFER_MIN, send_max));
            }
            Opt::ReceiveLowWater(bytes) => {
                let most = self.receive_buffer.map_or(receive_max / 2, NonZeroU32::get);
                self.receive_low = bytes.min(most);
            }
            Opt::Congestion(algorithm) => self.tcp.congestion = Some(algorithm),
            Opt::QuickAck(on) => self.tcp.interactive = !on,
            Opt::MaxPacingRate(rate) => self.tcp.max_pacing_rate = rate,
            Opt::DeferAccept(seconds) => self.tcp.defer_accept = timeouts_in(seconds),
            Opt::ReuseAddress(on) => self.reuse.address = on,
            Opt::ReusePort(on) => self.reuse.port = on,
            Opt::V6Only(on) => self.v6_only = on,
            Opt::NotSentLowWater(bytes) => self.notsent_low = bytes,
            Opt::FastOpen(limit) => self.fast_open = limit,
            Opt::FastOpenNoCookie(on) => self.no_cookie = on,
            Opt::FastOpenKeys(_) => {}
            Opt::MtuDiscover(discovery) => self.discovery[0] = discovery,
            Opt::MtuDiscoverV6(discovery) => self.discovery[1] = discovery,
            Opt::AddressOnly(on) => self.address_only = on,
            Opt::Ttl(hops) => self.ttl = Some(NonZeroU8::new(hops).ok_or(Error::Invalid)?),
            // TCP speaks of congestion in the last two bits, not the program (RFC 3168 23.2).
            Opt::Tos(tos) => self.tos = tos & !ECN,
            Opt::HopLimit(hops) => self.hop_limit = hops,
            Opt::TrafficClass(class) => self.traffic_class = class & !ECN,
            _ => return Err(Error::NoOption),
        }
        Ok(())
    }

    fn set_keepalive(&mut self, times: Keepalive) {
        self.keepalive = times;
        if self.tcp.keepalive.is_some() {
            self.tcp.keepalive = Some(times);
        }
    }
}
