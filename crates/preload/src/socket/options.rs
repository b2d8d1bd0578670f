//! Reading and setting the options of a millrace socket, by the table in [`millrace_sockopt`].

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use millrace_context::slot::AppCold;
use millrace_context::submission::Query;
use millrace_context::{Operation, Status};
use millrace_sockopt::{self as table, Kept, Opt, OptName, VALUE_MAX as OPTION_MAX};
use rustix::io::Errno;

use crate::socket::datagram::multicast;
use crate::socket::device_binding;
use crate::socket::option_rows::{VALUE_MAX, is_readable, kind, refusal};
use crate::socket::{RESET, Socket};
use crate::sys::robust_lock::{self, Rank};
use crate::sys::{self, Result};

/// The bits that a bind needs, in the first word of [`millrace_context::slot::AppCold::options`].
const BIND_BITS: u32 = 3;
/// The word with SO_LINGER's time.
const LINGER_WORD: usize = 1;
/// A receive buffer whose size was not set holds at least this many bytes.
const LOW_WATER_HELD: u32 = 1024;
/// The MTU that every IPv6 link has at least, in bytes (RFC 8200, section 5).
const IPV6_MTU_LEAST: c_int = 1280;

/// Whether a socket has options of a level. Only an IPv6 socket has those of IPv6.
pub fn has_level(socket: &Socket, level: c_int) -> bool {
    level != IPPROTO_IPV6 || socket.slot.app_cold.family.load(Ordering::Relaxed) == libc::AF_INET6
}

/// Sets an option.
pub fn apply(socket: &Socket, opt: Opt) -> Result<()> {
    let cold = &socket.slot.app_cold;
    let status = socket.status();
    let is_fresh = socket.is_fresh(status);
    match opt {
        Opt::FastOpenConnect(_) if !is_fresh => Err(Errno::INVAL),
        Opt::FastOpen(_) | Opt::FastOpenNoCookie(_)
            if !is_fresh && !status.contains(Status::LISTENING) =>
        {
            Err(Errno::INVAL)
        }
        Opt::V6Only(_) if !is_fresh || status.contains(Status::BOUND) => Err(Errno::INVAL),
        Opt::BindToDevice(index) => device_binding::apply(socket, index),
        Opt::ReceiveTimeout(us) => {
            cold.receive_timeout.store(us, Ordering::Relaxed);
            Ok(())
        }
        Opt::SendTimeout(us) => {
            cold.send_timeout.store(us, Ordering::Relaxed);
            Ok(())
        }
        Opt::ReceiveLowWater(bytes) => set_low_water(socket, bytes),
        Opt::MulticastInterface(address) if !is_interface(socket, address) => {
            Err(Errno::ADDRNOTAVAIL)
        }
        Opt::MulticastInterfaceV6(index)
            if index != 0 && !device_binding::is_served(socket.engine, index) =>
        {
            Err(Errno::NODEV)
        }
        opt if let Some(change) = opt.membership() => multicast::apply(socket, change),
        opt => {
            // Of two threads, the last one here must be the last one at the shard.
            let _guard = robust_lock::take(&socket.slot.app.write_lock, Rank::Socket);
            if let Opt::Linger(linger) = opt {
                let seconds = linger.map_or(0, |seconds| match seconds {
                    0 => RESET,
                    seconds => seconds.into(),
                });
                cell(socket, LINGER_WORD).store(seconds, Ordering::Relaxed);
            }
            let row = opt.name().row();
            keep(socket, row.kept, opt.number());
            if row.told.contains(kind(socket.is_datagrams())) {
                tell(socket, opt)?;
            }
            Ok(())
        }
    }
}

/// Whether an address can be IP_MULTICAST_IF: an address of the engine, or none.
fn is_interface(socket: &Socket, address: Ipv4Addr) -> bool {
    address.is_unspecified() || socket.engine.region.header().owns(address.into(), false)
}

