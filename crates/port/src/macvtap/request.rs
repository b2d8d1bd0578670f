//! The request to the kernel that makes a macvtap device.

use std::io;
use std::os::fd::RawFd;

use millrace_wire::ethernet::Mac;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoMacVtap, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVtapMode,
};

use crate::netlink::Netlink;

impl Netlink {
    /// Makes a macvtap device on top of the device `on`, with this number and address, in another
    /// namespace; up, and hearing every group.
    pub(super) fn add_macvtap(
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
