//! The kernel's table of neighbours, for a stack that has the kernel's addresses: ARP and neighbour
//! discovery are the kernel's, and the stack asks the kernel.
//!
//! What the stack would ask the link is asked here; what the kernel knows, or finds out, or learns
//! anew, comes back as the reply of ARP, or the advertisement of a neighbour, that says so.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::{arp, icmpv6, ipv6, ndp};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::{Netlink, each};

/// `RTNLGRP_NEIGH`: what changes in the table is told.
const CHANGES: u32 = 3;
/// An answer of the kernel's is smaller.
const ANSWER_MAX: usize = 8192;
/// Where an ICMPv6 message says of what type it is.
const TYPE_AT: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
/// The largest answer.
const FRAME_MAX: usize = TYPE_AT + ndp::LEN_MAX;

/// The table of one device.
pub(super) struct Neighbours {
    netlink: Netlink,
    device: u32,
    mac: Mac,
    /// Addresses that were asked for last: answers go there.
    asker_v4: Ipv4Addr,
    asker_v6: Ipv6Addr,
    /// What is to be told.
    known: VecDeque<(IpAddr, Mac)>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let neighbours = &mut f.debug_struct("Neighbours");
        neighbours
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// Whether a frame of the stack's is the kernel's business: ARP and neighbour discovery.
#[inline]
pub(super) fn concerns(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x06]) => true,
        Some([0x86, 0xdd]) => {
            frame.get(20) == Some(&icmpv6::PROTOCOL)
                && frame.get(TYPE_AT).is_some_and(|&kind| ndp::is_ndp(kind))
        }
        _ => false,
    }
}

impl Neighbours {
    pub(super) fn open(device: u32, mac: Mac) -> io::Result<Neighbours> {
        let netlink = Netlink::open()?;
        netlink.0.add_membership(CHANGES)?;
        netlink.0.set_non_blocking(true)?;
        Ok(Neighbours {
            netlink,
            device,
            mac,
            asker_v4: Ipv4Addr::UNSPECIFIED,
            asker_v6: Ipv6Addr::UNSPECIFIED,
            known: VecDeque::new(),
            buffer: Vec::with_capacity(ANSWER_MAX),
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the socket, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.netlink.0.as_raw_fd()) }
    }

    /// What the stack sends of that. A question is put to the kernel; the rest is not the stack's
    /// to say.
    pub(super) fn sent(&mut self, frame: &[u8]) {
        let Some((target, asker)) = question(frame) else {
            return;
        };
        match asker {
            IpAddr::V4(asker) => self.asker_v4 = asker,
            IpAddr::V6(asker) => self.asker_v6 = asker,
        }
        // First what it knows; then that somebody wants it, which makes it ask the link if it knows
        // nothing, or nothing of late.
        let wanted = |flags| {
            let mut message = NeighbourMessage::default();
            let (family, destination) = match target {
                IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
                IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
            };
            message.header.family = family;
            message.header.ifindex = self.device;
            message.header.flags = flags;
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
        self.netlink.0.send(&bytes, 0).map(drop)
    }

    /// The next answer for the stack; how long it is.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        while self.known.is_empty() {
            self.buffer.clear();
            self.netlink.0.recv(&mut self.buffer, 0).ok()?;
            self.take_in();
        }
        let (ip, mac) = self.known.pop_front()?;
        let out = buffer.get_mut(..FRAME_MAX)?;
        Some(match ip {
            IpAddr::V4(ip) => self.reply(ip, mac, out),
            IpAddr::V6(ip) => self.advertisement(ip, mac, out),
        })
    }

    fn link(&self, from: Mac, ethertype: EtherType, out: &mut [u8]) {
        let (dst, src) = (self.mac, from);
        ethernet::Header {
            dst,
            src,
            ethertype,
        }
        .emit(out);
    }

    fn reply(&self, ip: Ipv4Addr, mac: Mac, out: &mut [u8]) -> usize {
        self.link(mac, EtherType::ARP, out);
        arp::Packet {
            operation: arp::Operation::REPLY,
            sender_mac: mac,
            sender_ip: ip,
            target_mac: self.mac,
            target_ip: self.asker_v4,
        }
        .emit(&mut out[ethernet::HEADER_LEN..]);
        ethernet::HEADER_LEN + arp::LEN
    }

    fn advertisement(&self, ip: Ipv6Addr, mac: Mac, out: &mut [u8]) -> usize {
        self.link(mac, EtherType::IPV6, out);
        let (src, dst) = (ip, self.asker_v6);
        let message = ndp::Message::NeighbourAdvertisement {
            target: ip,
            link: Some(mac),
            router: false,
            solicited: true,
            replaces: true,
        };
        let len = message.emit(src, dst, &mut out[TYPE_AT..]);
        ipv6::Header {
            src,
            dst,
            next_header: icmpv6::PROTOCOL,
            hop_limit: ndp::HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
            payload_len: len as u16,
        }
        .emit(&mut out[ethernet::HEADER_LEN..]);
        TYPE_AT + len
    }

    /// What the kernel said, in one or several messages.
    fn take_in(&mut self) {
        each(&self.buffer, |payload| {
            if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbour)) =
                payload
                && neighbour.header.ifindex == self.device
                && let Some(known) = address_of(&neighbour)
            {
                self.known.push_back(known);
            }
        });
    }
}

