//! Socket options: those that are implemented, and nothing else. What is not in this list is ENOPROTOOPT, as an unknown option is on Linux.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use millrace_context::submission::Name;
use millrace_context::{Operation, Status};
use rustix::io::Errno;

use crate::datagram::options as datagram;
use crate::device::{self, SO_BINDTOIFINDEX};
use crate::lock::{self, Rank};
use crate::socket::{RESET, Socket};
use crate::sys::{self, Result};

/// SO_RCVTIMEO and SO_SNDTIMEO as 64-bit time has them.
pub const SO_RCVTIMEO_NEW: c_int = 66;
pub const SO_SNDTIMEO_NEW: c_int = 67;
/// As <linux/tcp.h> has it.
const TCP_FASTOPEN_NO_COOKIE: c_int = 34;
/// Bits in the first word of [`millrace_context::slot::AppCold::options`]. The second is SO_LINGER's time.
pub const REUSE_ADDRESS: u32 = 1;
pub const REUSE_PORT: u32 = 2;
pub const BROADCAST: u32 = 4;
const V6_ONLY: u32 = 8;
pub const OOB_INLINE: u32 = 16;
const FAST_CONNECT: u32 = 32;
/// Every receive buffer that was not set can hold so many bytes.
const LOW_WATER_HELD: u32 = 1024;
/// Hops that a packet may take, by default.
const DEFAULT_HOPS: u64 = 64;
/// Largest option value: a congestion control's name.
pub const VALUE_MAX: usize = 256;

