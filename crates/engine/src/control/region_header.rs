//! The header of a program's region: the destinations that the engine serves, and its limits.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_context::bypass::Bypasses;
use millrace_context::layout::{self, Geometry, Header, Line, Reach, Route};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::config::{self, Config};

/// What the header of each region says.
#[derive(Clone, Debug)]
pub struct RegionHeader {
    loopback: bool,
    pub(crate) own: Vec<IpAddr>,
    pub(crate) mtu: u16,
    device_index: u32,
    routes: Vec<Route>,
    /// The value of [`Header::default_router`], as the worker last wrote it.
    default_router: Arc<AtomicU32>,
}

impl RegionHeader {
    /// `mtu` is that of the link; `device_index` is the kernel's number of its device, 0 for none.
    pub fn new(
        config: &Config,
        mtu: u16,
        device_index: u32,
        default_router: Arc<AtomicU32>,
    ) -> RegionHeader {
        let mut serving = RegionHeader {
            loopback: config.loopback,
            own: Vec::new(),
            mtu,
            device_index,
            routes: Vec::new(),
            default_router,
        };
        if let Some(link) = &config.link {
            serving.renumber(&link.addresses, &link.routes);
        }
        serving
    }

    /// Replaces the addresses and routes of the link.
    pub(crate) fn renumber(&mut self, addresses: &[(IpAddr, u8)], routes: &[config::Route]) {
        self.own = addresses.iter().map(|&(ip, _)| ip).collect();
        let on_link = addresses.iter().copied();
        let beyond = routes.iter().map(|via| (via.prefix, via.prefix_len));
        let all = on_link.chain(beyond);
        self.routes = all.map(|(ip, bits)| Route::new(ip, bits)).collect();
    }

    /// Updates the header of a program that has been told other addresses.
    pub(crate) fn tell(&self, header: &Header) {
        header.reach.set(&self.own, &self.routes);
    }

    /// The header of a new region, while `shards` shards serve.
    pub(crate) fn header(&self, geometry: Geometry, shards: u16, quiet: bool) -> Header {
        Header {
            magic: layout::MAGIC,
            version: millrace_context::VERSION,
            loopback: u32::from(self.loopback),
            engine_pid: std::process::id(),
            mss: u32::from(self.mtu) - 40,
            mtu: self.mtu.into(),
            device_index: self.device_index,
            quiet: quiet.into(),
            geometry,
            reach: Reach::new(&self.own, &self.routes),
            default_router: Line(AtomicU32::new(self.default_router.load(Ordering::Relaxed))),
            serving: Line(AtomicU32::new(shards.into())),
            life: Line::default(),
            bypasses: Bypasses::default(),
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
