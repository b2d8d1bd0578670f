//! The addresses and routes of a link, by family, as a shard is told them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_shard::{Network, Via};

use crate::config;

/// The addresses and routes of a link, as shards are told them.
pub(crate) fn network_of(link: &config::Link) -> Network {
    Network {
        addresses: addresses(link),
        routes: routes(link),
        addresses_v6: addresses(link),
        routes_v6: routes(link),
    }
}

/// An address of one family.
pub(super) trait Family: Sized {
    fn of(ip: IpAddr) -> Option<Self>;
}

impl Family for Ipv4Addr {
    fn of(ip: IpAddr) -> Option<Ipv4Addr> {
        match ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        }
    }
}

impl Family for Ipv6Addr {
    fn of(ip: IpAddr) -> Option<Ipv6Addr> {
        match ip {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        }
    }
}

/// The addresses of a link that are of one family.
pub(super) fn addresses<A: Family>(link: &config::Link) -> Vec<(A, u8)> {
    let all = link.addresses.iter();
    all.filter_map(|&(ip, len)| Some((A::of(ip)?, len)))
        .collect()
}

/// The routes of a link that are of one family.
fn routes<A: Family>(link: &config::Link) -> Vec<Via<A>> {
    let via = |route: &config::Route| {
        Some(Via {
            prefix: A::of(route.prefix)?,
            prefix_len: route.prefix_len,
            gateway: A::of(route.gateway)?,
        })
    };
    link.routes.iter().filter_map(via).collect()
}
