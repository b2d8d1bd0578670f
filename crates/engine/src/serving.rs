//! What programs are told of the engine: which destinations are its own.

use millrace_context::layout::{self, Geometry, Header, Route};

use crate::config::Config;

/// What programs are told of the engine.
#[derive(Clone, Debug)]
pub struct Serving {
    loopback: bool,
    pub(crate) own_ip: u32,
    mss: u32,
    routes: Vec<Route>,
}

impl Serving {
    /// From the configuration; `mss` is the link's maximum segment size.
    pub fn new(config: &Config, mss: u32) -> Serving {
        let mut routes = Vec::new();
        if let Some(link) = &config.link {
            let ip = u32::from(link.address);
            let mask = u32::MAX
                .checked_shl(32 - u32::from(link.prefix_len))
                .unwrap_or(0);
            routes.push(Route {
                prefix: ip & mask,
                bits: u32::from(link.prefix_len),
            });
            if link.gateway.is_some() {
                routes.push(Route { prefix: 0, bits: 0 });
            }
        }
        Serving {
            loopback: config.loopback,
            own_ip: config.link.as_ref().map_or(0, |link| link.address.into()),
            mss,
            routes,
        }
    }

    pub(crate) fn header(&self, geometry: Geometry) -> Header {
        let mut routes = [Route::default(); layout::ROUTES_MAX];
        for (to, from) in routes.iter_mut().zip(&self.routes) {
            *to = *from;
        }
        Header {
            magic: layout::MAGIC,
            version: millrace_context::VERSION,
            loopback: u32::from(self.loopback),
            engine_pid: std::process::id(),
            routes_len: self.routes.len() as u32,
            own_ip: self.own_ip,
            mss: self.mss,
            geometry,
            routes,
            sleeping: std::array::from_fn(|_| layout::Line::default()),
        }
    }
}
