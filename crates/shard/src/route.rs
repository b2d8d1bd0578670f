//! Where a destination is: here, on the link, behind the gateway, or nowhere.

use std::net::{IpAddr, Ipv4Addr};

use crate::config::Config;

/// The IPv4 routes of a host with one link: its own prefix and perhaps a gateway.
#[derive(Clone, Copy, Debug)]
pub struct Routes {
    address: Ipv4Addr,
    mask: u32,
    gateway: Option<Ipv4Addr>,
    loopback: bool,
}

/// Where to send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It turns round inside the shard.
    Local,
    /// To this neighbour on the link.
    Link(IpAddr),
}

impl Routes {
    /// The routes of a configuration.
    pub fn new(config: &Config) -> Routes {
        let mask = u32::MAX
            .checked_shl(32 - u32::from(config.prefix_len.min(32)))
            .unwrap_or(0);
        Routes {
            address: config.address,
            mask,
            gateway: config.gateway,
            loopback: config.loopback,
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
        if self.on_link(destination) {
            return Some(Route::Link(destination.into()));
        }
        self.gateway.map(|gateway| Route::Link(gateway.into()))
    }

    /// Whether `address` is this host: its own address or 127.0.0.0/8.
    pub fn is_local(&self, address: Ipv4Addr) -> bool {
        address == self.address || address.is_loopback()
    }

    /// Whether `address` is in the link's prefix.
    pub fn on_link(&self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.address.to_bits()) & self.mask == 0
    }

    /// Whether `address` means all hosts of the link. Prefixes of 31 and 32 bits have no such address (RFC 3021).
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        let host = address.to_bits() & !self.mask;
        address.is_broadcast()
            || (!self.mask > 1 && self.on_link(address) && (host == !self.mask || host == 0))
    }

    /// Whether a packet from the link may have this source (RFC 1122 3.2.1.3): one host, and not this one.
    pub fn is_valid_source(&self, source: Ipv4Addr) -> bool {
        is_unicast(source) && !self.is_local(source) && !self.is_broadcast(source)
    }
}

/// Whether `address` can be that of one host: not "this network", multicast or reserved.
fn is_unicast(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first != 0 && first < 224
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_wire::ethernet::Mac;

    fn routes(prefix_len: u8, gateway: Option<Ipv4Addr>) -> Routes {
        let mut config = Config::new(Ipv4Addr::new(10, 1, 2, 3), prefix_len, Mac([2; 6]), [0; 32]);
        config.gateway = gateway;
        config.loopback = true;
        Routes::new(&config)
    }

    #[test]
    fn own_prefix_gateway_and_self() {
        let gateway = Ipv4Addr::new(10, 1, 2, 254);
        let routes = routes(24, Some(gateway));
        assert_eq!(
            routes.find(Ipv4Addr::new(10, 1, 2, 9)),
            Some(Route::Link(Ipv4Addr::new(10, 1, 2, 9).into()))
        );
        assert_eq!(
            routes.find(Ipv4Addr::new(8, 8, 8, 8)),
            Some(Route::Link(gateway.into()))
        );
        assert_eq!(routes.find(Ipv4Addr::new(10, 1, 2, 3)), Some(Route::Local));
        assert_eq!(routes.find(Ipv4Addr::new(127, 9, 9, 9)), Some(Route::Local));
        for nowhere in [
            [10, 1, 2, 255],
            [10, 1, 2, 0],
            [255; 4],
            [224, 0, 0, 1],
            [0, 0, 0, 0],
        ] {
            assert_eq!(routes.find(nowhere.into()), None, "{nowhere:?}");
        }
    }

    #[test]
    fn without_a_gateway_only_the_link_is_reached() {
        let routes = routes(24, None);
        assert_eq!(routes.find(Ipv4Addr::new(8, 8, 8, 8)), None);
    }

    #[test]
    fn rfc3021_a_prefix_of_31_bits_has_no_broadcast() {
        let routes = routes(31, None);
        assert_eq!(
            routes.find(Ipv4Addr::new(10, 1, 2, 2)),
            Some(Route::Link(Ipv4Addr::new(10, 1, 2, 2).into()))
        );
    }
}
