//! Options of datagram sockets: those that are implemented, and nothing else.

use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, SOL_SOCKET};
use millrace_context::submission::{DatagramName, Name};
use millrace_context::{Operation, Status};
use rustix::io::Errno;

use super::groups::{self, MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP};
use crate::device::SO_BINDTOIFINDEX;
use crate::options::{self, SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW, Setting, VALUE_MAX};
use crate::socket::Socket;
use crate::sys::Result;

/// Not in every libc.
pub const UDP_SEGMENT: c_int = 103;
pub const UDP_GRO: c_int = 104;
const UDP_CORK: c_int = 1;
const IP_MULTICAST_ALL: c_int = 49;
const IPV6_MULTICAST_ALL: c_int = 29;
pub const IPV6_RECVERR: c_int = 25;
const IPV6_MTU: c_int = 24;
const IPV6_DONTFRAG: c_int = 62;

/// Options that can be set. Their place here is their bit in [`crate::table::Undecided::options`].
pub const ALL: [(c_int, c_int); 47] = [
    (SOL_SOCKET, libc::SO_REUSEADDR),
    (SOL_SOCKET, libc::SO_REUSEPORT),
    (SOL_SOCKET, libc::SO_BROADCAST),
    (SOL_SOCKET, libc::SO_RCVBUF),
    (SOL_SOCKET, libc::SO_SNDBUF),
    (SOL_SOCKET, libc::SO_RCVTIMEO),
    (SOL_SOCKET, libc::SO_SNDTIMEO),
    (SOL_SOCKET, SO_RCVTIMEO_NEW),
    (SOL_SOCKET, SO_SNDTIMEO_NEW),
    (SOL_SOCKET, libc::SO_RXQ_OVFL),
    (IPPROTO_IP, libc::IP_TTL),
    (IPPROTO_IP, libc::IP_TOS),
    (IPPROTO_IP, libc::IP_PKTINFO),
    (IPPROTO_IP, libc::IP_RECVTTL),
    (IPPROTO_IP, libc::IP_RECVTOS),
    (IPPROTO_IP, libc::IP_RECVERR),
    (IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (IPPROTO_IP, libc::IP_MULTICAST_TTL),
    (IPPROTO_IP, libc::IP_MULTICAST_LOOP),
    (IPPROTO_IP, libc::IP_MULTICAST_IF),
    (IPPROTO_IP, IP_MULTICAST_ALL),
    (IPPROTO_IP, libc::IP_ADD_MEMBERSHIP),
    (IPPROTO_IP, libc::IP_DROP_MEMBERSHIP),
    (IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (IPPROTO_IPV6, libc::IPV6_TCLASS),
    (IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    (IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (IPPROTO_IPV6, IPV6_RECVERR),
    (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (IPPROTO_IPV6, IPV6_MTU),
    (IPPROTO_IPV6, IPV6_DONTFRAG),
    (IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS),
    (IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
    (IPPROTO_IPV6, libc::IPV6_MULTICAST_IF),
    (IPPROTO_IPV6, IPV6_MULTICAST_ALL),
    (IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP),
    (IPPROTO_IPV6, libc::IPV6_DROP_MEMBERSHIP),
    (IPPROTO_UDP, UDP_CORK),
    (IPPROTO_UDP, UDP_SEGMENT),
    (IPPROTO_UDP, UDP_GRO),
    (SOL_SOCKET, SO_BINDTOIFINDEX),
    (IPPROTO_IP, MCAST_JOIN_GROUP),
    (IPPROTO_IP, MCAST_LEAVE_GROUP),
    (IPPROTO_IPV6, MCAST_JOIN_GROUP),
    (IPPROTO_IPV6, MCAST_LEAVE_GROUP),
];

const _: () = assert!(ALL.len() <= crate::table::OPTIONS_MAX);

/// Options that can only be read.
pub const READ_ONLY: [(c_int, c_int); 6] = [
    (SOL_SOCKET, libc::SO_TYPE),
    (SOL_SOCKET, libc::SO_DOMAIN),
    (SOL_SOCKET, libc::SO_PROTOCOL),
    (SOL_SOCKET, libc::SO_ACCEPTCONN),
    (SOL_SOCKET, libc::SO_ERROR),
    (IPPROTO_IP, libc::IP_MTU),
];

/// Switches, by their bit in the third word of [`millrace_context::slot::AppCold::options`]. Those that are on by default are kept inverted.
pub mod switch {
    pub const INFO_V4: u32 = 1;
    pub const HOPS_V4: u32 = 1 << 1;
    pub const CLASS_V4: u32 = 1 << 2;
    pub const INFO_V6: u32 = 1 << 3;
    pub const HOPS_V6: u32 = 1 << 4;
    pub const CLASS_V6: u32 = 1 << 5;
    pub const ERRORS_V4: u32 = 1 << 6;
    pub const ERRORS_V6: u32 = 1 << 7;
    pub const DROPPED: u32 = 1 << 8;
    pub const CORK: u32 = 1 << 9;
    pub const JOIN: u32 = 1 << 10;
    pub const WHOLE_V6: u32 = 1 << 11;
    pub const NO_GROUP_LOOP_V4: u32 = 1 << 12;
    pub const NO_GROUP_LOOP_V6: u32 = 1 << 13;
    pub const NOT_ALL_GROUPS_V4: u32 = 1 << 14;
    pub const NOT_ALL_GROUPS_V6: u32 = 1 << 15;
}

/// Words of [`millrace_context::slot::AppCold::options`].
mod word {
    pub const SWITCHES: usize = 2;
    /// Hops to groups of either family, and both discoveries.
    pub const BYTES: usize = 3;
    /// UDP_SEGMENT, and IPV6_MTU in the upper half.
    pub const SIZES: usize = 4;
    /// IP_MULTICAST_IF, in network order.
    pub const GROUP_INTERFACE_V4: usize = 5;
    /// IPV6_MULTICAST_IF.
    pub const GROUP_INTERFACE_V6: usize = 6;
}

/// Bytes of [`word::BYTES`].
const GROUP_HOPS_V4: u32 = 0;
const GROUP_HOPS_V6: u32 = 1;
const DISCOVERY_V4: u32 = 2;
const DISCOVERY_V6: u32 = 3;
/// What they are by default.
const GROUP_HOPS: u8 = 1;
const DISCOVERY_WANT: u8 = 1;

fn cell(socket: &Socket, word: usize) -> &AtomicU32 {
    &socket.slot.app_cold.options[word]
}

/// Whether switches are on.
pub fn has(socket: &Socket, switches: u32) -> bool {
    cell(socket, word::SWITCHES).load(Ordering::Relaxed) & switches != 0
}

/// All switches.
pub fn switches(socket: &Socket) -> u32 {
    cell(socket, word::SWITCHES).load(Ordering::Relaxed)
}

/// UDP_SEGMENT.
pub fn segment(socket: &Socket) -> u16 {
    cell(socket, word::SIZES).load(Ordering::Relaxed) as u16
}

fn byte(socket: &Socket, at: u32) -> u8 {
    (cell(socket, word::BYTES).load(Ordering::Relaxed) >> (8 * at)) as u8
}

/// A new socket has what sockets have by default.
pub fn begin(socket: &Socket) {
    let bytes = u32::from_le_bytes([GROUP_HOPS, GROUP_HOPS, DISCOVERY_WANT, DISCOVERY_WANT]);
    cell(socket, word::BYTES).store(bytes, Ordering::Relaxed);
}

fn set_part(cell: &AtomicU32, mask: u32, value: u32) {
    let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
        Some(word & !mask | value)
    });
}

/// The address to speak from to a group, as IP_MULTICAST_IF has it.
pub fn group_source(socket: &Socket, to: IpAddr) -> Option<IpAddr> {
    let bits = cell(socket, word::GROUP_INTERFACE_V4).load(Ordering::Relaxed);
    let from = IpAddr::from(bits.to_ne_bytes());
    let wanted = bits != 0 && to.is_ipv4() && to.is_multicast();
    (wanted && socket.engine.region.header().owns(from, false)).then_some(from)
}

/// Whether a datagram that does not fit into a packet to an address of this family is refused.
pub fn refuses_to_cut(socket: &Socket, v4: bool) -> bool {
    const ALWAYS: u8 = 2;
    const PROBE: u8 = 3;
    if !v4 && has(socket, switch::WHOLE_V6) {
        return true;
    }
    let at = if v4 { DISCOVERY_V4 } else { DISCOVERY_V6 };
    matches!(byte(socket, at), ALWAYS | PROBE)
}

/// The bit of an option that can be set on a socket before it is decided; `NOPROTOOPT` for one that is not implemented.
pub fn bit(level: c_int, name: c_int) -> Result<u64> {
    options::bit_in(&ALL, level, name)
}

/// Whether an option can be read.
pub fn is_readable(level: c_int, name: c_int) -> bool {
    let option = (level, name);
    (bit(level, name).is_ok() || READ_ONLY.contains(&option)) && !is_membership(level, name)
}

/// Whether an option is an act, and nothing to read.
fn is_membership(level: c_int, name: c_int) -> bool {
    match level {
        IPPROTO_IP => matches!(
            name,
            libc::IP_ADD_MEMBERSHIP
                | libc::IP_DROP_MEMBERSHIP
                | MCAST_JOIN_GROUP
                | MCAST_LEAVE_GROUP
        ),
        IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_ADD_MEMBERSHIP
                | libc::IPV6_DROP_MEMBERSHIP
                | MCAST_JOIN_GROUP
                | MCAST_LEAVE_GROUP
        ),
        _ => false,
    }
}

/// What Linux says of an option that cannot be read.
pub fn refusal(level: c_int) -> Errno {
    match level {
        libc::IPPROTO_TCP => Errno::OPNOTSUPP,
        _ => Errno::NOPROTOOPT,
    }
}

/// The switch behind an option, the bit that is kept for it, and its name for the shard if that acts upon it.
fn switch_of(level: c_int, name: c_int) -> Option<(u32, bool, Option<DatagramName>)> {
    use DatagramName as Name;
    Some(match (level, name) {
        (SOL_SOCKET, libc::SO_RXQ_OVFL) => (switch::DROPPED, true, None),
        (IPPROTO_IP, libc::IP_PKTINFO) => (switch::INFO_V4, true, None),
        (IPPROTO_IP, libc::IP_RECVTTL) => (switch::HOPS_V4, true, None),
        (IPPROTO_IP, libc::IP_RECVTOS) => (switch::CLASS_V4, true, None),
        (IPPROTO_IP, libc::IP_RECVERR) => (switch::ERRORS_V4, true, Some(Name::ErrorsV4)),
        (IPPROTO_IP, libc::IP_MULTICAST_LOOP) => {
            (switch::NO_GROUP_LOOP_V4, false, Some(Name::GroupLoopV4))
        }
        (IPPROTO_IP, IP_MULTICAST_ALL) => {
            (switch::NOT_ALL_GROUPS_V4, false, Some(Name::AllGroupsV4))
        }
        (IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) => (switch::INFO_V6, true, None),
        (IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT) => (switch::HOPS_V6, true, None),
        (IPPROTO_IPV6, libc::IPV6_RECVTCLASS) => (switch::CLASS_V6, true, None),
        (IPPROTO_IPV6, IPV6_RECVERR) => (switch::ERRORS_V6, true, Some(Name::ErrorsV6)),
        (IPPROTO_IPV6, IPV6_DONTFRAG) => (switch::WHOLE_V6, true, Some(Name::WholeV6)),
        (IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP) => {
            (switch::NO_GROUP_LOOP_V6, false, Some(Name::GroupLoopV6))
        }
        (IPPROTO_IPV6, IPV6_MULTICAST_ALL) => {
            (switch::NOT_ALL_GROUPS_V6, false, Some(Name::AllGroupsV6))
        }
        (IPPROTO_UDP, UDP_CORK) => (switch::CORK, true, Some(Name::Cork)),
        (IPPROTO_UDP, UDP_GRO) => (switch::JOIN, true, Some(Name::Join)),
        _ => return None,
    })
}

/// An option with its value, checked as Linux checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramSetting {
    /// One that streams have too.
    Plain(Setting),
    /// A bit, told to the shard under the name.
    Switch(u32, bool, Option<(DatagramName, bool)>),
    /// A byte of [`word::BYTES`], told to the shard.
    Byte(u32, u8, DatagramName),
    /// A word.
    Word(usize, u32),
    Segment(u16),
    Mtu(u16),
    Group(groups::Change),
}

/// Checks a value. `INVAL` and `DOM` as Linux has them; `NOPROTOOPT` for options that are not implemented.
pub fn parse(level: c_int, name: c_int, value: &[u8]) -> Result<DatagramSetting> {
    let int = || -> Result<c_int> {
        let bytes = value.first_chunk().ok_or(Errno::INVAL)?;
        Ok(c_int::from_ne_bytes(*bytes))
    };
    // Options of IP take a byte, too.
    let short = || options::byte(value);
    if let Some((bit, plain, shard)) = switch_of(level, name) {
        let on = if level == IPPROTO_IP {
            short()?
        } else {
            int()?
        } != 0;
        let told = shard.map(|name| (name, on));
        return Ok(DatagramSetting::Switch(bit, on == plain, told));
    }
    let within = |value: c_int, low: c_int, high: c_int| {
        let good = (low..=high).contains(&value);
        good.then_some(value).ok_or(Errno::INVAL)
    };
    let bytes = |at, value: c_int, name| DatagramSetting::Byte(at, value as u8, name);
    match (level, name) {
        (IPPROTO_IP, libc::IP_MULTICAST_TTL) => match short()? {
            -1 => Ok(bytes(GROUP_HOPS_V4, 1, DatagramName::GroupHopsV4)),
            hops => within(hops, 0, 255)
                .map(|hops| bytes(GROUP_HOPS_V4, hops, DatagramName::GroupHopsV4)),
        },
        (IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS) => match int()? {
            -1 => Ok(bytes(GROUP_HOPS_V6, 1, DatagramName::GroupHopsV6)),
            hops => within(hops, 0, 255)
                .map(|hops| bytes(GROUP_HOPS_V6, hops, DatagramName::GroupHopsV6)),
        },
        (IPPROTO_IP, libc::IP_MTU_DISCOVER) => {
            within(short()?, 0, 5).map(|how| bytes(DISCOVERY_V4, how, DatagramName::DiscoveryV4))
        }
        (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => {
            within(int()?, 0, 5).map(|how| bytes(DISCOVERY_V6, how, DatagramName::DiscoveryV6))
        }
        (IPPROTO_IPV6, IPV6_MTU) => match int()? {
            0 => Ok(DatagramSetting::Mtu(0)),
            bytes => within(bytes, 1280, c_int::from(u16::MAX))
                .map(|bytes| DatagramSetting::Mtu(bytes as u16)),
        },
        (IPPROTO_UDP, UDP_SEGMENT) => within(int()?, 0, c_int::from(u16::MAX))
            .map(|bytes| DatagramSetting::Segment(bytes as u16)),
        (IPPROTO_IP, libc::IP_MULTICAST_IF) => groups::interface_v4(value)
            .map(|ip| DatagramSetting::Word(word::GROUP_INTERFACE_V4, ip)),
        (IPPROTO_IPV6, libc::IPV6_MULTICAST_IF) => Ok(DatagramSetting::Word(
            word::GROUP_INTERFACE_V6,
            int()? as u32,
        )),
        _ if is_membership(level, name) => {
            groups::change(level, name, value).map(DatagramSetting::Group)
        }
        _ if ALL.contains(&(level, name)) => {
            options::parse(level, name, value).map(DatagramSetting::Plain)
        }
        _ => Err(Errno::NOPROTOOPT),
    }
}

/// Applies a setting.
pub fn apply(socket: &Socket, setting: DatagramSetting) -> Result<()> {
    match setting {
        DatagramSetting::Plain(Setting::Bit(bit, on)) => {
            options::apply(socket, Setting::Bit(bit, on))?;
            let told = match bit {
                options::REUSE_ADDRESS => DatagramName::ReuseAddress,
                options::REUSE_PORT => DatagramName::ReusePort,
                options::BROADCAST => DatagramName::Broadcast,
                _ => return Ok(()),
            };
            tell(socket, told, on.into())
        }
        DatagramSetting::Plain(setting) => options::apply(socket, setting),
        DatagramSetting::Switch(bit, on, told) => {
            let value = if on { bit } else { 0 };
            set_part(cell(socket, word::SWITCHES), bit, value);
            told.map_or(Ok(()), |(name, on)| tell(socket, name, on.into()))
        }
        DatagramSetting::Byte(at, value, name) => {
            let kept = u32::from(value) << (8 * at);
            set_part(cell(socket, word::BYTES), 0xff << (8 * at), kept);
            tell(socket, name, value.into())
        }
        DatagramSetting::Word(at, value) => {
            cell(socket, at).store(value, Ordering::Relaxed);
            Ok(())
        }
        DatagramSetting::Segment(bytes) => {
            set_part(cell(socket, word::SIZES), 0xffff, bytes.into());
            Ok(())
        }
        DatagramSetting::Mtu(bytes) => {
            let kept = u32::from(bytes) << 16;
            set_part(cell(socket, word::SIZES), 0xffff << 16, kept);
            tell(socket, DatagramName::MtuV6, bytes.into())
        }
        DatagramSetting::Group(change) => groups::apply(socket, change),
    }
}

fn tell(socket: &Socket, name: DatagramName, value: u64) -> Result<()> {
    let mut submission = socket.submission(Operation::SetOption, Name::Datagram as u32);
    submission.arguments[..2].copy_from_slice(&[name as u64, value]);
    socket.ask(&submission, &mut []).map(drop)
}

/// An option's value as getsockopt hands it out. `NOPROTOOPT` for those that are not implemented.
pub fn read(
    socket: &Socket,
    level: c_int,
    name: c_int,
    out: &mut [u8; VALUE_MAX],
) -> Result<usize> {
    if !is_readable(level, name) {
        return Err(refusal(level));
    }
    let word = |at| cell(socket, at).load(Ordering::Relaxed);
    let int = if let Some((bit, plain, _)) = switch_of(level, name) {
        c_int::from(has(socket, bit) == plain)
    } else {
        match (level, name) {
            (SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_DGRAM,
            (SOL_SOCKET, libc::SO_PROTOCOL) => IPPROTO_UDP,
            (IPPROTO_IP, libc::IP_MULTICAST_TTL) => byte(socket, GROUP_HOPS_V4).into(),
            (IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS) => byte(socket, GROUP_HOPS_V6).into(),
            (IPPROTO_IP, libc::IP_MTU_DISCOVER) => byte(socket, DISCOVERY_V4).into(),
            (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => byte(socket, DISCOVERY_V6).into(),
            (IPPROTO_IP, libc::IP_MTU) | (IPPROTO_IPV6, IPV6_MTU) => {
                if !socket.status().contains(Status::CONNECTED) {
                    return Err(Errno::NOTCONN);
                }
                socket.slot.cold.mtu.load(Ordering::Relaxed) as c_int
            }
            (IPPROTO_UDP, UDP_SEGMENT) => segment(socket).into(),
            (IPPROTO_IP, libc::IP_MULTICAST_IF) => word(word::GROUP_INTERFACE_V4) as c_int,
            (IPPROTO_IPV6, libc::IPV6_MULTICAST_IF) => word(word::GROUP_INTERFACE_V6) as c_int,
            _ => return options::read(socket, level, name, out),
        }
    };
    out[..4].copy_from_slice(&int.to_ne_bytes());
    Ok(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o1_every_option_in_the_list_has_a_meaning() {
        for (level, name) in ALL {
            let mut value = [0u8; 136];
            value[0] = 1;
            if (level, name) == (IPPROTO_IPV6, IPV6_MTU) {
                value[1] = 5;
            }
            let group = [239, 1, 2, 3];
            match (level, name) {
                (IPPROTO_IP, libc::IP_ADD_MEMBERSHIP | libc::IP_DROP_MEMBERSHIP) => {
                    value[..4].copy_from_slice(&group);
                }
                (IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP | libc::IPV6_DROP_MEMBERSHIP) => {
                    value[..2].copy_from_slice(&[0xff, 0x15]);
                }
                (IPPROTO_IP, MCAST_JOIN_GROUP | MCAST_LEAVE_GROUP) => {
                    value[8] = libc::AF_INET as u8;
                    value[12..16].copy_from_slice(&group);
                }
                (IPPROTO_IPV6, MCAST_JOIN_GROUP | MCAST_LEAVE_GROUP) => {
                    value[8] = libc::AF_INET6 as u8;
                    value[16..18].copy_from_slice(&[0xff, 0x15]);
                }
                _ => {}
            }
            assert!(parse(level, name, &value).is_ok(), "{level} {name}");
        }
    }

    #[test]
    fn o1_what_is_not_implemented_is_refused() {
        for (level, name) in [
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            (IPPROTO_IP, 63),
            (IPPROTO_UDP, 200),
            (SOL_SOCKET, libc::SO_TIMESTAMP),
        ] {
            assert_eq!(parse(level, name, &[1, 0, 0, 0]), Err(Errno::NOPROTOOPT));
            assert_eq!(bit(level, name), Err(Errno::NOPROTOOPT));
            assert!(!is_readable(level, name));
        }
    }

    #[test]
    fn values_are_checked_as_linux_checks_them() {
        let refused = |level, name, value: c_int| {
            assert_eq!(parse(level, name, &value.to_ne_bytes()), Err(Errno::INVAL));
        };
        refused(IPPROTO_IP, libc::IP_MTU_DISCOVER, 6);
        refused(IPPROTO_IP, libc::IP_MULTICAST_TTL, 256);
        refused(IPPROTO_IPV6, IPV6_MTU, 1279);
        refused(IPPROTO_UDP, UDP_SEGMENT, -1);
        refused(IPPROTO_UDP, UDP_SEGMENT, 65_536);
    }
}
