//! Packets in fragments, of both families.

use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ndp::Message;
use millrace_wire::tcp::{Flags, Header, Options, Seq};
use millrace_wire::{checksum, icmpv4, icmpv6, ipv4, ipv6, tcp};

use crate::net::{A, ADDRESSES, ADDRESSES_V6, B, Flying, MACS, Net};
use crate::v6::{frame, header};

/// The fragments of an IPv4 packet from the client's side, in pieces of `size` bytes.
fn cut_v4(protocol: u8, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
    let count = payload.len().div_ceil(size);
    let one = |(index, piece): (usize, &[u8])| {
        let mut bytes = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
        ethernet::Header {
            dst: MACS[B],
            src: MACS[A],
            ethertype: EtherType::IPV4,
        }
        .emit(&mut bytes);
        ipv4::Header {
            src: ADDRESSES[A],
            dst: ADDRESSES[B],
            protocol,
            ttl: 64,
            tos: 0,
            id: 77,
            dont_fragment: false,
            more_fragments: index + 1 < count,
            fragment_offset: (index * size) as u16,
            payload_len: piece.len() as u16,
        }
        .emit(&mut bytes[ethernet::HEADER_LEN..]);
        bytes.extend_from_slice(piece);
        bytes
    };
    payload.chunks(size).enumerate().map(one).collect()
}

/// The same for IPv6.
fn cut_v6(protocol: u8, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
    let count = payload.len().div_ceil(size);
    let one = |(index, piece): (usize, &[u8])| {
        let place = (index * size) as u16 | u16::from(index + 1 < count);
        let [high, low] = place.to_be_bytes();
        let mut bytes = vec![protocol, 0, high, low, 0, 0, 0, 99];
        bytes.extend_from_slice(piece);
        let header = header(ADDRESSES_V6[A], ADDRESSES_V6[B], 44);
        frame(MACS[B], MACS[A], header, &bytes)
    };
    payload.chunks(size).enumerate().map(one).collect()
}

fn echo_v4(data: &[u8]) -> Vec<u8> {
    let message = icmpv4::Message::EchoRequest {
        id: 1,
        sequence: 2,
        data,
    };
    let mut bytes = vec![0; message.encoded_len()];
    message.emit(&mut bytes);
    bytes
}

fn echo_v6(data: &[u8]) -> Vec<u8> {
    let message = icmpv6::Message::EchoRequest {
        id: 1,
        sequence: 2,
        data,
    };
    let mut bytes = vec![0; message.encoded_len()];
    message.emit(ADDRESSES_V6[A], ADDRESSES_V6[B], &mut bytes);
    bytes
}

/// Both sides know each other's hardware addresses, over both families.
fn acquainted() -> Net {
    let mut net = Net::v6();
    net.pair_v6();
    net.connect(81);
    net.run(10_000);
    net
}

fn payload_v4(flying: &Flying) -> &[u8] {
    let (_, packet) = ethernet::Header::parse(&flying.bytes).unwrap();
    ipv4::Header::parse(packet).unwrap().2
}

#[test]
fn rfc791_3_2_an_echo_in_fragments_is_answered_whole() {
    let mut net = acquainted();
    let data: Vec<u8> = (0..1000).map(|i| i as u8).collect();
    let mut fragments = cut_v4(ipv4::PROTOCOL_ICMP, &echo_v4(&data), 304);
    fragments.rotate_left(2);
    let last = fragments.pop().unwrap();
    for fragment in &fragments {
        assert!(net.inject(B, fragment).is_empty());
    }
    let out = net.inject(B, &last);
    let answer = icmpv4::Message::parse(payload_v4(&out[0])).unwrap();
    assert!(matches!(answer, icmpv4::Message::EchoReply { data: back, .. } if back == data));
    assert_eq!(net.shards[B].counters().ip_reassembled, 1);
    assert_eq!(net.shards[B].usage().fragmented, 0);
}

