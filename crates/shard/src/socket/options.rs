//! Options that were set on a socket.

use std::net::IpAddr;
use std::num::{NonZeroU8, NonZeroU32};

use millrace_sockopt::Discovery;
use millrace_tcp::{Keepalive, Settings};

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
    /// What the connection is told. `keepalive` here is whether it is on; the times are in
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
