//! Opens the link of an engine.

use std::io;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

use millrace_port::xdp::Held;
use millrace_port::{Port, macvtap, packet, spec, tap, xdp};
use millrace_wire::ethernet::Mac;
use millrace_wire::vlan::Tag;

use crate::config::{self, Config, Device, Shared};
use crate::start::error::{StartError, system};
use crate::start::network::addresses;

/// The link of an engine, with a port for each thread that owns one. An engine without a link has
/// no port.
pub(super) struct Link {
    pub(super) device: Option<String>,
    pub(super) ports: Vec<Box<dyn Port + Send>>,
    pub(super) mac: Mac,
    pub(super) mtu: u16,
    /// The ports that the engine has reserved, where it shares addresses with the kernel.
    pub(super) held: Option<Arc<Held>>,
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
                held: None,
            });
        };
        // Addresses of the kernel are valid, whatever their prefix.
        if shared(config).is_none() {
            for (address, len) in addresses::<Ipv4Addr>(link) {
                spec::Prefix::of_host(address, len)?;
            }
        }
        match &link.device {
            Device::Tap { name } => Link::tap(link, name.clone(), ports),
            Device::Packet { name } => Link::packet(link, name, ports),
            Device::Macvtap { name } => {
                untagged(link, name)?;
                let taps = macvtap::open(&macvtap::Config {
                    device: name.clone(),
                    queues: ports,
                    mac: None,
                })?;
                Ok(Link::of(name.clone(), link.mtu, taps))
            }
            Device::Xdp {
                name,
                queues,
                mode,
                busy_poll,
                shared,
            } => {
                untagged(link, name)?;
                Link::xdp(
                    link.mtu,
                    &xdp::Config {
                        device: name.clone(),
                        queues: *queues,
                        mode: word(mode, "there is no such mode of AF_XDP")?,
                        busy_poll: word(busy_poll, "there is no such way of busy polling")?,
                        ports,
                        mac: None,
                        shared: match shared {
                            Some(_) => link.addresses.iter().map(|&(ip, _)| ip).collect(),
                            None => Vec::new(),
                        },
                    },
                )
            }
        }
    }

    fn tap(link: &config::Link, name: Option<String>, ports: u16) -> Result<Link, StartError> {
        let taps = tap::open(&tap::Config {
            name,
            up: true,
            hosts: link.hosts.clone(),
            vlan: tag(link)?,
            mtu: link.mtu,
            queues: ports,
            ..tap::Config::default()
        })?;
        let first = taps.first().expect("at least one queue was asked for");
        Ok(Link::of(first.name().to_owned(), link.mtu, taps))
    }

    fn packet(link: &config::Link, name: &str, ports: u16) -> Result<Link, StartError> {
        let sockets = packet::open(&packet::Config {
            device: name.to_owned(),
            queues: ports,
            mac: None,
            vlan: tag(link)?,
        })?;
        Ok(Link::of(name.to_owned(), link.mtu, sockets))
    }

    fn xdp(mtu: u16, config: &xdp::Config) -> Result<Link, StartError> {
        let opened = xdp::open(config)?;
        for note in opened.notes {
            eprintln!("millrace: {note}");
        }
        let held = opened.held;
        let link = Link::of(config.device.clone(), mtu, opened.ports);
        Ok(Link { held, ..link })
    }

    /// The link of these ports. There must be at least one.
    fn of<P: Port + Send + 'static>(device: String, mtu: u16, ports: Vec<P>) -> Link {
        let capabilities = ports
            .first()
            .expect("at least one queue was asked for")
            .capabilities();
        if mtu > capabilities.mtu {
            let most = capabilities.mtu;
            eprintln!(
                "millrace: packets on {device} are of {most} bytes at most, its MTU, not of the {mtu} of --mtu; for these: `ip link set dev {device} mtu {mtu}`, and start the engine anew"
            );
        }
        let mtu = mtu.min(capabilities.mtu);
        Link {
            device: Some(device),
            mac: capabilities.mac,
            mtu,
            ports: ports
                .into_iter()
                .map(|port| Box::new(port) as Box<dyn Port + Send>)
                .collect(),
            held: None,
        }
    }
}

/// The device whose addresses the engine shares with the kernel, and what the engine follows there.
pub(super) fn shared(config: &Config) -> Option<(&str, Shared)> {
    match &config.link.as_ref()?.device {
        Device::Xdp { name, shared, .. } => Some((name, (*shared)?)),
        _ => None,
    }
}

/// The tag of the link's virtual LAN.
fn tag(link: &config::Link) -> Result<Option<Tag>, StartError> {
    let tag = |id| Tag::new(id).ok_or(StartError::Vlan(id));
    link.vlan.map(tag).transpose()
}

/// Parses a word of the configuration. The command line has checked it, but a configuration may be
/// made by other means.
fn word<T: FromStr>(text: &str, unknown: &'static str) -> Result<T, StartError> {
    let error = |_| system(unknown)(io::ErrorKind::InvalidInput.into());
    text.parse().map_err(error)
}

/// Refuses a virtual LAN on a link that sees no tags.
fn untagged(link: &config::Link, name: &str) -> Result<(), StartError> {
    match link.vlan {
        Some(_) => Err(StartError::NoTags(name.to_owned())),
        None => Ok(()),
    }
}
