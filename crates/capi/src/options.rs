//! Socket options by Linux's numbers. What is not here is `ENOPROTOOPT`, as an unknown option is on Linux.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use millrace::{Algorithm, DatagramOpt, Discovery, Opt, OptName, ViewFlags};

use crate::control;
use crate::host::Host;
use crate::opening::Opening;
use crate::outcome::Outcome;

/// The longest value there is: `TCP_INFO`.
pub const VALUE_MAX: usize = millrace::TCP_INFO_LEN;
/// A name of a congestion control, with what fills it up.
const NAME_LEN: usize = 16;

/// Options that the shard keeps.
const NAMES: [(c_int, c_int, OptName); 27] = [
    (SOL_SOCKET, libc::SO_REUSEADDR, OptName::ReuseAddress),
    (SOL_SOCKET, libc::SO_REUSEPORT, OptName::ReusePort),
    (SOL_SOCKET, libc::SO_KEEPALIVE, OptName::KeepAlive),
    (SOL_SOCKET, libc::SO_LINGER, OptName::Linger),
    (SOL_SOCKET, libc::SO_RCVBUF, OptName::ReceiveBuffer),
    (SOL_SOCKET, libc::SO_SNDBUF, OptName::SendBuffer),
    (SOL_SOCKET, libc::SO_MAX_PACING_RATE, OptName::MaxPacingRate),
    (IPPROTO_TCP, libc::TCP_NODELAY, OptName::NoDelay),
    (IPPROTO_TCP, libc::TCP_CORK, OptName::Cork),
    (IPPROTO_TCP, libc::TCP_KEEPIDLE, OptName::KeepIdle),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL, OptName::KeepInterval),
    (IPPROTO_TCP, libc::TCP_KEEPCNT, OptName::KeepCount),
    (IPPROTO_TCP, libc::TCP_USER_TIMEOUT, OptName::UserTimeout),
    (IPPROTO_TCP, libc::TCP_MAXSEG, OptName::MaxSegment),
    (IPPROTO_TCP, libc::TCP_SYNCNT, OptName::SynCount),
    (IPPROTO_TCP, libc::TCP_LINGER2, OptName::Linger2),
    (IPPROTO_TCP, libc::TCP_CONGESTION, OptName::Congestion),
    (IPPROTO_TCP, libc::TCP_QUICKACK, OptName::QuickAck),
    (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, OptName::DeferAccept),
    (
        IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        OptName::NotSentLowWater,
    ),
    (IPPROTO_IP, libc::IP_TTL, OptName::Ttl),
    (IPPROTO_IP, libc::IP_TOS, OptName::Tos),
    (
        IPPROTO_IP,
        libc::IP_BIND_ADDRESS_NO_PORT,
        OptName::AddressOnly,
    ),
    (IPPROTO_IP, libc::IP_MTU_DISCOVER, OptName::MtuDiscover),
    (IPPROTO_IPV6, libc::IPV6_V6ONLY, OptName::V6Only),
    (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, OptName::HopLimit),
    (IPPROTO_IPV6, libc::IPV6_TCLASS, OptName::TrafficClass),
];

/// A value as C hands it over.
struct Given<'a>(&'a [u8]);

