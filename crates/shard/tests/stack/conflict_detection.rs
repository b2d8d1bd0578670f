//! How a host comes by its addresses: asking, announcing, defending.

use std::net::{IpAddr, Ipv4Addr};

use millrace_shard::ConflictDetection;
use millrace_wire::arp::{self, Operation};
use millrace_wire::ethernet::{self, Mac};
use millrace_wire::ipv6;
use millrace_wire::ndp::Message;

use crate::addresses::{STRANGER, frame, packet};
use crate::net::{A, ADDRESSES, ADDRESSES_V6, B, Flying, MACS, Net, config, config_v6};

const NOBODY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

fn net(claim: ConflictDetection) -> Net {
    let mut a = config(A);
    a.conflict_detection = claim;
    Net::with(a, config(B))
}

/// When side A has asked for what, and in whose name.
fn requests(net: &Net) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    let request = |(side, flying): &(usize, Flying)| {
        let packet = flying.arp().filter(|_| *side == A)?;
        let to = ethernet::Header::parse(&flying.bytes).unwrap().0.dst;
        assert_eq!((to, packet.operation), (Mac::BROADCAST, Operation::REQUEST));
        Some((packet.sender_ip, packet.target_ip))
    };
    net.log.iter().filter_map(request).collect()
}

#[test]
fn rfc5227_2_1_1_an_address_is_probed_three_times_before_it_is_used() {
    let mut net = net(ConflictDetection::Probe);
    let mut times = Vec::new();
    while net.shards[A].is_tentative() {
        assert!(times.len() < 10_000, "it comes to an end");
        net.log.clear();
        net.run(1_000);
        times.extend(requests(&net).into_iter().map(|said| (net.now_us, said)));
        // Before it is ours nobody is answered for it.
        if net.shards[A].is_tentative() && net.now_us.is_multiple_of(100_000) {
            let other = Ipv4Addr::new(10, 0, 0, 77);
            let question = packet(Operation::REQUEST, (STRANGER, other), ADDRESSES[A]);
            assert!(net.inject(A, &frame(Mac::BROADCAST, &question)).is_empty());
        }
    }
    let probe = (NOBODY, ADDRESSES[A]);
    let said: Vec<_> = times.iter().map(|(_, said)| *said).collect();
    assert_eq!(said, [probe, probe, probe, (ADDRESSES[A], ADDRESSES[A])]);
    let gaps: Vec<u64> = times.windows(2).map(|two| two[1].0 - two[0].0).collect();
    assert!(times[0].0 <= 2_002_000, "PROBE_WAIT: {times:?}");
    assert!(
        gaps[..2]
            .iter()
            .all(|gap| (999_000..=2_002_000).contains(gap)),
        "PROBE_MIN and PROBE_MAX: {gaps:?}"
    );
    assert!((1_999_000..=2_002_000).contains(&gaps[2]), "ANNOUNCE_WAIT");
    assert_eq!(net.shards[A].conflict(), None);
}

#[test]
fn rfc5227_2_3_an_address_is_announced_twice_two_seconds_apart() {
    let mut net = net(ConflictDetection::Announce);
    assert!(!net.shards[A].is_tentative());
    let announcement = (ADDRESSES[A], ADDRESSES[A]);
    net.run(1_999_000);
    assert_eq!(requests(&net), [announcement]);
    net.run(2_000);
    assert_eq!(requests(&net), [announcement; 2]);
    net.run(60_000_000);
    assert_eq!(requests(&net).len(), 2);
    assert_eq!(net.shards[A].counters().arp_announcements_out, 2);
}

#[test]
fn rfc5227_2_1_1_an_answer_or_another_probe_is_a_conflict() {
    let answer = packet(Operation::REPLY, (STRANGER, ADDRESSES[A]), NOBODY);
    let request = packet(Operation::REQUEST, (STRANGER, ADDRESSES[A]), ADDRESSES[B]);
    let probe = packet(Operation::REQUEST, (STRANGER, NOBODY), ADDRESSES[A]);
    for claim in [answer, request, probe] {
        let mut net = net(ConflictDetection::Probe);
        net.run(1_500_000);
        net.inject(A, &frame(Mac::BROADCAST, &claim));
        assert!(!net.shards[A].is_tentative());
        let conflict = (IpAddr::V4(ADDRESSES[A]), Some(STRANGER));
        assert_eq!(net.shards[A].conflict(), Some(conflict));
        net.log.clear();
        net.run(20_000_000);
        assert_eq!(requests(&net), [], "neither asked for again nor announced");
    }
    // Our own probe that comes back is none, nor is one for another address.
    let mut net = net(ConflictDetection::Probe);
    net.run(1_500_000);
    let echo = packet(Operation::REQUEST, (MACS[A], NOBODY), ADDRESSES[A]);
    let other = packet(Operation::REQUEST, (STRANGER, NOBODY), ADDRESSES[B]);
    for innocent in [echo, other] {
        net.inject(A, &frame(Mac::BROADCAST, &innocent));
    }
    assert!(net.shards[A].is_tentative());
}

