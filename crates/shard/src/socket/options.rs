//! Options that were set on a socket.

use std::net::IpAddr;
use std::num::{NonZeroU8, NonZeroU32};

use millrace_sockopt::{Discovery, Opt};
use millrace_tcp::{Keepalive, Settings};

use crate::error::Error;

/// Least buffers that can be set, in bytes (Linux: 4608 and 2304 with their overhead).
const SEND_BUFFER_MIN: u32 = 2304;
const RECEIVE_BUFFER_MIN: u32 = 1152;
/// The bits of type of service and traffic class that are ECN's.
const ECN: u8 = 3;

/// The device that a socket is bound to (`SO_BINDTODEVICE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// None: it hears all.
    #[default]
    Any,
    /// The link: it hears what is sent to the link's addresses, by this host as well, as on Linux.
    Link,
    /// Loopback: it hears what is sent to loopback addresses.
    Loopback,
}

impl Device {
    /// The device that has an address of ours.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// assert_eq!(millrace::Device::of([127, 0, 0, 1].into()), millrace::Device::Loopback);
    /// ```
    pub fn of(address: IpAddr) -> Device {
        if address.is_loopback() {
            Device::Loopback
        } else {
            Device::Link
        }
    }
}

/// Everything that can be set on a socket, also before it is connected; accepted sockets inherit
/// their listener's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The options of the connection. `keepalive` here is whether it is on; the times are in
    /// [`Options::keepalive`].
    pub tcp: Settings,
    /// The times of keepalive, kept while it is off.
    pub keepalive: Keepalive,
    /// `SO_LINGER`.
    pub linger: Option<u16>,
    /// `SO_RCVBUF` as set, in bytes; `None` while it is tuned.
    pub receive_buffer: Option<NonZeroU32>,
    /// `SO_SNDBUF` as set, in bytes; `None` while it is tuned.
    pub send_buffer: Option<NonZeroU32>,
    /// `SO_RCVLOWAT`, bytes; 0 when not set. A buffer that is tuned holds twice as much.
    pub receive_low: u32,
    /// `SO_REUSEADDR` and `SO_REUSEPORT`.
    pub reuse: Reuse,
    /// `IPV6_V6ONLY`.
    pub v6_only: bool,
    /// `IP_BIND_ADDRESS_NO_PORT`.
    pub address_only: bool,
    /// The parts of a binding other than the address.
    pub device: Device,
    /// `TCP_NOTSENT_LOWAT`, bytes; 0 is no bound.
    pub notsent_low: u32,
    /// `IP_MTU_DISCOVER` and `IPV6_MTU_DISCOVER`.
    pub discovery: [Discovery; 2],
    /// `TCP_FASTOPEN`: how many; 0 is off.
    pub fast_open: u16,
    /// `TCP_FASTOPEN_NO_COOKIE`.
    pub no_cookie: bool,
    /// `IP_TTL`; `None` is the default.
    pub ttl: Option<NonZeroU8>,
    /// `IP_TOS`.
    pub tos: u8,
    /// `IPV6_UNICAST_HOPS`; `None` is the default.
    pub hop_limit: Option<u8>,
    /// `IPV6_TCLASS`.
    pub traffic_class: u8,
}

impl Options {
    /// No option was set.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// assert_eq!(millrace::Options::UNSET, millrace::Options::default());
    /// ```
    pub const UNSET: Options = Options {
        tcp: Settings::UNSET,
        keepalive: Keepalive::UNSET,
        linger: None,
        receive_buffer: None,
        send_buffer: None,
        receive_low: 0,
        reuse: Reuse {
            address: false,
            port: false,
        },
        v6_only: false,
        address_only: false,
        device: Device::Any,
        notsent_low: 0,
        discovery: [Discovery::Want; 2],
        fast_open: 0,
        no_cookie: false,
        ttl: None,
        tos: 0,
        hop_limit: None,
        traffic_class: 0,
    };
}

impl Default for Options {
    fn default() -> Options {
        Options::UNSET
    }
}

/// Sharing of a local address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// `SO_REUSEADDR`: may bind beside connections, and beside other sockets that have it, as long
    /// as none of them listens.
    pub address: bool,
    /// `SO_REUSEPORT`: several listeners of one owner may share address and port; connections are
    /// spread over them by hash.
    pub port: bool,
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
pub(super) fn seconds_of(count: u8) -> u32 {
    timeouts().take(usize::from(count)).sum()
}

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
    pub(crate) fn take_over(
        &mut self,
        option: Opt,
        send_max: u32,
        receive_max: u32,
    ) -> Result<(), Error> {
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
