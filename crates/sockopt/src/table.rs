//! The table. Its columns:
//!
//! | column | |
//! |---|---|
//! | name and codec | its name here, and how its value is written |
//! | level, symbol, number | as Linux has them |
//! | shim, library, told | which sockets (`S`tream, `D`atagram, `B`oth, `N`one) have it in unmodified programs, which in the C library, and of which sockets the shard is told by the shim |
//! | kept | where the shim keeps its value: see [`Kept`] |
//! | default | its value before anyone has set it, where the shim answers without the shard |
//! | remark | for `docs/sockets.md` |

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPPROTO_UDP, SOL_SOCKET};
use std::net::{IpAddr, Ipv4Addr};

use crate::codec::{
    Clamped, Codec, CongestionName, DEFAULT_HOPS, DiscoveryV4, DiscoveryV6, FastOpenLimit, Flag,
    GroupHops, GroupRequest, GroupTtl, Hops, InterfaceV4, Keys, Linger, LongFlag, LooseFlag,
    LowWater, MaxSegment, MembershipV4, MembershipV6, MtuV6, Out, Rate, ShortFlag, Size,
    StrictFlag, StrictShortFlag, Time, Tos, TrafficClass, Ttl, Within, Word,
};
use crate::numbers::{
    IP_MULTICAST_ALL, IPV6_DONTFRAG, IPV6_MTU, IPV6_MULTICAST_ALL, IPV6_RECVERR, MCAST_JOIN_GROUP,
    MCAST_LEAVE_GROUP, SO_BINDTOIFINDEX, TCP_FASTOPEN_NO_COOKIE, UDP_CORK, UDP_GRO, UDP_SEGMENT,
};
use crate::values::{Algorithm, Discovery, FastOpenKeys, Membership};
use crate::{Kept, Row, Sockets};

const S: Sockets = Sockets::STREAM;
const D: Sockets = Sockets::DATAGRAM;
const B: Sockets = Sockets::all();
const N: Sockets = Sockets::empty();

/// No group: memberships have no default.
const NO_MEMBERSHIP: Membership = Membership {
    group: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    join: false,
    interface: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    device: 0,
};
/// No key was set: the engine's own is used.
const NO_KEYS: FastOpenKeys = FastOpenKeys {
    primary: [0; 16],
    backup: None,
};

/// Words of options in a socket's part that its program writes, and their bits.
mod word {
    /// What binding needs, and what streams are asked for at once.
    pub const BITS: u8 = 0;
    /// What is told of each datagram, and how groups are heard.
    pub const SWITCHES: u8 = 2;
    /// Hops to groups of either family, and both discoveries.
    pub const BYTES: u8 = 3;
    /// UDP_SEGMENT, and IPV6_MTU in the upper half.
    pub const SIZES: u8 = 4;
    /// IP_MULTICAST_IF, in network order.
    pub const GROUP_INTERFACE_V4: u8 = 5;
    /// IPV6_MULTICAST_IF.
    pub const GROUP_INTERFACE_V6: u8 = 6;
}

macro_rules! options {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident($codec:ty) $level:ident $symbol:literal $number:expr, [$shim:ident $library:ident $told:ident], $kept:expr, $default:expr, $remark:literal;
    )*) => {
        /// An option with its value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Opt {
            $($(#[doc = $doc])+ $name(<$codec as Codec>::Value),)*
        }

        /// Names an option.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum OptName {
            $(#[doc = concat!("`", $symbol, "`: see [`Opt::", stringify!($name), "`].")] $name,)*
        }

        /// A row for each option.
        pub static ROWS: [Row; OptName::ALL.len()] = [$(
            Row {
                name: OptName::$name,
                symbol: $symbol,
                level: $level,
                number: $number,
                sockets: $shim,
                library: $library,
                told: $told,
                kept: $kept,
                range: <$codec as Codec>::range,
                remark: $remark,
            },
        )*];

        impl OptName {
            /// All of them, in the order of the table.
            pub const ALL: &[OptName] = &[$(OptName::$name,)*];

            /// What an option has before anyone has set it. Acts have a value that says nothing.
            pub fn default(self) -> Opt {
                match self {
                    $(OptName::$name => Opt::$name($default),)*
                }
            }
        }

        impl Opt {
            /// Which option it is.
            pub fn name(self) -> OptName {
                match self {
                    $(Opt::$name(_) => OptName::$name,)*
                }
            }

            /// Reads a value as `setsockopt` takes it.
            ///
            /// # Errors
            /// What Linux says of a value that it does not take: `EINVAL`, `EDOM`, `ENOENT`,
            /// `EADDRNOTAVAIL`.
            pub fn decode(name: OptName, bytes: &[u8]) -> Result<Opt, i32> {
                Ok(match name {
                    $(OptName::$name => Opt::$name(<$codec>::decode(bytes)?),)*
                })
            }

            /// Writes its value as `getsockopt` hands it out; the length in bytes.
            pub fn encode(self, out: &mut Out) -> usize {
                match self {
                    $(Opt::$name(value) => <$codec>::encode(value, out),)*
                }
            }
        }
    };
}