impl Given<'_> {
    fn int(&self) -> Outcome<c_int> {
        let bytes = self.0.first_chunk().ok_or(libc::EINVAL)?;
        Ok(c_int::from_ne_bytes(*bytes))
    }

    fn on(&self) -> Outcome<bool> {
        Ok(self.int()? != 0)
    }

    fn within(&self, least: c_int, most: c_int) -> Outcome<c_int> {
        let value = self.int()?;
        (least..=most)
            .contains(&value)
            .then_some(value)
            .ok_or(libc::EINVAL)
    }

    /// A number that Linux takes from one byte, too.
    fn byte(&self) -> Outcome<c_int> {
        match self.0 {
            [one] => Ok((*one).into()),
            _ => self.int(),
        }
    }

    /// A `struct timeval` in microseconds; 0 is for ever.
    fn time(&self) -> Outcome<u64> {
        let field = |at: usize| -> Outcome<i64> {
            let bytes = self.0.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
            Ok(i64::from_ne_bytes(*bytes.ok_or(libc::EINVAL)?))
        };
        let (seconds, micros) = (field(0)?, field(8)?);
        if !(0..1_000_000).contains(&micros) {
            return Err(libc::EDOM);
        }
        // Linux: below 0, it does not wait at all.
        let seconds = u64::try_from(seconds).ok();
        Ok(seconds.map_or(1, |seconds| {
            seconds
                .saturating_mul(1_000_000)
                .saturating_add(micros as u64)
        }))
    }

    fn text(&self) -> Outcome<&str> {
        let len = self.0.iter().position(|&byte| byte == 0);
        let text = &self.0[..len.unwrap_or(self.0.len())];
        std::str::from_utf8(text).map_err(|_| libc::ENOENT)
    }
}

/// A size of a buffer: as on Linux a negative one is a huge one.
fn size(bytes: c_int) -> u32 {
    u32::try_from(bytes)
        .unwrap_or(c_int::MAX as u32)
        .min(c_int::MAX as u32 / 2)
}

/// Checks a value as Linux does.
fn parse(name: OptName, value: &Given<'_>) -> Outcome<Opt> {
    Ok(match name {
        OptName::ReuseAddress => Opt::ReuseAddress(value.on()?),
        OptName::ReusePort => Opt::ReusePort(value.on()?),
        OptName::KeepAlive => Opt::KeepAlive(value.on()?),
        OptName::Linger => {
            let seconds = value.0.get(4..8).and_then(|bytes| bytes.first_chunk());
            let seconds = c_int::from_ne_bytes(*seconds.ok_or(libc::EINVAL)?);
            let seconds = u16::try_from(seconds.max(0)).unwrap_or(u16::MAX);
            Opt::Linger(value.on()?.then_some(seconds))
        }
        OptName::ReceiveBuffer => Opt::ReceiveBuffer(size(value.int()?)),
        OptName::SendBuffer => Opt::SendBuffer(size(value.int()?)),
        OptName::MaxPacingRate => Opt::MaxPacingRate(match value.0.first_chunk() {
            Some(wide) => u64::from_ne_bytes(*wide),
            None => match value.int()? as u32 {
                u32::MAX => u64::MAX,
                rate => rate.into(),
            },
        }),
        OptName::NoDelay => Opt::NoDelay(value.on()?),
        OptName::Cork => Opt::Cork(value.on()?),
        OptName::KeepIdle => Opt::KeepIdle(value.within(1, 32_767)? as u16),
        OptName::KeepInterval => Opt::KeepInterval(value.within(1, 32_767)? as u16),
        OptName::KeepCount => Opt::KeepCount(value.within(1, 127)? as u8),
        OptName::UserTimeout => Opt::UserTimeout(value.within(0, c_int::MAX)? as u32),
        OptName::MaxSegment => Opt::MaxSegment(value.within(0, 32_767)? as u16),
        OptName::SynCount => Opt::SynCount(value.within(1, 127)? as u8),
        OptName::Linger2 => Opt::Linger2(value.int()?.clamp(-1, 120) as i16),
        OptName::Congestion => {
            let algorithm = value.text()?.parse::<Algorithm>();
            Opt::Congestion(algorithm.map_err(|()| libc::ENOENT)?)
        }
        // Linux looks at the lowest bit alone.
        OptName::QuickAck => Opt::QuickAck(value.int()? & 1 != 0),
        OptName::DeferAccept => Opt::DeferAccept(value.int()?.max(0) as u32),
        OptName::NotSentLowWater => Opt::NotSentLowWater(value.int()? as u32),
        // -1 is the default.
        OptName::Ttl => match value.byte()? {
            -1 => Opt::Ttl(64),
            hops => Opt::Ttl(u8::try_from(hops).map_err(|_| libc::EINVAL)?),
        },
        OptName::Tos => Opt::Tos(value.byte()? as u8),
        OptName::AddressOnly => Opt::AddressOnly(value.byte()? != 0),
        // Those that let routers fragment a stream are not implemented.
        OptName::MtuDiscover => match value.byte()? {
            libc::IP_PMTUDISC_WANT => Opt::MtuDiscover(Discovery::Want),
            libc::IP_PMTUDISC_DO => Opt::MtuDiscover(Discovery::Always),
            _ => return Err(libc::EINVAL),
        },
        OptName::V6Only => Opt::V6Only(value.on()?),
        OptName::HopLimit => match value.within(-1, 255)? {
            -1 => Opt::HopLimit(None),
            hops => Opt::HopLimit(Some(hops as u8)),
        },
        OptName::TrafficClass => Opt::TrafficClass(value.within(-1, 255)?.max(0) as u8),
        _ => return Err(libc::ENOPROTOOPT),
    })
}

