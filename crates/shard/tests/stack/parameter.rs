//! Parameter Problem, out and in: headers that make no sense.

use std::net::{IpAddr, Ipv4Addr};

use millrace_shard::{Opt, errno};
use millrace_tcp::State;
use millrace_wire::icmpv4::{Message, unreachable};
use millrace_wire::{ethernet, icmpv6, ipv6};

use crate::datagrams::{ANY, ANY6, peer, to};
use crate::frames::{acquainted, encode, error_about, icmp, in_flight, unreachable_message};
use crate::hostile::{HOST, packet, repaired};
use crate::net::{A, ADDRESSES, ADDRESSES_V6, B, MACS, Net};
use crate::v6::{frame, header};

/// A packet to side B with these options, of which there are a multiple of four bytes.
fn with_options(protocol: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = packet(HOST, ADDRESSES[B], protocol, payload);
    bytes.splice(34..34, options.iter().copied());
    let words = (20 + options.len()) / 4;
    bytes[14] = 0x40 | words as u8;
    let total = (20 + options.len() + payload.len()) as u16;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    repaired(bytes)
}

#[test]
fn rfc1122_3_2_2_5_an_option_that_makes_no_sense_is_pointed_at() {
    let mut net = acquainted();
    for (options, at) in [
        // A timestamp longer than the header, one too short, one whose length is not there.
        ([68, 9, 5, 0], 20),
        ([1, 68, 1, 0], 21),
        ([1, 1, 1, 68], 23),
        // A route that points before itself, and one without a pointer.
        ([131, 3, 3, 0], 22),
        ([1, 137, 2, 0], 22),
    ] {
        let bytes = with_options(99, &options, &[7; 40]);
        let out = net.inject(B, &bytes);
        let (header, message) = icmp(&out[0]).unwrap();
        assert_eq!((header.src, header.dst), (ADDRESSES[B], HOST));
        let problem = Message::ParameterProblem {
            code: 0,
            pointer: at,
            original: &bytes[14..],
        };
        assert_eq!(message, problem);
    }
    assert_eq!(net.shards[B].counters().ip_malformed, 5);
    assert_eq!(net.shards[B].counters().icmp_errors_out, 5);
    // RFC 1122 3.2.1.8: what is only unknown is passed over; the routes of others are not followed,
    // and that is not said.
    let echo = encode(&Message::EchoRequest {
        id: 1,
        sequence: 2,
        data: b"x",
    });
    let out = net.inject(B, &with_options(1, &[200, 4, 9, 9], &echo));
    assert!(matches!(
        icmp(&out[0]).unwrap().1,
        Message::EchoReply { .. }
    ));
    let routed = with_options(1, &[131, 7, 4, 10, 0, 0, 9, 0], &echo);
    assert!(net.inject(B, &routed).is_empty());
}

#[test]
fn rfc1122_3_2_2_no_problem_is_told_of_what_no_error_may_be_about() {
    let mut net = acquainted();
    let wrong = [68, 9, 5, 0];
    let good = with_options(99, &wrong, &[7; 40]);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        repaired(bytes)
    };
    let error = encode(&Message::TimeExceeded {
        code: 0,
        original: &[0x45; 28],
    });
    let mut unsummed = good.clone();
    unsummed[24] ^= 1;
    let silent = [
        ("about an error", with_options(1, &wrong, &error)),
        ("about half a message", with_options(1, &wrong, &[])),
        ("with a wrong checksum", unsummed),
        ("to all stations", changed(&|bytes| bytes[..6].fill(0xff))),
        (
            "to all hosts",
            changed(&|bytes| bytes[30..34].copy_from_slice(&[10, 0, 0, 255])),
        ),
        (
            "to another host",
            changed(&|bytes| bytes[30..34].copy_from_slice(&[10, 0, 0, 77])),
        ),
        (
            "from nobody",
            changed(&|bytes| bytes[26..30].copy_from_slice(&Ipv4Addr::UNSPECIFIED.octets())),
        ),
        ("a later fragment", changed(&|bytes| bytes[21] = 1)),
    ];
    for (what, bytes) in &silent {
        assert!(net.inject(B, bytes).is_empty(), "{what}");
    }
    assert_eq!(net.shards[B].counters().icmp_errors_out, 0);
    assert_eq!(net.inject(B, &changed(&|_| {})).len(), 1, "all others");
}

#[test]
fn rfc1122_3_2_2_5_problems_share_the_limit_of_errors() {
    let mut net = acquainted();
    let wrong = with_options(99, &[68, 9, 5, 0], &[7; 40]);
    let sent: usize = (0..1_500).map(|_| net.inject(B, &wrong).len()).sum();
    assert_eq!(sent, 1_000);
    assert_eq!(net.shards[B].counters().icmp_errors_limited, 500);
}

fn problem(original: &[u8]) -> Vec<u8> {
    encode(&Message::ParameterProblem {
        code: 0,
        pointer: 20,
        original,
    })
}

