//! ICMP and what else a host answers.

use std::net::Ipv4Addr;

use millrace_shard::errno;
use millrace_tcp::State;
use millrace_wire::icmpv4::{Message, unreachable};
use millrace_wire::tcp::Flags;
use millrace_wire::{ethernet, icmpv4, ipv4};

use crate::hostile::{self, HOST, packet};
use crate::net::{A, ADDRESSES, B, Flying, Net, config};

/// The ICMP message in a frame.
pub fn icmp(flying: &Flying) -> Option<(ipv4::Header, Message<'_>)> {
    let (_, bytes) = ethernet::Header::parse(&flying.bytes).ok()?;
    let (header, _, payload) = ipv4::Header::parse(bytes).ok()?;
    assert!(ipv4::verify(bytes) && icmpv4::verify(payload));
    Some((header, Message::parse(payload).ok()?))
}

pub fn encode(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0; message.encoded_len()];
    message.emit(&mut bytes);
    bytes
}

/// A shard that knows the injecting host's hardware address.
pub fn acquainted() -> Net {
    let mut net = Net::new();
    hostile::introduce(&mut net, HOST);
    net
}

#[test]
fn rfc1122_3_2_2_6_echo_is_answered_with_its_data() {
    let mut net = acquainted();
    let data: Vec<u8> = (0..1200).map(|i| i as u8).collect();
    let request = encode(&Message::EchoRequest {
        id: 7,
        sequence: 9,
        data: &data,
    });
    let out = net.inject(B, &packet(HOST, ADDRESSES[B], 1, &request));
    let (header, message) = icmp(&out[0]).unwrap();
    assert_eq!((header.src, header.dst), (ADDRESSES[B], HOST));
    assert_eq!(
        message,
        Message::EchoReply {
            id: 7,
            sequence: 9,
            data: &data
        }
    );
}

#[test]
fn echo_to_an_unknown_neighbour_waits_for_its_address() {
    let mut net = Net::new();
    let request = encode(&Message::EchoRequest {
        id: 7,
        sequence: 9,
        data: b"x",
    });
    let out = net.inject(B, &packet(HOST, ADDRESSES[B], 1, &request));
    assert!(out[0].arp().is_some());
    for _ in 0..100 {
        assert!(
            net.inject(B, &packet(HOST, ADDRESSES[B], 1, &request))
                .is_empty()
        );
    }
    assert_eq!(net.shards[B].counters().neighbour_queue_dropped, 101 - 8);
    let out = hostile::introduce(&mut net, HOST);
    assert_eq!(out.iter().filter_map(icmp).count(), 8);
}

#[test]
fn broadcast_echo_is_not_answered() {
    let mut net = acquainted();
    let request = encode(&Message::EchoRequest {
        id: 7,
        sequence: 9,
        data: b"",
    });
    assert!(
        net.inject(B, &packet(HOST, Ipv4Addr::new(10, 0, 0, 255), 1, &request))
            .is_empty()
    );
    assert!(
        net.inject(B, &packet(HOST, Ipv4Addr::BROADCAST, 1, &request))
            .is_empty()
    );
}

/// RFC 1122 3.2.2.6 wants each answered; RFC 1812 4.3.2.8 has the reasons to stop somewhere. Errors
/// are not held back with them.
#[test]
fn rfc1122_3_2_2_6_echo_is_answered_only_so_often() {
    let mut limited = config(B);
    limited.limits.echo_replies_per_second = 50;
    let mut net = Net::with(config(A), limited);
    hostile::introduce(&mut net, HOST);
    let request = encode(&Message::EchoRequest {
        id: 7,
        sequence: 9,
        data: b"x",
    });
    let request = packet(HOST, ADDRESSES[B], 1, &request);
    let ask = |net: &mut Net| -> usize { (0..80).map(|_| net.inject(B, &request).len()).sum() };
    assert_eq!(ask(&mut net), 50);
    let counters = net.shards[B].counters();
    assert_eq!(
        (counters.icmp_echo_replies, counters.icmp_echo_limited),
        (50, 30)
    );
    let unknown = packet(HOST, ADDRESSES[B], 99, &[0; 20]);
    assert_eq!(net.inject(B, &unknown).len(), 1);
    net.run(1_000_000);
    assert_eq!(ask(&mut net), 50, "in the next second");
}

