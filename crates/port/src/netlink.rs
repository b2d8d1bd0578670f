//! Requests to the kernel about network devices that no `ioctl` makes.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
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
