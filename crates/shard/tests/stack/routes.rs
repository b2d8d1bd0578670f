//! Several addresses, several ways off the link, and ways that change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_shard::{Error, Options, Reuse, SocketId, Via};
use millrace_wire::arp::Operation;
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::{icmpv4, ipv4};

use crate::addresses::{STRANGER, frame as arp_frame, packet};
use crate::net::{A, ADDRESSES, B, MACS, Net, OWNER, config, config_v6};
use crate::v6::advertisement;

const SECOND: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 1);
const SECOND_PEER: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 2);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Both sides have an address in a second prefix.
fn two_prefixes() -> Net {
    let (mut a, mut b) = (config(A), config(B));
    a.addresses.push((SECOND, 16));
    b.addresses.push((SECOND_PEER, 16));
    Net::with(a, b)
}

fn connect(net: &mut Net, local: Option<IpAddr>, remote: IpAddr) -> Result<SocketId, Error> {
    let now = net.now();
    let local = local.map(|ip| SocketAddr::new(ip, 0));
    let remote = SocketAddr::new(remote, 80);
    net.shards[A].connect(OWNER, local, remote, &Options::default(), now)
}

#[test]
fn rfc1122_3_3_4_3_each_prefix_is_spoken_to_from_its_own_address() {
    let mut net = two_prefixes();
    let listener = net.listen(80, 16);
    for (remote, local) in [(ADDRESSES[B], ADDRESSES[A]), (SECOND_PEER, SECOND)] {
        let client = connect(&mut net, None, remote.into()).unwrap();
        net.run(10_000);
        let server = net.shards[B]
            .accept(listener)
            .expect("the wildcard hears all");
        assert_eq!(net.view(A, client).local.ip(), IpAddr::V4(local));
        assert_eq!(net.view(B, server).local.ip(), IpAddr::V4(remote));
        net.send(A, client, b"over both");
        net.run(1_000);
        assert_eq!(net.recv(B, server), b"over both");
    }
}

#[test]
fn rfc1122_3_3_4_2_a_program_may_bind_to_any_of_the_addresses() {
    let mut net = two_prefixes();
    let listen = |net: &mut Net, ip: Ipv4Addr| {
        let local = SocketAddr::new(ip.into(), 80);
        net.shards[B].listen(OWNER, local, 4, Reuse::default())
    };
    let first = listen(&mut net, ADDRESSES[B]).unwrap();
    let second = listen(&mut net, SECOND_PEER).unwrap();
    assert_eq!(
        listen(&mut net, Ipv4Addr::new(172, 16, 0, 9)),
        Err(Error::AddressNotAvailable)
    );
    // Bound to the address of one prefix, it speaks from that to the other, too.
    let client = connect(&mut net, Some(ADDRESSES[A].into()), SECOND_PEER.into()).unwrap();
    net.run(10_000);
    assert_eq!(net.shards[B].accept(first), Err(Error::WouldBlock));
    let server = net.shards[B].accept(second).unwrap();
    assert_eq!(net.view(B, server).remote.ip(), IpAddr::V4(ADDRESSES[A]));
    assert_eq!(net.view(A, client).local.ip(), IpAddr::V4(ADDRESSES[A]));
}

#[test]
fn rfc826_every_address_is_answered_for_and_asks_for_its_own_prefix() {
    let mut net = two_prefixes();
    for (own, peer) in [(ADDRESSES[A], ADDRESSES[B]), (SECOND, SECOND_PEER)] {
        let question = packet(Operation::REQUEST, (STRANGER, peer), own);
        let answers = net.inject(A, &arp_frame(Mac::BROADCAST, &question));
        let answer = answers[0].arp().unwrap();
        assert_eq!((answer.sender_ip, answer.sender_mac), (own, MACS[A]));
        let claim = packet(Operation::REPLY, (STRANGER, own), own);
        net.inject(A, &arp_frame(Mac::BROADCAST, &claim));
    }
    assert_eq!(net.shards[A].counters().arp_conflicts, 2);
    connect(&mut net, None, Ipv4Addr::new(172, 16, 0, 77).into()).unwrap();
    net.transmit(A);
    let question = net.log[0].1.arp().unwrap();
    assert_eq!(question.sender_ip, SECOND);
}

#[test]
fn rfc1122_3_2_2_6_an_echo_is_answered_from_the_address_that_it_went_to() {
    let mut net = two_prefixes();
    let question = icmpv4::Message::EchoRequest {
        id: 1,
        sequence: 2,
        data: b"who",
    };
    let mut bytes = vec![0; 34 + question.encoded_len()];
    ethernet::Header {
        dst: MACS[A],
        src: STRANGER,
        ethertype: EtherType::IPV4,
    }
    .emit(&mut bytes);
    ipv4::Header::new(
        SECOND_PEER,
        SECOND,
        ipv4::PROTOCOL_ICMP,
        question.encoded_len() as u16,
    )
    .emit(&mut bytes[14..]);
    question.emit(&mut bytes[34..]);
    let hello = packet(Operation::REQUEST, (STRANGER, SECOND_PEER), SECOND);
    net.inject(A, &arp_frame(Mac::BROADCAST, &hello));
    let answers = net.inject(A, &bytes);
    let (header, _, _) = ipv4::Header::parse(&answers[0].bytes[14..]).unwrap();
    assert_eq!((header.src, header.dst), (SECOND, SECOND_PEER));
}

