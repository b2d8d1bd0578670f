//! Neighbours: asking, answering, believing, forgetting.

use std::net::{Ipv4Addr, SocketAddr};

use millrace_shard::{Error, Options, Via, errno};
use millrace_wire::arp::{self, Operation};
use millrace_wire::ethernet::{self, EtherType, Mac};

use crate::net::{A, ADDRESSES, B, MACS, Net, OWNER, config};

pub const STRANGER: Mac = Mac([2, 9, 9, 9, 9, 9]);

pub fn frame(dst: Mac, packet: &arp::Packet) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER_LEN + arp::LEN];
    ethernet::Header {
        dst,
        src: packet.sender_mac,
        ethertype: EtherType::ARP,
    }
    .emit(&mut bytes);
    packet.emit(&mut bytes[ethernet::HEADER_LEN..]);
    bytes
}

pub fn packet(operation: Operation, sender: (Mac, Ipv4Addr), target: Ipv4Addr) -> arp::Packet {
    arp::Packet {
        operation,
        sender_mac: sender.0,
        sender_ip: sender.1,
        target_mac: Mac([0; 6]),
        target_ip: target,
    }
}

fn requests(net: &Net, side: usize) -> usize {
    let is_request = |flying: &crate::net::Flying| {
        flying
            .arp()
            .is_some_and(|arp| arp.operation == Operation::REQUEST)
    };
    net.log
        .iter()
        .filter(|(from, flying)| *from == side && is_request(flying))
        .count()
}

#[test]
fn rfc826_one_request_teaches_both() {
    let mut net = Net::new();
    net.pair();
    assert_eq!((requests(&net, A), requests(&net, B)), (1, 0));
}

/// What a claim is measured by is when the old address was learnt, not when traffic last confirmed
/// it (Linux's `locktime`).
#[test]
fn rfc826_a_neighbour_that_says_that_it_has_moved_is_believed_in_the_midst_of_traffic() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.run(2_000_000);
    net.send(A, client, b"on the way");
    net.run(1_000);
    assert_eq!(net.recv(B, server), b"on the way");
    let claim = |mac| {
        frame(
            Mac::BROADCAST,
            &packet(Operation::REPLY, (mac, ADDRESSES[B]), ADDRESSES[B]),
        )
    };
    let goes_to = |net: &mut Net| {
        net.log.clear();
        net.send(A, client, b"where");
        net.run(2_000_000);
        let sent = net
            .log
            .iter()
            .rfind(|(from, flying)| *from == A && flying.tcp().is_some());
        ethernet::Header::parse(&sent.unwrap().1.bytes)
            .unwrap()
            .0
            .dst
    };
    net.inject(A, &claim(STRANGER));
    // Of two that come back to back the first is believed.
    net.inject(A, &claim(MACS[B]));
    assert_eq!(goes_to(&mut net), STRANGER);
    net.inject(A, &claim(MACS[B]));
    assert_eq!(goes_to(&mut net), MACS[B]);
}

#[test]
fn a_neighbour_that_connections_get_no_answer_from_is_looked_for() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.run(2_000_000);
    net.send(A, client, b"confirmed");
    net.run(1_000);
    assert_eq!(net.recv(B, server), b"confirmed");
    // Somebody else has the address now, and does not say so.
    net.hand = Box::new(|_, _| false);
    net.log.clear();
    net.send(A, client, b"lost");
    net.run(7_000_000);
    let asked: Vec<Mac> = net
        .log
        .iter()
        .filter(|(_, flying)| flying.arp().is_some())
        .map(|(_, flying)| ethernet::Header::parse(&flying.bytes).unwrap().0.dst)
        .collect();
    assert_eq!(asked[..3], [MACS[B]; 3]);
    assert_eq!(asked[3], Mac::BROADCAST);
}

#[test]
fn many_sockets_wait_for_one_request() {
    let mut net = Net::new();
    net.listen(80, 500);
    for _ in 0..200 {
        net.connect(80);
    }
    net.run(100_000);
    assert_eq!(requests(&net, A), 1);
    assert_eq!(net.shards[B].counters().passive_opens, 200);
}

#[test]
fn a_silent_neighbour_is_asked_once_a_second_three_times() {
    let mut net = Net::new();
    let now = net.now();
    let remote = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 99).into(), 80);
    let ids: Vec<_> = (0..10)
        .map(|_| {
            net.shards[A]
                .connect(OWNER, None, remote, &Options::default(), now)
                .unwrap()
        })
        .collect();
    net.run(2_900_000);
    assert_eq!(requests(&net, A), 3);
    net.run(200_000);
    for id in ids {
        assert_eq!(net.shards[A].take_error(id), errno::EHOSTUNREACH);
        net.close(A, id);
    }
    assert_eq!(net.shards[A].counters().neighbours_failed, 1);
    // Asked again at once when wanted again, but within the limit.
    for _ in 0..50 {
        let now = net.now();
        net.shards[A]
            .connect(OWNER, None, remote, &Options::default(), now)
            .unwrap();
        net.run(20_000);
    }
    assert!(requests(&net, A) <= 5, "{}", requests(&net, A));
}

