//! Addresses with their prefixes: which cover which, and which are free.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Context as _;

/// An address with the length of its prefix.
pub type Address = (IpAddr, u8);

/// The default address: documented in `--help` and the README.
pub const DEFAULT_ADDRESS: Address = (IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)), 24);

pub fn is_v4((ip, _): &Address) -> bool {
    ip.is_ipv4()
}

pub fn is_v6((ip, _): &Address) -> bool {
    ip.is_ipv6()
}

pub fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// An address as a number at the upper end of 128 bits, so that prefixes of both families begin
/// alike.
pub fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// Back from there.
pub fn of_bits(bits: u128, like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from_bits((bits >> 96) as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}

/// Whether `ip` is in the prefix of `own`.
pub fn covers((own, len): Address, ip: IpAddr) -> bool {
    own.is_ipv4() == ip.is_ipv4() && (bits(own) ^ bits(ip)).leading_zeros() >= len.into()
}

/// The first address of a prefix, which is the name of all of it.
pub fn network((ip, len): Address) -> IpAddr {
    let host_bits = u128::MAX.checked_shr(len.into()).unwrap_or(0);
    of_bits(bits(ip) & !host_bits, ip)
}

/// The first host address of a prefix that nobody of `taken` has.
pub fn free_beside(prefix: Address, taken: &[Address]) -> anyhow::Result<Address> {
    let (like, len) = prefix;
    let step = 1u128 << (128 - u32::from(width(like)));
    let first = bits(network(prefix));
    (1..=taken.len() as u128 + 1)
        .map(|at| of_bits(first + at * step, like))
        .find(|ip| taken.iter().all(|(other, _)| other != ip))
        .filter(|ip| covers(prefix, *ip) && !is_last(prefix, *ip))
        .map(|ip| (ip, len))
        .with_context(|| format!("{like}/{len} has no address left for the kernel's end of the link; give a shorter prefix"))
}

/// Whether `ip` is the broadcast address of a prefix of IPv4.
pub fn is_last((own, len): Address, ip: IpAddr) -> bool {
    own.is_ipv4() && covers((ip, 32), of_bits(bits(own) | u128::MAX >> len, own))
}

pub fn list(addresses: &[Address]) -> String {
    let each = addresses.iter().map(|(ip, len)| format!("{ip}/{len}"));
    each.collect::<Vec<_>>().join(", ")
}
