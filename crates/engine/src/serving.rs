//! What programs are told of the engine: which destinations are its own.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_context::layout::{self, Geometry, Header, Line, Route};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::config::Config;

/// What programs are told of the engine.
#[derive(Clone, Debug)]
pub struct Serving {
    loopback: bool,
    pub(crate) own: Vec<IpAddr>,
    mtu: u16,
    device_index: u32,
    routes: Vec<Route>,
    /// [`Header::default_router`], as the worker that keeps it last saw it.
    default_router: Arc<AtomicU32>,
}

impl Serving {
    /// From the configuration; `mtu` is the link's, `device_index` the kernel's number of its device, 0 for none.
    pub fn new(
        config: &Config,
        mtu: u16,
        device_index: u32,
        default_router: Arc<AtomicU32>,
    ) -> Serving {
        let (mut own, mut routes) = (Vec::new(), Vec::new());
        if let Some(link) = &config.link {
            own.extend(link.addresses.iter().map(|&(ip, _)| ip));
            let on_link = link.addresses.iter().copied();
            let beyond = link.routes.iter().map(|via| (via.prefix, via.prefix_len));
            routes.extend(on_link.chain(beyond).map(|(ip, bits)| Route::new(ip, bits)));
        }
        Serving {
            loopback: config.loopback,
            own,
            mtu,
            device_index,
            routes,
            default_router,
        }
    }

    /// The header of a region, while so many shards serve.
    pub(crate) fn header(&self, geometry: Geometry, shards: u16) -> Header {
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
            mss: u32::from(self.mtu) - 40,
            mtu: self.mtu.into(),
            device_index: self.device_index,
            geometry,
            routes,
            default_router: Line(AtomicU32::new(self.default_router.load(Ordering::Relaxed))),
            serving: Line(AtomicU32::new(shards.into())),
            sleeping: std::array::from_fn(|_| Line::default()),
        }
    }
}

/// The kernel's number of a device; 0 if it has none.
pub(crate) fn device_index(device: &str) -> u32 {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    socket
        .and_then(|socket| netdevice::name_to_index(&socket, device))
        .unwrap_or(0)
}
