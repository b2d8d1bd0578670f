//! IPv6: addresses, neighbours, routers, ICMPv6, and TCP over it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_shard::{Error, Ipv6, Opt, Options, Reuse, Via, ViewFlags, errno};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ndp::Message;
use millrace_wire::{checksum, icmpv6, ipv6, mld, ndp, tcp};

use crate::net::{A, ADDRESSES, ADDRESSES_V6, B, Flying, MACS, Net, OWNER, config, config_v6};

pub const STRANGER: Mac = Mac([2, 9, 9, 9, 9, 9]);

/// A frame with an IPv6 packet from a station.
pub fn frame(dst_mac: Mac, from: Mac, header: ipv6::Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN];
    ethernet::Header {
        dst: dst_mac,
        src: from,
        ethertype: EtherType::IPV6,
    }
    .emit(&mut bytes);
    ipv6::Header {
        payload_len: payload.len() as u16,
        ..header
    }
    .emit(&mut bytes[ethernet::HEADER_LEN..]);
    bytes.extend_from_slice(payload);
    bytes
}

pub fn header(src: Ipv6Addr, dst: Ipv6Addr, next_header: u8) -> ipv6::Header {
    ipv6::Header {
        src,
        dst,
        next_header,
        hop_limit: 255,
        traffic_class: 0,
        flow_label: 0,
        payload_len: 0,
    }
}

/// A message of neighbour discovery in a frame.
pub fn discovery(from: Mac, src: Ipv6Addr, dst: Ipv6Addr, message: &Message) -> Vec<u8> {
    let mut bytes = [0; ndp::LEN_MAX];
    let len = message.emit(src, dst, &mut bytes);
    let to = if dst.is_multicast() {
        Mac::of_group(dst)
    } else {
        MACS[B]
    };
    frame(to, from, header(src, dst, icmpv6::PROTOCOL), &bytes[..len])
}