/// Writes a value as C takes it; its length.
fn format(option: Opt, out: &mut [u8; VALUE_MAX]) -> Outcome<usize> {
    let int = match option {
        Opt::NoDelay(on)
        | Opt::Cork(on)
        | Opt::KeepAlive(on)
        | Opt::QuickAck(on)
        | Opt::ReuseAddress(on)
        | Opt::ReusePort(on)
        | Opt::V6Only(on)
        | Opt::AddressOnly(on) => c_int::from(on),
        Opt::KeepIdle(number) | Opt::KeepInterval(number) | Opt::MaxSegment(number) => {
            number.into()
        }
        Opt::KeepCount(number) | Opt::SynCount(number) | Opt::Ttl(number) => number.into(),
        Opt::Tos(number) | Opt::TrafficClass(number) => number.into(),
        Opt::UserTimeout(number)
        | Opt::ReceiveBuffer(number)
        | Opt::SendBuffer(number)
        | Opt::DeferAccept(number)
        | Opt::NotSentLowWater(number) => number as c_int,
        Opt::Linger2(seconds) => seconds.into(),
        Opt::HopLimit(hops) => hops.map_or(64, c_int::from),
        Opt::MtuDiscover(how) => how as c_int,
        Opt::Linger(linger) => {
            out[..4].copy_from_slice(&c_int::from(linger.is_some()).to_ne_bytes());
            out[4..8].copy_from_slice(&c_int::from(linger.unwrap_or(0)).to_ne_bytes());
            return Ok(8);
        }
        Opt::MaxPacingRate(rate) => {
            out[..8].copy_from_slice(&rate.to_ne_bytes());
            return Ok(8);
        }
        Opt::Congestion(algorithm) => {
            let name = algorithm.name().as_bytes();
            out[..name.len()].copy_from_slice(name);
            return Ok(NAME_LEN);
        }
        _ => return Err(libc::ENOPROTOOPT),
    };
    out[..4].copy_from_slice(&int.to_ne_bytes());
    Ok(4)
}

fn find(level: c_int, name: c_int) -> Outcome<OptName> {
    let found = NAMES.iter().find(|(l, n, _)| (*l, *n) == (level, name));
    found.map(|&(_, _, name)| name).ok_or(libc::ENOPROTOOPT)
}

/// Whether a socket has options of a level: those of TCP a stream, those of IPv6 a socket of IPv6.
fn has_level(level: c_int, family: c_int, datagrams: bool) -> bool {
    match level {
        IPPROTO_TCP => !datagrams,
        IPPROTO_IPV6 => family == libc::AF_INET6,
        _ => true,
    }
}

/// The group of a `struct ip_mreq`, `struct ip_mreqn` or `struct ipv6_mreq`. There is one link: which interface is meant need not be said, and cannot.
fn group(level: c_int, value: &Given<'_>) -> Outcome<IpAddr> {
    let (group, rest) = match level {
        IPPROTO_IPV6 => {
            let (octets, rest) = value.0.split_first_chunk::<16>().ok_or(libc::EINVAL)?;
            (IpAddr::from(Ipv6Addr::from(*octets)), rest)
        }
        _ => {
            let (octets, rest) = value.0.split_first_chunk::<4>().ok_or(libc::EINVAL)?;
            (IpAddr::from(Ipv4Addr::from(*octets)), rest)
        }
    };
    match rest {
        [] => Err(libc::EINVAL),
        rest if rest.iter().all(|&byte| byte == 0) => Ok(group),
        _ => Err(libc::ENODEV),
    }
}

