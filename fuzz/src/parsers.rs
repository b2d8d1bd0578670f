//! The parsers of frames, and of what is inside: whatever is read can be written and read again.

use millrace_wire::icmpv4::{self, Quoted};
use millrace_wire::tcp::{self, Segment};
use millrace_wire::{arp, ethernet, icmpv6, ipv4, ipv6, ndp, udp};

use crate::bytes::Bytes;

/// The first byte says which parser the rest is for.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let kind = bytes.u8();
    let rest = bytes.0;
    match kind % 8 {
        0 => frame(rest),
        1 => segment(rest),
        2 => datagram(rest),
        3 => {
            let _ = arp::Packet::parse(rest);
        }
        4 => {
            let _ = icmpv4::Message::parse(rest);
            let _ = Quoted::parse(rest);
        }
        5 => packet_v6(rest),
        6 => {
            let _ = udp::Datagram::parse(rest);
        }
        _ => frame(rest),
    }
}

fn frame(bytes: &[u8]) {
    let Ok((link, packet)) = ethernet::Header::parse(bytes) else {
        return;
    };
    assert!(packet.len() < bytes.len());
    match link.ethertype {
        ethernet::EtherType::IPV4 => datagram(packet),
        ethernet::EtherType::IPV6 => packet_v6(packet),
        ethernet::EtherType::ARP => {
            let _ = arp::Packet::parse(packet);
        }
        _ => {}
    }
}

fn datagram(bytes: &[u8]) {
    let Ok((header, options, payload)) = ipv4::Header::parse(bytes) else {
        return;
    };
    assert!(payload.len() + options.len() + ipv4::HEADER_LEN <= bytes.len());
    ipv4::is_source_routed(options);
    let mut out = [0; ipv4::HEADER_LEN];
    header.emit(&mut out);
    assert!(ipv4::verify(&out));
    match header.protocol {
        tcp::PROTOCOL => segment(payload),
        ipv4::PROTOCOL_ICMP => drop(icmpv4::Message::parse(payload)),
        _ => {}
    }
}

fn packet_v6(bytes: &[u8]) {
    let Ok((header, payload)) = ipv6::Header::parse(bytes) else {
        return;
    };
    assert!(payload.len() < bytes.len());
    match header.next_header {
        icmpv6::PROTOCOL => {
            let _ = icmpv6::Message::parse(payload);
            let _ = ndp::Message::parse(&header, payload);
        }
        tcp::PROTOCOL => segment(payload),
        _ => {}
    }
}

fn segment(bytes: &[u8]) {
    let Ok(segment) = Segment::parse(bytes) else {
        return;
    };
    let header = tcp::Header {
        src_port: segment.src_port,
        dst_port: segment.dst_port,
        seq: segment.seq,
        ack: segment.ack,
        flags: segment.flags,
        window: segment.window,
        urgent: segment.urgent,
        options: segment.options,
    };
    let mut out = [0; tcp::MAX_HEADER_LEN];
    let len = header.emit(&mut out);
    assert_eq!(len, header.header_len());
    let mut again = out[..len].to_vec();
    again.extend_from_slice(segment.payload);
    assert_eq!(Segment::parse(&again), Ok(segment));
}