/// A router advertisement in a frame, to the client's side.
pub fn advertisement(router: Ipv6Addr, mac: Mac, lifetime_s: u16) -> Vec<u8> {
    let mut bytes = vec![134, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    bytes[6..8].copy_from_slice(&lifetime_s.to_be_bytes());
    bytes.extend(mac.0);
    let sum = millrace_wire::checksum::pseudo_v6(router, ipv6::ALL_NODES, 58, bytes.len() as u32)
        + millrace_wire::checksum::Sum::of(&bytes);
    bytes[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let to = Mac::of_group(ipv6::ALL_NODES);
    frame(to, mac, header(router, ipv6::ALL_NODES, 58), &bytes)
}

fn icmp(flying: &Flying) -> icmpv6::Message<'_> {
    let (header, bytes) = flying.v6().expect("IPv6");
    assert!(icmpv6::verify(header.src, header.dst, bytes));
    icmpv6::Message::parse(bytes).expect("ICMPv6")
}

fn solicitations(net: &Net, side: usize, of: Ipv6Addr) -> Vec<ipv6::Header> {
    let is_one = |(from, flying): &(usize, Flying)| match flying.ndp() {
        Some((header, Message::NeighbourSolicitation { target, .. })) => {
            (*from == side && target == of).then_some(header)
        }
        _ => None,
    };
    net.log.iter().filter_map(is_one).collect()
}

#[test]
fn rfc4862_5_4_an_address_is_looked_for_before_it_is_used() {
    let mut net = Net::with(config_v6(A), config(B));
    net.run(10_000);
    let [own, local] = [ADDRESSES_V6[A], ipv6::link_local(MACS[A])];
    for address in [own, local] {
        let probes = solicitations(&net, A, address);
        assert_eq!(probes.len(), 1);
        assert_eq!(probes[0].src, Ipv6Addr::UNSPECIFIED);
        assert_eq!(probes[0].dst, ipv6::solicited_node(address));
    }
    // Until then it neither answers nor speaks.
    assert!(net.shards[A].is_tentative());
    let ask = Message::NeighbourSolicitation {
        target: own,
        source: Some(STRANGER),
    };
    let ask = discovery(STRANGER, ADDRESSES_V6[B], ipv6::solicited_node(own), &ask);
    assert!(net.inject(A, &ask).is_empty());
    let now = net.now();
    let remote = SocketAddr::new(ADDRESSES_V6[B].into(), 80);
    let connected = net.shards[A].connect(OWNER, None, remote, &Options::default(), now);
    assert_eq!(connected, Err(Error::AddressNotAvailable));
    net.run(1_000_000);
    assert!(!net.shards[A].is_tentative());
    assert_eq!(net.inject(A, &ask).len(), 1);
}

#[test]
fn rfc4862_5_4_3_and_5_4_4_a_duplicate_is_not_used() {
    let own = ADDRESSES_V6[A];
    let probe = Message::NeighbourSolicitation {
        target: own,
        source: None,
    };
    let claim = Message::NeighbourAdvertisement {
        target: own,
        link: Some(STRANGER),
        router: false,
        solicited: false,
        replaces: true,
    };
    let frames = [
        discovery(
            STRANGER,
            Ipv6Addr::UNSPECIFIED,
            ipv6::solicited_node(own),
            &probe,
        ),
        discovery(STRANGER, own, ipv6::ALL_NODES, &claim),
    ];
    for (index, bytes) in frames.iter().enumerate() {
        let mut net = Net::with(config_v6(A), config(B));
        net.run(1_000);
        // The first is a packet from nobody; the second from our own address, which says the same.
        net.inject(A, bytes);
        net.run(2_000_000);
        if index == 0 {
            assert_eq!(net.shards[A].counters().duplicate_addresses, 1);
            let local = SocketAddr::new(own.into(), 80);
            let bound = net.shards[A].bind(OWNER, local, Reuse::default());
            assert_eq!(bound, Err(Error::AddressNotAvailable));
        }
    }
    // An advertisement from another address is the usual one.
    let mut net = Net::with(config_v6(A), config(B));
    net.run(1_000);
    net.inject(
        A,
        &discovery(
            STRANGER,
            "fe80::9".parse().unwrap(),
            ipv6::ALL_NODES,
            &claim,
        ),
    );
    assert_eq!(net.shards[A].counters().duplicate_addresses, 1);
    // What comes back to us ourselves is no duplicate.
    let mut net = Net::with(config_v6(A), config(B));
    net.run(1_000);
    let own_probe = discovery(
        MACS[A],
        Ipv6Addr::UNSPECIFIED,
        ipv6::solicited_node(own),
        &probe,
    );
    net.inject(A, &own_probe);
    assert_eq!(net.shards[A].counters().duplicate_addresses, 0);
}

#[test]
fn rfc4861_7_2_one_solicitation_teaches_both() {
    let mut net = Net::v6();
    let before = solicitations(&net, A, ADDRESSES_V6[B]).len();
    net.pair_v6();
    let asked = solicitations(&net, A, ADDRESSES_V6[B]);
    assert_eq!((before, asked.len()), (0, 1));
    assert_eq!(asked[0].src, ADDRESSES_V6[A]);
    assert_eq!(asked[0].dst, ipv6::solicited_node(ADDRESSES_V6[B]));
    let back = solicitations(&net, B, ADDRESSES_V6[A]);
    assert_eq!(back.len(), 0, "it learnt from the question");
}

#[test]
fn rfc8200_tcp_over_ipv6_carries_every_byte() {
    for offload in [false, true] {
        let mut net = Net::v6();
        if offload {
            net = net.with_offloads();
        }
        let (client, server, listener) = net.pair_v6();
        let view = net.view(B, server);
        assert_eq!(view.local, SocketAddr::new(ADDRESSES_V6[B].into(), 80));
        assert_eq!(view.remote.ip(), IpAddr::V6(ADDRESSES_V6[A]));
        net.transfer((A, client), (B, server), 300_000);
        net.transfer((B, server), (A, client), 300_000);
        for (side, id) in [(A, client), (B, server), (B, listener)] {
            net.close(side, id);
        }
        net.run(200_000_000);
        assert_eq!(net.shards[A].usage().sockets, 0);
        assert_eq!(net.shards[B].usage().sockets, 0);
    }
}

#[test]
fn rfc6437_3_a_connection_has_one_flow_label_each_way() {
    let mut net = Net::v6();
    let (client, server, _) = net.pair_v6();
    net.transfer((A, client), (B, server), 10_000);
    for side in [A, B] {
        let labels: std::collections::HashSet<u32> = net
            .log
            .iter()
            .filter(|(from, _)| *from == side)
            .filter_map(|(_, flying)| flying.v6())
            .filter(|(header, _)| header.next_header == tcp::PROTOCOL)
            .map(|(header, _)| header.flow_label)
            .collect();
        assert_eq!(labels.len(), 1, "{labels:x?}");
        assert!(!labels.contains(&0));
    }
}

#[test]
fn rfc3542_6_hop_limit_and_traffic_class_are_the_programs() {
    let mut net = Net::v6();
    let (client, _, _) = net.pair_v6();
    let now = net.now();
    for opt in [Opt::HopLimit(Some(3)), Opt::TrafficClass(0xbb)] {
        net.shards[A].set_option(client, opt, now).unwrap();
    }
    let refused = net.shards[A].set_option(client, Opt::Ttl(0), now);
    assert_eq!(refused, Err(Error::Invalid));
    net.log.clear();
    net.send(A, client, b"x");
    net.run(1_000);
    let (header, _) = net.log[0].1.v6().unwrap();
    assert_eq!((header.hop_limit, header.traffic_class), (3, 0xb8));
}

#[test]
fn rfc4861_7_3_3_a_silent_neighbour_is_asked_directly_then_given_up() {
    let mut net = Net::v6();
    let (client, _, _) = net.pair_v6();
    // Nothing comes back any more, so nothing confirms.
    net.hand = Box::new(|from, _| from == A);
    net.run(31_000_000);
    net.log.clear();
    net.send(A, client, b"x");
    net.run(4_000_000);
    assert_eq!(solicitations(&net, A, ADDRESSES_V6[B]).len(), 0, "DELAY");
    net.run(4_000_000);
    let asked = solicitations(&net, A, ADDRESSES_V6[B]);
    assert_eq!(asked.len(), 3, "PROBE");
    assert!(asked.iter().all(|header| header.dst == ADDRESSES_V6[B]));
    net.run(60_000_000);
    let asked = solicitations(&net, A, ADDRESSES_V6[B]);
    let all = ipv6::solicited_node(ADDRESSES_V6[B]);
    assert!(asked[3..].iter().all(|header| header.dst == all));
    assert!(asked.len() > 3, "asked again when wanted again");
}

/// An answer to no question is believed as an announcement is: what it says is asked about as soon
/// as it is used.
#[test]
fn rfc4861_7_2_5_an_answer_that_nobody_asked_for_does_not_keep_a_neighbour_away() {
    let mut net = Net::v6();
    let (client, server, _) = net.pair_v6();
    net.run(5_000_000);
    let forged = Message::NeighbourAdvertisement {
        target: ADDRESSES_V6[B],
        link: Some(STRANGER),
        router: false,
        solicited: true,
        replaces: true,
    };
    let forged = discovery(STRANGER, ADDRESSES_V6[B], ADDRESSES_V6[A], &forged);
    net.inject(A, &forged);
    net.send(A, client, b"found again");
    net.run(12_000_000);
    assert_eq!(net.recv(B, server), b"found again");
}

#[test]
fn rfc4861_7_3_1_progress_of_tcp_confirms_a_neighbour() {
    let mut net = Net::v6();
    let (client, server, _) = net.pair_v6();
    net.log.clear();
    for _ in 0..40 {
        net.send(A, client, b"ping");
        net.run(2_000_000);
        assert_eq!(net.recv(B, server), b"ping");
    }
    assert_eq!(solicitations(&net, A, ADDRESSES_V6[B]).len(), 0);
}

#[test]
fn rfc4861_7_2_2_a_neighbour_that_does_not_answer_fails_the_connect() {
    let mut net = Net::v6();
    let nobody = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x99);
    let id = net.connect_to(SocketAddr::new(nobody.into(), 80));
    net.run(2_900_000);
    assert_eq!(solicitations(&net, A, nobody).len(), 3);
    net.run(200_000);
    assert_eq!(net.shards[A].take_error(id), errno::EHOSTUNREACH);
}

