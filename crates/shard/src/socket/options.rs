//! Socket options: what may be set, and what it does.

use std::net::IpAddr;
use std::num::{NonZeroU8, NonZeroU32};

use millrace_tcp::{Algorithm, Keepalive, Settings};

use crate::datagram::Discovery;

use super::FastOpenKeys;
use crate::datagram::DatagramOpt;

/// One option with its value. [`crate::Shard::set_option`] sets it, [`crate::Shard::option`] reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opt {
    /// `TCP_NODELAY`.
    NoDelay(bool),
    /// `TCP_CORK`.
    Cork(bool),
    /// `SO_KEEPALIVE`.
    KeepAlive(bool),
    /// `TCP_KEEPIDLE`, seconds, 1..=32767.
    KeepIdle(u16),
    /// `TCP_KEEPINTVL`, seconds, 1..=32767.
    KeepInterval(u16),
    /// `TCP_KEEPCNT`, 1..=127.
    KeepCount(u8),
    /// `TCP_USER_TIMEOUT`, milliseconds; 0 is the system's default.
    UserTimeout(u32),
    /// `TCP_MAXSEG`, bytes, 88..=32767, before the connection is made; 0 is the link's. Reading a connected socket gives the size in use.
    MaxSegment(u16),
    /// `TCP_SYNCNT`, 1..=127.
    SynCount(u8),
    /// `TCP_LINGER2`, seconds that an orphan stays in FIN-WAIT-2, 1..=120; 0 is the system's default, -1 not at all.
    Linger2(i16),
    /// `SO_LINGER`: `None` is off; `Some(0)` resets the connection on close. With a time, close is as usual here, and the waiting is the caller's.
    Linger(Option<u16>),
    /// `SO_RCVBUF`, bytes. As on Linux, a set value is doubled for the reader of the option, and ends the tuning.
    ReceiveBuffer(u32),
    /// `SO_SNDBUF`, bytes. As on Linux, a set value is doubled for the reader of the option, and ends the tuning.
    SendBuffer(u32),
    /// `SO_RCVLOWAT`, bytes. The caller holds reading back; here a buffer that is tuned grows to twice as much at once, and what could never
    /// be held is cut, as on Linux.
    ReceiveLowWater(u32),
    /// `TCP_CONGESTION`.
    Congestion(Algorithm),
    /// `TCP_QUICKACK`: on sends the acknowledgement that waits, off lets acknowledgements wait for payload. Reads as what holds now.
    QuickAck(bool),
    /// `TCP_DEFER_ACCEPT`, seconds: a connection reaches accept only with payload, or once they have passed. As on Linux the time is rounded
    /// up to one at which the SYN-ACK is repeated: 1, 3, 7, 15, ...; 0 is off.
    DeferAccept(u32),
    /// `SO_MAX_PACING_RATE`, bytes per second: no faster than this. 0 and all ones are no bound.
    MaxPacingRate(u64),
    /// `SO_REUSEADDR`.
    ReuseAddress(bool),
    /// `SO_REUSEPORT`.
    ReusePort(bool),
    /// `IPV6_V6ONLY`, before the socket is bound: `::` does not mean IPv4, too.
    V6Only(bool),
    /// `IP_BIND_ADDRESS_NO_PORT`: a bind to port 0 leaves the choice of the port to connect, which knows the peer.
    AddressOnly(bool),
    /// `TCP_NOTSENT_LOWAT`, bytes: room to write is reported while less than half of this was not sent yet, and given while less than this was.
    /// 0 is no bound.
    NotSentLowWater(u32),
    /// `TCP_FASTOPEN` of a listener: connections that are open before their handshake is complete, at most; 0 is off.
    FastOpen(u16),
    /// `TCP_FASTOPEN_NO_COOKIE`: payload on a SYN needs none.
    FastOpenNoCookie(bool),
    /// `TCP_FASTOPEN_KEY` of a listener. It is set, not read, and other sockets have no use for it.
    FastOpenKeys(FastOpenKeys),
    /// `IP_MTU_DISCOVER`.
    MtuDiscover(Discovery),
    /// `IPV6_MTU_DISCOVER`.
    MtuDiscoverV6(Discovery),
    /// `IP_TTL`, 1..=255.
    Ttl(u8),
    /// `IP_TOS`.
    Tos(u8),
    /// `IPV6_UNICAST_HOPS`, 0..=255; `None` is the default.
    HopLimit(Option<u8>),
    /// `IPV6_TCLASS`.
    TrafficClass(u8),
    /// One that only sockets for datagrams have. It is set, not read: whoever set it knows.
    Datagram(DatagramOpt),
}

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

/// Names an option, to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptName {
    /// `TCP_NODELAY`.
    NoDelay,
    /// `TCP_CORK`.
    Cork,
    /// `SO_KEEPALIVE`.
    KeepAlive,
    /// `TCP_KEEPIDLE`.
    KeepIdle,
    /// `TCP_KEEPINTVL`.
    KeepInterval,
    /// `TCP_KEEPCNT`.
    KeepCount,
    /// `TCP_USER_TIMEOUT`.
    UserTimeout,
    /// `TCP_MAXSEG`.
    MaxSegment,
    /// `TCP_SYNCNT`.
    SynCount,
    /// `TCP_LINGER2`.
    Linger2,
    /// `SO_LINGER`.
    Linger,
    /// `SO_RCVBUF`.
    ReceiveBuffer,
    /// `SO_SNDBUF`.
    SendBuffer,
    /// `SO_RCVLOWAT`.
    ReceiveLowWater,
    /// `TCP_CONGESTION`.
    Congestion,
    /// `TCP_QUICKACK`.
    QuickAck,
    /// `TCP_DEFER_ACCEPT`.
    DeferAccept,
    /// `SO_MAX_PACING_RATE`.
    MaxPacingRate,
    /// `SO_REUSEADDR`.
    ReuseAddress,
    /// `SO_REUSEPORT`.
    ReusePort,
    /// `IPV6_V6ONLY`.
    V6Only,
    /// `IP_BIND_ADDRESS_NO_PORT`.
    AddressOnly,
    /// `TCP_NOTSENT_LOWAT`.
    NotSentLowWater,
    /// `TCP_FASTOPEN`.
    FastOpen,
    /// `TCP_FASTOPEN_NO_COOKIE`.
    FastOpenNoCookie,
    /// `IP_MTU_DISCOVER`.
    MtuDiscover,
    /// `IPV6_MTU_DISCOVER`.
    MtuDiscoverV6,
    /// `IP_TTL`.
    Ttl,
    /// `IP_TOS`.
    Tos,
    /// `IPV6_UNICAST_HOPS`.
    HopLimit,
    /// `IPV6_TCLASS`.
    TrafficClass,
}

/// Everything that can be set on a socket, also before it is connected; accepted sockets inherit their listener's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What the connection is told. `keepalive` here is whether it is on; the times are in [`Options::keepalive`].
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
    /// What a bind binds to beside the address.
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
    /// `SO_REUSEADDR`: may bind beside connections, and beside other sockets that have it, as long as none of them listens.
    pub address: bool,
    /// `SO_REUSEPORT`: several listeners of one owner may share address and port; connections are spread over them by hash.
    pub port: bool,
}