/// Tells the shard an option's value.
fn tell(socket: &Socket, opt: Opt) -> Result<()> {
    let mut submission = socket.submission(Operation::SetOption, opt.name().number());
    let words = opt.to_words();
    submission.arguments[..words.len()].copy_from_slice(&words);
    // A cheap option that cannot fail needs no answer.
    match opt {
        Opt::NoDelay(_) | Opt::Cork(_) | Opt::QuickAck(_) | Opt::KeepAlive(_) => {
            socket.submit(&submission)
        }
        _ => socket.ask(&submission, &mut []).map(drop),
    }
}

fn set_low_water(socket: &Socket, bytes: u32) -> Result<()> {
    let _guard = robust_lock::take(&socket.slot.app.write_lock, Rank::Socket);
    // A larger value may need a larger buffer, which has a limit.
    let bytes = if bytes > LOW_WATER_HELD {
        tell(socket, Opt::ReceiveLowWater(bytes))?;
        ask_number(socket, OptName::ReceiveLowWater.number())? as u32
    } else {
        bytes
    };
    let cold = &socket.slot.app_cold;
    cold.low_water.store(bytes, Ordering::Relaxed);
    Ok(())
}

fn cell(socket: &Socket, word: usize) -> &AtomicU32 {
    &socket.slot.app_cold.options[word]
}

/// The word, the shift and the mask of a kept option.
fn part(kept: Kept) -> Option<(usize, u32, u32)> {
    Some(match kept {
        Kept::Bit(word, bit) | Kept::NotBit(word, bit) => (word.into(), bit.into(), 1),
        Kept::Byte(word, at) => (word.into(), 8 * u32::from(at), 0xff),
        Kept::Half(word, at) => (word.into(), 16 * u32::from(at), 0xffff),
        Kept::Word(word) => (word.into(), 0, u32::MAX),
        Kept::Shard | Kept::Field | Kept::Act => return None,
    })
}

fn keep(socket: &Socket, kept: Kept, number: u32) {
    let Some((word, shift, mask)) = part(kept) else {
        return;
    };
    let number = number ^ u32::from(matches!(kept, Kept::NotBit(..)));
    let _ = cell(socket, word).fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
        Some(word & !(mask << shift) | (number & mask) << shift)
    });
}

/// Whether an option is on that changes what a datagram reports, or how groups are received.
pub fn has_switches(socket: &Socket) -> bool {
    const SWITCHES: usize = 2;
    cell(socket, SWITCHES).load(Ordering::Relaxed) != 0
}

/// The kept value of an option as a number; 0 for an option that is not kept.
pub fn kept(socket: &Socket, name: OptName) -> u32 {
    kept_in(&socket.slot.app_cold, name)
}

/// Does what [`kept`] does, for the part of the slot that the program writes.
pub fn kept_in(cold: &AppCold, name: OptName) -> u32 {
    let kept = name.row().kept;
    let Some((word, shift, mask)) = part(kept) else {
        return 0;
    };
    let number = cold.options[word].load(Ordering::Relaxed) >> shift & mask;
    number ^ u32::from(matches!(kept, Kept::NotBit(..)))
}

/// Whether a kept switch is on.
pub fn is_on(socket: &Socket, name: OptName) -> bool {
    kept(socket, name) != 0
}

/// Sets the defaults of a new datagram socket.
pub fn begin_datagrams(socket: &Socket) {
    for name in [
        OptName::MulticastTtl,
        OptName::MulticastHopsV6,
        OptName::DatagramMtuDiscover,
        OptName::DatagramMtuDiscoverV6,
    ] {
        keep(socket, name.row().kept, name.default().number());
    }
}

/// The seconds that a close lingers; 0 if it does not have to wait.
pub fn linger(socket: &Socket) -> u32 {
    match cell(socket, LINGER_WORD).load(Ordering::Relaxed) {
        RESET => 0,
        seconds => seconds,
    }
}

/// The bits of a bind request: SO_REUSEADDR, SO_REUSEPORT, IPV6_V6ONLY and the device.
pub fn bind_bits(socket: &Socket) -> u64 {
    let bits = cell(socket, 0).load(Ordering::Relaxed);
    u64::from(bits & BIND_BITS)
        | u64::from(is_v6_only(socket)) << 2
        | device_binding::bind_bits(socket)
}