#[test]
fn rfc8200_4_5_an_echo_in_fragments_is_answered_whole() {
    let mut net = acquainted();
    let data: Vec<u8> = (0..1000).map(|i| i as u8).collect();
    let mut fragments = cut_v6(icmpv6::PROTOCOL, &echo_v6(&data), 304);
    fragments.rotate_left(1);
    let last = fragments.pop().unwrap();
    for fragment in &fragments {
        assert!(net.inject(B, fragment).is_empty());
    }
    let out = net.inject(B, &last);
    let (_, bytes) = out[0].v6().unwrap();
    let answer = icmpv6::Message::parse(bytes).unwrap();
    assert!(matches!(answer, icmpv6::Message::EchoReply { data: back, .. } if back == data));
}

#[test]
fn rfc791_and_rfc8200_4_5_an_answer_larger_than_the_link_goes_in_fragments() {
    let mut net = acquainted();
    let data: Vec<u8> = (0..60_000).map(|i| (i * 7) as u8).collect();
    let fragments = [
        cut_v4(ipv4::PROTOCOL_ICMP, &echo_v4(&data), 1480),
        cut_v6(icmpv6::PROTOCOL, &echo_v6(&data), 1448),
    ];
    for fragments in fragments {
        let out: Vec<Flying> = fragments
            .iter()
            .flat_map(|fragment| net.inject(B, fragment))
            .collect();
        assert_eq!(out.len(), fragments.len());
        // The client's side puts them together, and finds that nothing of its own has asked.
        let before = *net.shards[A].counters();
        for flying in &out {
            assert!(flying.bytes.len() <= 1514);
            net.inject(A, &flying.bytes);
        }
        let after = net.shards[A].counters();
        assert_eq!(after.ip_reassembled, before.ip_reassembled + 1);
        assert_eq!(after.icmp_dropped, before.icmp_dropped + 1, "an echo reply");
    }
}

#[test]
fn rfc9293_a_connection_may_begin_in_fragments() {
    let mut net = acquainted();
    let mut syn = [0; tcp::MAX_HEADER_LEN];
    let options = Options {
        mss: Some(1000),
        window_scale: Some(2),
        sack_permitted: true,
        ..Options::default()
    };
    let len = Header {
        src_port: 40_000,
        dst_port: 80,
        seq: Seq(1),
        ack: Seq(0),
        flags: Flags::SYN,
        window: 1000,
        urgent: 0,
        options,
    }
    .emit(&mut syn);
    let [src, dst] = ADDRESSES_V6;
    let sum = checksum::pseudo_v6(src, dst, 6, len as u32) + checksum::Sum::of(&syn[..len]);
    syn[16..18].copy_from_slice(&sum.finish().to_be_bytes());
    let fragments = cut_v6(tcp::PROTOCOL, &syn[..len], 24);
    assert_eq!(fragments.len(), 2);
    assert!(net.inject(B, &fragments[0]).is_empty());
    assert_eq!(net.inject(B, &fragments[1]).len(), 1, "SYN-ACK");
}

#[test]
fn rfc1858_3_and_rfc3128_a_fragment_does_not_hide_or_change_flags() {
    let mut net = acquainted();
    let segment = [0x50; 40];
    let tiny = cut_v4(tcp::PROTOCOL, &segment, 8);
    for fragment in &tiny {
        assert!(net.inject(B, fragment).is_empty());
    }
    let counters = net.shards[B].counters();
    assert_eq!(
        counters.ip_fragments_condemned, 2,
        "the first and the second"
    );
    assert_eq!(counters.ip_reassembled, 0);
}

#[test]
fn rfc7112_5_a_first_fragment_reaches_to_the_upper_layer() {
    let mut net = acquainted();
    let fragments = cut_v6(tcp::PROTOCOL, &[0x50; 40], 16);
    let out = net.inject(B, &fragments[0]);
    let (_, bytes) = out[0].v6().unwrap();
    let answer = icmpv6::Message::parse(bytes).unwrap();
    let code = ipv6::parameter::INCOMPLETE_CHAIN;
    assert!(
        matches!(answer, icmpv6::Message::ParameterProblem { code: of, .. } if of == code),
        "{answer:?}"
    );
}

