//! Requests to the kernel about network devices that no `ioctl` makes.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;

use millrace_wire::ethernet::Mac;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoMacVtap, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVtapMode,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// A socket to the kernel's routing.
pub(crate) struct Netlink(Socket);

impl Netlink {
    pub(crate) fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink(socket))
    }

    /// Adds an address with the bits of its prefix to the device with this index. Nobody but the stack is at its other end, so the kernel need not
    /// look for duplicates: that would take seconds in which its address is of no use.
    pub(crate) fn add_address(&self, device: u32, ip: IpAddr, bits: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = match ip {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        message.header.prefix_len = bits;
        message.header.index = device;
        message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
        if ip.is_ipv6() {
            let flags = AddressFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(flags));
        }
        self.create(RouteNetlinkMessage::NewAddress(message))
    }

    /// Makes a macvtap device on top of the device `on`, with this number and address, in another namespace; up, and hearing every group.
    pub(crate) fn add_macvtap(
        &self,
        on: u32,
        index: u32,
        namespace: RawFd,
        mac: Mac,
    ) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up | LinkFlags::Allmulti;
        message.header.change_mask = message.header.flags;
        message.attributes = vec![
            LinkAttribute::Link(on),
            LinkAttribute::NetNsFd(namespace),
            LinkAttribute::Address(mac.0.to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::MacVtap),
                // Others on the same device are reached, too.
                LinkInfo::Data(InfoData::MacVtap(vec![InfoMacVtap::Mode(
                    MacVtapMode::Bridge,
                )])),
            ]),
        ];
        self.create(RouteNetlinkMessage::NewLink(message))
    }

    /// The IPv4 routes of the main table by gateways on the device with this index: prefix, its bits, gateway.
    pub(crate) fn routes(&self, device: u32) -> io::Result<Vec<(Ipv4Addr, u8, Ipv4Addr)>> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(message));
        request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let mut routes = Vec::new();
        loop {
            let (answer, _) = self.0.recv_from_full()?;
            let mut rest = &answer[..];
            while !rest.is_empty() {
                let message =
                    NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(|error| {
                        io::Error::new(io::ErrorKind::InvalidData, error.to_string())
                    })?;
                let len = (message.header.length as usize).next_multiple_of(4);
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(routes),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                        routes.extend(by_gateway(&route, device));
                    }
                    _ => {}
                }
                rest = rest.get(len..).unwrap_or_default();
            }
        }
    }

    /// Asks for something new, and waits for the kernel's word.
    fn create(&self, message: RouteNetlinkMessage) -> io::Result<()> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let (answer, _) = self.0.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        match answer.payload {
            NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
            _ => Ok(()),
        }
    }
}

/// What a route of the main table leads to by a gateway on this device.
fn by_gateway(route: &RouteMessage, device: u32) -> Option<(Ipv4Addr, u8, Ipv4Addr)> {
    let (mut to, mut gateway, mut on) = (Ipv4Addr::UNSPECIFIED, None, 0);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(prefix)) => to = *prefix,
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => gateway = Some(*address),
            RouteAttribute::Oif(index) => on = *index,
            _ => {}
        }
    }
    let is_ours = on == device && route.header.table == RouteHeader::RT_TABLE_MAIN;
    let gateway = gateway.filter(|_| is_ours)?;
    Some((to, route.header.destination_prefix_length, gateway))
}
