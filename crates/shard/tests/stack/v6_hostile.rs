//! What nobody should send over IPv6.

use std::net::{Ipv6Addr, SocketAddr};

use millrace_wire::ethernet::Mac;
use millrace_wire::ndp::Message;
use millrace_wire::tcp::{Flags, Header, Options, Seq};
use millrace_wire::{checksum, icmpv6, ipv6, tcp};

use crate::net::{A, ADDRESSES_V6, B, Flying, MACS, Net, Random, config_v6};
use crate::v6::{STRANGER, discovery, frame, header};

/// A SYN from an address to the server.
fn syn(src: Ipv6Addr, dst: Ipv6Addr, to: Mac) -> Vec<u8> {
    let mut bytes = [0; tcp::MAX_HEADER_LEN];
    let len = Header {
        src_port: 40_000,
        dst_port: 80,
        seq: Seq(1),
        ack: Seq(0),
        flags: Flags::SYN,
        window: 1000,
        urgent: 0,
        options: Options::default(),
    }
    .emit(&mut bytes);
    let sum = checksum::pseudo_v6(src, dst, 6, len as u32) + checksum::Sum::of(&bytes[..len]);
    bytes[16..18].copy_from_slice(&sum.finish().to_be_bytes());
    frame(to, STRANGER, header(src, dst, 6), &bytes[..len])
}

fn host(number: u64) -> Ipv6Addr {
    let [a, b, c, d] = [48, 32, 16, 0].map(|shift: u32| (number >> shift) as u16);
    Ipv6Addr::new(0xfd00, 0, 0, 0, a | 0x100, b, c, d)
}

#[test]
fn c13_c14_impossible_sources_and_destinations_are_not_answered() {
    let mut net = Net::v6();
    net.listen_v6(80);
    let own = ADDRESSES_V6[B];
    for source in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
        let out = net.inject(B, &syn(source.parse().unwrap(), own, MACS[B]));
        assert!(out.is_empty(), "from {source}");
    }
    assert!(net.inject(B, &syn(own, own, MACS[B])).is_empty(), "LAND");
    let all = ipv6::ALL_NODES;
    let group = ipv6::solicited_node(own);
    for (dst, to) in [
        (all, Mac::of_group(all)),
        (group, Mac::of_group(group)),
        (own, Mac::of_group(group)),
        (own, Mac::BROADCAST),
        (host(5), MACS[B]),
    ] {
        assert!(net.inject(B, &syn(host(1), dst, to)).is_empty(), "to {dst}");
    }
    assert_eq!(net.shards[B].usage().half_open, 0);
    assert_eq!(net.shards[B].usage().neighbours, 0);
}

#[test]
fn c2_a_wrong_checksum_is_dropped() {
    let mut net = Net::v6();
    net.listen_v6(80);
    let mut bytes = syn(host(1), ADDRESSES_V6[B], MACS[B]);
    bytes[60] ^= 1;
    assert!(net.inject(B, &bytes).is_empty());
    assert_eq!(net.shards[B].counters().tcp_checksum, 1);
}

#[test]
fn rfc4861_11_neighbours_that_do_not_exist_displace_none_that_do() {
    let mut config = config_v6(B);
    config.limits.neighbours = 64;
    let mut net = Net::with(config_v6(A), config);
    net.run(1_500_000);
    let (client, server, _) = net.pair_v6();
    net.log.clear();
    let mut random = Random(3);
    for _ in 0..5_000 {
        let source = host(random.next());
        // One that introduces itself, one whose SYN wants an answer, one that wants an echo.
        let ask = Message::NeighbourSolicitation {
            target: ADDRESSES_V6[B],
            source: Some(STRANGER),
        };
        let group = ipv6::solicited_node(ADDRESSES_V6[B]);
        net.inject(B, &discovery(STRANGER, source, group, &ask));
        net.inject(B, &syn(host(random.next()), ADDRESSES_V6[B], MACS[B]));
    }
    assert!(net.shards[B].usage().neighbours <= 64);
    net.send(B, server, b"still here");
    net.run(1_000);
    assert_eq!(net.recv(A, client), b"still here");
    let asked = |(from, flying): &&(usize, Flying)| {
        let message = flying.ndp().map(|(_, message)| message);
        let target = ADDRESSES_V6[A];
        *from == B
            && matches!(message, Some(Message::NeighbourSolicitation { target: of, .. }) if of == target)
    };
    assert_eq!(net.log.iter().filter(asked).count(), 0);
}

