//! Requests to the kernel about network devices that no `ioctl` makes.

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use millrace_wire::ethernet::Mac;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoMacVtap, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVtapMode,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// `sizeof(struct nlmsghdr)`.
const HEADER_LEN: usize = 16;

/// A socket to the kernel's routing.
pub(crate) struct Netlink(pub(crate) Socket);

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

    /// Asks for all that there is of something, and shows each.
    pub(crate) fn dump(
        &self,
        message: RouteNetlinkMessage,
        mut show: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let mut end = None;
        while end.is_none() {
            let (answer, _) = self.0.recv_from_full()?;
            each(&answer, |payload| match payload {
                NetlinkPayload::Done(_) => end = Some(Ok(())),
                NetlinkPayload::Error(error) => end = Some(Err(error.to_io())),
                NetlinkPayload::InnerMessage(message) => show(message),
                _ => {}
            });
        }
        end.unwrap_or(Ok(()))
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

/// Shows each message that the kernel sent at once. One that makes no sense to us is passed over.
pub(crate) fn each(bytes: &[u8], mut show: impl FnMut(NetlinkPayload<RouteNetlinkMessage>)) {
    let mut rest = bytes;
    while let Some((head, _)) = rest.split_first_chunk::<4>() {
        let len = u32::from_ne_bytes(*head) as usize;
        let Some(message) = rest.get(..len).filter(|_| len >= HEADER_LEN) else {
            return;
        };
        if let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) {
            show(message.payload);
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
}