#[test]
fn rfc4861_6_3_7_routers_are_asked_for_three_times() {
    let mut net = Net::v6();
    net.run(60_000_000);
    let asked = net
        .log
        .iter()
        .filter(|(from, flying)| {
            let message = flying.ndp();
            *from == A && matches!(message, Some((_, Message::RouterSolicitation { .. })))
        })
        .count();
    assert_eq!(asked, 3);
}

#[test]
fn rfc4861_6_3_4_the_default_router_is_who_advertises_until_it_expires() {
    let mut net = Net::v6();
    let router: Ipv6Addr = "fe80::1".parse().unwrap();
    let far = SocketAddr::new("2001:db8::80".parse().unwrap(), 80);
    let now = net.now();
    let connect = |net: &mut Net| net.shards[A].connect(OWNER, None, far, &Options::default(), now);
    assert_eq!(connect(&mut net), Err(Error::NetworkUnreachable));
    net.inject(A, &advertisement(router, STRANGER, 30));
    let id = connect(&mut net).expect("a route");
    net.log.clear();
    net.run(1_000);
    let link = ethernet::Header::parse(&net.log[0].1.bytes).unwrap().0;
    assert_eq!(link.dst, STRANGER, "to the router, without asking");
    net.close(A, id);
    net.run(31_000_000);
    assert_eq!(connect(&mut net), Err(Error::NetworkUnreachable));
    // Lifetime 0: no router any more.
    net.inject(A, &advertisement(router, STRANGER, 30));
    let id = connect(&mut net).expect("a route");
    net.close(A, id);
    net.inject(A, &advertisement(router, STRANGER, 0));
    assert_eq!(connect(&mut net), Err(Error::NetworkUnreachable));
}

