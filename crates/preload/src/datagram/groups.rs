//! Membership of groups, as programs ask for it.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_context::{Address, Operation};
use rustix::io::Errno;

use crate::device;
use crate::engine::Engine;
use crate::socket::Socket;
use crate::sys::Result;

/// As <linux/in.h> has them.
pub const MCAST_JOIN_GROUP: c_int = 42;
pub const MCAST_LEAVE_GROUP: c_int = 45;

/// A group to be joined or left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub group: IpAddr,
    pub join: bool,
    /// The own address by which the link is meant; unspecified for any.
    pub interface: IpAddr,
    /// Its index; 0 for any.
    pub device: u32,
}

fn v4_at(value: &[u8], at: usize) -> Result<Ipv4Addr> {
    let bytes = value.get(at..at + 4).ok_or(Errno::INVAL)?;
    Ok(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
}

fn u32_at(value: &[u8], at: usize) -> Result<u32> {
    let bytes = value.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
    bytes
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or(Errno::INVAL)
}

/// The change of membership that an option is; `NOPROTOOPT` for another option.
pub fn change(level: c_int, name: c_int, value: &[u8]) -> Result<Change> {
    match (level, name) {
        (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP) => change_v4(value, true),
        (libc::IPPROTO_IP, libc::IP_DROP_MEMBERSHIP) => change_v4(value, false),
        (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP) => change_v6(value, true),
        (libc::IPPROTO_IPV6, libc::IPV6_DROP_MEMBERSHIP) => change_v6(value, false),
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, MCAST_JOIN_GROUP) => {
            change_of_either(level, value, true)
        }
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, MCAST_LEAVE_GROUP) => {
            change_of_either(level, value, false)
        }
        _ => Err(Errno::NOPROTOOPT),
    }
}

/// `struct group_req`: the index of a device, and behind it a socket address of the level's family.
fn change_of_either(level: c_int, value: &[u8], join: bool) -> Result<Change> {
    const LEN: usize = 8 + size_of::<libc::sockaddr_storage>();
    let value = value.get(..LEN).ok_or(Errno::INVAL)?;
    let family = c_int::from(u16::from_ne_bytes([value[8], value[9]]));
    let any = Ipv6Addr::UNSPECIFIED;
    let octets: [u8; 16] = *value[16..].first_chunk().unwrap_or(&any.octets());
    let (group, interface): (IpAddr, IpAddr) = match (level, family) {
        (libc::IPPROTO_IP, libc::AF_INET) => {
            (v4_at(value, 12)?.into(), Ipv4Addr::UNSPECIFIED.into())
        }
        (libc::IPPROTO_IPV6, libc::AF_INET6) => (Ipv6Addr::from(octets).into(), any.into()),
        (libc::IPPROTO_IP, _) => return Err(Errno::INVAL),
        _ => return Err(Errno::ADDRNOTAVAIL),
    };
    if !group.is_multicast() {
        return Err(Errno::INVAL);
    }
    Ok(Change {
        group,
        join,
        interface,
        device: u32_at(value, 0)?,
    })
}

/// `struct ip_mreq` or `struct ip_mreqn`.
fn change_v4(value: &[u8], join: bool) -> Result<Change> {
    let (group, interface) = (v4_at(value, 0)?, v4_at(value, 4)?);
    if !group.is_multicast() {
        return Err(if join {
            Errno::INVAL
        } else {
            Errno::ADDRNOTAVAIL
        });
    }
    Ok(Change {
        group: group.into(),
        join,
        interface: interface.into(),
        device: u32_at(value, 8).unwrap_or(0),
    })
}

/// `struct ipv6_mreq`.
fn change_v6(value: &[u8], join: bool) -> Result<Change> {
    let octets: [u8; 16] = *value
        .get(..20)
        .and_then(|value| value.first_chunk())
        .ok_or(Errno::INVAL)?;
    let group = Ipv6Addr::from(octets);
    if !group.is_multicast() {
        return Err(Errno::INVAL);
    }
    Ok(Change {
        group: group.into(),
        join,
        interface: Ipv6Addr::UNSPECIFIED.into(),
        device: u32_at(value, 16)?,
    })
}

/// IP_MULTICAST_IF: an address, `struct ip_mreq` or `struct ip_mreqn`. In network order.
pub fn interface_v4(value: &[u8]) -> Result<u32> {
    let at = if value.len() >= 8 { 4 } else { 0 };
    v4_at(value, at).map(|address| u32::from_ne_bytes(address.octets()))
}

/// Whether the interface of a change is the engine's to serve.
pub fn serves(engine: &Engine, change: &Change) -> bool {
    let (header, interface) = (engine.region.header(), change.interface);
    if change.device != 0 {
        device::is_served(engine, change.device)
    } else if interface.is_unspecified() {
        header.serves_anything()
    } else {
        header.owns(interface, false)
    }
}

/// Joins or leaves.
pub fn apply(socket: &Socket, change: Change) -> Result<()> {
    if !serves(socket.engine, &change) {
        return Err(Errno::NODEV);
    }
    let [a, b, c] = Address::from(SocketAddr::new(change.group, 0)).to_words();
    let operation = Operation::Membership;
    let mut submission = socket.submission(operation, change.join.into());
    submission.arguments[..3].copy_from_slice(&[a, b, c]);
    socket.ask(&submission, &mut []).map(drop)
}
