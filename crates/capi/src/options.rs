//! Socket options by Linux's numbers. What is not here is `ENOPROTOOPT`, as an unknown option is on
//! Linux.

use std::ffi::c_int;

use libc::{IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use millrace::{Opt, OptName, SocketId, ViewFlags};
use millrace_sockopt::{Membership, Row, Sockets};

use crate::control;
use crate::host::Host;
use crate::opening::Opening;
use crate::outcome::Outcome;

/// The longest value there is: `TCP_INFO`.
pub const VALUE_MAX: usize = millrace::TCP_INFO_LEN;

/// The row of an option that these sockets have in the library.
fn find(datagrams: bool, level: c_int, name: c_int) -> Outcome<&'static Row> {
    let kind = if datagrams {
        Sockets::DATAGRAM
    } else {
        Sockets::STREAM
    };
    millrace_sockopt::find(kind, level, name)
        .filter(|row| row.library.contains(kind))
        .ok_or(libc::ENOPROTOOPT)
}

/// Writes a value as C takes it; its length.
fn format(option: Opt, out: &mut [u8; VALUE_MAX]) -> usize {
    out.first_chunk_mut().map_or(0, |out| option.encode(out))
}

/// Whether a socket has options of a level: those of TCP a stream, those of IPv6 a socket of IPv6.
fn has_level(level: c_int, family: c_int, datagrams: bool) -> bool {
    match level {
        IPPROTO_TCP => !datagrams,
        IPPROTO_IPV6 => family == libc::AF_INET6,
        _ => true,
    }
}

impl Host {
    /// `setsockopt`.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an option that there is not, `EINVAL` for a value out of range, `EDOM`,
    /// `ENOENT` for a congestion control that there is not.
    pub fn set_option(&self, key: u32, level: c_int, name: c_int, value: &[u8]) -> Outcome<()> {
        let (id, family, datagrams) = {
            let mut things = self.things.borrow_mut();
            let socket = things.socket_mut(key)?;
            (socket.id, socket.family, socket.datagrams)
        };
        if !has_level(level, family, datagrams) {
            return Err(libc::ENOPROTOOPT);
        }
        let name = find(datagrams, level, name)?.name;
        let option = Opt::decode(name, value)?;
        if self.keep(key, option)? {
            return Ok(());
        }
        if let Some(change) = option.membership() {
            return self.change_membership(id, change);
        }
        let set = self
            .stack
            .with_sockets(|sockets| sockets.set_option(id, option));
        set.map_err(millrace::Error::errno)
    }

    /// Keeps what is the library's own; whether that was all. `EINVAL` if the socket is dead.
    fn keep(&self, key: u32, option: Opt) -> Outcome<bool> {
        let mut things = self.things.borrow_mut();
        let socket = things.socket_mut(key)?;
        match option {
            Opt::ReceiveTimeout(us) => socket.patience[0] = us,
            Opt::SendTimeout(us) => socket.patience[1] = us,
            Opt::Broadcast(on) => {
                socket.broadcast = on;
                // A stream is sent to nobody who could be several.
                return Ok(!socket.datagrams);
            }
            option => match control::bit(option.name()) {
                Some(bit) if option.number() != 0 => socket.telling |= bit,
                Some(bit) => socket.telling &= !bit,
                None if socket.dead.is_some() => return Err(libc::EINVAL),
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    /// Joins or leaves a group. There is one link: which interface is meant need not be said, and
    /// cannot.
    fn change_membership(&self, id: SocketId, change: Membership) -> Outcome<()> {
        if change.device != 0 || !change.interface.is_unspecified() {
            return Err(libc::ENODEV);
        }
        let changed = self.stack.with_sockets(|sockets| {
            if change.join {
                sockets.join(id, change.group)
            } else {
                sockets.leave(id, change.group)
            }
        });
        changed.map_err(millrace::Error::errno)
    }

    /// `getsockopt`; the length of the value.
    ///
    /// # Errors
    /// As [`Host::set_option`].
    pub fn option(
        &self,
        key: u32,
        level: c_int,
        name: c_int,
        out: &mut [u8; VALUE_MAX],
    ) -> Outcome<usize> {
        let mut things = self.things.borrow_mut();
        let socket = things.socket_mut(key)?;
        let (id, datagrams) = (socket.id, socket.datagrams);
        if !has_level(level, socket.family, datagrams) {
            return Err(libc::ENOPROTOOPT);
        }
        let int = match (level, name) {
            (SOL_SOCKET, libc::SO_TYPE) if datagrams => libc::SOCK_DGRAM,
            (SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (SOL_SOCKET, libc::SO_PROTOCOL) if datagrams => libc::IPPROTO_UDP,
            (SOL_SOCKET, libc::SO_PROTOCOL) => IPPROTO_TCP,
            (SOL_SOCKET, libc::SO_DOMAIN) => socket.family,
            (SOL_SOCKET, libc::SO_ERROR) => match (&mut socket.dead, &socket.opening) {
                (Some(error), _) => std::mem::take(error),
                (None, Some(Opening::Asked(_))) => 0,
                (None, &Some(Opening::Refused(error))) => {
                    things.forget_opening(key);
                    error
                }
                (None, None) => self.stack.with_sockets(|sockets| sockets.take_error(id)),
            },
            (IPPROTO_TCP, libc::TCP_INFO) => {
                self.stack.read_clock();
                let info = self.stack.with_sockets(|sockets| sockets.tcp_info(id));
                *out = info.map_err(millrace::Error::errno)?;
                return Ok(VALUE_MAX);
            }
            (SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                let view = self.view(id)?;
                c_int::from(view.flags.contains(ViewFlags::LISTENING))
            }
            _ => {
                let row = find(datagrams, level, name)?;
                let option = match row.name {
                    _ if !row.is_readable() => return Err(libc::ENOPROTOOPT),
                    OptName::ReceiveTimeout => Opt::ReceiveTimeout(socket.patience[0]),
                    OptName::SendTimeout => Opt::SendTimeout(socket.patience[1]),
                    OptName::Broadcast => Opt::Broadcast(socket.broadcast),
                    name => match control::bit(name) {
                        Some(bit) => {
                            out[..4].copy_from_slice(
                                &c_int::from(socket.telling & bit != 0).to_ne_bytes(),
                            );
                            return Ok(4);
                        }
                        None => {
                            let option =
                                self.stack.with_sockets(|sockets| sockets.option(id, name));
                            option.map_err(millrace::Error::errno)?
                        }
                    },
                };
                return Ok(format(option, out));
            }
        };
        out[..4].copy_from_slice(&int.to_ne_bytes());
        Ok(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_refused() {
        for (level, name) in [
            (IPPROTO_TCP, libc::TCP_MD5SIG),
            (SOL_SOCKET, libc::SO_MARK),
            // The shim has it.
            (IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
            (12_345, 1),
        ] {
            assert_eq!(find(false, level, name).err(), Some(libc::ENOPROTOOPT));
        }
    }
}
