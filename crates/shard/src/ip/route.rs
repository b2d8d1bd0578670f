//! Where a destination is: here, on the link, behind a gateway, or nowhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::config::{Config, Via};

/// Where to send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It turns round inside the shard.
    Local,
    /// To this neighbour on the link.
    Link(IpAddr),
}

/// How near a shard's link brings one to a destination: the greater the nearer. Who has several links takes the one that brings it nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nearness {
    /// It leads everywhere, and nobody has said that it shall lead there: all others are behind one station, or a router advertises itself.
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

/// The prefixes of one family, the longest first. A connection asks once and keeps the neighbour that it was led to; the table is as short as its
/// configuration.
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
        // The order among equals stays: a prefix of ours goes before the same prefix behind a gateway.
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

    /// The same, and all that none of them leads to is on the link, if `all` is.
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

    /// The neighbour that leads to `destination`: itself, or a gateway (RFC 1122 3.3.1.1, RFC 4861 5.2).
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
}

/// The IPv4 addresses and routes of a host with one link.
#[derive(Clone, Debug)]
pub struct Routes {
    /// The first address, which nearly every packet is for.
    first: Own,
    others: Box<[Own]>,
    /// The addresses of those in their order, of which there may be thousands, and one of each of their prefixes.
    other_addresses: Box<[Ipv4Addr]>,
    other_prefixes: Box<[Own]>,
    prefixes: Prefixes<Ipv4Addr>,
    loopback: bool,
    any: bool,
}