#[test]
fn rfc5227_2_4_an_address_in_use_is_defended_once_in_ten_seconds() {
    let mut net = net(ConflictDetection::Announce);
    net.run(10_000_000);
    let claim = frame(
        Mac::BROADCAST,
        &packet(Operation::REQUEST, (STRANGER, ADDRESSES[A]), ADDRESSES[A]),
    );
    let defences = |net: &mut Net| -> Vec<arp::Packet> {
        let out = net.inject(A, &claim);
        out.iter().filter_map(Flying::arp).collect()
    };
    let first = defences(&mut net);
    assert_eq!(
        (first[0].operation, first[0].sender_ip, first[0].target_ip),
        (Operation::REQUEST, ADDRESSES[A], ADDRESSES[A])
    );
    for _ in 0..9 {
        net.run(1_000_000);
        assert_eq!(defences(&mut net), []);
    }
    net.run(1_100_000);
    assert_eq!(defences(&mut net).len(), 1);
    assert_eq!(net.shards[A].counters().arp_conflicts, 11);
    // It goes on being used, and a probe is answered.
    let probe = packet(Operation::REQUEST, (STRANGER, NOBODY), ADDRESSES[A]);
    let answers = net.inject(A, &frame(Mac::BROADCAST, &probe));
    assert_eq!(answers[0].arp().unwrap().operation, Operation::REPLY);
    assert_eq!(net.shards[A].conflict(), None);
    net.pair();
}

#[test]
fn rfc4861_7_2_6_an_address_is_announced_to_all_nodes_when_it_is_ours() {
    let mut a = config_v6(A);
    a.conflict_detection = ConflictDetection::Announce;
    let mut net = Net::with(a, config_v6(B));
    net.run(20_000_000);
    let announcements: Vec<_> = net
        .log
        .iter()
        .filter(|(side, _)| *side == A)
        .filter_map(|(_, flying)| match flying.ndp()? {
            (
                header,
                Message::NeighbourAdvertisement {
                    target,
                    link: Some(station),
                    solicited: false,
                    replaces: true,
                    ..
                },
            ) => Some((header.dst, target, station)),
            _ => None,
        })
        .collect();
    let of = |address| (ipv6::ALL_NODES, address, MACS[A]);
    let link_local = of(ipv6::link_local(MACS[A]));
    let own = of(ADDRESSES_V6[A]);
    assert_eq!(announcements, [link_local, own, link_local, own]);
}

#[test]
fn rfc4862_5_4_5_an_ipv6_address_that_another_host_has_is_a_conflict() {
    let mut net = Net::with(config_v6(A), config_v6(B));
    net.run(500_000);
    let answer = Message::NeighbourAdvertisement {
        target: ADDRESSES_V6[B],
        link: Some(STRANGER),
        router: false,
        solicited: false,
        replaces: true,
    };
    let claim = crate::v6::discovery(STRANGER, ADDRESSES_V6[B], ipv6::ALL_NODES, &answer);
    net.inject(B, &claim);
    assert_eq!(
        net.shards[B].conflict(),
        Some((ADDRESSES_V6[B].into(), None))
    );
}

/// Of a neighbour that was just heard of, another address is not believed; but what the kernel says
/// it has looked at itself.
#[test]
fn what_the_kernel_says_of_neighbours_is_believed_at_once() {
    for (claim, expected) in [
        (ConflictDetection::Nothing, MACS[B]),
        (ConflictDetection::Kernel, STRANGER),
    ] {
        let mut net = net(claim);
        net.pair();
        let told = packet(Operation::REPLY, (STRANGER, ADDRESSES[B]), ADDRESSES[A]);
        net.inject(A, &frame(MACS[A], &told));
        net.log.clear();
        net.connect(80);
        net.run(1_000);
        let mut sent = net.log.iter().filter(|(side, _)| *side == A);
        let (_, first) = sent.next().expect("a SYN");
        let (header, _) = ethernet::Header::parse(&first.bytes).unwrap();
        assert_eq!(header.dst, expected, "{claim:?}");
    }
}
