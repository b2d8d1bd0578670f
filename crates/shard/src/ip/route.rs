//! Where a destination is: here, on the link, behind a gateway, or nowhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::config::Via;

/// Where to send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The destination is this host: the packet is delivered inside the shard.
    Local,
    /// To this neighbour on the link.
    Link(IpAddr),
}

/// How near a shard's link brings one to a destination: the greater the nearer. Who has several
/// links takes the one that brings it nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nearness {
    /// It leads everywhere, and nobody has said that it shall lead there: all others are behind one
    /// station, or a router advertises itself.
    Fallback,
    /// A prefix of the configuration has it, of so many bits.
    Prefix(u8),
}

/// An address of either family.
pub trait Address: Copy + Eq {
    /// The mask of a prefix.
    fn mask(len: u8) -> Self;
    /// How long the prefix of a mask is.
    fn prefix_len(mask: Self) -> u8;
    /// Whether two are the same under a mask.
    fn is_same(self, other: Self, mask: Self) -> bool;
}

impl Address for Ipv4Addr {
    fn mask(len: u8) -> Ipv4Addr {
        let host_bits = 32 - u32::from(len.min(32));
        Ipv4Addr::from_bits(u32::MAX.checked_shl(host_bits).unwrap_or(0))
    }

    fn prefix_len(mask: Ipv4Addr) -> u8 {
        mask.to_bits().leading_ones() as u8
    }

    #[inline]
    fn is_same(self, other: Ipv4Addr, mask: Ipv4Addr) -> bool {
        (self.to_bits() ^ other.to_bits()) & mask.to_bits() == 0
    }
}

impl Address for Ipv6Addr {
    fn mask(len: u8) -> Ipv6Addr {
        let host_bits = 128 - u32::from(len.min(128));
        Ipv6Addr::from_bits(u128::MAX.checked_shl(host_bits).unwrap_or(0))
    }

    fn prefix_len(mask: Ipv6Addr) -> u8 {
        mask.to_bits().leading_ones() as u8
    }

    #[inline]
    fn is_same(self, other: Ipv6Addr, mask: Ipv6Addr) -> bool {
        (self.to_bits() ^ other.to_bits()) & mask.to_bits() == 0
    }
}

/// The prefixes of one family, the longest first. A connection asks once and keeps the neighbour
/// that it was led to; the table is as short as its configuration.
#[derive(Clone, Debug)]
pub struct Prefixes<A>(Vec<Prefix<A>>);

#[derive(Clone, Copy, Debug)]
struct Prefix<A> {
    address: A,
    mask: A,
    /// None: on the link.
    gateway: Option<A>,
}

impl<A: Address> Prefixes<A> {
    /// The prefixes of a host's own addresses, which are on the link, and what is behind gateways.
    pub fn new(own: &[(A, u8)], routes: &[Via<A>]) -> Prefixes<A> {
        let on_link = own.iter().map(|&(address, len)| (len, address, None));
        let beyond = routes
            .iter()
            .map(|via| (via.prefix_len, via.prefix, Some(via.gateway)));
        let mut all: Vec<_> = on_link.chain(beyond).collect();
        // The order among equals stays: a prefix of ours goes before the same prefix behind a
        // gateway.
        all.sort_by_key(|&(len, ..)| std::cmp::Reverse(len));
        // A host of many addresses has few prefixes.
        all.dedup_by(|(len, address, gateway), (other_len, other, before)| {
            let same = len == other_len && address.is_same(*other, A::mask(*len));
            same && gateway.is_none() && before.is_none()
        });
        let prefix = |(len, address, gateway)| Prefix {
            address,
            mask: A::mask(len),
            gateway,
        };
        Prefixes(all.into_iter().map(prefix).collect())
    }

    /// As these prefixes. With `all`, every other destination is on the link.
    pub fn or_all_on_link(mut self, all: bool) -> Prefixes<A> {
        if let Some(first) = self.0.first().copied().filter(|_| all) {
            self.0.push(Prefix {
                mask: A::mask(0),
                gateway: None,
                ..first
            });
        }
        self
    }

    /// The neighbour that leads to `destination`: itself, or a gateway (RFC 1122 3.3.1.1, RFC 4861
    /// 5.2).
    #[inline]
    pub fn next_hop(&self, destination: A) -> Option<A> {
        self.0
            .iter()
            .find(|prefix| prefix.address.is_same(destination, prefix.mask))
            .map(|prefix| prefix.gateway.unwrap_or(destination))
    }

    /// How near these prefixes bring one to `destination`, for hosts with several links.
    pub fn nearness(&self, destination: A) -> Option<Nearness> {
        self.0
            .iter()
            .find(|prefix| prefix.address.is_same(destination, prefix.mask))
            .map(
                |prefix| match (A::prefix_len(prefix.mask), prefix.gateway) {
                    (0, None) => Nearness::Fallback,
                    (len, _) => Nearness::Prefix(len),
                },
            )
    }
}
