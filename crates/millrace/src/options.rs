//! Options of sockets as getters and setters, with values as Rust has them.

use std::io;
use std::time::Duration;

use millrace_shard::{Discovery, Error, FastOpenKeys, Opt, OptName};
use millrace_tcp::Algorithm;

use crate::stack::system;
use crate::{TcpListener, TcpStream, UdpSocket, shared};

/// A socket that has options.
trait HasOptions {
    fn set_option(&self, option: Opt) -> io::Result<()>;
    fn option(&self, name: OptName) -> io::Result<Opt>;
}

impl HasOptions for TcpStream {
    fn set_option(&self, option: Opt) -> io::Result<()> {
        self.socket.set_option(option)
    }

    fn option(&self, name: OptName) -> io::Result<Opt> {
        self.socket.option(name)
    }
}

impl HasOptions for TcpListener {
    fn set_option(&self, option: Opt) -> io::Result<()> {
        self.sockets.set_option(option)
    }

    fn option(&self, name: OptName) -> io::Result<Opt> {
        self.sockets.option(name)
    }
}

impl HasOptions for UdpSocket {
    fn set_option(&self, option: Opt) -> io::Result<()> {
        self.sockets.set_option(option)
    }

    fn option(&self, name: OptName) -> io::Result<Opt> {
        self.sockets.option(name)
    }
}

impl HasOptions for shared::TcpStream {
    fn set_option(&self, option: Opt) -> io::Result<()> {
        self.with_stream(move |stream| HasOptions::set_option(stream, option))
    }

    fn option(&self, name: OptName) -> io::Result<Opt> {
        self.with_stream(move |stream| HasOptions::option(stream, name))
    }
}

/// A value that is the same in Rust and in the option.
mod same {
    pub(super) fn to<T>(value: T) -> std::io::Result<T> {
        Ok(value)
    }

    pub(super) fn from<T>(value: T) -> T {
        value
    }
}

/// A number, of which 0 is none.
mod nonzero {
    pub(super) fn to<T: Default>(value: Option<T>) -> std::io::Result<T> {
        Ok(value.unwrap_or_default())
    }

    pub(super) fn from<T: Default + PartialEq>(value: T) -> Option<T> {
        (value != T::default()).then_some(value)
    }
}

/// A rate, of which all ones are none.
mod rate {
    pub(super) fn to(value: Option<u64>) -> std::io::Result<u64> {
        Ok(value.unwrap_or(u64::MAX))
    }

    pub(super) fn from(value: u64) -> Option<u64> {
        (value != u64::MAX).then_some(value)
    }
}

/// A span in whole seconds, rounded up.
mod seconds {
    use super::*;

    pub(super) fn to<T: TryFrom<u64>>(span: Duration) -> io::Result<T> {
        let seconds = span.as_nanos().div_ceil(1_000_000_000);
        let seconds = u64::try_from(seconds).ok();
        seconds
            .and_then(|seconds| T::try_from(seconds).ok())
            .ok_or_else(|| system(Error::Invalid))
    }

    pub(super) fn from<T: Into<u64>>(seconds: T) -> Duration {
        Duration::from_secs(seconds.into())
    }
}

/// A span in whole seconds, rounded up; 0 is none.
mod some_seconds {
    use super::*;

    pub(super) fn to<T: TryFrom<u64> + Default>(span: Option<Duration>) -> io::Result<T> {
        span.map_or(Ok(T::default()), seconds::to)
    }

    pub(super) fn from<T: Into<u64>>(value: T) -> Option<Duration> {
        Some(seconds::from(value)).filter(|span| !span.is_zero())
    }
}

/// A span in milliseconds, rounded up; 0 is none.
mod some_millis {
    use super::*;

    pub(super) fn to(span: Option<Duration>) -> io::Result<u32> {
        let millis = span.map_or(0, |span| span.as_nanos().div_ceil(1_000_000));
        u32::try_from(millis).map_err(|_| system(Error::Invalid))
    }

    pub(super) fn from(millis: u32) -> Option<Duration> {
        Some(Duration::from_millis(millis.into())).filter(|span| !span.is_zero())
    }
}