#[test]
fn rfc4861_6_3_4_routers_without_number_displace_none() {
    let mut net = Net::v6();
    let advertise = |net: &mut Net, last: u16| {
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, last);
        let mut bytes = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        let sum = checksum::pseudo_v6(router, ipv6::ALL_NODES, 58, bytes.len() as u32)
            + checksum::Sum::of(&bytes);
        bytes[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let to = Mac::of_group(ipv6::ALL_NODES);
        net.inject(
            A,
            &frame(to, STRANGER, header(router, ipv6::ALL_NODES, 58), &bytes),
        );
    };
    for last in 1..=1000 {
        advertise(&mut net, last);
    }
    assert_eq!(net.shards[A].counters().routers_refused, 996);
    net.connect_to(SocketAddr::new("2001:db8::1".parse().unwrap(), 80));
    net.run(1_000);
    let asked = net.log.iter().rev().find_map(|(_, flying)| flying.ndp());
    let first = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, 1);
    assert!(
        matches!(asked, Some((_, Message::NeighbourSolicitation { target, .. })) if target == first)
    );
}

#[test]
fn rfc4443_2_4_errors_are_limited_and_never_about_errors() {
    let mut config = config_v6(B);
    config.limits.icmp_errors_per_second = 10;
    let mut net = Net::with(config_v6(A), config);
    net.run(1_500_000);
    net.pair_v6();
    let unknown = frame(
        MACS[B],
        MACS[A],
        header(ADDRESSES_V6[A], ADDRESSES_V6[B], 200),
        &[0; 20],
    );
    let answers: usize = (0..100).map(|_| net.inject(B, &unknown).len()).sum();
    assert_eq!(answers, 10);
    assert_eq!(net.shards[B].counters().icmp_errors_limited, 90);
    net.run(2_000_000);
    // To a group only what RFC 4443 allows: an unknown option that asks for it.
    let all = ipv6::ALL_NODES;
    let option = |kind: u8, dst: Ipv6Addr, to: Mac, next: u8| {
        let payload = [next, 0, kind, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        frame(to, MACS[A], header(ADDRESSES_V6[A], dst, 60), &payload)
    };
    let to = Mac::of_group(all);
    assert_eq!(net.inject(B, &option(0xbe, all, to, 6)).len(), 1);
    assert_eq!(net.inject(B, &option(0xfe, all, to, 6)).len(), 0);
    assert_eq!(
        net.inject(B, &option(0xfe, ADDRESSES_V6[B], MACS[B], 6))
            .len(),
        1
    );
    assert_eq!(
        net.inject(B, &option(0x7e, ADDRESSES_V6[B], MACS[B], 6))
            .len(),
        0
    );
}

#[test]
fn a11_anything_may_come_at_any_time() {
    let mut net = Net::v6();
    let (client, server, _) = net.pair_v6();
    let mut random = Random(11);
    let kinds = [0, 6, 17, 43, 44, 50, 58, 58, 58, 59, 60];
    for _ in 0..20_000 {
        let len = random.below(80) as usize;
        let mut payload: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        let next = kinds[random.below(kinds.len() as u64) as usize];
        let sources = [ADDRESSES_V6[A], host(3), "fe80::1".parse().unwrap()];
        let src = sources[random.below(3) as usize];
        let groups = [
            ADDRESSES_V6[B],
            ipv6::ALL_NODES,
            ipv6::solicited_node(ADDRESSES_V6[B]),
        ];
        let dst = groups[random.below(3) as usize];
        if next == icmpv6::PROTOCOL && len > 8 {
            payload[0] = [1, 2, 3, 4, 128, 133, 134, 135, 136, 137][random.below(10) as usize];
            payload[1] = 0;
            payload[2..4].fill(0);
            let sum = checksum::pseudo_v6(src, dst, 58, len as u32) + checksum::Sum::of(&payload);
            payload[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        }
        let to = if dst.is_multicast() {
            Mac::of_group(dst)
        } else {
            MACS[B]
        };
        net.inject(B, &frame(to, STRANGER, header(src, dst, next), &payload));
    }
    net.run(10_000_000);
    net.transfer((A, client), (B, server), 10_000);
}
