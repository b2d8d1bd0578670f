//! What the kernel has on a device: its addresses and its routes there, and when they change.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHop, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::Netlink;
use crate::spec::Route;

/// Changes of links, addresses and routes are told: `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`,
/// `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_IFADDR`, `RTNLGRP_IPV6_ROUTE`. A link that goes down takes
/// its routes with it without a word of each.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];

/// What the kernel has on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Its addresses and the lengths of their prefixes, those of IPv4 first, each family in the
    /// kernel's order. Those that mean something on this link alone, and those that it does not use
    /// (yet), are left out.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The routes of its main table by gateways on the device: of several to one prefix the one
    /// that it uses.
    pub routes: Vec<Route>,
}

/// What the kernel has on the device with this number ([`crate::device::index`]).
///
/// # Errors
/// What the kernel says.
pub fn network(device: u32) -> io::Result<Network> {
    let netlink = Netlink::open()?;
    let mut found = Network::default();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = AddressMessage::default();
        message.header.family = family;
        netlink.dump(RouteNetlinkMessage::GetAddress(message), |message| {
            if let RouteNetlinkMessage::NewAddress(address) = message
                && address.header.index == device
            {
                found.addresses.extend(usable(&address));
            }
        })?;
        let mut ways = Vec::new();
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        netlink.dump(RouteNetlinkMessage::GetRoute(message), |message| {
            if let RouteNetlinkMessage::NewRoute(route) = message {
                ways.extend(by_gateway(&route, device));
            }
        })?;
        // The least metric counts; of equals the first.
        ways.sort_by_key(|&(metric, _)| metric);
        for (_, way) in ways {
            let same =
                |known: &Route| (known.prefix, known.prefix_len) == (way.prefix, way.prefix_len);
            if !found.routes.iter().any(same) {
                found.routes.push(way);
            }
        }
    }
    Ok(found)
}

/// The address of a message and the length of its prefix, if it is one to speak from to others than
/// neighbours.
fn usable(message: &AddressMessage) -> Option<(IpAddr, u8)> {
    let unsettled = AddressFlags::Tentative | AddressFlags::Dadfailed;
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    let (mut local, mut remote) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => remote = Some(*address),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let address = local.or(remote)?;
    let is_link_local = match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let is_usable = !is_link_local && !flags.intersects(unsettled);
    is_usable.then_some((address, message.header.prefix_len))
}

/// What a route of the main table leads to by a gateway on this device, and its metric.
fn by_gateway(route: &RouteMessage, device: u32) -> Option<(u32, Route)> {
    let (mut to, mut gateway, mut on, mut metric) = (None, None, 0, 0);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(prefix) => to = ip(prefix),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Oif(index) => on = *index,
            RouteAttribute::Priority(number) => metric = *number,
            // Of several neighbours the first that is on this device.
            RouteAttribute::MultiPath(hops) => {
                if let Some(hop) = hops.iter().find(|hop| hop.interface_index == device) {
                    (gateway, on) = (gateway_of(hop), device);
                }
            }
            _ => {}
        }
    }
    let unusable = RouteFlags::Dead | RouteFlags::Linkdown;
    let is_ours = on == device
        && route.header.table == RouteHeader::RT_TABLE_MAIN
        && route.header.kind == RouteType::Unicast
        && !route.header.flags.intersects(unusable);
    let gateway = gateway.filter(|_| is_ours)?;
    let found = Route {
        prefix: to.unwrap_or_else(|| unspecified(gateway)),
        prefix_len: route.header.destination_prefix_length,
        gateway,
    };
    (found.prefix.is_ipv4() == gateway.is_ipv4()).then_some((metric, found))
}

fn gateway_of(hop: &RouteNextHop) -> Option<IpAddr> {
    hop.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        _ => None,
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Tells that something has changed.
pub struct Changes(Netlink);

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Changes")
    }
}

impl Changes {
    /// Listens from now on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn listen() -> io::Result<Changes> {
        let netlink = Netlink::open()?;
        for group in GROUPS {
            netlink.0.add_membership(group)?;
        }
        netlink.0.set_non_blocking(true)?;
        Ok(Changes(netlink))
    }

    /// Readable when something has changed.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the socket, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.0.0.as_raw_fd()) }
    }

    /// Takes what was told, which is to be read anew anyway: also when there was so much of it that
    /// some was lost.
    pub fn take(&mut self) {
        let mut scrap = Vec::with_capacity(8192);
        loop {
            scrap.clear();
            match self.0.0.recv(&mut scrap, 0) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}