#[test]
fn a_configured_gateway_goes_before_advertisements() {
    let mut with_gateway = config_v6(A);
    if let Some(settings) = &mut with_gateway.ipv6 {
        settings.routes = vec![Via {
            prefix: Ipv6Addr::UNSPECIFIED,
            prefix_len: 0,
            gateway: ADDRESSES_V6[B],
        }];
    }
    let mut net = Net::with(with_gateway, config_v6(B));
    net.run(20_000_000);
    let is_asking =
        |flying: &Flying| matches!(flying.ndp(), Some((_, Message::RouterSolicitation { .. })));
    assert!(
        !net.log
            .iter()
            .any(|(from, flying)| *from == A && is_asking(flying))
    );
    net.inject(
        A,
        &advertisement("fe80::1".parse().unwrap(), STRANGER, 1800),
    );
    net.connect_to(SocketAddr::new("2001:db8::80".parse().unwrap(), 80));
    net.run(1_000);
    assert_eq!(solicitations(&net, A, ADDRESSES_V6[B]).len(), 1);
}

/// An echo request from side A, in a frame to `to`.
fn ping(dst: Ipv6Addr, to: Mac) -> Vec<u8> {
    let message = icmpv6::Message::EchoRequest {
        id: 7,
        sequence: 8,
        data: b"are you there",
    };
    let mut bytes = vec![0; message.encoded_len()];
    message.emit(ADDRESSES_V6[A], dst, &mut bytes);
    frame(to, MACS[A], header(ADDRESSES_V6[A], dst, 58), &bytes)
}