#[test]
fn rfc8200_4_5_lengths_that_cannot_be_right_are_pointed_at() {
    let mut net = acquainted();
    let problem = |net: &mut Net, place: u16, len: usize| {
        let [high, low] = place.to_be_bytes();
        let mut bytes = vec![17, 0, high, low, 0, 0, 0, 99];
        bytes.resize(8 + len, 0);
        let header = header(ADDRESSES_V6[A], ADDRESSES_V6[B], 44);
        let out = net.inject(B, &frame(MACS[B], MACS[A], header, &bytes));
        let (_, bytes) = out[0].v6().unwrap();
        match icmpv6::Message::parse(bytes).unwrap() {
            icmpv6::Message::ParameterProblem {
                code: 0, pointer, ..
            } => pointer,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(problem(&mut net, 1, 17), 4, "not a multiple of eight");
    assert_eq!(problem(&mut net, 0xfff8, 80), 42, "beyond 65,535 bytes");
}

#[test]
fn h1_rfc5722_3_overlapping_fragments_leave_nothing() {
    let mut net = acquainted();
    let good = cut_v6(icmpv6::PROTOCOL, &echo_v6(&[7; 600]), 200);
    let mut evil = good[1].clone();
    // Eight bytes earlier, and so over the end of the first.
    let at = ethernet::HEADER_LEN + ipv6::HEADER_LEN + 2;
    evil[at..at + 2].copy_from_slice(&(192u16 | 1).to_be_bytes());
    for fragment in [&good[0], &evil, &good[1], &good[2], &good[3]] {
        assert!(net.inject(B, fragment).is_empty());
    }
    assert_eq!(net.shards[B].counters().ip_fragments_condemned, 4);
    net.run(61_000_000);
    assert_eq!(net.shards[B].usage().fragmented, 0);
}

#[test]
fn rfc792_and_rfc8200_4_5_a_packet_whose_rest_does_not_come_is_reported() {
    let mut net = acquainted();
    let v4 = cut_v4(ipv4::PROTOCOL_ICMP, &echo_v4(&[7; 600]), 200);
    let v6 = cut_v6(icmpv6::PROTOCOL, &echo_v6(&[7; 600]), 200);
    net.inject(B, &v4[0]);
    net.inject(B, &v6[0]);
    net.log.clear();
    net.run(59_000_000);
    let exceeded = |net: &Net| {
        let mut codes = Vec::new();
        for (_, flying) in net.log.iter().filter(|(from, _)| *from == B) {
            let v6 = flying
                .v6()
                .and_then(|(_, bytes)| icmpv6::Message::parse(bytes).ok());
            if let Some(icmpv6::Message::TimeExceeded { code, .. }) = v6 {
                codes.push((6, code));
            }
            let (link, packet) = ethernet::Header::parse(&flying.bytes).unwrap();
            if link.ethertype == EtherType::IPV4
                && let Ok((ipv4::Header { protocol: 1, .. }, _, bytes)) =
                    ipv4::Header::parse(packet)
                && let Ok(icmpv4::Message::TimeExceeded { code, .. }) =
                    icmpv4::Message::parse(bytes)
            {
                codes.push((4, code));
            }
        }
        codes
    };
    assert_eq!(exceeded(&net), []);
    net.run(2_000_000);
    assert_eq!(exceeded(&net), [(4, 1), (6, 1)]);
    assert_eq!(net.shards[B].counters().ip_reassembly_timeouts, 2);
    // Without the first nobody could tell what it was about.
    net.inject(B, &v4[1]);
    net.inject(B, &v6[1]);
    net.log.clear();
    net.run(62_000_000);
    assert_eq!(exceeded(&net), []);
    assert_eq!(net.shards[B].counters().ip_reassembly_timeouts, 4);
}

#[test]
fn rfc6980_5_neighbour_discovery_in_fragments_is_not_believed() {
    let mut net = acquainted();
    let claim = Message::NeighbourAdvertisement {
        target: ADDRESSES_V6[A],
        link: Some(Mac([2, 9, 9, 9, 9, 9])),
        router: false,
        solicited: true,
        replaces: true,
    };
    let mut bytes = [0; 32];
    let len = claim.emit(ADDRESSES_V6[A], ADDRESSES_V6[B], &mut bytes);
    for size in [len, 24] {
        for fragment in cut_v6(icmpv6::PROTOCOL, &bytes[..len], size) {
            net.inject(B, &fragment);
        }
    }
    assert_eq!(net.shards[B].counters().nd_dropped, 2);
}