/// A socket that is bound to an IPv6 address does not receive IPv4. Linux shows that in
/// IPV6_V6ONLY.
pub fn become_v6_only(socket: &Socket) {
    keep(socket, OptName::V6Only.row().kept, 1);
}

/// Whether IPV6_V6ONLY is set.
pub fn is_v6_only(socket: &Socket) -> bool {
    is_on(socket, OptName::V6Only)
}

/// The source address for a multicast destination that IP_MULTICAST_IF sets.
pub fn group_source(socket: &Socket, to: IpAddr) -> Option<IpAddr> {
    let bits = kept(socket, OptName::MulticastInterface);
    let from = IpAddr::from(bits.to_ne_bytes());
    let wanted = bits != 0 && to.is_ipv4() && to.is_multicast();
    (wanted && socket.engine.region.header().owns(from, false)).then_some(from)
}

/// Whether a datagram that does not fit into one packet of this family is refused.
pub fn refuses_to_cut(socket: &Socket, v4: bool) -> bool {
    let how = if v4 {
        OptName::DatagramMtuDiscover
    } else if is_on(socket, OptName::DontFragmentV6) {
        return true;
    } else {
        OptName::DatagramMtuDiscoverV6
    };
    let how = kept(socket, how) as c_int;
    matches!(how, libc::IP_PMTUDISC_DO | libc::IP_PMTUDISC_PROBE)
}

/// Sets the options on a millrace socket that were set on the kernel socket it replaces.
pub fn repeat(from: c_int, to: &Socket, set: u64) -> Result<()> {
    for (at, row) in table::settable(kind(to.is_datagrams())).enumerate() {
        if set & 1 << at == 0 {
            continue;
        }
        let mut value = [0u8; 32];
        let len = match sys::getsockopt_bytes(from, row.level, row.number, &mut value) {
            // The kernel does not show the value that was set. The minimum suits any path.
            Err(Errno::NOTCONN) if row.name == OptName::MtuV6 => {
                value[..4].copy_from_slice(&IPV6_MTU_LEAST.to_ne_bytes());
                4
            }
            len => len?,
        };
        if matches!(row.name, OptName::ReceiveBuffer | OptName::SendBuffer) {
            // The kernel shows twice the size that was set.
            let shown = c_int::from_ne_bytes([value[0], value[1], value[2], value[3]]);
            value[..4].copy_from_slice(&(shown / 2).to_ne_bytes());
        }
        let opt = Opt::decode(row.name, &value[..len]).map_err(Errno::from_raw_os_error)?;
        apply(to, opt)?;
    }
    Ok(())
}

/// Reads an option, as getsockopt does. `NOPROTOOPT`: the option is not implemented.
pub fn read(
    socket: &Socket,
    level: c_int,
    name: c_int,
    out: &mut [u8; VALUE_MAX],
) -> Result<usize> {
    let kind = kind(socket.is_datagrams());
    if !is_readable(kind, level, name) {
        return Err(refusal(kind, level));
    }
    if (level, name) == (SOL_SOCKET, libc::SO_BINDTODEVICE) {
        return device_binding::name(socket, out);
    }
    let Some(row) = table::find(kind, level, name) else {
        return read_only(socket, level, name, out);
    };
    let cold = &socket.slot.app_cold;
    let field = match row.name {
        OptName::ReceiveLowWater => Opt::ReceiveLowWater(cold.low_water.load(Ordering::Relaxed)),
        OptName::BindToDevice => Opt::BindToDevice(device_binding::of(socket)),
        OptName::ReceiveTimeout => Opt::ReceiveTimeout(shown(&cold.receive_timeout)),
        OptName::SendTimeout => Opt::SendTimeout(shown(&cold.send_timeout)),
        OptName::MtuV6 => return path_mtu(socket, out),
        name if row.kept == Kept::Shard => return ask(socket, name, out),
        name => return Ok(int(kept(socket, name) as c_int, out)),
    };
    Ok(encode(field, out))
}

/// A time-out as Linux shows it: the shortest one shows as none.
fn shown(timeout: &AtomicU64) -> u64 {
    match timeout.load(Ordering::Relaxed) {
        1 => 0,
        us => us,
    }
}