#[test]
fn rfc1122_3_2_2_1_udp_gets_port_and_others_protocol_unreachable() {
    let mut net = acquainted();
    for (protocol, expected) in [(17, unreachable::PORT), (99, unreachable::PROTOCOL)] {
        let mut payload = [0xab; 600];
        // A datagram that fills the packet and has no checksum.
        payload[4..8].copy_from_slice(&[2, 0x58, 0, 0]);
        let bytes = packet(HOST, ADDRESSES[B], protocol, &payload);
        let out = net.inject(B, &bytes);
        let (header, message) = icmp(&out[0]).unwrap();
        assert_eq!(header.dst, HOST);
        let Message::Unreachable { code, original, .. } = message else {
            panic!("{message:?}")
        };
        assert_eq!(code, expected);
        assert_eq!(original, &bytes[14..14 + 548]);
    }
}

#[test]
fn errors_are_limited_in_number_and_never_about_errors() {
    let mut net = acquainted();
    let sent = (0..3000)
        .filter(|_| {
            !net.inject(B, &packet(HOST, ADDRESSES[B], 99, &[0; 20]))
                .is_empty()
        })
        .count();
    assert_eq!(sent, 1000);
    assert_eq!(net.shards[B].counters().icmp_errors_limited, 2000);
    let original = packet(ADDRESSES[B], HOST, 17, &[0; 20]);
    let error = encode(&Message::Unreachable {
        code: 3,
        next_hop_mtu: 0,
        original: &original[14..],
    });
    assert!(
        net.inject(B, &packet(HOST, ADDRESSES[B], 1, &error))
            .is_empty()
    );
}

/// An ICMP error about a segment of side A's connection, from a router.
pub fn error_about(net: &mut Net, flying: &Flying, message: impl Fn(&[u8]) -> Vec<u8>) {
    let quoted = flying.bytes[14..flying.bytes.len().min(14 + 28)].to_vec();
    net.inject(A, &packet(HOST, ADDRESSES[A], 1, &message(&quoted)));
}

pub fn unreachable_message(code: u8, mtu: u16) -> impl Fn(&[u8]) -> Vec<u8> {
    move |original| {
        encode(&Message::Unreachable {
            code,
            next_hop_mtu: mtu,
            original,
        })
    }
}

/// A connection whose data is in flight, and that data's first segment.
pub fn in_flight() -> (Net, millrace_shard::SocketId, Flying) {
    let mut net = Net::new();
    let (client, _, _) = net.pair();
    net.hand = Box::new(|_, _| false);
    net.log.clear();
    net.send(A, client, &[5; 5_000]);
    net.transmit(A);
    let segment = net.log[0].1.clone();
    (net, client, segment)
}

#[test]
fn g1_unreachable_is_a_soft_error_for_an_established_connection() {
    let (mut net, client, segment) = in_flight();
    for code in 0..=15 {
        if code != unreachable::FRAGMENTATION_NEEDED {
            error_about(&mut net, &segment, unreachable_message(code, 0));
        }
    }
    assert_eq!(net.view(A, client).state, Some(State::Established));
    assert_eq!(net.view(A, client).error, 0);
    assert!(net.shards[A].counters().icmp_errors_in >= 15);
}

#[test]
fn g3_fragmentation_needed_lowers_the_segment_size_within_reason() {
    let (mut net, client, segment) = in_flight();
    let mss = |net: &Net| net.shards[A].tcp_info(client, net.now()).unwrap().send_mss;
    let before = mss(&net);
    for nonsense in [0, 1, 67, 1500, 9000] {
        error_about(
            &mut net,
            &segment,
            unreachable_message(unreachable::FRAGMENTATION_NEEDED, nonsense),
        );
        assert_eq!(mss(&net), before, "mtu {nonsense}");
    }
    error_about(
        &mut net,
        &segment,
        unreachable_message(unreachable::FRAGMENTATION_NEEDED, 1300),
    );
    assert!(mss(&net) < before && mss(&net) >= 1200, "{}", mss(&net));
    error_about(
        &mut net,
        &segment,
        unreachable_message(unreachable::FRAGMENTATION_NEEDED, 68),
    );
    assert!(mss(&net) >= 48, "{}", mss(&net));
}

