//! IPv6, its extension headers, ICMPv6 and neighbour discovery, by the sections of their RFCs.

use std::net::Ipv6Addr;

use etherparse::{Icmpv6Type, PacketBuilder};
use millrace_wire::ethernet::Mac;
use millrace_wire::ipv6::{self, Content, Fragment, Header, Problem, parameter, walk};
use millrace_wire::ndp::{self, Message};
use millrace_wire::{Error, checksum, icmpv6, mld, tcp, udp};

const A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xa);
const B: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x12, 0x3456);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);

fn header(next_header: u8, payload_len: usize) -> Header {
    Header {
        src: A,
        dst: B,
        next_header,
        hop_limit: ndp::HOP_LIMIT,
        traffic_class: 0xb9,
        flow_label: 0x12345,
        payload_len: payload_len as u16,
    }
}

fn packet(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ipv6::HEADER_LEN];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn walked(next_header: u8, payload: &[u8]) -> Result<Content<'_>, Problem> {
    walk(&header(next_header, payload.len()), payload)
}

fn problem(code: u8, pointer: u32, to_groups: bool) -> Problem {
    Problem::Parameter {
        code,
        pointer,
        to_groups,
    }
}

#[test]
fn rfc8200_3_the_fixed_header() {
    let bytes = packet(&header(tcp::PROTOCOL, 3), &[1, 2, 3]);
    assert_eq!(&bytes[..8], [0x6b, 0x91, 0x23, 0x45, 0, 3, 6, 255]);
    assert_eq!(Header::parse(&bytes), Ok((header(6, 3), &[1, 2, 3][..])));
    let padded = [&bytes[..], &[0; 9]].concat();
    assert_eq!(Header::parse(&padded), Ok((header(6, 3), &[1, 2, 3][..])));
    assert_eq!(Header::parse(&bytes[..42]), Err(Error::Length));
    assert_eq!(Header::parse(&bytes[..39]), Err(Error::Truncated));
    let other = [&[0x45], &bytes[1..]].concat();
    assert_eq!(Header::parse(&other), Err(Error::Version));
}

#[test]
fn rfc8200_4_extension_headers_lead_to_the_payload() {
    let mut payload = vec![60, 0, 1, 4, 0, 0, 0, 0]; // Hop-by-hop: PadN.
    payload.extend([43, 1, 0x1e, 2, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]); // Destination: an unknown option that may be skipped, Pad1s.
    payload.extend([6, 0, 0, 0, 0, 0, 0, 0]); // Routing, no segments left.
    payload.extend([0xaa; 20]);
    let content = walked(0, &payload).expect("is sound");
    assert_eq!((content.protocol, content.protocol_at), (6, 40 + 24));
    assert_eq!((content.payload, content.fragment), (&[0xaa; 20][..], None));
}

#[test]
fn rfc8200_4_1_hop_by_hop_comes_first_or_not_at_all() {
    let payload = [0, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0];
    let wrong = problem(parameter::NEXT_HEADER, 40, false);
    assert_eq!(walked(60, &payload), Err(wrong));
}

#[test]
fn rfc8200_4_2_unknown_options_say_what_is_to_be_done() {
    let option = |kind: u8| [6, 0, 0, kind, 0, 0, 0, 0];
    assert!(walked(60, &option(0x3e)).is_ok());
    assert_eq!(walked(60, &option(0x7e)), Err(Problem::Discard));
    let unknown = |to_groups| problem(parameter::OPTION, 43, to_groups);
    assert_eq!(walked(60, &option(0xbe)), Err(unknown(true)));
    assert_eq!(walked(60, &option(0xfe)), Err(unknown(false)));
}

#[test]
fn rfc5095_a_routing_header_that_wants_more_is_refused() {
    for kind in [0, 2, 4, 200] {
        let payload = [6, 0, kind, 1, 0, 0, 0, 0];
        let wrong = problem(parameter::FIELD, 42, false);
        assert_eq!(walked(43, &payload), Err(wrong));
    }
}