/// Options that can be set. Their place here is their bit in [`crate::table::Undecided::options`].
pub const ALL: [(c_int, c_int); 40] = [
    (SOL_SOCKET, libc::SO_REUSEADDR),
    (SOL_SOCKET, libc::SO_REUSEPORT),
    (SOL_SOCKET, libc::SO_BROADCAST),
    (SOL_SOCKET, libc::SO_KEEPALIVE),
    (SOL_SOCKET, libc::SO_LINGER),
    (SOL_SOCKET, libc::SO_RCVBUF),
    (SOL_SOCKET, libc::SO_SNDBUF),
    (SOL_SOCKET, libc::SO_RCVLOWAT),
    (SOL_SOCKET, libc::SO_RCVTIMEO),
    (SOL_SOCKET, libc::SO_SNDTIMEO),
    (SOL_SOCKET, SO_RCVTIMEO_NEW),
    (SOL_SOCKET, SO_SNDTIMEO_NEW),
    (IPPROTO_TCP, libc::TCP_NODELAY),
    (IPPROTO_TCP, libc::TCP_CORK),
    (IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (IPPROTO_TCP, libc::TCP_KEEPCNT),
    (IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (IPPROTO_TCP, libc::TCP_MAXSEG),
    (IPPROTO_TCP, libc::TCP_SYNCNT),
    (IPPROTO_TCP, libc::TCP_LINGER2),
    (IPPROTO_TCP, libc::TCP_CONGESTION),
    (IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (SOL_SOCKET, libc::SO_OOBINLINE),
    (IPPROTO_TCP, libc::TCP_QUICKACK),
    (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (IPPROTO_IP, libc::IP_TTL),
    (IPPROTO_IP, libc::IP_TOS),
    (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (IPPROTO_IPV6, libc::IPV6_TCLASS),
    (SOL_SOCKET, libc::SO_MAX_PACING_RATE),
    (IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (IPPROTO_TCP, libc::TCP_FASTOPEN),
    (IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
    (IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE),
    (SOL_SOCKET, SO_BINDTOIFINDEX),
    (IPPROTO_TCP, libc::TCP_FASTOPEN_KEY),
];

const _: () = assert!(ALL.len() <= crate::table::OPTIONS_MAX);

/// What every link of IPv6 carries (RFC 8200 5), in bytes.
const IPV6_MTU_LEAST: c_int = 1280;

/// The congestion controls that there are (TCP_CONGESTION).
const CONTROLS: [&[u8]; 4] = [b"cubic", b"reno", b"dctcp", b"bbr"];

/// Options that can only be read.
const READ_ONLY: [(c_int, c_int); 8] = [
    (SOL_SOCKET, libc::SO_TYPE),
    (SOL_SOCKET, libc::SO_DOMAIN),
    (SOL_SOCKET, libc::SO_PROTOCOL),
    (SOL_SOCKET, libc::SO_ACCEPTCONN),
    (SOL_SOCKET, libc::SO_ERROR),
    (IPPROTO_TCP, libc::TCP_INFO),
    (IPPROTO_IP, libc::IP_MTU),
    (IPPROTO_IPV6, libc::IPV6_MTU),
];

/// The bit of an option that can be set on a socket before it is decided; `NOPROTOOPT` for one that is not implemented.
pub fn bit(level: c_int, name: c_int) -> Result<u64> {
    bit_in(&ALL, level, name)
}

/// The bit in one of the two lists. A device has two names.
pub fn bit_in(list: &[(c_int, c_int)], level: c_int, name: c_int) -> Result<u64> {
    let name = if device::is_option(level, name) {
        SO_BINDTOIFINDEX
    } else {
        name
    };
    let at = list.iter().position(|option| *option == (level, name));
    at.map(|at| 1 << at).ok_or(Errno::NOPROTOOPT)
}

/// Whether an option can be read.
pub fn is_readable(level: c_int, name: c_int) -> bool {
    bit(level, name).is_ok() || READ_ONLY.contains(&(level, name))
}

/// An option with its value, checked as Linux checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The shard's.
    Shard(Name, [u64; 2]),
    /// Keys, the first and whether there is a second, as [`Name::FastOpenKey`] has them.
    Keys([u64; 5]),
    /// A bit kept in the slot.
    Bit(u32, bool),
    /// Microseconds, 0 for none.
    ReceiveTimeout(u64),
    /// Likewise.
    SendTimeout(u64),
    /// Bytes.
    LowWater(u32),
    /// The index of a device, 0 for none.
    Device(u32),
}

/// Checks a value. `INVAL`, `DOM` and `NOENT` as Linux has them; `NOPROTOOPT` for options that are not implemented.
pub fn parse(level: c_int, name: c_int, value: &[u8]) -> Result<Setting> {
    let int = || -> Result<c_int> {
        let bytes = value.first_chunk().ok_or(Errno::INVAL)?;
        Ok(c_int::from_ne_bytes(*bytes))
    };
    let within = |low: c_int, high: c_int| {
        int().and_then(|value| {
            let good = (low..=high).contains(&value);
            good.then_some(value as u64).ok_or(Errno::INVAL)
        })
    };
    let shard = |name: Name, value: u64| Setting::Shard(name, [value, 0]);
    let switch = |name: Name| int().map(|on| shard(name, u64::from(on != 0)));
    let bit = |bit: u32| int().map(|on| Setting::Bit(bit, on != 0));
    match (level, name) {
        (SOL_SOCKET, libc::SO_REUSEADDR) => bit(REUSE_ADDRESS),
        (SOL_SOCKET, libc::SO_REUSEPORT) => bit(REUSE_PORT),
        (SOL_SOCKET, libc::SO_BROADCAST) => bit(BROADCAST),
        (SOL_SOCKET, libc::SO_OOBINLINE) => bit(OOB_INLINE),
        (SOL_SOCKET, libc::SO_KEEPALIVE) => switch(Name::KeepAlive),
        (SOL_SOCKET, libc::SO_LINGER) => {
            let on = int()?;
            let seconds = value.get(4..8).ok_or(Errno::INVAL)?;
            let seconds = u32::from_ne_bytes(seconds.try_into().unwrap_or_default());
            Ok(Setting::Shard(
                Name::Linger,
                [
                    u64::from(on != 0),
                    u64::from(seconds.min(u32::from(u16::MAX))),
                ],
            ))
        }
        (SOL_SOCKET, libc::SO_RCVBUF) => buffer(int()?, Name::ReceiveBuffer),
        (SOL_SOCKET, libc::SO_SNDBUF) => buffer(int()?, Name::SendBuffer),
        (SOL_SOCKET, libc::SO_RCVLOWAT) => {
            let bytes = int()?;
            let bytes = if bytes < 0 { c_int::MAX } else { bytes.max(1) };
            Ok(Setting::LowWater(bytes as u32))
        }
        (SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => {
            time(value).map(Setting::ReceiveTimeout)
        }
        (SOL_SOCKET, libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW) => time(value).map(Setting::SendTimeout),
        (SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
            let wide = value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            let narrow = int()? as u32;
            let narrow = if narrow == u32::MAX {
                u64::MAX
            } else {
                narrow.into()
            };
            Ok(shard(Name::MaxPacingRate, wide.unwrap_or(narrow)))
        }
        (SOL_SOCKET, SO_BINDTOIFINDEX) => {
            within(0, c_int::MAX).map(|index| Setting::Device(index as u32))
        }
        (IPPROTO_TCP, libc::TCP_NODELAY) => switch(Name::NoDelay),
        (IPPROTO_TCP, libc::TCP_CORK) => switch(Name::Cork),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE) => within(1, 32767).map(|s| shard(Name::KeepIdle, s)),
        (IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
            within(1, 32767).map(|s| shard(Name::KeepInterval, s))
        }
        (IPPROTO_TCP, libc::TCP_KEEPCNT) => within(1, 127).map(|n| shard(Name::KeepCount, n)),
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            within(0, c_int::MAX).map(|ms| shard(Name::UserTimeout, ms))
        }
        (IPPROTO_TCP, libc::TCP_MAXSEG) => match int()? {
            0 => Ok(shard(Name::MaxSegment, 0)),
            _ => within(88, 32767).map(|bytes| shard(Name::MaxSegment, bytes)),
        },
        (IPPROTO_TCP, libc::TCP_SYNCNT) => within(1, 127).map(|n| shard(Name::SynCount, n)),
        // A negative one is "not at all".
        (IPPROTO_TCP, libc::TCP_LINGER2) => int().map(|s| match u64::try_from(s) {
            Ok(seconds) => shard(Name::Linger2, seconds.min(120)),
            Err(_) => shard(Name::Linger2, u64::MAX),
        }),
        // Linux looks at the lowest bit alone.
        (IPPROTO_TCP, libc::TCP_QUICKACK) => {
            int().map(|value| shard(Name::QuickAck, (value & 1) as u64))
        }
        (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => {
            int().map(|s| shard(Name::DeferAccept, s.max(0) as u64))
        }
        (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => {
            int().map(|bytes| shard(Name::NotSentLowWater, u64::from(bytes as u32)))
        }
        (IPPROTO_TCP, libc::TCP_CONGESTION) => congestion(value),
        (IPPROTO_IPV6, libc::IPV6_V6ONLY) => bit(V6_ONLY),
        // -1 is the default.
        (IPPROTO_IP, libc::IP_TTL) => match byte(value)? {
            -1 => Ok(shard(Name::Ttl, DEFAULT_HOPS)),
            hops if (1..=255).contains(&hops) => Ok(shard(Name::Ttl, hops as u64)),
            _ => Err(Errno::INVAL),
        },
        (IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT) => {
            byte(value).map(|on| shard(Name::AddressOnly, u64::from(on != 0)))
        }
        (IPPROTO_TCP, libc::TCP_FASTOPEN) => {
            within(0, c_int::MAX).map(|n| shard(Name::FastOpen, n.min(u64::from(u16::MAX))))
        }
        (IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => {
            within(0, 1).map(|on| Setting::Bit(FAST_CONNECT, on != 0))
        }
        (IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) => {
            within(0, 1).map(|on| shard(Name::FastOpenNoCookie, on))
        }
        (IPPROTO_TCP, libc::TCP_FASTOPEN_KEY) => keys(value),
        // Those that let routers fragment are not implemented.
        (IPPROTO_IP, libc::IP_MTU_DISCOVER) => match byte(value)? {
            how @ (libc::IP_PMTUDISC_WANT | libc::IP_PMTUDISC_DO) => {
                Ok(shard(Name::MtuDiscover, how as u64))
            }
            _ => Err(Errno::INVAL),
        },
        (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => {
            within(libc::IP_PMTUDISC_WANT, libc::IP_PMTUDISC_DO)
                .map(|how| shard(Name::MtuDiscoverV6, how))
        }
        (IPPROTO_IP, libc::IP_TOS) => byte(value).map(|tos| shard(Name::Tos, tos as u8 as u64)),
        (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => match int()? {
            -1 => Ok(shard(Name::HopLimit, 0)),
            _ => within(0, 255).map(|hops| shard(Name::HopLimit, hops + 1)),
        },
        (IPPROTO_IPV6, libc::IPV6_TCLASS) => match int()? {
            -1 => Ok(shard(Name::TrafficClass, 0)),
            _ => within(0, 255).map(|class| shard(Name::TrafficClass, class)),
        },
        _ => Err(Errno::NOPROTOOPT),
    }
}

/// TCP_FASTOPEN_KEY: one key or two.
fn keys(value: &[u8]) -> Result<Setting> {
    if value.len() != 16 && value.len() != 32 {
        return Err(Errno::INVAL);
    }
    let mut words = [0; 5];
    for (word, bytes) in words.iter_mut().zip(value.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words[4] = u64::from(value.len() == 32);
    Ok(Setting::Keys(words))
}

/// A number that Linux takes from one byte, too.
pub fn byte(value: &[u8]) -> Result<c_int> {
    match (value.first_chunk(), value.first()) {
        (Some(int), _) => Ok(c_int::from_ne_bytes(*int)),
        (None, Some(&byte)) => Ok(byte.into()),
        (None, None) => Err(Errno::INVAL),
    }
}

/// A buffer's size: a negative one is a huge one, as on Linux, and the shard has its own bounds.
fn buffer(bytes: c_int, name: Name) -> Result<Setting> {
    let bytes = if bytes < 0 { c_int::MAX } else { bytes };
    Ok(Setting::Shard(name, [bytes.min(c_int::MAX / 2) as u64, 0]))
}

/// A `struct timeval` in microseconds; 0 is none.
fn time(value: &[u8]) -> Result<u64> {
    let field = |at: usize| {
        let bytes = value.get(at..at + 8).ok_or(Errno::INVAL)?;
        Ok(i64::from_ne_bytes(bytes.try_into().unwrap_or_default()))
    };
    let (seconds, micros) = (field(0)?, field(8)?);
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::DOM);
    }
    if seconds < 0 {
        // Linux: do not wait at all.
        return Ok(1);
    }
    Ok((seconds as u64).saturating_mul(1_000_000) + micros as u64)
}

fn congestion(value: &[u8]) -> Result<Setting> {
    if value.is_empty() {
        return Err(Errno::INVAL);
    }
    let len = value
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(value.len());
    let mut name = [0u8; 16];
    // A name that long is none that exists.
    let to = name.get_mut(..len.min(17)).ok_or(Errno::NOENT)?;
    to.copy_from_slice(&value[..len]);
    if !CONTROLS.contains(&&value[..len]) {
        return Err(Errno::NOENT);
    }
    let word = |at: usize| u64::from_ne_bytes(name[at..at + 8].try_into().unwrap_or_default());
    Ok(Setting::Shard(Name::Congestion, [word(0), word(8)]))
}

/// Whether a socket has options of a level: those of IPv6 only one of IPv6.
pub fn has_level(socket: &Socket, level: c_int) -> bool {
    level != IPPROTO_IPV6 || socket.slot.app_cold.family.load(Ordering::Relaxed) == libc::AF_INET6
}

/// Applies a setting.
pub fn apply(socket: &Socket, setting: Setting) -> Result<()> {
    let cold = &socket.slot.app_cold;
    match setting {
        Setting::Bit(FAST_CONNECT, _) if !socket.is_fresh(socket.status()) => Err(Errno::INVAL),
        Setting::Shard(Name::FastOpen | Name::FastOpenNoCookie, _)
            if !socket.is_fresh(socket.status())
                && !socket.status().contains(Status::LISTENING) =>
        {
            Err(Errno::INVAL)
        }
        Setting::Bit(V6_ONLY, _)
            if !socket.is_fresh(socket.status()) || socket.status().contains(Status::BOUND) =>
        {
            Err(Errno::INVAL)
        }
        Setting::Shard(name, [a, b]) => {
            // Of two threads the same one is last here and at the shard.
            let _guard = lock::take(&socket.slot.app.write_lock, Rank::Socket);
            if name == Name::Linger {
                let seconds = match (a, b) {
                    (0, _) => 0,
                    (_, 0) => RESET,
                    (_, seconds) => seconds as u32,
                };
                cold.options[1].store(seconds, Ordering::Relaxed);
            }
            let mut submission = socket.submission(Operation::SetOption, name as u32);
            submission.arguments[..2].copy_from_slice(&[a, b]);
            // Cheap ones that cannot fail go without an answer.
            if matches!(
                name,
                Name::NoDelay | Name::Cork | Name::QuickAck | Name::KeepAlive
            ) {
                socket.submit(&submission)
            } else {
                socket.ask(&submission, &mut []).map(drop)
            }
        }
        Setting::Bit(bit, on) => {
            if on {
                cold.options[0].fetch_or(bit, Ordering::Relaxed);
            } else {
                cold.options[0].fetch_and(!bit, Ordering::Relaxed);
            }
            Ok(())
        }
        Setting::Keys(words) => {
            let mut submission = socket.submission(Operation::SetOption, Name::FastOpenKey as u32);
            submission.arguments[..5].copy_from_slice(&words);
            socket.ask(&submission, &mut []).map(drop)
        }
        Setting::Device(index) => device::apply(socket, index),
        Setting::ReceiveTimeout(us) => {
            cold.receive_timeout.store(us, Ordering::Relaxed);
            Ok(())
        }
        Setting::SendTimeout(us) => {
            cold.send_timeout.store(us, Ordering::Relaxed);
            Ok(())
        }
        Setting::LowWater(bytes) => {
            let _guard = lock::take(&socket.slot.app.write_lock, Rank::Socket);
            // More than a buffer holds at first it has to be made for, and there is a limit.
            let bytes = if bytes > LOW_WATER_HELD {
                let mut submission =
                    socket.submission(Operation::SetOption, Name::ReceiveLowWater as u32);
                submission.arguments[0] = u64::from(bytes);
                socket.ask(&submission, &mut [])?;
                ask_number(socket, Name::ReceiveLowWater)? as u32
            } else {
                bytes
            };
            cold.low_water.store(bytes, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// How many seconds a close lingers, if it does and has to wait at all.
pub fn linger(socket: &Socket) -> u32 {
    match socket.slot.app_cold.options[1].load(Ordering::Relaxed) {
        RESET => 0,
        seconds => seconds,
    }
}

/// SO_REUSEADDR, SO_REUSEPORT, IPV6_V6ONLY and the device as a bind carries them.
pub fn bind_bits(socket: &Socket) -> u64 {
    let bits = socket.slot.app_cold.options[0].load(Ordering::Relaxed);
    u64::from(bits & (REUSE_ADDRESS | REUSE_PORT))
        | u64::from(is_v6_only(socket)) << 2
        | device::bind_bits(socket)
}

/// Whether TCP_FASTOPEN_CONNECT is set.
pub fn connects_fast(socket: &Socket) -> bool {
    socket.slot.app_cold.options[0].load(Ordering::Relaxed) & FAST_CONNECT != 0
}

/// Whether IPV6_V6ONLY is set.
pub fn is_v6_only(socket: &Socket) -> bool {
    socket.slot.app_cold.options[0].load(Ordering::Relaxed) & V6_ONLY != 0
}

/// Whether SO_BROADCAST is set.
pub fn is_broadcast(socket: &Socket) -> bool {
    socket.slot.app_cold.options[0].load(Ordering::Relaxed) & BROADCAST != 0
}

/// Gives a socket the options that were set on the kernel socket whose place it takes.
pub fn repeat(from: c_int, to: &Socket, set: u64) -> Result<()> {
    let datagrams = to.is_datagrams();
    let all: &[(c_int, c_int)] = if datagrams { &datagram::ALL } else { &ALL };
    for (at, (level, name)) in all.iter().copied().enumerate() {
        if set & 1 << at == 0 {
            continue;
        }
        let mut value = [0u8; 32];
        let len = match sys::getsockopt_bytes(from, level, name, &mut value) {
            // What was set the kernel does not show. The least that can be is good for any path.
            Err(Errno::NOTCONN) if (level, name) == (IPPROTO_IPV6, libc::IPV6_MTU) => {
                value[..4].copy_from_slice(&IPV6_MTU_LEAST.to_ne_bytes());
                4
            }
            len => len?,
        };
        if let (SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) = (level, name) {
            // The kernel shows twice what was asked for.
            let shown = c_int::from_ne_bytes([value[0], value[1], value[2], value[3]]);
            value[..4].copy_from_slice(&(shown / 2).to_ne_bytes());
        }
        if datagrams {
            datagram::apply(to, datagram::parse(level, name, &value[..len])?)?;
        } else {
            apply(to, parse(level, name, &value[..len])?)?;
        }
    }
    Ok(())
}

/// An option's value as getsockopt hands it out. `NOPROTOOPT` for those that are not implemented.
pub fn read(
    socket: &Socket,
    level: c_int,
    name: c_int,
    out: &mut [u8; VALUE_MAX],
) -> Result<usize> {
    let cold = &socket.slot.app_cold;
    let bit = |bit: u32| c_int::from(cold.options[0].load(Ordering::Relaxed) & bit != 0);
    let int = match (level, name) {
        (SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (SOL_SOCKET, libc::SO_DOMAIN) => cold.family.load(Ordering::Relaxed),
        (SOL_SOCKET, libc::SO_PROTOCOL) => IPPROTO_TCP,
        (SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            c_int::from(socket.status().contains(Status::LISTENING))
        }
        (SOL_SOCKET, libc::SO_ERROR) => socket.take_error().map_or(0, Errno::raw_os_error),
        (SOL_SOCKET, libc::SO_REUSEADDR) => bit(REUSE_ADDRESS),
        (SOL_SOCKET, libc::SO_REUSEPORT) => bit(REUSE_PORT),
        (SOL_SOCKET, libc::SO_BROADCAST) => bit(BROADCAST),
        (SOL_SOCKET, libc::SO_OOBINLINE) => bit(OOB_INLINE),
        (IPPROTO_IPV6, libc::IPV6_V6ONLY) => bit(V6_ONLY),
        (IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => bit(FAST_CONNECT),
        (SOL_SOCKET, libc::SO_RCVLOWAT) => cold.low_water.load(Ordering::Relaxed) as c_int,
        (SOL_SOCKET, SO_BINDTOIFINDEX) => device::of(socket) as c_int,
        (SOL_SOCKET, libc::SO_BINDTODEVICE) => return device::name(socket, out),
        (SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => {
            return Ok(write_time(
                cold.receive_timeout.load(Ordering::Relaxed),
                out,
            ));
        }
        (SOL_SOCKET, libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW) => {
            return Ok(write_time(cold.send_timeout.load(Ordering::Relaxed), out));
        }
        _ => return ask(socket, level, name, out),
    };
    out[..4].copy_from_slice(&int.to_ne_bytes());
    Ok(4)
}

/// Makes a value of `used` bytes fit into less, where Linux does not merely cut it off.
pub fn fit(
    level: c_int,
    name: c_int,
    value: &mut [u8; VALUE_MAX],
    used: usize,
    room: usize,
) -> usize {
    if (level, name) == (SOL_SOCKET, libc::SO_MAX_PACING_RATE) && used == 8 && room < 8 {
        let rate = u64::from_ne_bytes(*value.first_chunk().unwrap_or(&[0; 8]));
        let rate = rate.min(u64::from(u32::MAX)) as u32;
        value[..4].copy_from_slice(&rate.to_ne_bytes());
        return room.min(4);
    }
    used.min(room)
}

fn write_time(us: u64, out: &mut [u8; VALUE_MAX]) -> usize {
    out[..8].copy_from_slice(&(us / 1_000_000).to_ne_bytes());
    out[8..16].copy_from_slice(&(us % 1_000_000).to_ne_bytes());
    16
}

/// The shard's options, and what they are before anyone has set them.
fn ask(socket: &Socket, level: c_int, name: c_int, out: &mut [u8; VALUE_MAX]) -> Result<usize> {
    let (name, default) = match (level, name) {
        (SOL_SOCKET, libc::SO_KEEPALIVE) => (Name::KeepAlive, 0),
        (SOL_SOCKET, libc::SO_LINGER) => (Name::Linger, 0),
        (SOL_SOCKET, libc::SO_RCVBUF) => (Name::ReceiveBuffer, 131_072),
        (SOL_SOCKET, libc::SO_SNDBUF) => (Name::SendBuffer, 16_384),
        (IPPROTO_TCP, libc::TCP_NODELAY) => (Name::NoDelay, 0),
        (IPPROTO_TCP, libc::TCP_CORK) => (Name::Cork, 0),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE) => (Name::KeepIdle, 7200),
        (IPPROTO_TCP, libc::TCP_KEEPINTVL) => (Name::KeepInterval, 75),
        (IPPROTO_TCP, libc::TCP_KEEPCNT) => (Name::KeepCount, 9),
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => (Name::UserTimeout, 0),
        (IPPROTO_TCP, libc::TCP_MAXSEG) => (Name::MaxSegment, 536),
        (IPPROTO_TCP, libc::TCP_SYNCNT) => (Name::SynCount, 6),
        (IPPROTO_TCP, libc::TCP_LINGER2) => (Name::Linger2, 60),
        (IPPROTO_TCP, libc::TCP_QUICKACK) => (Name::QuickAck, 1),
        (SOL_SOCKET, libc::SO_MAX_PACING_RATE) => (Name::MaxPacingRate, 0),
        (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => (Name::DeferAccept, 0),
        (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => (Name::NotSentLowWater, 0),
        (IPPROTO_TCP, libc::TCP_CONGESTION) => (Name::Congestion, 0),
        (IPPROTO_IP, libc::IP_TTL) => (Name::Ttl, DEFAULT_HOPS as c_int),
        (IPPROTO_IP, libc::IP_TOS) => (Name::Tos, 0),
        (IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT) => (Name::AddressOnly, 0),
        (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => (Name::HopLimit, DEFAULT_HOPS as c_int),
        (IPPROTO_IPV6, libc::IPV6_TCLASS) => (Name::TrafficClass, 0),
        (IPPROTO_TCP, libc::TCP_INFO) => (Name::Info, 0),
        (IPPROTO_IP, libc::IP_MTU) | (IPPROTO_IPV6, libc::IPV6_MTU) => (Name::Mtu, 0),
        (IPPROTO_TCP, libc::TCP_FASTOPEN) => (Name::FastOpen, 0),
        (IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) => (Name::FastOpenNoCookie, 0),
        (IPPROTO_TCP, libc::TCP_FASTOPEN_KEY) => (Name::FastOpenKey, 0),
        (IPPROTO_IP, libc::IP_MTU_DISCOVER) => (Name::MtuDiscover, libc::IP_PMTUDISC_WANT),
        (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => (Name::MtuDiscoverV6, libc::IP_PMTUDISC_WANT),
        _ => return Err(Errno::NOPROTOOPT),
    };
    let submission = socket.submission(Operation::GetOption, name as u32);
    match socket.ask(&submission, out) {
        Ok((_, len)) => Ok(len),
        Err(Errno::NODATA | Errno::NOTCONN) => {
            // Nobody has set it, and there is no connection to ask.
            match name {
                Name::Info => {
                    const TCP_CLOSE: u8 = 7;
                    out[0] = TCP_CLOSE;
                    Ok(size_of::<libc::tcp_info>())
                }
                Name::MaxPacingRate => {
                    out[..8].fill(0xff);
                    Ok(8)
                }
                Name::Linger => Ok(8),
                Name::Mtu => Err(Errno::NOTCONN),
                _ => {
                    let default: c_int = default;
                    out[..4].copy_from_slice(&default.to_ne_bytes());
                    Ok(4)
                }
            }
        }
        Err(errno) => Err(errno),
    }
}

/// A number that the shard knows of a socket.
pub fn ask_number(socket: &Socket, name: Name) -> Result<c_int> {
    let submission = socket.submission(Operation::GetOption, name as u32);
    let mut value = [0u8; 4];
    match socket.ask(&submission, &mut value) {
        Ok(_) => Ok(c_int::from_ne_bytes(value)),
        Err(Errno::NODATA | Errno::NOTCONN) => Ok(0),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod documented;

#[cfg(test)]
mod tests {
    use super::*;

    fn int(value: c_int) -> [u8; 4] {
        value.to_ne_bytes()
    }

    #[test]
    fn o1_what_is_not_implemented_is_refused() {
        for (level, name) in [
            (IPPROTO_TCP, libc::TCP_MD5SIG),
            (SOL_SOCKET, libc::SO_MARK),
            (SOL_SOCKET, libc::SO_PRIORITY),
            (libc::IPPROTO_IP, libc::IP_RECVTTL),
            (12345, 1),
        ] {
            assert_eq!(parse(level, name, &int(1)), Err(Errno::NOPROTOOPT));
            assert_eq!(bit(level, name), Err(Errno::NOPROTOOPT));
            assert!(!is_readable(level, name));
        }
    }

    #[test]
    fn o1_every_option_in_the_list_has_a_meaning() {
        for (level, name) in ALL {
            let value = match name {
                libc::TCP_CONGESTION if level == IPPROTO_TCP => *b"cubic\0\0\0\0\0\0\0\0\0\0\0",
                libc::IP_MTU_DISCOVER
                | libc::IPV6_MTU_DISCOVER
                | libc::TCP_FASTOPEN_CONNECT
                | TCP_FASTOPEN_NO_COOKIE => {
                    let mut value = [0u8; 16];
                    value[0] = 1;
                    value
                }
                _ => {
                    let mut value = [0u8; 16];
                    value[0] = 100;
                    value
                }
            };
            assert!(parse(level, name, &value).is_ok(), "{level} {name}");
        }
    }

    #[test]
    fn values_are_checked_as_linux_checks_them() {
        assert_eq!(
            parse(IPPROTO_TCP, libc::TCP_NODELAY, &[1]),
            Err(Errno::INVAL)
        );
        assert_eq!(
            parse(IPPROTO_TCP, libc::TCP_KEEPCNT, &int(128)),
            Err(Errno::INVAL)
        );
        assert_eq!(
            parse(IPPROTO_TCP, libc::TCP_KEEPIDLE, &int(0)),
            Err(Errno::INVAL)
        );
        assert_eq!(
            parse(IPPROTO_TCP, libc::TCP_MAXSEG, &int(87)),
            Err(Errno::INVAL)
        );
        assert_eq!(
            parse(IPPROTO_TCP, libc::TCP_CONGESTION, b"nonesuch"),
            Err(Errno::NOENT)
        );
        let mut time = [0u8; 16];
        time[8..16].copy_from_slice(&1_000_000i64.to_ne_bytes());
        assert_eq!(parse(SOL_SOCKET, libc::SO_RCVTIMEO, &time), Err(Errno::DOM));
        time[..8].copy_from_slice(&2i64.to_ne_bytes());
        time[8..16].copy_from_slice(&3i64.to_ne_bytes());
        assert_eq!(
            parse(SOL_SOCKET, libc::SO_RCVTIMEO, &time),
            Ok(Setting::ReceiveTimeout(2_000_003))
        );
    }

    #[test]
    fn o3_linger_keeps_its_time() {
        let value = [1, 0, 0, 0, 9, 0, 0, 0];
        assert_eq!(
            parse(SOL_SOCKET, libc::SO_LINGER, &value),
            Ok(Setting::Shard(Name::Linger, [1, 9]))
        );
    }
}
