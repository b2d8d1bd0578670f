//! What `docs/sockets.md` says of options is what the code does.

use std::ffi::c_int;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};

use super::{ALL, READ_ONLY, bit, is_readable};

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
        SO_BINDTODEVICE SO_MARK SO_PRIORITY SO_TIMESTAMP SO_ZEROCOPY SO_BUSY_POLL;
    IPPROTO_TCP: TCP_NODELAY TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_USER_TIMEOUT TCP_SYNCNT TCP_LINGER2 TCP_MAXSEG
        TCP_QUICKACK TCP_DEFER_ACCEPT TCP_CONGESTION TCP_INFO
        TCP_NOTSENT_LOWAT TCP_FASTOPEN TCP_FASTOPEN_CONNECT TCP_MD5SIG TCP_ULP TCP_REPAIR TCP_ZEROCOPY_RECEIVE;
    IPPROTO_IP: IP_TTL IP_TOS IP_BIND_ADDRESS_NO_PORT;
    IPPROTO_IPV6: IPV6_V6ONLY IPV6_UNICAST_HOPS IPV6_TCLASS;
};

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
        section("Options that can be set and read"),
        section("Options that can be read"),
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
    // The second form of the two time-outs has the name of the first.
    let without_name = ALL
        .iter()
        .chain(&READ_ONLY)
        .filter(|option| !is_named(option));
    assert_eq!(
        without_name.count(),
        2,
        "options that the list above does not name"
    );
}