#[test]
fn a_lost_request_delays_a_connect_by_a_second() {
    let mut net = Net::new();
    let mut first = true;
    net.hand = Box::new(move |_, _| !std::mem::take(&mut first));
    net.listen(80, 5);
    let client = net.connect(80);
    net.run(1_010_000);
    assert_eq!(
        net.view(A, client).state,
        Some(millrace_tcp::State::Established)
    );
}

#[test]
fn t14_a_thousand_neighbours_at_once() {
    let mut wide = config(A);
    wide.addresses = vec![(ADDRESSES[A], 16)];
    let mut net = Net::with(wide, config(B));
    let now = net.now();
    let host = |i: u32| Ipv4Addr::new(10, 0, (1 + i / 250) as u8, (1 + i % 250) as u8);
    for i in 0..1000 {
        let remote = SocketAddr::new(host(i).into(), 80);
        net.shards[A]
            .connect(OWNER, None, remote, &Options::default(), now)
            .unwrap();
    }
    net.transmit(A);
    assert_eq!(requests(&net, A), 1000);
    net.log.clear();
    for i in 0..1000 {
        let mac = Mac([2, 1, 0, 0, (i >> 8) as u8, i as u8]);
        let reply = packet(Operation::REPLY, (mac, host(i)), ADDRESSES[A]);
        for flying in net.inject(A, &frame(MACS[A], &reply)) {
            let (link, _) = ethernet::Header::parse(&flying.bytes).unwrap();
            let (ip, segment) = flying.tcp().unwrap();
            assert!(segment.flags.contains(millrace_wire::tcp::Flags::SYN));
            assert_eq!((link.dst, ip.dst), (mac, host(i)));
        }
    }
    assert_eq!(net.shards[A].counters().segments_out, 1000);
}

#[test]
fn a_full_cache_forgets_those_that_never_answered() {
    let mut small = config(B);
    small.limits.neighbours = 8;
    let mut net = Net::with(config(A), small);
    let (client, server, _) = net.pair();
    // Answers to SYNs from addresses that are not there.
    for i in 0..200u8 {
        let source = Ipv4Addr::new(10, 0, 0, 20 + i);
        net.inject(B, &crate::hostile::syn(source, 1000, 80, u32::from(i)));
    }
    assert!(net.shards[B].counters().neighbours_evicted > 100);
    assert_eq!(net.shards[B].usage().neighbours, 8);
    net.send(B, server, b"still here");
    net.run(1_000);
    assert_eq!(net.recv(A, client), b"still here");
}

#[test]
fn rfc826_only_those_who_ask_for_us_are_remembered() {
    let mut net = Net::new();
    let before = net.shards[A].usage().neighbours;
    let other = Ipv4Addr::new(10, 0, 0, 50);
    let gratuitous = packet(Operation::REQUEST, (STRANGER, other), other);
    net.inject(A, &frame(Mac::BROADCAST, &gratuitous));
    let unsolicited = packet(Operation::REPLY, (STRANGER, other), ADDRESSES[A]);
    net.inject(A, &frame(MACS[A], &unsolicited));
    let foreign = packet(
        Operation::REQUEST,
        (STRANGER, other),
        Ipv4Addr::new(10, 0, 0, 51),
    );
    assert!(net.inject(A, &frame(Mac::BROADCAST, &foreign)).is_empty());
    assert_eq!(net.shards[A].usage().neighbours, before);
    let for_us = packet(Operation::REQUEST, (STRANGER, other), ADDRESSES[A]);
    let answers = net.inject(A, &frame(Mac::BROADCAST, &for_us));
    let answer = answers[0].arp().unwrap();
    assert_eq!(
        (answer.operation, answer.sender_mac, answer.target_mac),
        (Operation::REPLY, MACS[A], STRANGER)
    );
    assert_eq!(net.shards[A].usage().neighbours, before + 1);
}

#[test]
fn a_gratuitous_announcement_moves_a_known_address_but_not_at_once() {
    let mut net = Net::new();
    let (client, _, _) = net.pair();
    let moved = frame(
        Mac::BROADCAST,
        &packet(Operation::REQUEST, (STRANGER, ADDRESSES[B]), ADDRESSES[B]),
    );
    let destination = |net: &mut Net| {
        net.send(A, client, b"x");
        net.log.clear();
        net.transmit(A);
        ethernet::Header::parse(&net.log[0].1.bytes).unwrap().0.dst
    };
    net.inject(A, &moved);
    assert_eq!(destination(&mut net), MACS[B]);
    net.run(2_000_000);
    net.inject(A, &moved);
    assert_eq!(destination(&mut net), STRANGER);
}

#[test]
fn nobody_takes_our_address() {
    let mut net = Net::new();
    let claim = packet(Operation::REPLY, (STRANGER, ADDRESSES[A]), ADDRESSES[A]);
    assert!(net.inject(A, &frame(MACS[A], &claim)).is_empty());
    assert_eq!(net.shards[A].counters().arp_conflicts, 1);
}

