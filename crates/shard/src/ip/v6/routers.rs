//! The routers of the link, as they advertise themselves (RFC 4861 6.3), and the asking for them.

use std::net::{IpAddr, Ipv6Addr};

use millrace_tcp::{Duration, Instant};
use millrace_wire::ipv6::ALL_ROUTERS;
use millrace_wire::ndp::{Message, Router};

use crate::memory::Memory;
use crate::shard::Shard;

/// Routers that are remembered; a further one is refused.
const ROUTERS_MAX: usize = 4;
/// How often routers are asked for (RFC 4861 10: `MAX_RTR_SOLICITATIONS`), and how long they have to answer.
const SOLICITATIONS: u8 = 3;
const SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);

/// Default routers, those that were heard first before the others.
pub struct Routers {
    known: Vec<Known>,
    /// Whether anybody wants them: a configured gateway goes before all of them.
    wanted: bool,
    /// Solicitations that are still to be sent, and when the next.
    left: u8,
    at: Option<Instant>,
}

struct Known {
    address: Ipv6Addr,
    expires: Instant,
}

impl Routers {
    /// `first`: when the first solicitation may be sent; without it, when the link-local address may be used.
    pub fn new(wanted: bool, first: Option<Instant>) -> Routers {
        Routers {
            known: Vec::new(),
            wanted,
            left: if wanted { SOLICITATIONS } else { 0 },
            at: first.filter(|_| wanted),
        }
    }

    /// The router to use.
    pub fn first(&self) -> Option<Ipv6Addr> {
        self.known.first().map(|router| router.address)
    }

    /// Whether `address` is that of a known router.
    pub fn has(&self, address: Ipv6Addr) -> bool {
        self.known.iter().any(|router| router.address == address)
    }

    /// It is no router any more (RFC 4861 7.2.5). Whether it was one.
    fn remove(&mut self, address: Ipv6Addr) -> bool {
        let before = self.known.len();
        self.known.retain(|router| router.address != address);
        self.known.len() < before
    }

    /// It does not answer: the others go before it (RFC 4861 6.3.6). Whether there are others, and it was the one in use.
    fn demote(&mut self, address: Ipv6Addr) -> bool {
        let in_use = self.known.len() > 1 && self.first() == Some(address);
        if in_use {
            self.known.rotate_left(1);
        }
        in_use
    }

    /// When a router is to be asked for, or expires.
    pub fn deadline(&self) -> Option<Instant> {
        self.known
            .iter()
            .map(|router| router.expires)
            .chain(self.at)
            .min()
    }

    /// One of those whose time is over.
    fn expired(&self, now: Instant) -> Option<Ipv6Addr> {
        let expired = |router: &&Known| router.expires <= now;
        self.known.iter().find(expired).map(|router| router.address)
    }

    /// An advertisement came; false when there was no room to remember it.
    fn heard(&mut self, address: Ipv6Addr, lifetime_s: u16, now: Instant) -> bool {
        if !self.wanted {
            return true;
        }
        // Who has answered need not be asked (RFC 4861 6.3.7).
        (self.left, self.at) = (0, None);
        let expires = now + Duration::from_secs(u64::from(lifetime_s));
        if let Some(router) = self
            .known
            .iter_mut()
            .find(|router| router.address == address)
        {
            router.expires = expires;
        } else if self.known.len() < ROUTERS_MAX {
            self.known.push(Known { address, expires });
        } else {
            return false;
        }
        true
    }
}

impl<M: Memory> Shard<M> {
    /// Does what is due at `now`: duplicates, groups, routers.
    pub(crate) fn advance_v6(&mut self, now: Instant) {
        self.detect_duplicates(now);
        self.announce_addresses(now);
        self.report_groups(now);
        while let Some(expired) = self.v6.routers.expired(now) {
            self.router_lost(expired);
        }
        let routers = &mut self.v6.routers;
        if routers.left == 0 || routers.at.is_some_and(|at| at > now) {
            return;
        }
        // Before the link-local address is ours nothing is asked.
        if let Some(source) = self.v6.link_local() {
            let routers = &mut self.v6.routers;
            routers.left -= 1;
            routers.at = (routers.left > 0).then(|| now + SOLICITATION_INTERVAL);
            let message = Message::RouterSolicitation {
                source: Some(self.config.mac),
            };
            self.send_ndp(source, ALL_ROUTERS, &message);
        }
    }

    /// A router advertisement from `address`, which RFC 4861 6.1.2 has nothing against.
    pub(super) fn router_input(&mut self, address: Ipv6Addr, router: &Router, now: Instant) {
        if router.lifetime_s == 0 {
            self.router_lost(address);
        } else if !self.v6.routers.heard(address, router.lifetime_s, now) {
            self.counters.routers_refused += 1;
        }
        if let Some(mac) = router.source {
            let create = self.v6.routers.has(address);
            self.neighbours
                .hear(address, mac, create, now, &mut self.counters);
        }
        if let Some(mtu) = router.mtu {
            self.v6.limit_mtu(mtu);
        }
    }

    /// `address` is not, or no longer, a router: what goes by way of it looks for another way.
    pub(super) fn router_lost(&mut self, address: Ipv6Addr) {
        if self.v6.routers.remove(address) {
            self.neighbours.reroute(address.into());
        }
    }

    /// A neighbour did not answer: if it is the router in use and there are others, they are tried.
    pub(crate) fn neighbour_failed(&mut self, address: IpAddr) {
        if let IpAddr::V6(router) = address
            && self.v6.routers.demote(router)
        {
            self.neighbours.reroute(address);
        }
    }

    /// Whether a router of the link has advertised itself as one that leads everywhere, and no route of the configuration does.
    pub fn has_default_router(&self) -> bool {
        self.v6.has_default_router()
    }
}
