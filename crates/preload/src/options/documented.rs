//! What `docs/sockets.md` says of options is what the code does.

use std::ffi::c_int;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};

use super::{ALL, READ_ONLY, bit, is_readable};
use crate::datagram::options as datagram;

const TEXT: &str = include_str!("../../../../docs/sockets.md");

macro_rules! names {
    ($($level:ident: $($name:ident)*;)*) => {
        &[$($((stringify!($name), $level, libc::$name),)*)*]
    };
}

/// Options by their names, those that are implemented and some that are not.
const NAMES: &[(&str, c_int, c_int)] = names! {
    SOL_SOCKET: SO_REUSEADDR SO_REUSEPORT SO_BROADCAST SO_KEEPALIVE SO_LINGER SO_RCVBUF SO_SNDBUF SO_RCVLOWAT SO_RCVTIMEO SO_SNDTIMEO
        SO_OOBINLINE SO_TYPE SO_DOMAIN SO_PROTOCOL SO_ACCEPTCONN SO_ERROR SO_MAX_PACING_RATE
        SO_BINDTODEVICE SO_BINDTOIFINDEX SO_MARK SO_PRIORITY SO_TIMESTAMP SO_ZEROCOPY SO_BUSY_POLL;
    IPPROTO_TCP: TCP_NODELAY TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_USER_TIMEOUT TCP_SYNCNT TCP_LINGER2 TCP_MAXSEG
        TCP_QUICKACK TCP_DEFER_ACCEPT TCP_CONGESTION TCP_INFO
        TCP_NOTSENT_LOWAT TCP_FASTOPEN TCP_FASTOPEN_CONNECT TCP_FASTOPEN_KEY TCP_MD5SIG TCP_ULP TCP_REPAIR TCP_ZEROCOPY_RECEIVE;
    IPPROTO_IP: IP_TTL IP_TOS IP_BIND_ADDRESS_NO_PORT IP_MTU_DISCOVER IP_MTU;
    IPPROTO_IPV6: IPV6_V6ONLY IPV6_UNICAST_HOPS IPV6_TCLASS IPV6_MTU_DISCOVER IPV6_MTU;
};

/// Options of datagram sockets by their names, and some that are not implemented. What libc does not know is by its number.
const DATAGRAM_NAMES: &[(&str, c_int, c_int)] = names! {
    SOL_SOCKET: SO_REUSEADDR SO_REUSEPORT SO_BROADCAST SO_RCVBUF SO_SNDBUF SO_RCVTIMEO SO_SNDTIMEO SO_RXQ_OVFL SO_TYPE SO_DOMAIN SO_PROTOCOL
        SO_ACCEPTCONN SO_ERROR SO_KEEPALIVE SO_LINGER SO_RCVLOWAT SO_OOBINLINE SO_BINDTODEVICE SO_BINDTOIFINDEX SO_MARK SO_PRIORITY SO_TIMESTAMP SO_ZEROCOPY;
    IPPROTO_IP: IP_TTL IP_TOS IP_PKTINFO IP_RECVTTL IP_RECVTOS IP_RECVERR IP_MTU_DISCOVER IP_MTU IP_MULTICAST_TTL IP_MULTICAST_LOOP IP_MULTICAST_IF
        IP_ADD_MEMBERSHIP IP_DROP_MEMBERSHIP;
    IPPROTO_IPV6: IPV6_V6ONLY IPV6_UNICAST_HOPS IPV6_TCLASS IPV6_RECVPKTINFO IPV6_RECVHOPLIMIT IPV6_RECVTCLASS IPV6_MTU_DISCOVER
        IPV6_MULTICAST_HOPS IPV6_MULTICAST_LOOP IPV6_MULTICAST_IF IPV6_ADD_MEMBERSHIP IPV6_DROP_MEMBERSHIP;
};
const DATAGRAM_NUMBERS: [(&str, c_int, c_int); 13] = [
    ("MCAST_JOIN_GROUP", IPPROTO_IP, 42),
    ("MCAST_LEAVE_GROUP", IPPROTO_IP, 45),
    ("MCAST_JOIN_GROUP", IPPROTO_IPV6, 42),
    ("MCAST_LEAVE_GROUP", IPPROTO_IPV6, 45),
    ("IP_LOCAL_PORT_RANGE", IPPROTO_IP, 51),
    ("IP_MULTICAST_ALL", IPPROTO_IP, 49),
    ("IPV6_MULTICAST_ALL", IPPROTO_IPV6, 29),
    ("IPV6_RECVERR", IPPROTO_IPV6, 25),
    ("IPV6_MTU", IPPROTO_IPV6, 24),
    ("IPV6_DONTFRAG", IPPROTO_IPV6, 62),
    ("UDP_CORK", libc::IPPROTO_UDP, 1),
    ("UDP_SEGMENT", libc::IPPROTO_UDP, 103),
    ("UDP_GRO", libc::IPPROTO_UDP, 104),
];

/// The part of the text below a heading.
fn section(heading: &str) -> &'static str {
    let (_, after) = TEXT
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("docs/sockets.md has a section \"{heading}\""));
    after.split("\n## ").next().unwrap_or(after)
}

fn named(text: &str, name: &str) -> bool {
    text.contains(&format!("`{name}`"))
}

#[test]
fn o1_the_table_of_options_is_true() {
    let (both, read, refused) = (
        section("Options of streams that can be set and read"),
        section("Options of streams that can be read"),
        section("Refused"),
    );
    for (name, level, option) in NAMES {
        let settable = bit(*level, *option).is_ok();
        let readable = is_readable(*level, *option);
        assert_eq!(named(both, name), settable, "{name} can be set");
        assert_eq!(
            named(read, name),
            readable && !settable,
            "{name} can only be read"
        );
        assert!(!named(refused, name) || !readable, "{name} is refused");
    }
    let is_named = |(level, option): &(c_int, c_int)| {
        NAMES
            .iter()
            .any(|(_, known_level, known)| (known_level, known) == (level, option))
    };
    assert!(named(both, "TCP_FASTOPEN_NO_COOKIE"));
    // The second form of the two time-outs has the name of the first, and the C library does not know the option above.
    let without_name = ALL
        .iter()
        .chain(&READ_ONLY)
        .filter(|option| !is_named(option));
    assert_eq!(
        without_name.count(),
        3,
        "options that the list above does not name"
    );
}

#[test]
fn o1_the_table_of_options_of_datagram_sockets_is_true() {
    let both = section("Options of datagram sockets that can be set and read");
    let read = section("Options of datagram sockets that can be read");
    let all = || DATAGRAM_NAMES.iter().chain(&DATAGRAM_NUMBERS);
    for (name, level, option) in all() {
        let settable = datagram::bit(*level, *option).is_ok();
        let readable = datagram::is_readable(*level, *option);
        assert_eq!(named(both, name), settable, "{name} can be set");
        assert_eq!(
            named(read, name),
            readable && !settable,
            "{name} can only be read"
        );
    }
    let is_named = |(level, option): &(c_int, c_int)| {
        all().any(|(_, known_level, known)| (known_level, known) == (level, option))
    };
    let without_name = datagram::ALL
        .iter()
        .chain(&datagram::READ_ONLY)
        .filter(|option| !is_named(option));
    assert_eq!(
        without_name.count(),
        2,
        "options that the lists above do not name"
    );
}