#[test]
fn rfc5227_a_probe_for_our_address_is_answered() {
    let mut net = Net::new();
    let probe = packet(
        Operation::REQUEST,
        (STRANGER, Ipv4Addr::UNSPECIFIED),
        ADDRESSES[A],
    );
    let answers = net.inject(A, &frame(Mac::BROADCAST, &probe));
    assert_eq!(answers.len(), 1);
    assert_eq!(net.shards[A].usage().neighbours, 0);
}

#[test]
fn rfc826_who_asks_in_the_name_of_another_network_is_answered_and_not_remembered() {
    let mut net = Net::new();
    let off_link = Ipv4Addr::new(192, 168, 1, 1);
    let question = packet(Operation::REQUEST, (STRANGER, off_link), ADDRESSES[A]);
    let answers = net.inject(A, &frame(Mac::BROADCAST, &question));
    let answer = answers[0].arp().unwrap();
    assert_eq!((answer.target_mac, answer.target_ip), (STRANGER, off_link));
    let other = packet(Operation::REQUEST, (STRANGER, off_link), ADDRESSES[B]);
    assert!(net.inject(A, &frame(Mac::BROADCAST, &other)).is_empty());
    assert_eq!(net.shards[A].usage().neighbours, 0);
}

#[test]
fn arp_nonsense_is_dropped() {
    let mut net = Net::new();
    let group = Mac([1, 0, 0x5e, 0, 0, 1]);
    for (mac, ip) in [
        (group, ADDRESSES[B]),
        (Mac([0; 6]), ADDRESSES[B]),
        (Mac::BROADCAST, ADDRESSES[B]),
        (STRANGER, Ipv4Addr::new(10, 0, 0, 255)),
        (STRANGER, Ipv4Addr::BROADCAST),
        (STRANGER, Ipv4Addr::LOCALHOST),
    ] {
        let request = packet(Operation::REQUEST, (mac, ip), ADDRESSES[A]);
        assert!(
            net.inject(A, &frame(MACS[A], &request)).is_empty(),
            "{mac} {ip}"
        );
    }
    let odd = packet(Operation(9), (STRANGER, ADDRESSES[B]), ADDRESSES[A]);
    assert!(net.inject(A, &frame(MACS[A], &odd)).is_empty());
    let short = &frame(MACS[A], &odd)[..30];
    assert!(net.inject(A, short).is_empty());
    assert_eq!(net.shards[A].usage().neighbours, 0);
    assert_eq!(net.shards[A].counters().arp_dropped, 8);
}

#[test]
fn traffic_confirms_and_silence_is_probed_directly() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    // A request every ten seconds keeps the entry fresh without asking.
    for _ in 0..20 {
        net.send(A, client, b"x");
        net.run(10_000_000);
        net.recv(B, server);
    }
    assert_eq!(requests(&net, A), 1);
    net.run(120_000_000);
    net.send(A, client, b"x");
    net.log.clear();
    net.run(1_000);
    let probe = net
        .log
        .iter()
        .find(|(_, flying)| flying.arp().is_some())
        .expect("asked again");
    assert_eq!(
        ethernet::Header::parse(&probe.1.bytes).unwrap().0.dst,
        MACS[B]
    );
    // The data did not wait for the answer.
    assert_eq!(net.recv(B, server), b"x");
}

#[test]
fn unused_neighbours_are_forgotten() {
    let mut net = Net::new();
    let (client, server, listener) = net.pair();
    for (side, id) in [(A, client), (B, server), (B, listener)] {
        net.close(side, id);
    }
    net.run(60_000_000);
    assert_eq!(net.shards[A].usage().neighbours, 1);
    net.run(700_000_000);
    assert_eq!(net.shards[A].usage().neighbours, 0);
}

#[test]
fn beyond_the_link_the_gateway_is_asked_for() {
    let mut routed = config(A);
    routed.routes = vec![Via {
        prefix: Ipv4Addr::UNSPECIFIED,
        prefix_len: 0,
        gateway: ADDRESSES[B],
    }];
    let mut net = Net::with(routed, config(B));
    let now = net.now();
    let far = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 80);
    net.shards[A]
        .connect(OWNER, None, far, &Options::default(), now)
        .unwrap();
    net.run(1_000);
    let syn = net
        .log
        .iter()
        .find_map(|(_, flying)| flying.tcp().map(|(ip, _)| (flying, ip)))
        .unwrap();
    assert_eq!(
        ethernet::Header::parse(&syn.0.bytes).unwrap().0.dst,
        MACS[B]
    );
    assert_eq!(syn.1.dst, far.ip());
    let nowhere = net.shards[B].connect(OWNER, None, far, &Options::default(), now);
    assert_eq!(nowhere, Err(Error::NetworkUnreachable));
}

#[test]
fn an_established_connection_outlives_a_neighbour_that_is_away() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.run(700_000_000);
    net.hand = Box::new(|_, _| false);
    net.send(A, client, b"hello");
    net.run(20_000_000);
    assert_eq!(net.view(A, client).error, 0);
    net.hand = Box::new(|_, _| true);
    net.run(60_000_000);
    assert_eq!(net.recv(B, server), b"hello");
}
