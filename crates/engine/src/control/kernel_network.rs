//! The kernel's addresses and routes, followed while the engine shares them. When they change, they
//! are read anew, and shards and programs are told.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_port::device;
use millrace_port::kernel::{self, Changes, Network};
use millrace_port::xdp::Held;

use crate::config::{self, ADDRESSES_MAX, Link, ROUTES_MAX, Route, Shared};
use crate::start::network::network_of;

/// How long changes are collected. They come in bursts.
const BURST: Duration = Duration::from_millis(50);

/// The kernel's addresses and routes on one device.
pub(crate) struct KernelNetwork {
    name: String,
    shared: Shared,
    /// First as configured, then as the kernel has it.
    link: Link,
    /// The addresses that were asked for, where not all are wanted.
    wanted: Vec<(IpAddr, u8)>,
    reserved_ports: Arc<Held>,
    changes: Changes,
    /// When addresses and routes are read next.
    due: Option<Instant>,
    /// The last problem that was printed. Each problem is printed once.
    said: Option<String>,
}

impl KernelNetwork {
    /// Follows changes from now on. The first update also finds what changed since the
    /// configuration was made.
    pub(crate) fn follow(
        name: &str,
        shared: Shared,
        link: &Link,
        reserved_ports: Arc<Held>,
    ) -> std::io::Result<KernelNetwork> {
        Ok(KernelNetwork {
            name: name.to_owned(),
            shared,
            link: link.clone(),
            wanted: link.addresses.clone(),
            reserved_ports,
            changes: Changes::listen()?,
            due: Some(Instant::now()),
            said: None,
        })
    }

    /// Readable when something has changed.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.changes.descriptor()
    }

    /// Notes that the descriptor is readable.
    pub(crate) fn changed(&mut self) {
        self.changes.take();
        self.due.get_or_insert_with(|| Instant::now() + BURST);
    }

    /// How long until the next update; none if nothing has changed.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.due
            .map(|due| due.saturating_duration_since(Instant::now()))
    }

    /// Reads addresses and routes, if it is time. Returns the link if they have changed.
    pub(crate) fn check(&mut self) -> Option<&Link> {
        self.due.take_if(|due| *due <= Instant::now())?;
        // A device that was deleted has no addresses. The link reports that.
        let network = device::index(&self.name).and_then(kernel::network).ok()?;
        let addresses = self.addresses(&network);
        let routes = self.routes(&network);
        if (&self.link.addresses, &self.link.routes) == (&addresses, &routes) {
            return None;
        }
        (self.link.addresses, self.link.routes) = (addresses, routes);
        Some(&self.link)
    }

    fn addresses(&mut self, network: &Network) -> Vec<(IpAddr, u8)> {
        let addresses = wanted(&network.addresses, &self.wanted, self.shared.addresses);
        let ips: Vec<IpAddr> = addresses.iter().map(|&(ip, _)| ip).collect();
        let held = match self.reserved_ports.share(&ips) {
            Ok(held) => held,
            Err(error) => {
                self.say(format!(
                    "cannot tell the XDP program of new addresses: {error}"
                ));
                return self.link.addresses.clone();
            }
        };
        if let Some(ip) = ips.iter().find(|ip| !held.contains(ip)) {
            self.say(format!(
                "{ip} is not shared: the kernel uses a port there that the engine has reserved at other addresses"
            ));
        }
        let addresses = addresses.into_iter();
        addresses.filter(|(ip, _)| held.contains(ip)).collect()
    }

    fn routes(&mut self, network: &Network) -> Vec<Route> {
        if !self.shared.routes {
            return self.link.routes.clone();
        }
        if network.routes.len() > ROUTES_MAX {
            self.say(format!(
                "the kernel has {} routes on {}, and an engine at most {ROUTES_MAX}: the engine keeps its earlier routes",
                network.routes.len(),
                self.name
            ));
            return self.link.routes.clone();
        }
        network.routes.clone()
    }

    fn say(&mut self, what: String) {
        if self.said.as_ref() != Some(&what) {
            eprintln!("millrace: {what}");
            self.said = Some(what);
        }
    }

    /// The addresses and routes, as shards are told them.
    pub(crate) fn network(&self) -> millrace_shard::Network {
        network_of(&self.link)
    }
}

/// The kernel's addresses that the engine uses: `all`, as far as there is room, or those that were
/// asked for.
fn wanted(there: &[(IpAddr, u8)], asked: &[(IpAddr, u8)], all: bool) -> Vec<(IpAddr, u8)> {
    if !all {
        let asked = asked.iter().copied();
        return asked.filter(|own| there.contains(own)).collect();
    }
    config::some_of_each_family(there, ADDRESSES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_as_far_as_there_is_room_or_those_that_were_asked_for() {
        let v4 = |last: u8| (IpAddr::from([10, 0, 0, last]), 24);
        let v6 = ("fd00::1".parse().unwrap(), 64);
        let mut there: Vec<_> = (1..=10).map(v4).collect();
        there.push(v6);
        let all = wanted(&there, &[], true);
        assert_eq!(all.len(), ADDRESSES_MAX + 1);
        assert_eq!((all[0], all[ADDRESSES_MAX]), (v4(1), v6));
        let other_prefix = (v4(3).0, 16);
        let asked = [v6, v4(2), v4(99), other_prefix];
        assert_eq!(wanted(&there, &asked, false), [v6, v4(2)]);
    }
}
