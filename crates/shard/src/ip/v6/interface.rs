//! The addresses, routes and routers of this host, where IPv6 is concerned.

use std::net::Ipv6Addr;

use millrace_tcp::Instant;
use millrace_wire::ipv6::{self, MTU_MIN, solicited_node};

use crate::config::{Config, ConflictDetection};
use crate::ip::route::{Nearness, Prefixes, Route};
use crate::ip::v6::own_address::{Own, State};
use crate::ip::v6::reports::Reports;
use crate::ip::v6::routers::Routers;

/// The IPv6 of a host with one link. Without addresses it is off, except for `::1`.
pub struct Ipv6 {
    /// The addresses on the link, the link-local one first if it is ours to speak from.
    pub(super) own: Vec<Own>,
    pub(super) prefixes: Prefixes<Ipv6Addr>,
    pub(super) routers: Routers,
    pub(super) reports: Reports,
    pub(super) loopback: bool,
    pub(super) any: bool,
    /// The largest packet: the link's, or less if a router says so.
    pub(super) mtu: u16,
}

impl Ipv6 {
    /// The interface of a configuration. Duplicates of its addresses are detected from `now` on.
    pub fn new(config: &Config, now: Instant) -> Ipv6 {
        let settings = config.ipv6.as_ref().filter(|_| config.mtu >= MTU_MIN);
        // Where the kernel has the addresses too, the kernel speaks to the neighbours, with a
        // link-local address of its own.
        let speaks = settings.filter(|_| config.conflict_detection != ConflictDetection::Kernel);
        let link_local = speaks.map(|_| (ipv6::link_local(config.mac), 64));
        let given = settings.map_or(&[][..], |settings| &settings.addresses);
        let addresses: Vec<_> = link_local.iter().chain(given).copied().collect();
        let routes = settings.map_or(&[][..], |settings| &settings.routes);
        let probes = settings.map_or(0, |settings| settings.probes);
        let own =
            |&(address, prefix_len): &(Ipv6Addr, u8)| Own::new(address, prefix_len, probes, now);
        Ipv6 {
            routers: Routers::new(
                speaks.is_some() && !routes.iter().any(|via| via.prefix_len == 0),
                speaks.filter(|settings| settings.probes == 0).map(|_| now),
            ),
            reports: Reports::new(speaks.map(|_| now)),
            own: addresses.iter().map(own).collect(),
            prefixes: Prefixes::new(&addresses, routes)
                .or_all_on_link(config.only_station.is_some()),
            loopback: config.loopback,
            any: config.any_address,
            mtu: config.mtu,
        }
    }

    /// Whether the link has IPv6.
    pub fn is_on(&self) -> bool {
        !self.own.is_empty()
    }

    /// Whether an address is still being looked for on the link, so that it cannot be used yet.
    pub fn is_tentative(&self) -> bool {
        self.own.iter().any(|own| own.state.is_tentative())
    }

    /// An address that another host has.
    pub fn duplicate(&self) -> Option<Ipv6Addr> {
        let is_duplicate = |own: &&Own| own.state == State::Duplicate;
        self.own.iter().find(is_duplicate).map(|own| own.address)
    }

    /// The largest packet on the link in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Where `destination` is, if it can be reached at all.
    pub fn find(&self, destination: Ipv6Addr) -> Option<Route> {
        if self.is_local(destination) {
            return self.loopback.then_some(Route::Local);
        }
        if !self.is_on() || !is_unicast(destination) {
            return None;
        }
        self.prefixes
            .next_hop(destination)
            .or_else(|| self.routers.first())
            .map(|hop| Route::Link(hop.into()))
    }

    /// How near the link brings one to `destination`. Groups are on every link.
    pub fn nearness(&self, destination: Ipv6Addr) -> Option<Nearness> {
        if !self.is_on() {
            return None;
        }
        let everywhere = destination.is_multicast() || self.has_default_router();
        self.prefixes
            .nearness(destination)
            .or(everywhere.then_some(Nearness::Fallback))
    }

    /// Whether `address` is one of this host's on the link.
    pub fn is_own(&self, address: Ipv6Addr) -> bool {
        self.own.iter().any(|own| own.address == address)
    }