options! {
    /// `SO_REUSEADDR`.
    ReuseAddress(Flag) SOL_SOCKET "SO_REUSEADDR" libc::SO_REUSEADDR, [B B D], Kept::Bit(word::BITS, 0), false,
        "of datagram sockets without `SO_REUSEPORT` the last that was bound hears";
    /// `SO_REUSEPORT`.
    ReusePort(Flag) SOL_SOCKET "SO_REUSEPORT" libc::SO_REUSEPORT, [B B D], Kept::Bit(word::BITS, 1), false,
        "connections and senders are spread by a keyed hash";
    /// `SO_BROADCAST`: datagrams may be sent to all hosts of the link.
    Broadcast(Flag) SOL_SOCKET "SO_BROADCAST" libc::SO_BROADCAST, [B B D], Kept::Bit(word::BITS, 2), false,
        "without it a datagram to all hosts is `EACCES`; it means nothing for TCP, as on Linux";
    /// `SO_KEEPALIVE`.
    KeepAlive(Flag) SOL_SOCKET "SO_KEEPALIVE" libc::SO_KEEPALIVE, [S S S], Kept::Shard, false, "";
    /// `SO_LINGER`: `None` is off; `Some(0)` resets the connection on close. With a time, close is
    /// as usual here, and the waiting is the caller's.
    Linger(Linger) SOL_SOCKET "SO_LINGER" libc::SO_LINGER, [S S S], Kept::Shard, None,
        "a time is waited for in `close`, 0 resets";
    /// `SO_RCVBUF`, bytes. As on Linux, a set value is doubled for the reader of the option, and
    /// ends the tuning.
    ReceiveBuffer(Size) SOL_SOCKET "SO_RCVBUF" libc::SO_RCVBUF, [B B B], Kept::Shard, 131_072,
        "doubled for the reader, as on Linux; ends the tuning of a stream; for datagrams 212,992 bytes unless set, and each takes 48 bytes beside what it carries";
    /// `SO_SNDBUF`, bytes. As on Linux, a set value is doubled for the reader of the option, and
    /// ends the tuning.
    SendBuffer(Size) SOL_SOCKET "SO_SNDBUF" libc::SO_SNDBUF, [B B B], Kept::Shard, 16_384,
        "as `SO_RCVBUF`; a datagram takes 256 bytes beside what it carries";
    /// `SO_RCVLOWAT`, bytes. The caller holds reading back; here a buffer that is tuned grows to
    /// twice as much at once, and what could never be held is cut, as on Linux.
    ReceiveLowWater(LowWater) SOL_SOCKET "SO_RCVLOWAT" libc::SO_RCVLOWAT, [S N S], Kept::Field, 1,
        "holds readiness back, too";
    /// `SO_RCVTIMEO`, microseconds; 0 is for ever.
    ReceiveTimeout(Time) SOL_SOCKET "SO_RCVTIMEO" libc::SO_RCVTIMEO, [B B N], Kept::Field, 0, "both sizes of time";
    /// `SO_SNDTIMEO`, microseconds; 0 is for ever.
    SendTimeout(Time) SOL_SOCKET "SO_SNDTIMEO" libc::SO_SNDTIMEO, [B B N], Kept::Field, 0, "both sizes of time";
    /// `SO_OOBINLINE`.
    OobInline(Flag) SOL_SOCKET "SO_OOBINLINE" libc::SO_OOBINLINE, [S N N], Kept::Bit(word::BITS, 4), false, "";
    /// `SO_MAX_PACING_RATE`, bytes per second: no faster than this. 0 and all ones are no bound.
    MaxPacingRate(Rate) SOL_SOCKET "SO_MAX_PACING_RATE" libc::SO_MAX_PACING_RATE, [S S S], Kept::Shard, u64::MAX,
        "the first ten segments are not paced, as on Linux";
    /// `SO_BINDTOIFINDEX`: the index of a device, 0 for none.
    BindToDevice(Within<u32, 0, { i32::MAX }>) SOL_SOCKET "SO_BINDTOIFINDEX" SO_BINDTOIFINDEX, [B N N], Kept::Field, 0,
        "`SO_BINDTODEVICE` by its name; the kernel says who may; the link's device, or with `--loopback` `lo`, before there is an address; another device makes the socket the kernel's, or is `ENODEV` when it is the engine's already";
    /// `SO_RXQ_OVFL`.
    DropCount(Flag) SOL_SOCKET "SO_RXQ_OVFL" libc::SO_RXQ_OVFL, [D N N], Kept::Bit(word::SWITCHES, 8), false, "";

    /// `TCP_NODELAY`.
    NoDelay(Flag) IPPROTO_TCP "TCP_NODELAY" libc::TCP_NODELAY, [S S S], Kept::Shard, false, "";
    /// `TCP_CORK`.
    Cork(Flag) IPPROTO_TCP "TCP_CORK" libc::TCP_CORK, [S S S], Kept::Shard, false, "";
    /// `TCP_KEEPIDLE`, seconds, 1..=32767.
    KeepIdle(Within<u16, 1, 32_767>) IPPROTO_TCP "TCP_KEEPIDLE" libc::TCP_KEEPIDLE, [S S S], Kept::Shard, 7200, "seconds";
    /// `TCP_KEEPINTVL`, seconds, 1..=32767.
    KeepInterval(Within<u16, 1, 32_767>) IPPROTO_TCP "TCP_KEEPINTVL" libc::TCP_KEEPINTVL, [S S S], Kept::Shard, 75, "seconds";
    /// `TCP_KEEPCNT`, 1..=127.
    KeepCount(Within<u8, 1, 127>) IPPROTO_TCP "TCP_KEEPCNT" libc::TCP_KEEPCNT, [S S S], Kept::Shard, 9, "";
    /// `TCP_USER_TIMEOUT`, milliseconds; 0 is the system's default.
    UserTimeout(Within<u32, 0, { i32::MAX }>) IPPROTO_TCP "TCP_USER_TIMEOUT" libc::TCP_USER_TIMEOUT, [S S S], Kept::Shard, 0, "milliseconds";
    /// `TCP_MAXSEG`, bytes, 88..=32767, before the connection is made; 0 is the link's. Reading a
    /// connected socket gives the size in use.
    MaxSegment(MaxSegment) IPPROTO_TCP "TCP_MAXSEG" libc::TCP_MAXSEG, [S S S], Kept::Shard, 536, "before the connection is made";
    /// `TCP_SYNCNT`, 1..=127.
    SynCount(Within<u8, 1, 127>) IPPROTO_TCP "TCP_SYNCNT" libc::TCP_SYNCNT, [S S S], Kept::Shard, 6, "";
    /// `TCP_LINGER2`, seconds that an orphan stays in FIN-WAIT-2, 1..=120; 0 is the system's
    /// default, -1 not at all.
    Linger2(Clamped<i16, -1, 120>) IPPROTO_TCP "TCP_LINGER2" libc::TCP_LINGER2, [S S S], Kept::Shard, 60, "seconds; -1 is not at all";
    /// `TCP_QUICKACK`: on sends the acknowledgement that waits, off lets acknowledgements wait for
    /// payload. Reads as what holds now.
    QuickAck(Flag) IPPROTO_TCP "TCP_QUICKACK" libc::TCP_QUICKACK, [S S S], Kept::Shard, true, "";
    /// `TCP_DEFER_ACCEPT`, seconds: a connection reaches accept only with payload, or once they
    /// have passed. As on Linux the time is rounded up to one at which the SYN-ACK is repeated: 1,
    /// 3, 7, 15, ...; 0 is off.
    DeferAccept(Clamped<u32, 0, { i32::MAX }>) IPPROTO_TCP "TCP_DEFER_ACCEPT" libc::TCP_DEFER_ACCEPT, [S S S], Kept::Shard, 0,
        "seconds; rounded up to one at which the SYN-ACK is repeated, as on Linux";
    /// `TCP_NOTSENT_LOWAT`, bytes: room to write is reported while less than half of this was not
    /// sent yet, and given while less than this was. 0 is no bound.
    NotSentLowWater(Word) IPPROTO_TCP "TCP_NOTSENT_LOWAT" libc::TCP_NOTSENT_LOWAT, [S S S], Kept::Shard, 0,
        "writable below half of it, as on Linux; a write that begins below it is taken up to 64 KB";
    /// `TCP_CONGESTION`.
    Congestion(CongestionName) IPPROTO_TCP "TCP_CONGESTION" libc::TCP_CONGESTION, [S S S], Kept::Shard, Algorithm::Cubic,
        "the default is the engine's (`--congestion`)";
    /// `TCP_FASTOPEN` of a listener: connections that are open before their handshake is complete,
    /// at most; 0 is off.
    FastOpen(FastOpenLimit) IPPROTO_TCP "TCP_FASTOPEN" libc::TCP_FASTOPEN, [S N S], Kept::Shard, 0, "needs no switch beside the option";
    /// `TCP_FASTOPEN_CONNECT`.
    FastOpenConnect(StrictFlag) IPPROTO_TCP "TCP_FASTOPEN_CONNECT" libc::TCP_FASTOPEN_CONNECT, [S N N], Kept::Bit(word::BITS, 5), false, "";
    /// `TCP_FASTOPEN_NO_COOKIE`: payload on a SYN needs none.
    FastOpenNoCookie(StrictFlag) IPPROTO_TCP "TCP_FASTOPEN_NO_COOKIE" TCP_FASTOPEN_NO_COOKIE, [S N S], Kept::Shard, false, "";
    /// `TCP_FASTOPEN_KEY` of a listener. Other sockets have no use for it.
    FastOpenKeys(Keys) IPPROTO_TCP "TCP_FASTOPEN_KEY" libc::TCP_FASTOPEN_KEY, [S N S], Kept::Shard, NO_KEYS,
        "cookies are as Linux makes them with the same key; nothing is read while the engine's own is used";

    /// `IP_TTL`, 1..=255.
    Ttl(Ttl) IPPROTO_IP "IP_TTL" libc::IP_TTL, [B B B], Kept::Shard, DEFAULT_HOPS, "of datagrams also with a message that is sent";
    /// `IP_TOS`.
    Tos(Tos) IPPROTO_IP "IP_TOS" libc::IP_TOS, [B B B], Kept::Shard, 0, "of datagrams also with a message that is sent";
    /// `IP_BIND_ADDRESS_NO_PORT`: a bind to port 0 leaves the choice of the port to connect, which
    /// knows the peer.
    AddressOnly(LooseFlag) IPPROTO_IP "IP_BIND_ADDRESS_NO_PORT" libc::IP_BIND_ADDRESS_NO_PORT, [S S S], Kept::Shard, false,
        "a `bind` to port 0 leaves the port to `connect`";
    /// `IP_MTU_DISCOVER` of a stream.
    MtuDiscover(DiscoveryV4<1, 2>) IPPROTO_IP "IP_MTU_DISCOVER" libc::IP_MTU_DISCOVER, [S S S], Kept::Shard, Discovery::Want,
        "`IP_PMTUDISC_WANT` and `IP_PMTUDISC_DO`; the others would let routers fragment";
    /// `IP_MTU_DISCOVER` of a socket for datagrams.
    DatagramMtuDiscover(DiscoveryV4<0, 5>) IPPROTO_IP "IP_MTU_DISCOVER" libc::IP_MTU_DISCOVER, [D D D], Kept::Byte(word::BYTES, 2), Discovery::Want, "";
    /// `IP_PKTINFO`.
    PacketInfo(LooseFlag) IPPROTO_IP "IP_PKTINFO" libc::IP_PKTINFO, [D D N], Kept::Bit(word::SWITCHES, 0), false,
        "also with a message that is sent; the index is that of the kernel's end of the link";
    /// `IP_RECVTTL`.
    ReceiveTtl(LooseFlag) IPPROTO_IP "IP_RECVTTL" libc::IP_RECVTTL, [D D N], Kept::Bit(word::SWITCHES, 1), false, "";
    /// `IP_RECVTOS`.
    ReceiveTos(LooseFlag) IPPROTO_IP "IP_RECVTOS" libc::IP_RECVTOS, [D D N], Kept::Bit(word::SWITCHES, 2), false, "";
    /// `IP_RECVERR`: errors are kept with their particulars.
    ReceiveErrors(LooseFlag) IPPROTO_IP "IP_RECVERR" libc::IP_RECVERR, [D N D], Kept::Bit(word::SWITCHES, 6), false,
        "the latest 16 errors, each with up to 416 bytes of what it is about";
    /// `IP_MULTICAST_TTL`.
    MulticastTtl(GroupTtl) IPPROTO_IP "IP_MULTICAST_TTL" libc::IP_MULTICAST_TTL, [D D D], Kept::Byte(word::BYTES, 0), 1, "";
    /// `IP_MULTICAST_LOOP`: what is sent to a group is heard by members on this host.
    MulticastLoop(ShortFlag) IPPROTO_IP "IP_MULTICAST_LOOP" libc::IP_MULTICAST_LOOP, [D D D], Kept::NotBit(word::SWITCHES, 12), true, "";
    /// `IP_MULTICAST_IF`.
    MulticastInterface(InterfaceV4) IPPROTO_IP "IP_MULTICAST_IF" libc::IP_MULTICAST_IF, [D N N], Kept::Word(word::GROUP_INTERFACE_V4), Ipv4Addr::UNSPECIFIED, "";
    /// `IP_MULTICAST_ALL`: whether datagrams to groups that others have joined are heard too.
    MulticastAll(StrictShortFlag) IPPROTO_IP "IP_MULTICAST_ALL" IP_MULTICAST_ALL, [D D D], Kept::NotBit(word::SWITCHES, 14), true, "";
    /// `IP_ADD_MEMBERSHIP`.
    Join(MembershipV4<true>) IPPROTO_IP "IP_ADD_MEMBERSHIP" libc::IP_ADD_MEMBERSHIP, [D D N], Kept::Act, NO_MEMBERSHIP,
        "not read; IGMPv2; 20 groups a socket; by the kernel's link if the interface, or its index, is the kernel's";
    /// `IP_DROP_MEMBERSHIP`.
    Leave(MembershipV4<false>) IPPROTO_IP "IP_DROP_MEMBERSHIP" libc::IP_DROP_MEMBERSHIP, [D D N], Kept::Act, NO_MEMBERSHIP, "not read";
    /// `MCAST_JOIN_GROUP` at the level of IPv4.
    JoinGroup(GroupRequest<true, true>) IPPROTO_IP "MCAST_JOIN_GROUP" MCAST_JOIN_GROUP, [D D N], Kept::Act, NO_MEMBERSHIP, "not read";
    /// `MCAST_LEAVE_GROUP` at the level of IPv4.
    LeaveGroup(GroupRequest<true, false>) IPPROTO_IP "MCAST_LEAVE_GROUP" MCAST_LEAVE_GROUP, [D D N], Kept::Act, NO_MEMBERSHIP, "not read";

    /// `IPV6_V6ONLY`, before the socket is bound: `::` does not mean IPv4, too.
    V6Only(Flag) IPPROTO_IPV6 "IPV6_V6ONLY" libc::IPV6_V6ONLY, [B B N], Kept::Bit(word::BITS, 3), false, "before the socket is bound";
    /// `IPV6_UNICAST_HOPS`, 0..=255; `None` is the default.
    HopLimit(Hops) IPPROTO_IPV6 "IPV6_UNICAST_HOPS" libc::IPV6_UNICAST_HOPS, [B B B], Kept::Shard, Some(DEFAULT_HOPS),
        "of datagrams `IPV6_HOPLIMIT` with a message that is sent";
    /// `IPV6_TCLASS`.
    TrafficClass(TrafficClass) IPPROTO_IPV6 "IPV6_TCLASS" libc::IPV6_TCLASS, [B B B], Kept::Shard, 0,
        "of datagrams also with a message that is sent";
    /// `IPV6_MTU_DISCOVER` of a stream.
    MtuDiscoverV6(DiscoveryV6<1, 2>) IPPROTO_IPV6 "IPV6_MTU_DISCOVER" libc::IPV6_MTU_DISCOVER, [S S S], Kept::Shard, Discovery::Want, "as `IP_MTU_DISCOVER`";
    /// `IPV6_MTU_DISCOVER` of a socket for datagrams.
    DatagramMtuDiscoverV6(DiscoveryV6<0, 5>) IPPROTO_IPV6 "IPV6_MTU_DISCOVER" libc::IPV6_MTU_DISCOVER, [D D D], Kept::Byte(word::BYTES, 3), Discovery::Want, "";
    /// `IPV6_MTU`, in bytes: no larger packets; 0 for what the path takes.
    MtuV6(MtuV6) IPPROTO_IPV6 "IPV6_MTU" IPV6_MTU, [D N D], Kept::Half(word::SIZES, 1), 0, "read of a connected socket";
    /// `IPV6_DONTFRAG`: what does not fit into one packet is refused.
    DontFragmentV6(LongFlag) IPPROTO_IPV6 "IPV6_DONTFRAG" IPV6_DONTFRAG, [D D D], Kept::Bit(word::SWITCHES, 11), false, "";
    /// `IPV6_RECVPKTINFO`.
    PacketInfoV6(Flag) IPPROTO_IPV6 "IPV6_RECVPKTINFO" libc::IPV6_RECVPKTINFO, [D D N], Kept::Bit(word::SWITCHES, 3), false,
        "`IPV6_PKTINFO` with a message that is sent";
    /// `IPV6_RECVHOPLIMIT`.
    ReceiveHopLimit(Flag) IPPROTO_IPV6 "IPV6_RECVHOPLIMIT" libc::IPV6_RECVHOPLIMIT, [D D N], Kept::Bit(word::SWITCHES, 4), false, "";
    /// `IPV6_RECVTCLASS`.
    ReceiveTrafficClass(Flag) IPPROTO_IPV6 "IPV6_RECVTCLASS" libc::IPV6_RECVTCLASS, [D D N], Kept::Bit(word::SWITCHES, 5), false, "";
    /// `IPV6_RECVERR`.
    ReceiveErrorsV6(Flag) IPPROTO_IPV6 "IPV6_RECVERR" IPV6_RECVERR, [D N D], Kept::Bit(word::SWITCHES, 7), false, "as `IP_RECVERR`";
    /// `IPV6_MULTICAST_HOPS`.
    MulticastHopsV6(GroupHops) IPPROTO_IPV6 "IPV6_MULTICAST_HOPS" libc::IPV6_MULTICAST_HOPS, [D D D], Kept::Byte(word::BYTES, 1), 1, "";
    /// `IPV6_MULTICAST_LOOP`.
    MulticastLoopV6(StrictFlag) IPPROTO_IPV6 "IPV6_MULTICAST_LOOP" libc::IPV6_MULTICAST_LOOP, [D D D], Kept::NotBit(word::SWITCHES, 13), true, "";
    /// `IPV6_MULTICAST_IF`: the index of a device.
    MulticastInterfaceV6(Word) IPPROTO_IPV6 "IPV6_MULTICAST_IF" libc::IPV6_MULTICAST_IF, [D N N], Kept::Word(word::GROUP_INTERFACE_V6), 0, "";
    /// `IPV6_MULTICAST_ALL`.
    MulticastAllV6(Flag) IPPROTO_IPV6 "IPV6_MULTICAST_ALL" IPV6_MULTICAST_ALL, [D D D], Kept::NotBit(word::SWITCHES, 15), true, "";
    /// `IPV6_ADD_MEMBERSHIP`.
    JoinV6(MembershipV6<true>) IPPROTO_IPV6 "IPV6_ADD_MEMBERSHIP" libc::IPV6_ADD_MEMBERSHIP, [D D N], Kept::Act, NO_MEMBERSHIP, "not read; MLDv2";
    /// `IPV6_DROP_MEMBERSHIP`.
    LeaveV6(MembershipV6<false>) IPPROTO_IPV6 "IPV6_DROP_MEMBERSHIP" libc::IPV6_DROP_MEMBERSHIP, [D D N], Kept::Act, NO_MEMBERSHIP, "not read";
    /// `MCAST_JOIN_GROUP` at the level of IPv6.
    JoinGroupV6(GroupRequest<false, true>) IPPROTO_IPV6 "MCAST_JOIN_GROUP" MCAST_JOIN_GROUP, [D D N], Kept::Act, NO_MEMBERSHIP, "not read";
    /// `MCAST_LEAVE_GROUP` at the level of IPv6.
    LeaveGroupV6(GroupRequest<false, false>) IPPROTO_IPV6 "MCAST_LEAVE_GROUP" MCAST_LEAVE_GROUP, [D D N], Kept::Act, NO_MEMBERSHIP, "not read";

    /// `UDP_CORK`: off sends what was held back.
    UdpCork(Flag) IPPROTO_UDP "UDP_CORK" UDP_CORK, [D N D], Kept::Bit(word::SWITCHES, 9), false, "";
    /// `UDP_SEGMENT`, bytes: what is sent is cut into datagrams of so many; 0 is not cut.
    UdpSegment(Within<u16, 0, 65_535>) IPPROTO_UDP "UDP_SEGMENT" UDP_SEGMENT, [D N N], Kept::Half(word::SIZES, 0), 0,
        "also with a message that is sent";
    /// `UDP_GRO`: several datagrams of one flow may come as one record.
    UdpGro(Flag) IPPROTO_UDP "UDP_GRO" UDP_GRO, [D N D], Kept::Bit(word::SWITCHES, 10), false, "";
}

