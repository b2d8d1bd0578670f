//! Groups: which to join or leave, and by which interface to speak to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{EADDRNOTAVAIL, EINVAL};

use super::{Codec, Out, int};
use crate::values::Membership;

fn v4_at(value: &[u8], at: usize) -> Result<Ipv4Addr, i32> {
    let octets: Option<&[u8; 4]> = value.get(at..).and_then(|bytes| bytes.first_chunk());
    Ok(Ipv4Addr::from(*octets.ok_or(EINVAL)?))
}

fn index_at(value: &[u8], at: usize) -> Result<u32, i32> {
    int(value.get(at..).ok_or(EINVAL)?).map(|index| index as u32)
}

/// `IP_MULTICAST_IF`: an address, `struct ip_mreq` or `struct ip_mreqn`.
pub struct InterfaceV4;

impl Codec for InterfaceV4 {
    type Value = Ipv4Addr;

    fn range() -> String {
        "an address, `struct ip_mreq` or `struct ip_mreqn`".into()
    }

    fn decode(bytes: &[u8]) -> Result<Ipv4Addr, i32> {
        v4_at(bytes, if bytes.len() >= 8 { 4 } else { 0 })
    }

    fn encode(address: Ipv4Addr, out: &mut Out) -> usize {
        out[..4].copy_from_slice(&address.octets());
        4
    }
}

/// `struct ip_mreq` or `struct ip_mreqn`.
pub struct MembershipV4<const JOIN: bool>;

impl<const JOIN: bool> Codec for MembershipV4<JOIN> {
    type Value = Membership;

    fn range() -> String {
        "`struct ip_mreq` or `struct ip_mreqn`".into()
    }

    fn decode(bytes: &[u8]) -> Result<Membership, i32> {
        let (group, interface) = (v4_at(bytes, 0)?, v4_at(bytes, 4)?);
        if !group.is_multicast() {
            return Err(if JOIN { EINVAL } else { EADDRNOTAVAIL });
        }
        Ok(Membership {
            group: group.into(),
            join: JOIN,
            interface: interface.into(),
            device: index_at(bytes, 8).unwrap_or(0),
        })
    }

    fn encode(_: Membership, _: &mut Out) -> usize {
        0
    }
}

/// `struct ipv6_mreq`.
pub struct MembershipV6<const JOIN: bool>;

impl<const JOIN: bool> Codec for MembershipV6<JOIN> {
    type Value = Membership;

    fn range() -> String {
        "`struct ipv6_mreq`".into()
    }

    fn decode(bytes: &[u8]) -> Result<Membership, i32> {
        let device = index_at(bytes, 16)?;
        let octets: [u8; 16] = *bytes.first_chunk().ok_or(EINVAL)?;
        let group = Ipv6Addr::from(octets);
        if !group.is_multicast() {
            return Err(EINVAL);
        }
        Ok(Membership {
            group: group.into(),
            join: JOIN,
            interface: Ipv6Addr::UNSPECIFIED.into(),
            device,
        })
    }

    fn encode(_: Membership, _: &mut Out) -> usize {
        0
    }
}

/// `struct group_req` at the level of IPv4, or of IPv6: the index of a device, and behind it a
/// socket address of the level's family.
pub struct GroupRequest<const V4: bool, const JOIN: bool>;

impl<const V4: bool, const JOIN: bool> Codec for GroupRequest<V4, JOIN> {
    type Value = Membership;

    fn range() -> String {
        "`struct group_req`".into()
    }

    fn decode(bytes: &[u8]) -> Result<Membership, i32> {
        const LEN: usize = 8 + size_of::<libc::sockaddr_storage>();
        let bytes = bytes.get(..LEN).ok_or(EINVAL)?;
        let family = i32::from(u16::from_ne_bytes([bytes[8], bytes[9]]));
        let octets: [u8; 16] = *bytes[16..].first_chunk().unwrap_or(&[0; 16]);
        let (group, interface): (IpAddr, IpAddr) = match (V4, family) {
            (true, libc::AF_INET) => (v4_at(bytes, 12)?.into(), Ipv4Addr::UNSPECIFIED.into()),
            (false, libc::AF_INET6) => {
                (Ipv6Addr::from(octets).into(), Ipv6Addr::UNSPECIFIED.into())
            }
            (true, _) => return Err(EINVAL),
            (false, _) => return Err(EADDRNOTAVAIL),
        };
        if !group.is_multicast() {
            return Err(EINVAL);
        }
        Ok(Membership {
            group,
            join: JOIN,
            interface,
            device: index_at(bytes, 0)?,
        })
    }

    fn encode(_: Membership, _: &mut Out) -> usize {
        0
    }
}