#[test]
fn g2_a_quoted_sequence_number_that_is_not_in_flight_is_ignored() {
    let (mut net, client, mut segment) = in_flight();
    let before = net.shards[A].tcp_info(client, net.now()).unwrap().send_mss;
    segment.bytes[14 + 20 + 4] ^= 0x40;
    error_about(
        &mut net,
        &segment,
        unreachable_message(unreachable::FRAGMENTATION_NEEDED, 600),
    );
    assert_eq!(
        net.shards[A].tcp_info(client, net.now()).unwrap().send_mss,
        before
    );
}

#[test]
fn g4_g5_quench_redirect_truncated_and_corrupt_messages_are_ignored() {
    let (mut net, client, segment) = in_flight();
    let before = net.shards[A].tcp_info(client, net.now()).unwrap();
    for kind in [4, 5] {
        error_about(&mut net, &segment, |original| {
            encode(&Message::Other {
                kind,
                code: 0,
                rest: [0; 4],
                data: original,
            })
        });
    }
    error_about(&mut net, &segment, |original| {
        encode(&Message::Unreachable {
            code: 4,
            next_hop_mtu: 600,
            original: &original[..26],
        })
    });
    error_about(&mut net, &segment, |original| {
        let mut bytes = encode(&Message::Unreachable {
            code: 4,
            next_hop_mtu: 600,
            original,
        });
        bytes[2] ^= 1;
        bytes
    });
    assert_eq!(net.shards[A].tcp_info(client, net.now()).unwrap(), before);
    assert_eq!(net.shards[A].counters().icmp_dropped, 4);
}

#[test]
fn g6_a_hard_error_aborts_a_connect_only_if_it_quotes_our_syn() {
    let mut net = Net::new();
    net.pair();
    net.hand = Box::new(|_, _| false);
    net.log.clear();
    let client = net.connect(81);
    net.transmit(A);
    let syn = net
        .log
        .iter()
        .find(|(_, flying)| flying.tcp().is_some())
        .unwrap()
        .1
        .clone();
    assert!(syn.tcp().unwrap().1.flags.contains(Flags::SYN));
    let mut wrong = syn.clone();
    wrong.bytes[14 + 20 + 7] ^= 1;
    error_about(&mut net, &wrong, unreachable_message(unreachable::PORT, 0));
    assert_eq!(net.view(A, client).state, Some(State::SynSent));
    error_about(&mut net, &syn, unreachable_message(unreachable::PORT, 0));
    assert_eq!(net.shards[A].take_error(client), errno::ECONNREFUSED);
}

/// RFC 1191 6.2, RFC 5927 7.2: what a connection has believed holds for the next ones to that host,
/// for ten minutes; what quotes nothing in flight is not remembered.
#[test]
fn rfc1191_6_2_a_smaller_path_is_remembered_for_its_host() {
    let (mut net, client, segment) = in_flight();
    let smaller = || unreachable_message(unreachable::FRAGMENTATION_NEEDED, 1_300);
    let mut guessed = segment.clone();
    guessed.bytes[14 + 20 + 4] ^= 0x40;
    error_about(&mut net, &guessed, smaller());
    assert_eq!(net.shards[A].path_mtu(client, net.now()), Ok(1_500));
    error_about(&mut net, &segment, smaller());
    assert_eq!(net.shards[A].path_mtu(client, net.now()), Ok(1_300));
    // Another connection knows it from the start, in what it sends; what it announces is what it
    // can receive.
    net.hand = Box::new(|_, _| true);
    net.log.clear();
    let second = net.connect(80);
    net.run(10_000);
    let (_, syn) = net.log[0].1.tcp().unwrap();
    assert_eq!(syn.options.mss, Some(1_460));
    let mss = |net: &Net, id| net.shards[A].tcp_info(id, net.now()).unwrap().send_mss;
    assert_eq!(mss(&net, second), 1_300 - 52);
    assert_eq!(net.shards[A].path_mtu(second, net.now()), Ok(1_300));
    net.run(600_000_000);
    assert_eq!(net.shards[A].path_mtu(second, net.now()), Ok(1_500));
    let third = net.connect(80);
    net.run(10_000);
    assert_eq!(mss(&net, third), 1_448);
    assert_eq!(
        net.shards[A].path_mtu(third, net.now()),
        Ok(1_500),
        "it is believed for ten minutes"
    );
    let fresh = net.shards[A]
        .socket(crate::net::OWNER, &Default::default())
        .unwrap();
    assert_eq!(
        net.shards[A].path_mtu(fresh, net.now()),
        Err(millrace_shard::Error::NotConnected)
    );
}
