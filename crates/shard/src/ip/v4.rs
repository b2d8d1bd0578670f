//! IPv4: the host's addresses and routes, packets in, ICMP and IGMP.

pub mod fragments;
pub mod groups;
pub mod icmp;
pub mod input;

use std::net::Ipv4Addr;

use crate::config::Config;
use crate::ip::route::{Address as _, Nearness, Prefixes, Route};

/// An address of this host.
#[derive(Clone, Copy, Debug)]
struct Own {
    address: Ipv4Addr,
    mask: u32,
}

impl Own {
    fn new((address, prefix_len): (Ipv4Addr, u8)) -> Own {
        let mask = Ipv4Addr::mask(prefix_len).to_bits();
        Own { address, mask }
    }

    #[inline]
    fn on_link(&self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.address.to_bits()) & self.mask == 0
    }

    /// Prefixes of 31 and 32 bits have no such address (RFC 3021).
    #[inline]
    fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        let host = address.to_bits() & !self.mask;
        !self.mask > 1 && self.on_link(address) && (host == !self.mask || host == 0)
    }

    /// Whether every address of the prefix is that of one host: neither loopback nor multicast nor
    /// reserved, and the prefix has addresses for other hosts.
    fn is_of_hosts(&self) -> bool {
        let len = self.mask.leading_ones();
        (8..=30).contains(&len) && is_unicast(self.address) && !self.address.is_loopback()
    }

    /// Whether `address` is that of another host in a prefix that [`Own::is_of_hosts`].
    #[inline(always)]
    fn has_neighbour(&self, address: Ipv4Addr) -> bool {
        let host = address.to_bits() & !self.mask;
        self.on_link(address) && host != 0 && host != !self.mask && address != self.address
    }
}

/// The IPv4 addresses and routes of a host with one link.
#[derive(Clone, Debug)]
pub struct Ipv4 {
    /// The first address, which nearly every packet is for.
    first: Own,
    /// The first address again, where its prefix alone decides about the hosts in it: a new
    /// connection asks several times. Elsewhere it has a prefix of 32 bits, which has no other
    /// host.
    near: Own,
    others: Box<[Own]>,
    /// The addresses of those in their order, of which there may be thousands, and one of each of
    /// their prefixes.
    other_addresses: Box<[Ipv4Addr]>,
    other_prefixes: Box<[Own]>,
    prefixes: Prefixes<Ipv4Addr>,
    loopback: bool,
    any: bool,
}

impl Ipv4 {
    /// The routes of a configuration.
    pub fn new(config: &Config) -> Ipv4 {
        let mut own = config.addresses.iter().copied().map(Own::new);
        let first = own.next();
        let others: Box<[Own]> = own.collect();
        let mut addresses: Vec<Ipv4Addr> = others.iter().map(|own| own.address).collect();
        addresses.sort_unstable();
        let mut prefixes = others.to_vec();
        prefixes.sort_unstable_by_key(|own| (own.mask, own.address));
        prefixes.dedup_by(|own, before| own.mask == before.mask && own.on_link(before.address));
        let first = first.unwrap_or_else(|| Own::new((Ipv4Addr::UNSPECIFIED, 32)));
        let longest = config.routes.iter().map(|via| via.prefix_len).max();
        let decides = others.is_empty()
            && first.is_of_hosts()
            && longest.is_none_or(|longest| u32::from(longest) <= first.mask.leading_ones());
        Ipv4 {
            near: match decides {
                true => first,
                false => Own::new((first.address, 32)),
            },
            first,
            other_addresses: addresses.into(),
            other_prefixes: prefixes.into(),
            others,
            prefixes: Prefixes::new(&config.addresses, &config.routes)
                .or_all_on_link(config.only_station.is_some()),
            loopback: config.loopback,
            any: config.any_address,
        }
    }

