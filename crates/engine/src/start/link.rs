//! Opens the link of an engine.

use std::net::Ipv4Addr;
use std::sync::Arc;

use millrace_port::open::{self, Opened};
use millrace_port::xdp::Held;
use millrace_port::{Port, spec};
use millrace_wire::ethernet::Mac;

use crate::config::{Config, Shared};
use crate::start::error::StartError;
use crate::start::network::addresses;

/// The link of an engine, with a port for each thread that owns one. An engine without a link has
/// no port.
pub(super) struct Link {
    pub(super) device: Option<String>,
    pub(super) ports: Vec<Box<dyn Port + Send>>,
    pub(super) mac: Mac,
    pub(super) mtu: u16,
    /// The ports that the engine has reserved, where it shares addresses with the kernel.
    pub(super) reserved_ports: Option<Arc<Held>>,
}

/// The largest IP packet of an engine without a link.
const LOOPBACK_MTU: u16 = u16::MAX;

impl Link {
    /// Opens the link with this many ports.
    pub(super) fn open(config: &Config, ports: u16) -> Result<Link, StartError> {
        let Some(link) = &config.link else {
            return Ok(Link {
                device: None,
                ports: Vec::new(),
                mac: Mac([2, 0, 0, 0, 0, 1]),
                mtu: LOOPBACK_MTU,
                reserved_ports: None,
            });
        };
        // Addresses of the kernel are valid, whatever their prefix.
        if shared(config).is_none() {
            for (address, len) in addresses::<Ipv4Addr>(link) {
                spec::Prefix::of_host(address, len)?;
            }
        }
        if !link.device.has_frames() {
            return Err(StartError::NoFrames(link.device.clone()));
        }
        let mut options = open::Options::new().queues(ports).mtu(link.mtu);
        options.hosts = link.hosts.clone();
        options.vlan = link.vlan;
        if link.shared.is_some() {
            options.shared = link.addresses.iter().map(|&(ip, _)| ip).collect();
        }
        let opened = open::open(&link.device, &options)?;
        for note in &opened.notes {
            eprintln!("millrace: {note}");
        }
        Ok(Link::new(opened, link.mtu))
    }

    /// The link of these ports. There must be at least one.
    fn new(opened: Opened, mtu: u16) -> Link {
        let (device, first) = (opened.name, &opened.ports[0]);
        let capabilities = first.capabilities();
        if mtu > capabilities.mtu {
            let most = capabilities.mtu;
            eprintln!(
                "millrace: packets on {device} are of {most} bytes at most, its MTU, not of the {mtu} of --mtu; for these: `ip link set dev {device} mtu {mtu}`, and start the engine anew"
            );
        }
        Link {
            device: Some(device),
            mac: capabilities.mac,
            mtu: mtu.min(capabilities.mtu),
            ports: opened.ports,
            reserved_ports: opened.held,
        }
    }
}

/// The device whose addresses the engine shares with the kernel, and what the engine follows there.
pub(super) fn shared(config: &Config) -> Option<(&str, Shared)> {
    let link = config.link.as_ref()?;
    Some((link.device.name()?, link.shared?))
}