    /// Whether `address` is this host: one of its own, or `::1`.
    pub fn is_local(&self, address: Ipv6Addr) -> bool {
        address.is_loopback() || self.is_own(address)
    }

    /// Whether a socket may be bound to `address`. It may before the address is known to be nobody
    /// else's; only packets have to wait for that.
    pub fn is_bindable(&self, address: Ipv6Addr) -> bool {
        (self.loopback && address.is_loopback())
            || self.takes_any(address)
            || self
                .own
                .iter()
                .any(|own| own.address == address && own.state != State::Duplicate)
    }

    /// Whether `address` counts as ours because any does ([`Config::any_address`]).
    pub(super) fn takes_any(&self, address: Ipv6Addr) -> bool {
        self.any && self.is_on() && is_unicast(address)
    }

    /// Whether packets to `address` are for this host: those to its own, or to anybody.
    pub(super) fn takes(&self, address: Ipv6Addr) -> bool {
        self.is_assigned(address) || self.takes_any(address)
    }

    /// Whether `address` is one of this host's, and may be used.
    pub(super) fn is_assigned(&self, address: Ipv6Addr) -> bool {
        self.own
            .iter()
            .any(|own| own.address == address && own.state == State::Preferred)
    }

    /// Whether this host is in the group `address`: all nodes, or those asked for by an address of
    /// ours (RFC 4291 2.8).
    pub(super) fn is_group(&self, address: Ipv6Addr) -> bool {
        const ALL_NODES_OF_INTERFACE: Ipv6Addr = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 1);
        address == ipv6::ALL_NODES
            || address == ALL_NODES_OF_INTERFACE
            || self
                .own
                .iter()
                .any(|own| own.state != State::Duplicate && solicited_node(own.address) == address)
    }

    /// Whether `address` is a neighbour's: link-local, or in a prefix of our addresses.
    pub(super) fn on_link(&self, address: Ipv6Addr) -> bool {
        self.own.iter().any(|own| own.has_prefix_of(address))
    }

    /// Whether a packet from the link may have this source: one host, and not this one. Who has an
    /// address that we have not taken yet says so from it.
    pub(super) fn is_valid_source(&self, source: Ipv6Addr) -> bool {
        is_unicast(source) && !self.is_assigned(source)
    }

    /// Whether a router of the link has said that it leads everywhere, and is used for that.
    pub fn has_default_router(&self) -> bool {
        self.routers.first().is_some()
    }

    /// A router tells the MTU of the link (RFC 4861 6.3.4): within what is possible it is followed.
    pub(super) fn limit_mtu(&mut self, mtu: u32) {
        if (u32::from(MTU_MIN)..u32::from(self.mtu)).contains(&mtu) {
            self.mtu = mtu as u16;
        }
    }

    /// A router does not answer. Returns whether another one takes its place.
    pub fn demote_router(&mut self, router: Ipv6Addr) -> bool {
        self.routers.demote(router)
    }

    /// Takes out a router whose lifetime is over.
    pub fn pop_expired_router(&mut self, now: Instant) -> Option<Ipv6Addr> {
        self.routers.pop_expired(now)
    }

    /// The address to send a router solicitation from, if one is due.
    pub fn take_router_solicitation(&mut self, now: Instant) -> Option<Ipv6Addr> {
        let source = self.link_local()?;
        self.routers.take_solicitation(now).then_some(source)
    }

    /// When there is something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.own
            .iter()
            .filter_map(|own| own.state.deadline().or(own.announcement()))
            .chain(self.routers.deadline())
            .chain(self.reports.deadline())
            .min()
    }

    /// The link-local address, once it is used.
    pub(super) fn link_local(&self) -> Option<Ipv6Addr> {
        self.own
            .first()
            .filter(|own| own.state == State::Preferred)
            .map(|own| own.address)
            .filter(Ipv6Addr::is_unicast_link_local)
    }
}

/// Whether `address` can be that of one host on a link. An IPv4 address does not travel in this
/// form (RFC 4291 2.5.5.2).
pub(super) fn is_unicast(address: Ipv6Addr) -> bool {
    !address.is_multicast()
        && !address.is_unspecified()
        && !address.is_loopback()
        && address.to_ipv4_mapped().is_none()
}

#[cfg(test)]
mod tests;