impl Host {
    /// `setsockopt`.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an option that there is not, `EINVAL` for a value out of range, `EDOM`, `ENOENT` for a congestion control that there is not.
    pub fn set_option(&self, key: u32, level: c_int, name: c_int, value: &[u8]) -> Outcome<()> {
        let value = Given(value);
        let (id, family, datagrams) = {
            let mut things = self.things.borrow_mut();
            let socket = things.socket_mut(key)?;
            match (level, name) {
                (SOL_SOCKET, libc::SO_RCVTIMEO) => {
                    socket.patience[0] = value.time()?;
                    return Ok(());
                }
                (SOL_SOCKET, libc::SO_SNDTIMEO) => {
                    socket.patience[1] = value.time()?;
                    return Ok(());
                }
                (SOL_SOCKET, libc::SO_BROADCAST) => socket.broadcast = value.on()?,
                _ => {}
            }
            let telling = control::bit(level, name).filter(|_| socket.datagrams);
            if let Some(bit) = telling.filter(|_| has_level(level, socket.family, true)) {
                let on = if level == IPPROTO_IP {
                    value.byte()?
                } else {
                    value.int()?
                };
                socket.telling = socket.telling & !bit | if on != 0 { bit } else { 0 };
                return Ok(());
            }
            if socket.dead.is_some() {
                return Err(libc::EINVAL);
            }
            (socket.id, socket.family, socket.datagrams)
        };
        if !has_level(level, family, datagrams) {
            return Err(libc::ENOPROTOOPT);
        }
        let option = match (level, name) {
            // A stream is sent to nobody who could be several.
            (SOL_SOCKET, libc::SO_BROADCAST) if !datagrams => return Ok(()),
            (SOL_SOCKET, libc::SO_BROADCAST) => Opt::Datagram(DatagramOpt::Broadcast(value.on()?)),
            (IPPROTO_IP, libc::IP_MULTICAST_TTL) if datagrams => match value.byte()? {
                -1 => Opt::Datagram(DatagramOpt::GroupHopsV4(1)),
                hops => {
                    let hops = u8::try_from(hops).map_err(|_| libc::EINVAL)?;
                    Opt::Datagram(DatagramOpt::GroupHopsV4(hops))
                }
            },
            (IPPROTO_IP, libc::IP_MULTICAST_LOOP) if datagrams => {
                Opt::Datagram(DatagramOpt::GroupLoopV4(value.byte()? != 0))
            }
            (IPPROTO_IP, libc::IP_ADD_MEMBERSHIP) | (IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP)
                if datagrams =>
            {
                let group = group(level, &value)?;
                let joined = self.stack.with_sockets(|sockets| sockets.join(id, group));
                return joined.map_err(millrace::Error::errno);
            }
            (IPPROTO_IP, libc::IP_DROP_MEMBERSHIP) | (IPPROTO_IPV6, libc::IPV6_DROP_MEMBERSHIP)
                if datagrams =>
            {
                let group = group(level, &value)?;
                let left = self.stack.with_sockets(|sockets| sockets.leave(id, group));
                return left.map_err(millrace::Error::errno);
            }
            _ => parse(find(level, name)?, &value)?,
        };
        let set = self
            .stack
            .with_sockets(|sockets| sockets.set_option(id, option));
        set.map_err(millrace::Error::errno)
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
            (SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
                let us = socket.patience[usize::from(name == libc::SO_SNDTIMEO)];
                out[..8].copy_from_slice(&(us / 1_000_000).to_ne_bytes());
                out[8..16].copy_from_slice(&(us % 1_000_000).to_ne_bytes());
                return Ok(16);
            }
            (SOL_SOCKET, libc::SO_TYPE) if datagrams => libc::SOCK_DGRAM,
            (SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (SOL_SOCKET, libc::SO_PROTOCOL) if datagrams => libc::IPPROTO_UDP,
            (SOL_SOCKET, libc::SO_PROTOCOL) => IPPROTO_TCP,
            (SOL_SOCKET, libc::SO_DOMAIN) => socket.family,
            (SOL_SOCKET, libc::SO_BROADCAST) => c_int::from(socket.broadcast),
            _ if datagrams && control::bit(level, name).is_some() => {
                c_int::from(control::bit(level, name).is_some_and(|bit| socket.telling & bit != 0))
            }
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
                let name = find(level, name)?;
                let option = self.stack.with_sockets(|sockets| sockets.option(id, name));
                return format(option.map_err(millrace::Error::errno)?, out);
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
    fn what_every_option_is_set_to_is_read_back() {
        for (level, name, option) in NAMES {
            let mut value = [0; VALUE_MAX];
            match option {
                OptName::Congestion => value[..4].copy_from_slice(b"reno"),
                OptName::MtuDiscover => value[0] = 1,
                OptName::HopLimit | OptName::Ttl => value[0] = 33,
                OptName::MaxSegment => value[0] = 100,
                _ => (value[0], value[4]) = (1, 1),
            }
            let parsed = parse(option, &Given(&value)).expect("a good value");
            let mut out = [0; VALUE_MAX];
            let len = format(parsed, &mut out).expect("a value");
            if option != OptName::MaxPacingRate {
                assert_eq!(out[..len.min(8)], value[..len.min(8)], "{level} {name}");
            }
            assert_eq!(
                parse(option, &Given(&[])).err(),
                Some(match option {
                    OptName::Congestion => libc::ENOENT,
                    _ => libc::EINVAL,
                }),
                "{level} {name}"
            );
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        for (level, name) in [
            (IPPROTO_TCP, libc::TCP_MD5SIG),
            (SOL_SOCKET, libc::SO_MARK),
            (12_345, 1),
        ] {
            assert_eq!(find(level, name), Err(libc::ENOPROTOOPT));
        }
    }

    /// docs/embedding.md lists what is implemented: every option that it names is, and no other.
    #[test]
    fn the_documentation_lists_them_all() {
        let page = include_str!("../../../docs/embedding.md");
        let start = page.find("Options, by Linux's numbers:").expect("a list");
        let list = &page[start..start + page[start..].find("Any other is").expect("its end")];
        let mut listed: Vec<&str> = list
            .split('`')
            .filter(|word| word.contains('_') && !word.contains(' '))
            .collect();
        listed.sort_unstable();
        // Those that are no number of the shard's, by name.
        let mut known = vec![
            "SO_RCVTIMEO",
            "SO_SNDTIMEO",
            "SO_BROADCAST",
            "SO_TYPE",
            "SO_DOMAIN",
            "SO_PROTOCOL",
            "SO_ACCEPTCONN",
            "SO_ERROR",
            "TCP_INFO",
            "IP_MULTICAST_TTL",
            "IP_MULTICAST_LOOP",
            "IP_PKTINFO",
            "IP_RECVTTL",
            "IP_RECVTOS",
            "IPV6_RECVPKTINFO",
            "IPV6_RECVHOPLIMIT",
            "IPV6_RECVTCLASS",
            "IP_ADD_MEMBERSHIP",
            "IP_DROP_MEMBERSHIP",
            "IPV6_ADD_MEMBERSHIP",
            "IPV6_DROP_MEMBERSHIP",
        ];
        let source = include_str!("options.rs");
        let table = &source[source.find("const NAMES").expect("a table")..];
        let table = &table[..table.find("];").expect("its end")];
        known.extend(table.split("libc::").skip(1).filter_map(|rest| {
            let end = rest.find([',', ' ', ')'])?;
            Some(&rest[..end])
        }));
        known.sort_unstable();
        assert_eq!(listed, known);
    }
}