impl Routes {
    /// The routes of a configuration.
    pub fn new(config: &Config) -> Routes {
        let mut own = config.addresses.iter().copied().map(Own::new);
        let first = own.next();
        let others: Box<[Own]> = own.collect();
        let mut addresses: Vec<Ipv4Addr> = others.iter().map(|own| own.address).collect();
        addresses.sort_unstable();
        let mut prefixes = others.to_vec();
        prefixes.sort_unstable_by_key(|own| (own.mask, own.address));
        prefixes.dedup_by(|own, before| own.mask == before.mask && own.on_link(before.address));
        Routes {
            first: first.unwrap_or_else(|| Own::new((Ipv4Addr::UNSPECIFIED, 32))),
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
        if self.is_local(destination) {
            return self.loopback.then_some(Route::Local);
        }
        if !is_unicast(destination) || self.is_broadcast(destination) {
            return None;
        }
        let hop = self.prefixes.next_hop(destination)?;
        Some(Route::Link(hop.into()))
    }

    /// The address to speak from to `destination` (RFC 1122 3.3.4.3): the first one of the longest prefix that the next hop is in.
    pub fn source_for(&self, destination: Ipv4Addr) -> Ipv4Addr {
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

    /// Whether packets to `address` are for this host: those to its own, or to anybody ([`Config::any_address`]).
    #[inline]
    pub fn takes(&self, address: Ipv4Addr) -> bool {
        self.is_own(address)
            || (self.any
                && is_unicast(address)
                && !address.is_loopback()
                && !self.is_broadcast(address))
    }

    /// Whether `address` is of this host on the link.
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

    /// Whether a packet from the link may have this source (RFC 1122 3.2.1.3): one host, and not this one.
    #[inline(always)]
    pub fn is_valid_source(&self, source: Ipv4Addr) -> bool {
        is_unicast(source)
            && !source.is_loopback()
            && source != self.first.address
            && !self.first.is_broadcast(source)
            && !self.is_other(source)
            && !self.is_other_broadcast(source)
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
mod tests {
    use super::*;
    use millrace_wire::ethernet::Mac;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    /// A host with `addresses` and routes, each a prefix, its length and the gateway.
    fn routes(addresses: &[(&str, u8)], beyond: &[(&str, u8, &str)]) -> Routes {
        let mut config = Config::new(Ipv4Addr::UNSPECIFIED, 0, Mac([2; 6]), [0; 32]);
        config.addresses = addresses.iter().map(|&(own, len)| (ip(own), len)).collect();
        let via = |&(prefix, prefix_len, gateway): &(&str, u8, &str)| Via {
            prefix: ip(prefix),
            prefix_len,
            gateway: ip(gateway),
        };
        config.routes = beyond.iter().map(via).collect();
        config.loopback = true;
        Routes::new(&config)
    }

    fn link(hop: &str) -> Option<Route> {
        Some(Route::Link(ip(hop).into()))
    }

    #[test]
    fn own_prefix_gateway_and_self() {
        let routes = routes(&[("10.1.2.3", 24)], &[("0.0.0.0", 0, "10.1.2.254")]);
        assert_eq!(routes.find(ip("10.1.2.9")), link("10.1.2.9"));
        assert_eq!(routes.find(ip("8.8.8.8")), link("10.1.2.254"));
        assert_eq!(routes.find(ip("10.1.2.3")), Some(Route::Local));
        assert_eq!(routes.find(ip("127.9.9.9")), Some(Route::Local));
        for nowhere in [
            "10.1.2.255",
            "10.1.2.0",
            "255.255.255.255",
            "224.0.0.1",
            "0.0.0.0",
        ] {
            assert_eq!(routes.find(ip(nowhere)), None, "{nowhere}");
        }
    }

    #[test]
    fn without_a_gateway_only_the_link_is_reached() {
        let routes = routes(&[("10.1.2.3", 24)], &[]);
        assert_eq!(routes.find(ip("8.8.8.8")), None);
    }

    #[test]
    fn rfc1812_5_2_4_3_the_longest_prefix_counts() {
        let routes = routes(
            &[("10.1.2.3", 24), ("172.16.0.3", 16)],
            &[
                ("0.0.0.0", 0, "10.1.2.254"),
                ("192.0.2.0", 24, "10.1.2.1"),
                ("192.0.2.128", 25, "172.16.0.1"),
                ("192.0.2.200", 32, "10.1.2.2"),
                // A part of the link is behind a neighbour.
                ("172.16.9.0", 24, "172.16.0.9"),
                // The same prefix as ours: ours counts.
                ("10.1.2.0", 24, "172.16.0.1"),
            ],
        );
        for (destination, hop) in [
            ("192.0.2.1", "10.1.2.1"),
            ("192.0.2.129", "172.16.0.1"),
            ("192.0.2.200", "10.1.2.2"),
            ("192.0.3.1", "10.1.2.254"),
            ("172.16.1.1", "172.16.1.1"),
            ("172.16.9.1", "172.16.0.9"),
            ("10.1.2.77", "10.1.2.77"),
        ] {
            assert_eq!(routes.find(ip(destination)), link(hop), "{destination}");
        }
    }

    #[test]
    fn rfc1122_3_3_4_3_the_source_is_of_the_prefix_that_the_next_hop_is_in() {
        let routes = routes(
            &[
                ("10.1.2.3", 24),
                ("172.16.0.3", 16),
                ("10.1.2.4", 24),
                ("172.16.5.3", 24),
            ],
            &[
                ("0.0.0.0", 0, "172.16.0.1"),
                ("192.0.2.0", 24, "10.1.2.1"),
                ("198.51.100.0", 24, "203.0.113.1"),
            ],
        );
        for (destination, source) in [
            ("10.1.2.9", "10.1.2.3"),
            ("172.16.9.9", "172.16.0.3"),
            ("172.16.5.9", "172.16.5.3"),
            ("192.0.2.1", "10.1.2.3"),
            ("8.8.8.8", "172.16.0.3"),
            // By way of a gateway that is in no prefix of ours: the first.
            ("198.51.100.1", "10.1.2.3"),
        ] {
            assert_eq!(
                routes.source_for(ip(destination)),
                ip(source),
                "{destination}"
            );
        }
    }

    #[test]
    fn rfc1122_3_2_1_3_no_address_and_no_broadcast_of_any_prefix_is_a_source() {
        let routes = routes(&[("10.1.2.3", 24), ("172.16.0.3", 16)], &[]);
        for bad in [
            "10.1.2.3",
            "172.16.0.3",
            "10.1.2.255",
            "10.1.2.0",
            "172.16.255.255",
            "127.0.0.1",
            "0.0.0.1",
            "239.1.1.1",
        ] {
            assert!(!routes.is_valid_source(ip(bad)), "{bad}");
        }
        for good in ["10.1.2.4", "172.16.2.255", "8.8.8.8"] {
            assert!(routes.is_valid_source(ip(good)), "{good}");
        }
    }

    #[test]
    fn rfc3021_a_prefix_of_31_bits_has_no_broadcast() {
        let routes = routes(&[("10.1.2.3", 31)], &[]);
        assert_eq!(routes.find(ip("10.1.2.2")), link("10.1.2.2"));
    }

    #[test]
    fn the_longest_prefix_is_the_nearest_and_what_nobody_said_the_farthest() {
        let routes = routes(
            &[("10.1.2.3", 24)],
            &[("10.0.0.0", 8, "10.1.2.9"), ("0.0.0.0", 0, "10.1.2.1")],
        );
        for (destination, len) in [("10.1.2.9", 24), ("10.9.9.9", 8), ("192.0.2.1", 0)] {
            let nearness = routes.nearness(ip(destination));
            assert_eq!(nearness, Some(Nearness::Prefix(len)), "{destination}");
        }
        let mut alone = Config::new(ip("10.1.2.3"), 24, Mac([2, 0, 0, 0, 0, 1]), [0; 32]);
        let closed = Routes::new(&alone);
        assert_eq!(closed.nearness(ip("192.0.2.1")), None);
        assert_eq!(closed.nearness(ip("239.1.1.1")), Some(Nearness::Fallback));
        alone.only_station = Some(Mac([2, 0, 0, 0, 0, 2]));
        let behind_one = Routes::new(&alone);
        let everywhere = behind_one.nearness(ip("192.0.2.1"));
        assert_eq!(everywhere, Some(Nearness::Fallback));
        assert!(everywhere < Some(Nearness::Prefix(0)));
    }
}
