//! The options of a kind of socket: rows of the table in [`millrace_sockopt`].

use std::ffi::c_int;

use libc::IPPROTO_TCP;
use millrace_sockopt::{self as table, Opt, Row, Sockets};
use rustix::io::Errno;

use crate::fd::table::OPTIONS_MAX;
use crate::sys::Result;

/// The longest value in bytes: `TCP_INFO`, or a device's name.
pub const VALUE_MAX: usize = 256;
/// The kind of socket, as the table names it.
pub fn kind(datagrams: bool) -> Sockets {
    if datagrams {
        Sockets::DATAGRAM
    } else {
        Sockets::STREAM
    }
}

/// The row of an option that can be set. `NOPROTOOPT`: the option is not implemented.
pub fn row(kind: Sockets, level: c_int, name: c_int) -> Result<&'static Row> {
    table::find(kind, level, name).ok_or(Errno::NOPROTOOPT)
}

/// The bit of an option in [`crate::fd::table::Undecided::options`]: its position among the options
/// of such a socket.
pub fn bit(kind: Sockets, level: c_int, name: c_int) -> Result<u64> {
    let wanted = row(kind, level, name)?.name;
    let at = table::settable(kind).position(|row| row.name == wanted);
    at.filter(|at| *at < OPTIONS_MAX)
        .map(|at| 1 << at)
        .ok_or(Errno::NOPROTOOPT)
}

/// Whether an option can be read.
pub fn is_readable(kind: Sockets, level: c_int, name: c_int) -> bool {
    match table::find(kind, level, name) {
        Some(row) => row.is_readable(),
        None => table::is_read_only(kind, level, name),
    }
}

/// Linux's error for an option that cannot be read.
pub fn refusal(kind: Sockets, level: c_int) -> Errno {
    match level {
        IPPROTO_TCP if kind == Sockets::DATAGRAM => Errno::OPNOTSUPP,
        _ => Errno::NOPROTOOPT,
    }
}

/// Checks a value as Linux does. `NOPROTOOPT`: the option is not implemented.
pub fn parse(kind: Sockets, level: c_int, name: c_int, value: &[u8]) -> Result<Opt> {
    let row = row(kind, level, name)?;
    Opt::decode(row.name, value).map_err(Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use libc::{IPPROTO_IP, SOL_SOCKET};

    use super::*;

    #[test]
    fn the_options_of_a_socket_fit_into_its_entry_of_the_table() {
        for kind in [Sockets::STREAM, Sockets::DATAGRAM] {
            assert!(table::settable(kind).count() <= OPTIONS_MAX);
        }
    }

    #[test]
    fn what_is_not_implemented_is_refused() {
        for (kind, level, name) in [
            (Sockets::STREAM, IPPROTO_TCP, libc::TCP_MD5SIG),
            (Sockets::STREAM, SOL_SOCKET, libc::SO_MARK),
            (Sockets::STREAM, IPPROTO_IP, libc::IP_RECVTTL),
            (Sockets::STREAM, 12_345, 1),
            (Sockets::DATAGRAM, IPPROTO_TCP, libc::TCP_NODELAY),
            (Sockets::DATAGRAM, IPPROTO_IP, 63),
            (Sockets::DATAGRAM, SOL_SOCKET, libc::SO_TIMESTAMP),
        ] {
            let value = 1i32.to_ne_bytes();
            assert_eq!(parse(kind, level, name, &value), Err(Errno::NOPROTOOPT));
            assert_eq!(bit(kind, level, name), Err(Errno::NOPROTOOPT));
            assert!(!is_readable(kind, level, name));
        }
    }
}