#[test]
fn rfc8504_5_3_the_walk_is_bounded() {
    let chain = |headers: usize| {
        let mut payload = [60, 0, 1, 4, 0, 0, 0, 0].repeat(headers);
        payload[(headers - 1) * 8] = 6;
        payload
    };
    assert!(walked(60, &chain(8)).is_ok());
    assert_eq!(walked(60, &chain(9)), Err(Problem::Discard));
    assert_eq!(walked(60, &chain(180)), Err(Problem::Discard));
    let mut many = vec![6, 2];
    many.extend([0x3e, 0].repeat(9));
    many.extend([1, 2, 0, 0]);
    assert_eq!(walked(60, &many), Err(Problem::Discard));
    // Past the end.
    assert_eq!(walked(60, &[6, 1, 1, 4, 0, 0, 0, 0]), Err(Problem::Discard));
    assert_eq!(walked(60, &[6, 0, 9, 5, 0, 0, 0, 0]), Err(Problem::Discard));
    assert_eq!(walked(44, &[6, 0, 0, 0, 0, 0, 0]), Err(Problem::Discard));
    assert_eq!(walked(0, &[]), Err(Problem::Discard));
    assert_eq!(
        walked(59, &[1, 2, 3]),
        Err(Problem::Discard),
        "no next header"
    );
}

#[test]
fn rfc8200_4_5_a_fragment_is_not_looked_into() {
    let payload = [60, 0, 0x12, 0x39, 0, 1, 2, 3, 9, 9];
    let content = walked(44, &payload).expect("is sound");
    let fragment = Fragment {
        id: 0x10203,
        offset: 0x1238,
        more: true,
    };
    assert_eq!(content.fragment, Some(fragment));
    assert_eq!((content.protocol, content.payload), (60, &[9, 9][..]));
    let mut written = [0; Fragment::LEN];
    fragment.emit(60, &mut written);
    assert_eq!(written, payload[..8]);
}

#[test]
fn h6_rfc6946_an_atomic_fragment_is_a_whole_packet() {
    let payload = [60, 0, 0, 0, 0, 1, 2, 3, 6, 0, 1, 4, 0, 0, 0, 0, 0xaa];
    let content = walked(44, &payload).expect("is sound");
    assert!(
        content
            .fragment
            .is_some_and(|fragment| fragment.is_atomic())
    );
    assert_eq!((content.protocol, content.payload), (6, &[0xaa][..]));
    let twice = [44, 0, 0, 0, 0, 1, 2, 3, 6, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(walked(44, &twice), Err(Problem::Discard));
}

#[test]
fn rfc8200_8_1_checksums_are_those_of_etherparse() {
    for len in [0, 1, 7, 100, 1400] {
        let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let builder = || PacketBuilder::ipv6(A.octets(), B.octets(), 64);
        let mut packets = [Vec::new(), Vec::new(), Vec::new()];
        let [tcp_packet, udp_packet, icmp_packet] = &mut packets;
        builder()
            .tcp(1, 2, 3, 4)
            .write(tcp_packet, &payload)
            .unwrap();
        builder().udp(1, 2).write(udp_packet, &payload).unwrap();
        let echo = etherparse::IcmpEchoHeader { id: 5, seq: 6 };
        builder()
            .icmpv6(Icmpv6Type::EchoRequest(echo))
            .write(icmp_packet, &payload)
            .unwrap();
        for (bytes, protocol) in packets.iter().zip([tcp::PROTOCOL, udp::PROTOCOL, 58]) {
            let (header, rest) = Header::parse(bytes).unwrap();
            let content = walk(&header, rest).unwrap();
            assert_eq!(content.protocol, protocol);
            assert!(checksum::verify_v6(A, B, protocol, content.payload));
            assert!(!checksum::verify_v6(A, A, protocol, content.payload));
        }
        let (_, message) = Header::parse(&packets[2]).unwrap();
        let ours = icmpv6::Message::EchoRequest {
            id: 5,
            sequence: 6,
            data: &payload,
        };
        let mut out = vec![0; ours.encoded_len()];
        ours.emit(A, B, &mut out);
        assert_eq!(out, message);
    }
}

#[test]
fn rfc4291_2_derived_addresses() {
    let solicited = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff12, 0x3456);
    assert_eq!(ipv6::solicited_node(B), solicited);
    assert_eq!(
        Mac::of_group(solicited),
        Mac([0x33, 0x33, 0xff, 0x12, 0x34, 0x56])
    );
    let mac = Mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
    let link_local: Ipv6Addr = "fe80::3656:78ff:fe9a:bcde".parse().unwrap();
    assert_eq!(ipv6::link_local(mac), link_local);
}

