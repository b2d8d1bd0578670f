//! Numbers of options that libc does not have: those of <asm-generic/socket.h>, <linux/tcp.h>,
//! <linux/in.h>, <linux/in6.h> and <linux/udp.h>.

/// Linux's.
pub const SO_BINDTOIFINDEX: i32 = 62;
/// Linux's.
pub const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
/// Linux's.
pub const IP_MULTICAST_ALL: i32 = 49;
/// Linux's.
pub const IPV6_MULTICAST_ALL: i32 = 29;
/// Linux's.
pub const MCAST_JOIN_GROUP: i32 = 42;
/// Linux's.
pub const MCAST_LEAVE_GROUP: i32 = 45;
/// Linux's.
pub const IPV6_RECVERR: i32 = 25;
/// Linux's.
pub const IPV6_MTU: i32 = 24;
/// Linux's.
pub const IPV6_DONTFRAG: i32 = 62;
/// Linux's.
pub const UDP_CORK: i32 = 1;
/// Linux's.
pub const UDP_SEGMENT: i32 = 103;
/// Linux's.
pub const UDP_GRO: i32 = 104;