    /// Where `destination` is, if it can be reached at all. Groups cannot: TCP knows none.
    #[inline]
    pub fn find(&self, destination: Ipv4Addr) -> Option<Route> {
        if self.near.has_neighbour(destination) {
            return Some(Route::Link(destination.into()));
        }
        if self.is_local(destination) {
            return self.loopback.then_some(Route::Local);
        }
        if !is_unicast(destination) || self.is_broadcast(destination) {
            return None;
        }
        let hop = self.prefixes.next_hop(destination)?;
        Some(Route::Link(hop.into()))
    }

    /// The address to speak from to `destination` (RFC 1122 3.3.4.3): the first one of the longest
    /// prefix that the next hop is in.
    pub fn source_for(&self, destination: Ipv4Addr) -> Ipv4Addr {
        if self.near.has_neighbour(destination) {
            return self.near.address;
        }
        let hop = self.prefixes.next_hop(destination).unwrap_or(destination);
        let mut best = None;
        for own in self.own().filter(|own| own.on_link(hop)) {
            if best.is_none_or(|best: &Own| own.mask > best.mask) {
                best = Some(own);
            }
        }
        best.unwrap_or(&self.first).address
    }

    /// How near the link brings one to `destination`. Groups and all hosts are on every link.
    pub fn nearness(&self, destination: Ipv4Addr) -> Option<Nearness> {
        let everywhere = destination.is_multicast() || destination.is_broadcast();
        self.prefixes
            .nearness(destination)
            .or(everywhere.then_some(Nearness::Fallback))
    }

    /// Whether packets to `address` are for this host: those to its own, or to anybody
    /// ([`Config::any_address`]).
    #[inline]
    pub fn takes(&self, address: Ipv4Addr) -> bool {
        self.is_own(address)
            || (self.any
                && is_unicast(address)
                && !address.is_loopback()
                && !self.is_broadcast(address))
    }

    /// Whether `address` is one of this host's on the link.
    #[inline]
    pub fn is_own(&self, address: Ipv4Addr) -> bool {
        address == self.first.address || self.is_other(address)
    }

    /// Whether `address` is this host: an address of its own or 127.0.0.0/8.
    #[inline]
    pub fn is_local(&self, address: Ipv4Addr) -> bool {
        self.is_own(address) || address.is_loopback()
    }

    /// Whether `address` is in a prefix of the link.
    pub fn on_link(&self, address: Ipv4Addr) -> bool {
        self.own().any(|own| own.on_link(address))
    }

    /// Whether `address` means all hosts of the link.
    #[inline]
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        address.is_broadcast()
            || self.first.is_broadcast(address)
            || self.is_other_broadcast(address)
    }

    /// Whether a packet from the link may have this source (RFC 1122 3.2.1.3): one host, and not
    /// this one.
    #[inline(always)]
    pub fn is_valid_source(&self, source: Ipv4Addr) -> bool {
        self.near.has_neighbour(source)
            || (is_unicast(source)
                && !source.is_loopback()
                && source != self.first.address
                && !self.first.is_broadcast(source)
                && !self.is_other(source)
                && !self.is_other_broadcast(source))
    }

    /// Whether it is an address other than the first. Most hosts have no other.
    #[inline(always)]
    fn is_other(&self, address: Ipv4Addr) -> bool {
        #[cold]
        fn search(others: &[Ipv4Addr], address: Ipv4Addr) -> bool {
            others.binary_search(&address).is_ok()
        }
        !self.other_addresses.is_empty() && search(&self.other_addresses, address)
    }

    /// Whether it means all hosts of the prefix of an address other than the first.
    #[inline(always)]
    fn is_other_broadcast(&self, address: Ipv4Addr) -> bool {
        #[cold]
        fn search(prefixes: &[Own], address: Ipv4Addr) -> bool {
            prefixes.iter().any(|own| own.is_broadcast(address))
        }
        !self.other_prefixes.is_empty() && search(&self.other_prefixes, address)
    }

    fn own(&self) -> impl Iterator<Item = &Own> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

/// Whether `address` can be that of one host: not "this network", multicast or reserved.
#[inline]
fn is_unicast(address: Ipv4Addr) -> bool {
    (1..224).contains(&(address.to_bits() >> 24))
}

#[cfg(test)]
mod tests;