#[test]
fn rfc1122_4_2_3_9_a_problem_does_not_end_a_connection() {
    let (mut net, client, segment) = in_flight();
    error_about(&mut net, &segment, problem);
    assert_eq!(net.view(A, client).state, Some(State::Established));
    assert_eq!(net.view(A, client).error, 0);
    // It is the reason if nothing arrives any more.
    net.run(2_000_000_000);
    assert_eq!(net.shards[A].take_error(client), errno::EPROTO);
}

/// What an ICMP message about some packet is.
type About<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// As on Linux, whatever is wrong: a connect does not wait for the network to heal.
#[test]
fn rfc1122_4_2_3_9_what_is_wrong_with_the_syn_ends_a_connect() {
    let expired = |original: &[u8]| encode(&Message::TimeExceeded { code: 0, original });
    let nobody = |original: &[u8]| unreachable_message(unreachable::HOST, 0)(original);
    let alien = |original: &[u8]| unreachable_message(unreachable::PROTOCOL, 0)(original);
    let cases: [(About<'_>, i32); 4] = [
        (&problem, errno::EPROTO),
        (&expired, errno::EHOSTUNREACH),
        (&nobody, errno::EHOSTUNREACH),
        (&alien, errno::ENOPROTOOPT),
    ];
    for (message, expected) in cases {
        let mut net = Net::new();
        net.pair();
        net.hand = Box::new(|_, _| false);
        net.log.clear();
        let client = net.connect(81);
        net.transmit(A);
        let syn = net.log[0].1.clone();
        assert!(syn.tcp().is_some());
        error_about(&mut net, &syn, message);
        assert_eq!(net.view(A, client).error, expected);
        assert_eq!(net.shards[A].counters().failed_opens, 1);
    }
}

#[test]
fn rfc1122_4_1_3_3_a_problem_is_told_to_the_sender_of_the_datagram() {
    let mut net = Net::new();
    net.introduce();
    let end = net.end(B, 53);
    let connected = net.udp_to(A, end);
    let open = net.udp_at(A, ANY, 5000);
    let asked = net.udp_at(A, ANY, 5001);
    let (now, option) = (net.now(), Opt::ReceiveErrors(true));
    net.shards[A].set_option(asked, option, now).unwrap();
    net.hand = Box::new(|_, _| false);
    for (client, whom) in [(connected, peer()), (open, to(end)), (asked, to(end))] {
        net.log.clear();
        net.say(A, client, whom, b"what?").unwrap();
        net.transmit(A);
        let mut sent = net.log[0].1.clone();
        sent.bytes.resize(14 + 28 + 5, 0);
        let quoted = sent.bytes[14..].to_vec();
        net.inject(A, &packet(HOST, ADDRESSES[A], 1, &problem(&quoted)));
    }
    assert_eq!(net.shards[A].take_error(connected), errno::EPROTO);
    assert_eq!(net.shards[A].take_error(open), 0);
    // What is at fault is told too, and it is no MTU.
    let report = net.shards[A].take_report(asked).unwrap();
    assert_eq!(
        (report.errno, report.kind, report.code, report.info),
        (errno::EPROTO, 12, 0, 20)
    );
    assert_eq!((report.to, report.offender), (end, IpAddr::from(HOST)));
    assert_eq!(&report.payload[..], b"what?");
    assert_eq!(net.view(A, connected).mtu, 1_500);
}

#[test]
fn rfc4443_3_4_a_problem_is_told_to_the_sender_of_the_datagram() {
    let mut net = Net::v6();
    net.pair_v6();
    let end = std::net::SocketAddr::new(ADDRESSES_V6[B].into(), 53);
    let asked = net.udp_at(A, ANY6, 5001);
    let (now, option) = (net.now(), Opt::ReceiveErrorsV6(true));
    net.shards[A].set_option(asked, option, now).unwrap();
    net.hand = Box::new(|_, _| false);
    net.log.clear();
    net.say(A, asked, to(end), b"what?").unwrap();
    net.transmit(A);
    let quoted = net.log[0].1.bytes[ethernet::HEADER_LEN..].to_vec();
    let message = icmpv6::Message::ParameterProblem {
        code: ipv6::parameter::NEXT_HEADER,
        pointer: 40,
        original: &quoted,
    };
    let mut bytes = vec![0; message.encoded_len()];
    message.emit(ADDRESSES_V6[B], ADDRESSES_V6[A], &mut bytes);
    let header = header(ADDRESSES_V6[B], ADDRESSES_V6[A], icmpv6::PROTOCOL);
    net.inject(A, &frame(MACS[A], MACS[B], header, &bytes));
    let report = net.shards[A].take_report(asked).unwrap();
    assert_eq!(
        (report.errno, report.kind, report.code, report.info),
        (errno::EPROTO, 4, 1, 40)
    );
    assert_eq!(report.to, end);
}