/// A message as it would arrive: with this header changed, and these bytes.
fn heard(bytes: &[u8], change: impl FnOnce(&mut Header)) -> Result<Message, Error> {
    let mut header = header(icmpv6::PROTOCOL, bytes.len());
    change(&mut header);
    Message::parse(&header, bytes)
}

fn written(message: &Message) -> Vec<u8> {
    let mut bytes = vec![0; ndp::LEN_MAX];
    let len = message.emit(A, B, &mut bytes);
    bytes.truncate(len);
    bytes
}

#[test]
fn rfc4861_7_1_1_a_solicitation_is_checked() {
    let message = Message::NeighbourSolicitation {
        target: B,
        source: Some(MAC),
    };
    let bytes = written(&message);
    assert_eq!(heard(&bytes, |_| {}), Ok(message));
    for hop_limit in [0, 1, 64, 254] {
        assert!(heard(&bytes, |header| header.hop_limit = hop_limit).is_err());
    }
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        heard(&bytes, |_| {})
    };
    assert_eq!(with(1, 1), Err(Error::Version), "code");
    assert_eq!(with(8, 0xff), Err(Error::Version), "a group as target");
    assert_eq!(with(25, 0), Err(Error::Length), "an option of length 0");
    assert_eq!(with(25, 2), Err(Error::Length), "an option past the end");
    for len in 0..24 {
        assert_eq!(heard(&bytes[..len], |_| {}), Err(Error::Truncated));
    }
    for len in 25..32 {
        assert_eq!(heard(&bytes[..len], |_| {}), Err(Error::Length));
    }
    // From nobody: to the solicited-node group, and without a link-layer address.
    let nobody = |header: &mut Header| header.src = Ipv6Addr::UNSPECIFIED;
    let group = |header: &mut Header| header.dst = ipv6::solicited_node(B);
    assert!(
        heard(&bytes, |header| {
            nobody(header);
            group(header);
        })
        .is_err()
    );
    let probe = written(&Message::NeighbourSolicitation {
        target: B,
        source: None,
    });
    assert!(heard(&probe, nobody).is_err());
    assert!(
        heard(&probe, |header| {
            nobody(header);
            group(header);
        })
        .is_ok()
    );
}

#[test]
fn rfc4861_7_1_2_an_advertisement_is_checked() {
    let message = Message::NeighbourAdvertisement {
        target: B,
        link: Some(MAC),
        router: false,
        solicited: true,
        replaces: true,
    };
    let bytes = written(&message);
    assert_eq!(heard(&bytes, |_| {}), Ok(message));
    assert!(heard(&bytes, |header| header.hop_limit = 254).is_err());
    assert!(heard(&bytes, |header| header.dst = ipv6::ALL_NODES).is_err());
    let mut group = bytes.clone();
    group[26] |= 1;
    let link = heard(&group, |_| {});
    assert!(
        matches!(link, Ok(Message::NeighbourAdvertisement { link: None, .. })),
        "a group is no station"
    );
}