#[test]
fn rfc4443_4_2_echo_is_answered_also_to_a_group() {
    let mut net = Net::v6();
    net.pair_v6();
    for (dst, to) in [
        (ADDRESSES_V6[B], MACS[B]),
        (ipv6::ALL_NODES, Mac::of_group(ipv6::ALL_NODES)),
    ] {
        let out = net.inject(B, &ping(dst, to));
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].v6().unwrap().0.src, ADDRESSES_V6[B]);
        let answer = icmpv6::Message::EchoReply {
            id: 7,
            sequence: 8,
            data: b"are you there",
        };
        assert_eq!(icmp(&out[0]), answer);
    }
}

#[test]
fn rfc4443_4_2_echo_is_answered_only_so_often() {
    let mut limited = config_v6(B);
    limited.limits.echo_replies_per_second = 50;
    let mut net = Net::with(config_v6(A), limited);
    net.run(1_500_000);
    net.pair_v6();
    let request = ping(ADDRESSES_V6[B], MACS[B]);
    let answers: usize = (0..80).map(|_| net.inject(B, &request).len()).sum();
    assert_eq!(answers, 50);
    assert_eq!(net.shards[B].counters().icmp_echo_limited, 30);
}

#[test]
fn rfc8201_4_a_smaller_path_makes_smaller_segments() {
    let mut net = Net::v6();
    let (client, server, _) = net.pair_v6();
    let sizes = |net: &Net| {
        net.log
            .iter()
            .filter(|(from, _)| *from == A)
            .filter_map(|(_, flying)| flying.v6())
            .map(|(header, _)| header.payload_len + 40)
            .max()
    };
    net.hand = Box::new(|from, flying| from != A || flying.bytes.len() <= 1314);
    net.log.clear();
    net.send(A, client, &[7; 5000]);
    net.run(1_000);
    assert_eq!(sizes(&net), Some(1500));
    let lost = net
        .log
        .iter()
        .find(|(from, flying)| *from == A && flying.bytes.len() > 1500)
        .map(|(_, flying)| flying.bytes[14..].to_vec())
        .unwrap();
    let too_big = |mtu: u32| {
        let message = icmpv6::Message::PacketTooBig {
            mtu,
            original: &lost[..100],
        };
        let mut bytes = vec![0; message.encoded_len()];
        let router = "2001:db8::1".parse().unwrap();
        message.emit(router, ADDRESSES_V6[A], &mut bytes);
        frame(
            MACS[A],
            STRANGER,
            header(router, ADDRESSES_V6[A], 58),
            &bytes,
        )
    };
    // Below what every link takes: a lie (G3).
    net.inject(A, &too_big(1279));
    net.inject(A, &too_big(68));
    assert_eq!(net.shards[A].counters().icmp_dropped, 2);
    net.inject(A, &too_big(1300));
    net.log.clear();
    net.run(3_000_000);
    assert_eq!(sizes(&net), Some(1300));
    assert_eq!(net.recv(B, server).len(), 5000);
}

#[test]
fn rfc4443_3_1_a_closed_udp_port_is_unreachable() {
    let mut net = Net::v6();
    net.pair_v6();
    let mut datagram = [0x30, 0x39, 0, 53, 0, 8, 0, 0];
    let sum =
        checksum::pseudo_v6(ADDRESSES_V6[A], ADDRESSES_V6[B], 17, 8) + checksum::Sum::of(&datagram);
    datagram[6..].copy_from_slice(&sum.finish().to_be_bytes());
    let bytes = frame(
        MACS[B],
        MACS[A],
        header(ADDRESSES_V6[A], ADDRESSES_V6[B], 17),
        &datagram,
    );
    let out = net.inject(B, &bytes);
    let icmpv6::Message::Unreachable { code, original } = icmp(&out[0]) else {
        panic!("{:?}", icmp(&out[0]));
    };
    assert_eq!((code, original), (icmpv6::unreachable::PORT, &bytes[14..]));
}