#[test]
fn rfc1812_5_2_4_3_of_several_gateways_the_one_of_the_longest_prefix_is_used() {
    let mut routed = config(A);
    routed.addresses.push((SECOND, 16));
    let via = |prefix: [u8; 4], prefix_len, gateway| Via {
        prefix: prefix.into(),
        prefix_len,
        gateway,
    };
    let gateways = [1u8, 2].map(|last| Ipv4Addr::new(172, 16, 1, last));
    routed.routes = vec![
        via([0; 4], 0, ADDRESSES[B]),
        via([192, 0, 2, 0], 24, gateways[0]),
        via([192, 0, 2, 128], 25, gateways[1]),
    ];
    let mut net = Net::with(routed, config(B));
    for (destination, gateway, source) in [
        ("198.51.100.1", ADDRESSES[B], ADDRESSES[A]),
        ("192.0.2.1", gateways[0], SECOND),
        ("192.0.2.200", gateways[1], SECOND),
    ] {
        let id = connect(&mut net, None, ip(destination)).unwrap();
        net.log.clear();
        net.transmit(A);
        let question = net.log[0].1.arp().unwrap();
        assert_eq!((question.target_ip, question.sender_ip), (gateway, source));
        assert_eq!(net.view(A, id).local.ip(), IpAddr::V4(source));
    }
}

#[test]
fn rfc1122_3_3_1_1_a_destination_without_a_route_is_refused_at_connect() {
    let mut routed = config(A);
    routed.routes = vec![Via {
        prefix: Ipv4Addr::new(192, 0, 2, 0),
        prefix_len: 24,
        gateway: ADDRESSES[B],
    }];
    let mut net = Net::with(routed, config(B));
    assert!(connect(&mut net, None, ip("192.0.2.255")).is_ok());
    for nowhere in ["192.0.3.1", "10.0.0.255", "255.255.255.255", "224.0.0.1"] {
        let refused = connect(&mut net, None, ip(nowhere));
        assert_eq!(refused, Err(Error::NetworkUnreachable), "{nowhere}");
    }
    assert_eq!(net.shards[A].usage().ports, 1);
}

/// A connection that begins, over the first of two routers.
fn over_two_routers() -> (Net, SocketId, [Ipv6Addr; 2]) {
    let mut net = Net::v6();
    let routers = ["fe80::1", "fe80::2"].map(|text| text.parse().unwrap());
    net.inject(A, &advertisement(routers[0], MACS[B], 600));
    net.inject(A, &advertisement(routers[1], STRANGER, 9000));
    let far: Ipv6Addr = "2001:db8::80".parse().unwrap();
    let client = connect(&mut net, None, far.into()).unwrap();
    (net, client, routers)
}

#[test]
fn rfc4861_6_3_5_what_went_by_way_of_a_router_that_expires_goes_by_the_next() {
    let (mut net, _, routers) = over_two_routers();
    net.log.clear();
    net.transmit(A);
    let first = ethernet::Header::parse(&net.log[0].1.bytes).unwrap().0.dst;
    assert_eq!(first, MACS[B]);
    net.inject(A, &advertisement(routers[0], MACS[B], 5));
    net.run(5_100_000);
    net.log.clear();
    net.run(8_000_000);
    let stations: Vec<Mac> = net
        .log
        .iter()
        .filter(|(from, flying)| {
            let content = flying.v6().map(|(header, _)| header.next_header);
            *from == A && content == Some(millrace_wire::tcp::PROTOCOL)
        })
        .map(|(_, flying)| ethernet::Header::parse(&flying.bytes).unwrap().0.dst)
        .collect();
    assert!(!stations.is_empty() && stations.iter().all(|to| *to == STRANGER));
}

#[test]
fn rfc4861_6_3_6_a_router_that_does_not_answer_gives_way_to_the_next() {
    let (mut net, _, routers) = over_two_routers();
    // Whoever is asked directly says nothing.
    net.hand = Box::new(|_, _| false);
    net.run(60_000_000);
    assert!(net.shards[A].has_default_router());
    let to = |net: &Net, mac: Mac| {
        net.log
            .iter()
            .filter(|(from, flying)| {
                let content = flying.v6().map(|(header, _)| header.next_header);
                let link = ethernet::Header::parse(&flying.bytes).unwrap().0;
                *from == A && link.dst == mac && content == Some(millrace_wire::tcp::PROTOCOL)
            })
            .count()
    };
    assert!(to(&net, MACS[B]) >= 1, "the first router at first");
    assert!(to(&net, STRANGER) >= 1, "then the second");
    // The second is the only one that is left when the first expires, and that it is none any more
    // ends all ways.
    net.inject(A, &advertisement(routers[1], STRANGER, 0));
    net.run(600_000_000);
    assert!(!net.shards[A].has_default_router());
    assert_eq!(
        connect(&mut net, None, ip("2001:db8::80")),
        Err(Error::NetworkUnreachable)
    );
}

#[test]
fn a_route_to_everything_goes_before_advertisements_and_a_shorter_one_beside_them() {
    let mut routed = config_v6(A);
    if let Some(settings) = &mut routed.ipv6 {
        settings.routes = vec![Via {
            prefix: "2001:db8:1::".parse().unwrap(),
            prefix_len: 48,
            gateway: crate::net::ADDRESSES_V6[B],
        }];
    }
    let mut net = Net::with(routed, config_v6(B));
    net.run(1_500_000);
    net.inject(A, &advertisement("fe80::1".parse().unwrap(), STRANGER, 600));
    assert!(net.shards[A].has_default_router());
    net.pair_v6();
    for (destination, station_of) in [("2001:db8:1::9", MACS[B]), ("2001:db8:2::9", STRANGER)] {
        connect(&mut net, None, ip(destination)).unwrap();
        net.log.clear();
        net.transmit(A);
        let to = ethernet::Header::parse(&net.log[0].1.bytes).unwrap().0.dst;
        assert_eq!(to, station_of, "{destination}");
    }
}