#[test]
fn rfc4861_6_1_2_a_router_advertises_from_its_link_local_address() {
    let mut bytes = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([1, 1, 2, 0, 0, 0, 0, 7]);
    bytes.extend([5, 1, 0, 0, 0, 0, 5, 0xdc]);
    bytes.extend([0x63, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let router = ndp::Router {
        hop_limit: 64,
        lifetime_s: 1800,
        source: Some(MAC),
        mtu: Some(1500),
    };
    assert_eq!(
        heard(&bytes, |_| {}),
        Ok(Message::RouterAdvertisement(router))
    );
    assert!(heard(&bytes, |header| header.src = B).is_err());
    assert!(heard(&bytes, |header| header.hop_limit = 64).is_err());
    assert_eq!(heard(&bytes[..15], |_| {}), Err(Error::Truncated));
}

#[test]
fn rfc4861_6_1_1_a_host_without_address_tells_no_link_address() {
    let message = Message::RouterSolicitation { source: Some(MAC) };
    let bytes = written(&message);
    assert_eq!(heard(&bytes, |_| {}), Ok(message));
    let nobody = |header: &mut Header| header.src = Ipv6Addr::UNSPECIFIED;
    assert!(heard(&bytes, nobody).is_err());
}

#[test]
fn rfc4443_3_errors_quote_what_they_are_about() {
    let original = packet(&header(44, 48), &{
        let mut payload = vec![6, 0, 0, 1, 0, 0, 0, 9];
        payload.extend([0, 80, 0x9c, 0x40, 0, 0, 0, 5]);
        payload
    });
    let message = icmpv6::Message::PacketTooBig {
        mtu: 1280,
        original: &original,
    };
    let mut bytes = vec![0; message.encoded_len()];
    message.emit(A, B, &mut bytes);
    assert_eq!(icmpv6::Message::parse(&bytes), Ok(message));
    let quoted = icmpv6::Quoted::parse(&original).expect("ports are there");
    let tcp = quoted.tcp().expect("is TCP");
    assert_eq!((quoted.src, quoted.dst), (A, B));
    assert_eq!((tcp.src_port, tcp.dst_port, tcp.seq.0), (80, 40_000, 5));
    for len in 0..original.len() {
        assert!(icmpv6::Quoted::parse(&original[..len]).is_err(), "{len}");
    }
}

#[test]
fn rfc768_a_checksum_of_zero_is_sent_as_ones() {
    assert_eq!(udp::checksum_to_send(0), 0xffff);
    assert_eq!(udp::checksum_to_send(7), 7);
}

#[test]
fn rfc3810_5_1_a_query_comes_from_the_link() {
    let mut bytes = vec![0; 28];
    bytes[0] = mld::QUERY;
    let asked = |bytes: &[u8], hop_limit: u8| {
        let header = Header {
            hop_limit,
            ..header(icmpv6::PROTOCOL, bytes.len())
        };
        mld::Query::parse(&header, bytes)
    };
    for (code, within_ms) in [
        (0, 0),
        (10_000, 10_000),
        (0x7fff, 32_767),
        (0x8000, 32_768),
        (0xffff, 8_387_584),
    ] {
        bytes[4..6].copy_from_slice(&u16::to_be_bytes(code));
        let group = Ipv6Addr::UNSPECIFIED;
        assert_eq!(asked(&bytes, 1), Ok(mld::Query { group, within_ms }));
    }
    bytes[8..24].copy_from_slice(&ipv6::solicited_node(B).octets());
    assert_eq!(
        asked(&bytes, 1).map(|query| query.group),
        Ok(ipv6::solicited_node(B))
    );
    assert_eq!(asked(&bytes, 2), Err(Error::Version));
    assert_eq!(asked(&bytes[..23], 1), Err(Error::Truncated));
}

#[test]
fn rfc3810_5_2_a_report_has_a_router_alert_and_a_record_for_each_group() {
    let groups = [ipv6::solicited_node(A), ipv6::solicited_node(B)];
    let mut bytes = vec![0xff; 100];
    let len = mld::emit_report(A, &groups, mld::Mode::Listen, &mut bytes);
    assert_eq!(len, mld::report_len(2));
    let header = Header {
        dst: mld::REPORT_GROUP,
        ..header(ipv6::HOP_BY_HOP, len)
    };
    let content = walk(&header, &bytes[..len]).expect("is sound");
    assert_eq!(content.protocol, icmpv6::PROTOCOL);
    assert!(icmpv6::verify(A, mld::REPORT_GROUP, content.payload));
    assert_eq!(content.payload[..2], [143, 0]);
    assert_eq!(content.payload[4..12], [0, 0, 0, 2, 2, 0, 0, 0]);
    assert_eq!(content.payload[12..28], groups[0].octets());
}