#[test]
fn rfc4443_3_4_an_unknown_protocol_is_pointed_at() {
    let mut net = Net::v6();
    net.pair_v6();
    let payload = [200, 0, 1, 4, 0, 0, 0, 0, 1, 2, 3, 4];
    let bytes = frame(
        MACS[B],
        MACS[A],
        header(ADDRESSES_V6[A], ADDRESSES_V6[B], 60),
        &payload,
    );
    let out = net.inject(B, &bytes);
    let icmpv6::Message::ParameterProblem { code, pointer, .. } = icmp(&out[0]) else {
        panic!("{:?}", icmp(&out[0]));
    };
    assert_eq!((code, pointer), (ipv6::parameter::NEXT_HEADER, 40));
}

#[test]
fn rfc3493_5_3_a_listener_of_all_addresses_takes_both_families() {
    let mut net = Net::v6();
    let listener = net.listen_v6(80);
    let four = net.connect(80);
    let six = net.connect_to(SocketAddr::new(ADDRESSES_V6[B].into(), 80));
    net.run(10_000);
    for id in [four, six] {
        assert!(net.view(A, id).flags.contains(ViewFlags::CONNECTED));
    }
    let peers: Vec<IpAddr> = (0..2)
        .map(|_| {
            let id = net.shards[B].accept(listener).unwrap();
            net.view(B, id).remote.ip()
        })
        .collect();
    assert!(peers.contains(&ADDRESSES[A].into()) && peers.contains(&ADDRESSES_V6[A].into()));
    // A second one for IPv4 finds the port taken.
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 80);
    let taken = net.shards[B].bind(OWNER, any, Reuse::default());
    assert_eq!(taken, Err(Error::AddressInUse));
}

#[test]
fn rfc3493_5_3_v6_only_leaves_ipv4_to_others() {
    let mut net = Net::v6();
    let only = Options {
        v6_only: true,
        ..Options::default()
    };
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 80);
    let listener = net.shards[B].bind_with(OWNER, any, &only).unwrap();
    net.shards[B].listen_bound(listener, 5, None).unwrap();
    let four = net.connect(80);
    net.run(10_000);
    assert_eq!(net.shards[A].take_error(four), errno::ECONNREFUSED);
    net.listen(80, 5);
    let (four, six) = (
        net.connect(80),
        net.connect_to(SocketAddr::new(ADDRESSES_V6[B].into(), 80)),
    );
    net.run(10_000);
    for id in [four, six] {
        assert!(net.view(A, id).flags.contains(ViewFlags::CONNECTED));
    }
    let now = net.now();
    let late = net.shards[B].set_option(listener, Opt::V6Only(false), now);
    assert_eq!(late, Err(Error::Invalid));
    let mapped = SocketAddr::new(ADDRESSES[B].to_ipv6_mapped().into(), 80);
    let refused = net.shards[A].connect(OWNER, None, mapped, &only, now);
    assert_eq!(refused, Err(Error::NetworkUnreachable));
}

#[test]
fn rfc4291_2_5_5_2_a_mapped_address_means_ipv4() {
    let mut net = Net::v6();
    let mapped = |address: Ipv4Addr| IpAddr::V6(address.to_ipv6_mapped());
    let local = SocketAddr::new(mapped(ADDRESSES[B]), 80);
    let reuse = Reuse::default();
    let listener = net.shards[B].listen(OWNER, local, 5, reuse).unwrap();
    let client = net.connect_to(local);
    net.run(10_000);
    assert!(net.view(A, client).flags.contains(ViewFlags::CONNECTED));
    let server = net.shards[B].accept(listener).unwrap();
    assert_eq!(net.view(B, server).remote.ip(), IpAddr::V4(ADDRESSES[A]));
}

