//! The engine's own addresses and the destinations that it serves on its link. An engine that
//! follows the kernel's routes writes them anew when these change.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::net::{IpAddr, Ipv6Addr};

/// The most routes.
pub const ROUTES_MAX: usize = 48;
/// The most addresses of the engine.
pub const OWN_MAX: usize = 16;

/// A destination that the engine serves. A socket to any other destination is the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The prefix as a number. IPv4 is mapped into `::ffff:0:0/96`.
    pub prefix: u128,
    /// The length of the prefix, 0..=128; at least 96 for IPv4.
    pub bits: u32,
}

impl Route {
    /// The route to all hosts that share the first `bits` bits of `ip`.
    pub fn new(ip: IpAddr, bits: u8) -> Route {
        let prefix = mapped(ip).to_bits();
        let bits = match ip {
            IpAddr::V4(_) => 96 + u32::from(bits.min(32)),
            IpAddr::V6(_) => bits.min(128).into(),
        };
        Route { prefix, bits }
    }

    /// Whether the route covers `ip`. A route of one family covers no address of the other.
    pub fn covers(&self, ip: IpAddr) -> bool {
        let is_v4 = |bits: u128| Ipv6Addr::from_bits(bits).to_ipv4_mapped().is_some();
        let ip = mapped(ip).to_bits();
        if is_v4(ip) != (self.bits >= 96 && is_v4(self.prefix)) {
            return false;
        }
        self.bits <= 128 && (ip ^ self.prefix).leading_zeros() >= self.bits
    }
}

/// An address of either family as an IPv6 address.
pub fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The current addresses and routes, and a second copy. The writer fills the copy that nobody
/// reads, and then makes it current. A reader during two quick changes may see parts of both, which
/// does no harm: it might as well have read a moment earlier or later.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Routes {
    current: AtomicU32,
    networks: [Network; 2],
}

/// The engine's addresses and routes. Every word may have any value, since the memory is shared;
/// every use is sound for any value.
#[repr(C)]
#[derive(Debug)]
pub struct Network {
    own_len: AtomicU32,
    routes_len: AtomicU32,
    own: [[AtomicU64; 2]; OWN_MAX],
    prefixes: [[AtomicU64; 2]; ROUTES_MAX],
    bits: [AtomicU32; ROUTES_MAX],
}

impl Routes {
    /// Makes routes with these values: see [`Routes::set`].
    pub fn new(own: &[IpAddr], routes: &[Route]) -> Routes {
        let shared = Routes::default();
        shared.set(own, routes);
        shared
    }

    /// The current addresses and routes.
    pub fn network(&self) -> &Network {
        &self.networks[self.current.load(Ordering::Acquire) as usize % 2]
    }

    /// Sets the engine's addresses and its routes. The first routes are the prefixes of the
    /// addresses. Values beyond the room are left out. Only one thread may write.
    pub fn set(&self, own: &[IpAddr], routes: &[Route]) {
        let next = self.current.load(Ordering::Relaxed).wrapping_add(1);
        let network = &self.networks[next as usize % 2];
        for (to, from) in network.own.iter().zip(own) {
            store(to, mapped(*from).to_bits());
        }
        for ((prefix, bits), from) in network.prefixes.iter().zip(&network.bits).zip(routes) {
            store(prefix, from.prefix);
            bits.store(from.bits, Ordering::Relaxed);
        }
        let len = |len: usize, most| len.min(most) as u32;
        network
            .own_len
            .store(len(own.len(), OWN_MAX), Ordering::Relaxed);
        network
            .routes_len
            .store(len(routes.len(), ROUTES_MAX), Ordering::Relaxed);
        self.current.store(next, Ordering::Release);
    }
}

impl Default for Network {
    fn default() -> Network {
        Network {
            own_len: AtomicU32::new(0),
            routes_len: AtomicU32::new(0),
            own: Default::default(),
            prefixes: std::array::from_fn(|_| Default::default()),
            bits: std::array::from_fn(|_| AtomicU32::default()),
        }
    }
}

impl Network {
    /// The engine's own addresses, with IPv4 mapped.
    pub fn own(&self) -> impl Iterator<Item = Ipv6Addr> {
        let len = self.own_len.load(Ordering::Relaxed) as usize;
        let own = self.own.iter().take(len);
        own.map(|words| Ipv6Addr::from_bits(load(words)))
    }

    /// The routes.
    pub fn routes(&self) -> impl Iterator<Item = Route> {
        let len = self.routes_len.load(Ordering::Relaxed) as usize;
        let all = self.prefixes.iter().zip(&self.bits).take(len);
        all.map(|(prefix, bits)| Route {
            prefix: load(prefix),
            bits: bits.load(Ordering::Relaxed),
        })
    }

    /// The routes of the link itself: the prefixes of the engine's addresses.
    pub fn on_link(&self) -> impl Iterator<Item = Route> {
        let own = self.own_len.load(Ordering::Relaxed) as usize;
        self.routes().take(own)
    }
}

fn store(words: &[AtomicU64; 2], value: u128) {
    words[0].store((value >> 64) as u64, Ordering::Relaxed);
    words[1].store(value as u64, Ordering::Relaxed);
}

fn load(words: &[AtomicU64; 2]) -> u128 {
    let word = |at: usize| u128::from(words[at].load(Ordering::Relaxed));
    word(0) << 64 | word(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_cover_their_prefix() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let route = Route::new(ip("10.9.0.2"), 24);
        assert!(route.covers(ip("10.9.0.254")));
        assert!(!route.covers(ip("10.9.1.1")) && !route.covers(ip("fd00::1")));
        let all = Route::new(ip("0.0.0.0"), 0);
        assert!(all.covers(ip("255.1.2.3")) && !all.covers(ip("fd00::1")));
        let route = Route::new(ip("fd00:9::2"), 64);
        assert!(route.covers(ip("fd00:9::ffff")) && !route.covers(ip("fd00:9:0:1::2")));
        let all = Route::new(ip("::"), 0);
        assert!(all.covers(ip("fd00::1")) && !all.covers(ip("10.9.0.1")));
        let nonsense = Route {
            prefix: 0,
            bits: 129,
        };
        assert!(!nonsense.covers(ip("::")));
    }

    #[test]
    fn what_was_set_last_counts_as_far_as_there_is_room() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let (a, b) = (ip("10.9.0.2"), ip("fd00:9::2"));
        let routes = [Route::new(a, 24), Route::new(ip("10.0.0.0"), 8)];
        let shared = Routes::new(&[a], &routes);
        let network = shared.network();
        assert!(network.own().eq([mapped(a)]) && network.routes().eq(routes));
        assert!(network.on_link().eq([routes[0]]));
        shared.set(&[b], &[]);
        assert!(shared.network().own().eq([mapped(b)]));
        assert_eq!(shared.network().routes().count(), 0);
        assert_eq!(network.own().next(), Some(mapped(a)), "who looks on");
        shared.set(&[a; 2 * OWN_MAX], &[routes[0]; 2 * ROUTES_MAX]);
        let network = shared.network();
        assert_eq!(network.own().count(), OWN_MAX);
        assert_eq!(network.routes().count(), ROUTES_MAX);
    }
}
