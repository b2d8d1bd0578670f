//! What programs are told of the engine: which destinations are its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_context::layout::{self, Geometry, Header, Route};

use crate::config::Config;

/// What programs are told of the engine.
#[derive(Clone, Debug)]
pub struct Serving {
    loopback: bool,
    pub(crate) own: Vec<IpAddr>,
    mss: u32,
    routes: Vec<Route>,
}

impl Serving {
    /// From the configuration; `mss` is the link's maximum segment size.
    pub fn new(config: &Config, mss: u32) -> Serving {
        let (mut own, mut routes) = (Vec::new(), Vec::new());
        if let Some(link) = &config.link {
            let v4 = (link.address.into(), link.prefix_len);
            let v6 = link.addresses_v6.iter();
            for (ip, bits) in std::iter::once(v4).chain(v6.map(|&(ip, bits)| (ip.into(), bits))) {
                own.push(ip);
                routes.push(Route::new(ip, bits));
            }
            let gateways = [
                link.gateway.map(|_| Ipv4Addr::UNSPECIFIED.into()),
                link.gateway_v6.map(|_| Ipv6Addr::UNSPECIFIED.into()),
            ];
            let everything = gateways.into_iter().flatten();
            routes.extend(everything.map(|ip| Route::new(ip, 0)));
        }
        Serving {
            loopback: config.loopback,
            own,
            mss,
            routes,
        }
    }

    pub(crate) fn header(&self, geometry: Geometry) -> Header {
        let mut routes = [Route::default(); layout::ROUTES_MAX];
        for (to, from) in routes.iter_mut().zip(&self.routes) {
            *to = *from;
        }
        let mut own = [[0; 16]; layout::OWN_MAX];
        for (to, from) in own.iter_mut().zip(&self.own) {
            *to = layout::mapped(*from);
        }
        Header {
            magic: layout::MAGIC,
            version: millrace_context::VERSION,
            loopback: u32::from(self.loopback),
            engine_pid: std::process::id(),
            routes_len: self.routes.len() as u32,
            own_len: self.own.len() as u32,
            own,
            mss: self.mss,
            geometry,
            routes,
            sleeping: std::array::from_fn(|_| layout::Line::default()),
        }
    }
}