impl OptName {
    /// Its row.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Its number in messages from the shim.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// From its number in a message, which may be anything.
    pub fn from_number(number: u32) -> Option<OptName> {
        OptName::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// An option that can only be read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOnly {
    /// Its name on Linux.
    pub symbol: &'static str,
    /// Linux's level.
    pub level: i32,
    /// Linux's number.
    pub number: i32,
    /// The sockets that have it.
    pub sockets: Sockets,
}

macro_rules! read_only {
    ($($level:ident $symbol:literal $number:expr, $sockets:ident;)*) => {
        /// The options that can only be read.
        pub const READ_ONLY: &[ReadOnly] = &[$(
            ReadOnly { symbol: $symbol, level: $level, number: $number, sockets: $sockets },
        )*];
    };
}

read_only! {
    SOL_SOCKET "SO_TYPE" libc::SO_TYPE, B;
    SOL_SOCKET "SO_DOMAIN" libc::SO_DOMAIN, B;
    SOL_SOCKET "SO_PROTOCOL" libc::SO_PROTOCOL, B;
    SOL_SOCKET "SO_ACCEPTCONN" libc::SO_ACCEPTCONN, B;
    SOL_SOCKET "SO_ERROR" libc::SO_ERROR, B;
    IPPROTO_TCP "TCP_INFO" libc::TCP_INFO, S;
    IPPROTO_IP "IP_MTU" libc::IP_MTU, B;
    IPPROTO_IPV6 "IPV6_MTU" IPV6_MTU, S;
}
