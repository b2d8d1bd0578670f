//! What stands before a packet in its message. Numbers are in network byte order; offsets count
//! from the packet's first byte.
//!
//! ```text
//!  0  1  what the message is: 1 a packet, 2 an announcement
//!  1  1  0
//!  2  1  checksum: 0 complete, 1 to be finished, 2 verified
//!  3  1  how the packet was joined, as in a virtio-net header: 0 not, 1 TCP over IPv4, 4 TCP over
//!        IPv6; 0x80 more: CWR stands in the first segment only
//!  4  2  length of the headers
//!  6  2  payload bytes of each segment
//!  8  2  where the checksum starts
//! 10  2  where it is put, from there
//! 12     the packet
//! ```
//! An announcement has the number of addresses at 1, and from 4 on so many addresses of 16 bytes
//! each, IPv4 ones as in ::ffff:0:0/96.

use std::net::{IpAddr, Ipv6Addr};

use millrace_wire::vnet::{Flags, Gso, VnetHeader};

/// Bytes before a packet. An ACK with a timestamp is [`INLINE_MAX`](crate::INLINE_MAX) bytes with
/// it.
pub const LEN: usize = 12;
const PACKET: u8 = 1;
const ANNOUNCEMENT: u8 = 2;
/// Addresses in an announcement.
pub const ADDRESSES_MAX: usize = 32;
const ADDRESSES_AT: usize = 4;

/// A message between IP ports.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A packet, and what is known of it.
    Packet(VnetHeader, &'a [u8]),
    /// The addresses that the sender's node has.
    Announcement(Vec<IpAddr>),
}

/// The header of a packet that has `vnet`, with offsets from the packet's first byte.
pub fn emit(vnet: &VnetHeader) -> [u8; LEN] {
    let mut head = [0; LEN];
    (head[0], head[2], head[3]) = (PACKET, vnet.flags.bits() & 3, vnet.gso.0);
    for (at, word) in [
        (4, vnet.header_len),
        (6, vnet.gso_size),
        (8, vnet.csum_start),
        (10, vnet.csum_offset),
    ] {
        head[at..at + 2].copy_from_slice(&word.to_be_bytes());
    }
    head
}

/// The message that announces `addresses`: the first [`ADDRESSES_MAX`] of them.
pub fn announcement(addresses: &[IpAddr]) -> Vec<u8> {
    let addresses = &addresses[..addresses.len().min(ADDRESSES_MAX)];
    let mut bytes = vec![ANNOUNCEMENT, addresses.len() as u8, 0, 0];
    for address in addresses {
        let v6 = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => *address,
        };
        bytes.extend_from_slice(&v6.octets());
    }
    bytes
}

/// Takes a message apart; none if no IP module sends such a one. The sender may be anybody.
pub fn parse(bytes: &[u8]) -> Option<Message<'_>> {
    match *bytes.first()? {
        PACKET => {
            let (head, packet) = bytes.split_first_chunk::<LEN>()?;
            let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
            let vnet = VnetHeader {
                flags: Flags::from_bits(head[2])?,
                gso: Gso(head[3]),
                header_len: word(4),
                gso_size: word(6),
                csum_start: word(8),
                csum_offset: word(10),
            };
            (head[1] == 0 && is_sound(&vnet, packet)).then_some(Message::Packet(vnet, packet))
        }
        ANNOUNCEMENT => {
            let count = usize::from(*bytes.get(1)?);
            let (addresses, rest) = bytes.get(ADDRESSES_AT..)?.as_chunks::<16>();
            if count > ADDRESSES_MAX || addresses.len() != count || !rest.is_empty() {
                return None;
            }
            let canonical = |bytes: &[u8; 16]| Ipv6Addr::from(*bytes).to_canonical();
            Some(Message::Announcement(
                addresses.iter().map(canonical).collect(),
            ))
        }
        _ => None,
    }
}

/// Whether the packet is IP, whole, and what is to be finished in it is inside of it.
fn is_sound(vnet: &VnetHeader, packet: &[u8]) -> bool {
    let field = usize::from(vnet.csum_start) + usize::from(vnet.csum_offset) + 2;
    let needs_checksum = vnet.flags.contains(Flags::NEEDS_CSUM);
    let is_joined = vnet.gso != Gso::NONE;
    let version = packet.first().map(|byte| byte >> 4);
    let is_ip = match version {
        Some(4) => packet.len() >= 20 && be16(packet, 2) == packet.len(),
        Some(6) => packet.len() >= 40 && be16(packet, 4) + 40 == packet.len(),
        _ => false,
    };
    is_ip
        && (!needs_checksum || field <= packet.len())
        && (!is_joined
            || (needs_checksum
                && vnet.gso.is_tcp()
                && vnet.gso_size > 0
                && usize::from(vnet.header_len) <= packet.len()))
}

fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

/// The address that a packet goes to, and the one that it comes from.
pub fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    fn at<const N: usize>(packet: &[u8], at: usize) -> Option<[u8; N]> {
        packet.get(at..)?.first_chunk::<N>().copied()
    }
    Some(match packet.first()? >> 4 {
        4 => (at::<4>(packet, 16)?.into(), at::<4>(packet, 12)?.into()),
        6 => (at::<16>(packet, 24)?.into(), at::<16>(packet, 8)?.into()),
        _ => return None,
    })
}
