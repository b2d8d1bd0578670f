//! The kernel's table of neighbours, for a stack that has the kernel's address: ARP is the kernel's, and the stack asks the kernel.
//!
//! What the stack would ask the link by ARP is asked here; what the kernel knows, or finds out, or learns anew, comes back as the ARP reply that says so.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use millrace_wire::arp;
use millrace_wire::ethernet::{self, EtherType, Mac};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// `RTNLGRP_NEIGH`: what changes in the table is told.
const CHANGES: u32 = 3;
/// An answer of the kernel's is smaller.
const ANSWER_MAX: usize = 8192;

/// The length of a reply.
const REPLY_LEN: usize = ethernet::HEADER_LEN + arp::LEN;

/// The table of one device.
#[derive(Debug)]
pub(super) struct Neighbours {
    socket: Socket,
    device: u32,
    mac: Mac,
    own: Ipv4Addr,
    /// What is to be told.
    known: VecDeque<(Ipv4Addr, Mac)>,
    buffer: Vec<u8>,
}

impl Neighbours {
    pub(super) fn open(device: u32, mac: Mac, own: Ipv4Addr) -> io::Result<Neighbours> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.add_membership(CHANGES)?;
        socket.set_non_blocking(true)?;
        Ok(Neighbours {
            socket,
            device,
            mac,
            own,
            known: VecDeque::new(),
            buffer: Vec::with_capacity(ANSWER_MAX),
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the socket, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }

    /// What the stack sends by ARP. A question is put to the kernel; the rest is not the stack's to say.
    pub(super) fn sent(&mut self, frame: &[u8]) {
        let asked = ethernet::Header::parse(frame)
            .ok()
            .and_then(|(_, packet)| arp::Packet::parse(packet).ok())
            .filter(|packet| packet.operation == arp::Operation::REQUEST);
        let Some(asked) = asked else {
            return;
        };
        // First what it knows; then that somebody wants it, which makes it ask the link if it knows nothing, or nothing of late.
        let wanted = |flags| {
            let mut message = NeighbourMessage::default();
            message.header.family = AddressFamily::Inet;
            message.header.ifindex = self.device;
            message.header.flags = flags;
            let destination = NeighbourAddress::Inet(asked.target_ip);
            message.attributes = vec![NeighbourAttribute::Destination(destination)];
            message
        };
        let ask = RouteNetlinkMessage::GetNeighbour(wanted(NeighbourFlags::empty()));
        let want = RouteNetlinkMessage::NewNeighbour(wanted(NeighbourFlags::Use));
        // Were it to fail the stack would ask again, as after a loss.
        let _ = self.request(ask, NLM_F_REQUEST);
        let _ = self.request(want, NLM_F_REQUEST | NLM_F_CREATE);
    }

    fn request(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = flags;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// The next ARP reply for the stack; how long it is.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        while self.known.is_empty() {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0).ok()?;
            self.take_in();
        }
        let (ip, mac) = self.known.pop_front()?;
        let out = buffer.get_mut(..REPLY_LEN)?;
        ethernet::Header {
            dst: self.mac,
            src: mac,
            ethertype: EtherType::ARP,
        }
        .emit(out);
        arp::Packet {
            operation: arp::Operation::REPLY,
            sender_mac: mac,
            sender_ip: ip,
            target_mac: self.mac,
            target_ip: self.own,
        }
        .emit(&mut out[ethernet::HEADER_LEN..]);
        Some(REPLY_LEN)
    }

    /// What the kernel said, in one or several messages.
    fn take_in(&mut self) {
        let mut rest = &self.buffer[..];
        while let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
            let len = (message.header.length as usize).next_multiple_of(4);
            if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbour)) =
                message.payload
                && neighbour.header.ifindex == self.device
                && let Some(known) = address_of(&neighbour)
            {
                self.known.push_back(known);
            }
            match rest.get(len..) {
                Some(next) if len > 0 && !next.is_empty() => rest = next,
                _ => break,
            }
        }
    }
}

/// Whom an entry is about and where he is, if that is known.
fn address_of(neighbour: &NeighbourMessage) -> Option<(Ipv4Addr, Mac)> {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let is_known = matches!(
        neighbour.header.state,
        Reachable | Stale | Delay | Probe | Permanent | Noarp
    );
    let (mut ip, mut mac) = (None, None);
    for attribute in &neighbour.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => ip = Some(*address),
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = <[u8; 6]>::try_from(&bytes[..]).ok().map(Mac);
            }
            _ => {}
        }
    }
    ip.zip(mac).filter(|_| is_known)
}