fn int(value: c_int, out: &mut [u8; VALUE_MAX]) -> usize {
    out[..4].copy_from_slice(&value.to_ne_bytes());
    4
}

fn encode(opt: Opt, out: &mut [u8; VALUE_MAX]) -> usize {
    out.first_chunk_mut::<OPTION_MAX>()
        .map_or(0, |out| opt.encode(out))
}

/// Reads an option that cannot be set.
fn read_only(
    socket: &Socket,
    level: c_int,
    name: c_int,
    out: &mut [u8; VALUE_MAX],
) -> Result<usize> {
    let datagrams = socket.is_datagrams();
    let value = match (level, name) {
        (SOL_SOCKET, libc::SO_TYPE) if datagrams => libc::SOCK_DGRAM,
        (SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (SOL_SOCKET, libc::SO_DOMAIN) => socket.family(),
        (SOL_SOCKET, libc::SO_PROTOCOL) if datagrams => libc::IPPROTO_UDP,
        (SOL_SOCKET, libc::SO_PROTOCOL) => IPPROTO_TCP,
        (SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            c_int::from(socket.status().contains(Status::LISTENING))
        }
        (SOL_SOCKET, libc::SO_ERROR) => socket.take_error().map_or(0, Errno::raw_os_error),
        (IPPROTO_TCP, libc::TCP_INFO) => return info(socket, out),
        (IPPROTO_IP, _) | (IPPROTO_IPV6, _) => return path_mtu(socket, out),
        _ => return Err(Errno::NOPROTOOPT),
    };
    Ok(int(value, out))
}

/// Reads IP_MTU or IPV6_MTU.
fn path_mtu(socket: &Socket, out: &mut [u8; VALUE_MAX]) -> Result<usize> {
    if socket.is_datagrams() {
        if !socket.status().contains(Status::CONNECTED) {
            return Err(Errno::NOTCONN);
        }
        return Ok(int(
            socket.slot.cold.mtu.load(Ordering::Relaxed) as c_int,
            out,
        ));
    }
    let submission = socket.submission(Operation::GetOption, Query::Mtu as u32);
    socket.ask(&submission, out).map(|(_, len)| len)
}

/// Reads TCP_INFO. A socket without a connection is in state CLOSE.
fn info(socket: &Socket, out: &mut [u8; VALUE_MAX]) -> Result<usize> {
    const TCP_CLOSE: u8 = 7;
    let submission = socket.submission(Operation::GetOption, Query::Info as u32);
    match socket.ask(&submission, out) {
        Err(Errno::NODATA | Errno::NOTCONN) => {
            out[0] = TCP_CLOSE;
            Ok(size_of::<libc::tcp_info>())
        }
        answer => answer.map(|(_, len)| len),
    }
}

/// Asks the shard for an option; its default if nobody has set it.
fn ask(socket: &Socket, name: OptName, out: &mut [u8; VALUE_MAX]) -> Result<usize> {
    let submission = socket.submission(Operation::GetOption, name.number());
    match socket.ask(&submission, out) {
        // Nobody has set it, and there is no connection to ask.
        Err(Errno::NODATA | Errno::NOTCONN) => Ok(encode(name.default(), out)),
        answer => answer.map(|(_, len)| len),
    }
}

/// Asks the shard for a number about a socket, by its number in [`Operation::GetOption`].
pub fn ask_number(socket: &Socket, number: u32) -> Result<c_int> {
    let submission = socket.submission(Operation::GetOption, number);
    let mut value = [0u8; 4];
    match socket.ask(&submission, &mut value) {
        Ok(_) => Ok(c_int::from_ne_bytes(value)),
        Err(Errno::NODATA | Errno::NOTCONN) => Ok(0),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_words_do_not_overlap() {
        let mut used = [0u32; 8];
        for row in &table::ROWS {
            if let Some((word, shift, mask)) = part(row.kept) {
                assert_eq!(used[word] & mask << shift, 0, "{}", row.symbol);
                used[word] |= mask << shift;
            }
        }
        assert_eq!(used[LINGER_WORD], 0);
        assert_eq!(used[0] & BIND_BITS, BIND_BITS);
    }
}