#[test]
fn rfc4291_2_5_3_loopback_needs_no_link() {
    for config in [config(A), config_v6(A)] {
        let mut net = Net::with(config, self::config(B));
        net.run(1_500_000);
        net.log.clear();
        let local = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 80);
        let listener = net.shards[A]
            .listen(OWNER, local, 5, Reuse::default())
            .unwrap();
        let client = net.connect_to(local);
        net.run(10_000);
        let server = net.shards[A].accept(listener).unwrap();
        assert_eq!(net.view(A, server).remote.ip(), local.ip());
        net.send(A, client, b"hello");
        net.run(10_000);
        assert_eq!(net.recv(A, server), b"hello");
        // The unspecified address is this host, too.
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 80);
        let client = net.connect_to(any);
        net.run(10_000);
        assert_eq!(net.view(A, client).remote, local);
        assert!(net.log.iter().all(|(_, flying)| flying.tcp().is_none()));
    }
}

#[test]
fn without_ipv6_on_the_link_there_is_none() {
    let mut net = Net::new();
    let now = net.now();
    let remote = SocketAddr::new(ADDRESSES_V6[B].into(), 80);
    let refused = net.shards[A].connect(OWNER, None, remote, &Options::default(), now);
    assert_eq!(refused, Err(Error::NetworkUnreachable));
    let mut alone = config(A);
    alone.ipv6 = Some(Ipv6 {
        probes: 0,
        ..Ipv6::default()
    });
    let mut net = Net::with(alone, config(B));
    net.run(1_000);
    let asked = net
        .log
        .iter()
        .filter_map(|(_, flying)| flying.ndp())
        .count();
    assert_eq!(
        asked, 1,
        "with a link-local address alone it asks for routers"
    );
}

/// The reports of a side: when, from where, and on how many groups.
fn reports(net: &Net, side: usize) -> Vec<(Ipv6Addr, u8)> {
    let is_report = |(from, flying): &(usize, Flying)| {
        let (header, bytes) = flying.v6()?;
        (*from == side && header.dst == mld::REPORT_GROUP).then(|| (header.src, bytes[15]))
    };
    net.log.iter().filter_map(is_report).collect()
}

#[test]
fn rfc3810_6_1_and_rfc3590_4_groups_are_reported_at_the_start() {
    let net = Net::v6();
    let own = ipv6::link_local(MACS[A]);
    // The addresses end alike only on the link-local one: two groups.
    assert_eq!(
        reports(&net, A),
        [(Ipv6Addr::UNSPECIFIED, 2), (own, 2)],
        "before and after the link-local address is ours"
    );
}

#[test]
fn rfc3810_6_2_queries_are_answered_once_within_their_time() {
    let mut net = Net::v6();
    let router: Ipv6Addr = "fe80::1".parse().unwrap();
    let query = |group: Ipv6Addr, hop_limit: u8| {
        let mut bytes = vec![0; 28];
        bytes[0] = mld::QUERY;
        bytes[4..6].copy_from_slice(&1000u16.to_be_bytes());
        bytes[8..24].copy_from_slice(&group.octets());
        let sum = millrace_wire::checksum::pseudo_v6(router, ipv6::ALL_NODES, 58, 28)
            + millrace_wire::checksum::Sum::of(&bytes);
        bytes[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let header = ipv6::Header {
            hop_limit,
            ..header(router, ipv6::ALL_NODES, 58)
        };
        frame(Mac::of_group(ipv6::ALL_NODES), STRANGER, header, &bytes)
    };
    net.log.clear();
    for _ in 0..100 {
        net.inject(A, &query(Ipv6Addr::UNSPECIFIED, 1));
    }
    net.run(1_100_000);
    assert_eq!(reports(&net, A).len(), 1);
    net.inject(A, &query(ipv6::solicited_node(ADDRESSES_V6[A]), 1));
    net.run(1_100_000);
    assert_eq!(reports(&net, A).len(), 2);
    // Of a group that is not ours, and from beyond the link.
    net.inject(A, &query("ff02::99".parse().unwrap(), 1));
    net.inject(A, &query(Ipv6Addr::UNSPECIFIED, 64));
    net.run(1_100_000);
    assert_eq!(reports(&net, A).len(), 2);
}