/// Who is asked for in a frame, and by which address of the stack's.
fn question(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (link, packet) = ethernet::Header::parse(frame).ok()?;
    if link.ethertype == EtherType::ARP {
        let asked = arp::Packet::parse(packet).ok()?;
        let is_question = asked.operation == arp::Operation::REQUEST;
        return is_question.then_some((asked.target_ip.into(), asked.sender_ip.into()));
    }
    let (header, message) = ipv6::Header::parse(packet).ok()?;
    match ndp::Message::parse(&header, message).ok()? {
        ndp::Message::NeighbourSolicitation { target, .. } => {
            Some((target.into(), header.src.into()))
        }
        _ => None,
    }
}

/// Whom an entry is about and where he is, if that is known.
fn address_of(neighbour: &NeighbourMessage) -> Option<(IpAddr, Mac)> {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let is_known = matches!(
        neighbour.header.state,
        Reachable | Stale | Delay | Probe | Permanent | Noarp
    );
    let (mut ip, mut mac) = (None, None);
    for attribute in &neighbour.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
                ip = Some((*address).into());
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
                ip = Some((*address).into());
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = <[u8; 6]>::try_from(&bytes[..]).ok().map(Mac);
            }
            _ => {}
        }
    }
    ip.zip(mac).filter(|_| is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2);
    const OTHER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

    fn solicitation() -> Vec<u8> {
        let mut frame = vec![0; FRAME_MAX];
        let link = ethernet::Header {
            dst: Mac::BROADCAST,
            src: Mac([2; 6]),
            ethertype: EtherType::IPV6,
        };
        link.emit(&mut frame);
        let message = ndp::Message::NeighbourSolicitation {
            target: OTHER,
            source: Some(Mac([2; 6])),
        };
        let len = message.emit(OWN, OTHER, &mut frame[TYPE_AT..]);
        let header = ipv6::Header {
            src: OWN,
            dst: OTHER,
            next_header: icmpv6::PROTOCOL,
            hop_limit: ndp::HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
            payload_len: len as u16,
        };
        header.emit(&mut frame[ethernet::HEADER_LEN..]);
        frame.truncate(TYPE_AT + len);
        frame
    }

    #[test]
    fn a_solicitation_is_a_question_to_the_kernel() {
        let frame = solicitation();
        assert!(concerns(&frame));
        assert_eq!(question(&frame), Some((OTHER.into(), OWN.into())));
        for len in 0..frame.len() {
            assert_eq!(question(&frame[..len]), None);
        }
        // An echo is none.
        let mut echo = frame;
        echo[TYPE_AT] = 128;
        assert!(!concerns(&echo));
    }

    #[test]
    fn what_the_kernel_knows_comes_as_an_advertisement() {
        let mut neighbours = Neighbours::open(1, Mac([2; 6])).unwrap();
        neighbours.asker_v6 = OWN;
        let mut buffer = [0; 256];
        let len = neighbours.advertisement(OTHER, Mac([6; 6]), &mut buffer);
        let (link, packet) = ethernet::Header::parse(&buffer[..len]).unwrap();
        assert_eq!((link.src, link.dst), (Mac([6; 6]), Mac([2; 6])));
        let (header, message) = ipv6::Header::parse(packet).unwrap();
        assert!(icmpv6::verify(header.src, header.dst, message));
        let said = ndp::Message::NeighbourAdvertisement {
            target: OTHER,
            link: Some(Mac([6; 6])),
            router: false,
            solicited: true,
            replaces: true,
        };
        assert_eq!(ndp::Message::parse(&header, message), Ok(said));
    }
}
