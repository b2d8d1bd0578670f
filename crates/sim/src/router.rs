//! A router on the way: its next link may take only smaller datagrams (RFC 1191, RFC 8201), and it
//! may mark what meets congestion (RFC 3168).

use millrace_wire::ethernet::{EtherType, HEADER_LEN, Header};
use millrace_wire::icmpv4::{Message, unreachable};
use millrace_wire::{checksum, icmpv6, ipv4, ipv6};

/// How much of a datagram is quoted: its header and eight bytes (RFC 792).
const QUOTE: usize = ipv4::HEADER_LEN + 8;
/// As much as the least MTU takes (RFC 4443 2.4).
const QUOTE_V6: usize = 1280 - ipv6::HEADER_LEN - icmpv6::HEADER_LEN;

/// Whether the frame carries a datagram larger than `mtu`.
pub(crate) fn is_too_large(frame: &[u8], mtu: u16) -> bool {
    let ethertype = Header::parse(frame).map(|(header, _)| header.ethertype);
    matches!(ethertype, Ok(EtherType::IPV4 | EtherType::IPV6))
        && frame.len() > HEADER_LEN + usize::from(mtu)
}

/// The frame with which the router tells the sender of `frame` that it was larger than
/// `next_hop_mtu`; none for what must not be answered.
pub(crate) fn refuse(frame: &[u8], next_hop_mtu: u16) -> Option<Vec<u8>> {
    let (link, datagram) = Header::parse(frame).ok()?;
    if link.ethertype == EtherType::IPV6 {
        return refuse_v6(&link, datagram, next_hop_mtu);
    }
    let (header, _, _) = ipv4::Header::parse(datagram).ok()?;
    if header.protocol == ipv4::PROTOCOL_ICMP {
        return None;
    }
    let original = &datagram[..datagram.len().min(QUOTE)];
    let message = Message::Unreachable {
        code: unreachable::FRAGMENTATION_NEEDED,
        next_hop_mtu,
        original,
    };
    let mut bytes = vec![0; HEADER_LEN + ipv4::HEADER_LEN + message.encoded_len()];
    back(&link).emit(&mut bytes);
    let answer = ipv4::Header {
        dont_fragment: false,
        ..ipv4::Header::new(
            header.dst,
            header.src,
            ipv4::PROTOCOL_ICMP,
            message.encoded_len() as u16,
        )
    };
    answer.emit(&mut bytes[HEADER_LEN..]);
    message.emit(&mut bytes[HEADER_LEN + ipv4::HEADER_LEN..]);
    Some(bytes)
}

/// RFC 4443 3.2. The router answers in the name of the destination, since it has no address here.
fn refuse_v6(link: &Header, packet: &[u8], next_hop_mtu: u16) -> Option<Vec<u8>> {
    let (header, _) = ipv6::Header::parse(packet).ok()?;
    if header.next_header == icmpv6::PROTOCOL {
        return None;
    }
    let message = icmpv6::Message::PacketTooBig {
        mtu: next_hop_mtu.into(),
        original: &packet[..packet.len().min(QUOTE_V6)],
    };
    let mut bytes = vec![0; HEADER_LEN + ipv6::HEADER_LEN + message.encoded_len()];
    back(link).emit(&mut bytes);
    let answer = ipv6::Header {
        src: header.dst,
        dst: header.src,
        next_header: icmpv6::PROTOCOL,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        payload_len: message.encoded_len() as u16,
    };
    answer.emit(&mut bytes[HEADER_LEN..]);
    message.emit(
        header.dst,
        header.src,
        &mut bytes[HEADER_LEN + ipv6::HEADER_LEN..],
    );
    Some(bytes)
}

/// The way back to whom a frame came from.
fn back(link: &Header) -> Header {
    Header {
        dst: link.src,
        src: link.dst,
        ethertype: link.ethertype,
    }
}

/// Marks a packet as having met congestion, if it may be marked (RFC 3168 5); whether it was.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    const IP: usize = HEADER_LEN;
    let Some(&[first, second]) = frame.get(IP..IP + 2) else {
        return false;
    };
    // Where the two bits are in the second byte.
    let shift = match first >> 4 {
        4 => 0,
        6 => 4,
        _ => return false,
    };
    if !matches!(second >> shift & 3, 1 | 2) {
        return false;
    }
    let marked = second | 3 << shift;
    frame[IP + 1] = marked;
    if first >> 4 == 4
        && let Some(&[high, low]) = frame.get(IP + 10..IP + 12)
    {
        let checksum = checksum::update(
            u16::from_be_bytes([high, low]),
            checksum::Sum::of(&[first, second]),
            checksum::Sum::of(&[first, marked]),
        );
        frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
    }
    true
}

/// Whether the frame asks for a neighbour over IPv6, or answers (RFC 4861 4.3, 4.4).
pub(crate) fn is_discovery(frame: &[u8]) -> bool {
    const SOLICITATION: u8 = 135;
    const ADVERTISEMENT: u8 = 136;
    let at = |offset: usize| frame.get(HEADER_LEN + offset).copied();
    at(6) == Some(icmpv6::PROTOCOL)
        && matches!(at(ipv6::HEADER_LEN), Some(SOLICITATION | ADVERTISEMENT))
}
