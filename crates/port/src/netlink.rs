//! Requests to the kernel about network devices that no `ioctl` makes.

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
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