/// `SO_LINGER`: none is off.
mod linger {
    use super::*;

    pub(super) fn to(span: Option<Duration>) -> io::Result<Option<u16>> {
        span.map(seconds::to).transpose()
    }

    pub(super) fn from(value: Option<u16>) -> Option<Duration> {
        value.map(seconds::from)
    }
}

/// `TCP_LINGER2`: 0 is the host's default, -1 is no time at all.
mod fin_wait {
    use super::*;

    pub(super) fn to(span: Option<Duration>) -> io::Result<i16> {
        match span {
            None => Ok(0),
            Some(Duration::ZERO) => Ok(-1),
            Some(span) => seconds::to::<u16>(span).map(|seconds| seconds.min(120) as i16),
        }
    }

    pub(super) fn from(seconds: i16) -> Option<Duration> {
        match seconds {
            0 => None,
            seconds => Some(Duration::from_secs(seconds.max(0).unsigned_abs().into())),
        }
    }
}

/// A setter and a getter for each option, with an example of both. The line `$make` of the example
/// has a socket of the type.
macro_rules! typed {
    ($type:ty, $make:literal; $(
        $(#[doc = $doc:literal])+
        $opt:ident($value:ty) by $form:ident: $set:ident($example:literal), $get:ident;
    )*) => {
        impl $type {$(
            $(#[doc = $doc])+
            ///
            /// ```
            #[doc = $make]
            #[doc = concat!("socket.", stringify!($set), "(", $example, ")?;")]
            #[doc = concat!("println!(\"{:?}\", socket.", stringify!($get), "()?);")]
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Errors
            /// `EINVAL` for a value out of range.
            pub fn $set(&self, value: $value) -> io::Result<()> {
                HasOptions::set_option(self, Opt::$opt($form::to(value)?))
            }

            #[doc = concat!("What [`Self::", stringify!($set), "`] has set, or the default.")]
            ///
            /// ```
            #[doc = $make]
            #[doc = concat!("println!(\"{:?}\", socket.", stringify!($get), "()?);")]
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Errors
            /// None while the socket is open.
            pub fn $get(&self) -> io::Result<$value> {
                match HasOptions::option(self, OptName::$opt)? {
                    Opt::$opt(value) => Ok($form::from(value)),
                    _ => Err(system(Error::Invalid)),
                }
            }
        )*}
    };
}

/// The options of connections, for a connection and for a listener, whose connections inherit them.
macro_rules! stream_options {
    ($type:ty, $make:literal) => {
        typed! { $type, $make;
            /// `TCP_NODELAY`: short segments leave at once instead of one a round trip.
            NoDelay(bool) by same: set_nodelay("true"), nodelay;
            /// `TCP_CORK`: segments that are not full wait, 200 ms at most.
            Cork(bool) by same: set_cork("true"), cork;
            /// `SO_KEEPALIVE`: a silent peer is asked for a sign of life.
            KeepAlive(bool) by same: set_keepalive("true"), keepalive;
            /// `TCP_KEEPIDLE`: how long the peer is silent before it is asked. Whole seconds, 1 to
            /// 32,767.
            KeepIdle(Duration) by seconds: set_keepalive_time("std::time::Duration::from_secs(60)"), keepalive_time;
            /// `TCP_KEEPINTVL`: between two such questions. Whole seconds, 1 to 32,767.
            KeepInterval(Duration) by seconds: set_keepalive_interval("std::time::Duration::from_secs(5)"), keepalive_interval;
            /// `TCP_KEEPCNT`: how many of them have no answer before the connection is given up, 1
            /// to 127.
            KeepCount(u8) by same: set_keepalive_retries("3"), keepalive_retries;
            /// `SO_LINGER`: zero resets the connection when it is closed. Another time changes
            /// nothing here: a close does not wait.
            Linger(Option<Duration>) by linger: set_linger("Some(std::time::Duration::ZERO)"), linger;
            /// `TCP_USER_TIMEOUT`: how long written bytes may stay without an acknowledgement;
            /// `None` is the host's default.
            UserTimeout(Option<Duration>) by some_millis: set_user_timeout("Some(std::time::Duration::from_secs(20))"), user_timeout;
            /// `TCP_LINGER2`: how long a closed connection waits for the peer's end; `None` is the
            /// host's default.
            Linger2(Option<Duration>) by fin_wait: set_fin_wait_timeout("Some(std::time::Duration::from_secs(5))"), fin_wait_timeout;
            /// `TCP_SYNCNT`: how often a SYN is repeated, 1 to 127.
            SynCount(u8) by same: set_syn_retries("3"), syn_retries;
            /// `TCP_QUICKACK`: whether acknowledgements leave at once. It reads as what holds now.
            QuickAck(bool) by same: set_quickack("true"), quickack;
            /// `TCP_DEFER_ACCEPT`: a connection reaches accept only with payload, or once so many
            /// seconds have passed. As on Linux they are rounded up to a time at which the SYN-ACK
            /// is repeated.
            DeferAccept(Option<Duration>) by some_seconds: set_defer_accept("Some(std::time::Duration::from_secs(3))"), defer_accept;
            /// `TCP_NOTSENT_LOWAT`: how many bytes may wait unsent.
            NotSentLowWater(Option<u32>) by nonzero: set_notsent_low_water("Some(16_384)"), notsent_low_water;
            /// `SO_RCVLOWAT`: how many bytes make the socket readable.
            ReceiveLowWater(u32) by same: set_recv_low_water("512"), recv_low_water;
            /// `SO_MAX_PACING_RATE`: no faster than so many bytes a second.
            MaxPacingRate(Option<u64>) by rate: set_max_pacing_rate("Some(1_000_000)"), max_pacing_rate;
            /// `TCP_CONGESTION`. `EINVAL` for one that was added to another stack
            /// ([`crate::Builder::add_congestion`]).
            Congestion(Algorithm) by same: set_congestion("millrace::Algorithm::Bbr"), congestion;
            /// `TCP_FASTOPEN_NO_COOKIE`: payload on a SYN needs none.
            FastOpenNoCookie(bool) by same: set_fast_open_no_cookie("true"), fast_open_no_cookie;
            /// `IP_MTU_DISCOVER`: what becomes of packets that a path does not take whole.
            MtuDiscover(Discovery) by same: set_mtu_discover("millrace::Discovery::Always"), mtu_discover;
        }
    };
}

/// The options of all sockets.
macro_rules! common_options {
    ($type:ty, $make:literal) => {
        typed! { $type, $make;
            /// `SO_RCVBUF`, in bytes. As on Linux, the getter tells twice as many, and the buffer
            /// is no longer tuned.
            ReceiveBuffer(u32) by same: set_recv_buffer_size("1 << 20"), recv_buffer_size;
            /// `SO_SNDBUF`, in bytes. As on Linux, the getter tells twice as many, and the buffer
            /// is no longer tuned.
            SendBuffer(u32) by same: set_send_buffer_size("1 << 20"), send_buffer_size;
            /// `IP_TOS`: DSCP in the upper six bits.
            Tos(u8) by same: set_tos("0x10"), tos;
            /// `IPV6_UNICAST_HOPS`; `None` is the default.
            HopLimit(Option<u8>) by same: set_unicast_hops_v6("Some(3)"), unicast_hops_v6;
            /// `IPV6_TCLASS`: DSCP in the upper six bits.
            TrafficClass(u8) by same: set_traffic_class_v6("0x10"), traffic_class_v6;
        }
    };
}

stream_options! { TcpStream, "# let stack = millrace::Builder::new().build()?; let listener = millrace::TcpListener::bind(&stack, \"127.0.0.1:80\")?; let socket = millrace::TcpStream::connect(&stack, \"127.0.0.1:80\")?;" }
common_options! { TcpStream, "# let stack = millrace::Builder::new().build()?; let listener = millrace::TcpListener::bind(&stack, \"127.0.0.1:80\")?; let socket = millrace::TcpStream::connect(&stack, \"127.0.0.1:80\")?;" }
stream_options! { TcpListener, "# let stack = millrace::Builder::new().build()?; let socket = millrace::TcpListener::bind(&stack, \"127.0.0.1:80\")?;" }
common_options! { TcpListener, "# let stack = millrace::Builder::new().build()?; let socket = millrace::TcpListener::bind(&stack, \"127.0.0.1:80\")?;" }
stream_options! { shared::TcpStream, "# let engine = millrace::Builder::new().start(1, |_, _| async {})?; let listener = engine.listen(\"127.0.0.1:0\".parse()?)?; let socket = engine.connect(listener.local_addr())?;" }
common_options! { shared::TcpStream, "# let engine = millrace::Builder::new().start(1, |_, _| async {})?; let listener = engine.listen(\"127.0.0.1:0\".parse()?)?; let socket = engine.connect(listener.local_addr())?;" }
common_options! { UdpSocket, "# let stack = millrace::Builder::new().build()?; let socket = millrace::UdpSocket::bind(&stack, \"127.0.0.1:53\")?;" }

typed! { TcpListener, "# let stack = millrace::Builder::new().build()?; let socket = millrace::TcpListener::bind(&stack, \"127.0.0.1:80\")?;";
    /// `TCP_FASTOPEN`: how many connections may be open before their handshake is complete; 0 is
    /// off.
    FastOpen(u16) by same: set_fast_open("16"), fast_open;
    /// `TCP_MAXSEG`, in bytes, 88 to 32,767, of the connections that come; `None` is the link's.
    MaxSegment(Option<u16>) by nonzero: set_max_segment("Some(1000)"), max_segment;
}

typed! { UdpSocket, "# let stack = millrace::Builder::new().build()?; let socket = millrace::UdpSocket::bind(&stack, \"127.0.0.1:53\")?;";
    /// `SO_BROADCAST`: may send to all hosts of a link.
    Broadcast(bool) by same: set_broadcast("true"), broadcast;
    /// `IP_MTU_DISCOVER`: what becomes of packets that a path does not take whole.
    DatagramMtuDiscover(Discovery) by same: set_mtu_discover("millrace::Discovery::Always"), mtu_discover;
    /// `IPV6_MTU`: no larger packets; `None` for what the path takes.
    MtuV6(Option<u16>) by nonzero: set_mtu_v6("Some(1280)"), mtu_v6;
    /// `IPV6_DONTFRAG`: what does not fit into one packet is refused.
    DontFragmentV6(bool) by same: set_dont_fragment_v6("true"), dont_fragment_v6;
    /// `IP_RECVERR`: errors are kept with their particulars.
    ReceiveErrors(bool) by same: set_recv_errors("true"), recv_errors;
    /// `IP_MULTICAST_TTL`.
    MulticastTtl(u8) by same: set_multicast_ttl_v4("2"), multicast_ttl_v4;
    /// `IP_MULTICAST_LOOP`: members on this host hear what is sent to a group.
    MulticastLoop(bool) by same: set_multicast_loop_v4("false"), multicast_loop_v4;
    /// `IP_MULTICAST_ALL`: datagrams to groups that others have joined are heard, too.
    MulticastAll(bool) by same: set_multicast_all_v4("false"), multicast_all_v4;
    /// `IPV6_MULTICAST_HOPS`.
    MulticastHopsV6(u8) by same: set_multicast_hops_v6("2"), multicast_hops_v6;
    /// `IPV6_MULTICAST_LOOP`: members on this host hear what is sent to a group.
    MulticastLoopV6(bool) by same: set_multicast_loop_v6("false"), multicast_loop_v6;
    /// `IPV6_MULTICAST_ALL`: datagrams to groups that others have joined are heard, too.
    MulticastAllV6(bool) by same: set_multicast_all_v6("false"), multicast_all_v6;
    /// `UDP_GRO`: several datagrams of one flow may come as one.
    UdpGro(bool) by same: set_gro("true"), gro;
}

impl TcpListener {
    /// `TCP_FASTOPEN_KEY`: the keys of the cookies. They cannot be read.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// listener.set_fast_open_keys(millrace::FastOpenKeys { primary: [7; 16], backup: None })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None while the socket is open.
    pub fn set_fast_open_keys(&self, keys: FastOpenKeys) -> io::Result<()> {
        HasOptions::set_option(self, Opt::FastOpenKeys(keys))
    }
}
