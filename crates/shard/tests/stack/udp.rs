//! UDP sockets: RFC 768, RFC 1122 4.1, RFC 8200 8.1, and what Linux's sockets do beyond. How
//! datagrams leave is in `udp_out`.

use std::net::{IpAddr, SocketAddr};

use millrace_shard::{Error, How, Opt, Options, Poll, Reuse, ViewFlags, errno};
use millrace_wire::ethernet::Mac;
use millrace_wire::{checksum, ethernet, icmpv4, ipv4, ipv6, udp};

use crate::datagrams::{ANY, ANY6, frame, packet, peer, to};
use crate::net::{A, ADDRESSES, ADDRESSES_V6, B, MACS, Net, OWNER};

#[test]
fn rfc768_a_datagram_arrives_whole_with_its_sender() {
    let mut net = Net::new();
    let server = net.udp_at(B, ANY, 53);
    let client = net.udp_at(A, ANY, 5000);
    let end = net.end(B, 53);
    for payload in [&b"question"[..], b"", &[7; 1472]] {
        net.say(A, client, to(end), payload).unwrap();
        net.run(10_000);
        let (record, bytes) = net.hear(B, server).unwrap();
        assert_eq!(bytes, payload);
        assert_eq!(record.from, net.end(A, 5000));
        assert_eq!(record.to, IpAddr::from(ADDRESSES[B]));
        assert_eq!((record.hops, record.class), (64, 0));
        net.say(B, server, to(record.from), b"answer").unwrap();
        net.run(10_000);
        assert_eq!(net.hears(A, client).unwrap(), b"answer");
    }
    assert_eq!(net.hear(A, client).unwrap_err(), Error::WouldBlock);
    net.close(A, client);
    net.close(B, server);
    net.assert_clean();
}

#[test]
fn rfc768_over_ports_that_compute_checksums() {
    let mut net = Net::new().with_offloads();
    let server = net.udp_at(B, ANY, 53);
    let client = {
        let end = net.end(B, 53);
        net.udp_to(A, end)
    };
    net.say(A, client, peer(), b"question").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, server).unwrap(), b"question");
}

#[test]
fn rfc768_without_a_checksum_is_taken_over_ipv4() {
    let mut net = Net::new();
    let server = net.udp_at(B, ANY, 53);
    net.inject(B, &frame(7, 53, b"none", |datagram| datagram[6..8].fill(0)));
    assert_eq!(net.hears(B, server).unwrap(), b"none");
    net.inject(B, &frame(7, 53, b"wrong", |datagram| datagram[6] ^= 1));
    assert_eq!(net.hears(B, server), None);
    assert_eq!(net.shards[B].counters().udp_checksum, 1);
}

#[test]
fn rfc768_source_port_zero_is_delivered() {
    let mut net = Net::new();
    let server = net.udp_at(B, ANY, 53);
    net.inject(B, &frame(0, 53, b"x", |_| {}));
    let (record, _) = net.hear(B, server).unwrap();
    assert_eq!(record.from.port(), 0);
    assert_eq!((record.hops, record.class), (61, 0x10));
    let outcome = net.say(B, server, to(record.from), b"y");
    assert_eq!(outcome, Err(Error::Invalid));
}

#[test]
fn c18_lengths_that_contradict_each_other_are_dropped() {
    let mut net = Net::new();
    let server = net.udp_at(B, ANY, 53);
    for len in [0u16, 7, 14, u16::MAX] {
        let change = |datagram: &mut Vec<u8>| datagram[4..6].copy_from_slice(&len.to_be_bytes());
        net.inject(B, &frame(7, 53, b"hello", change));
    }
    for cut in 0..8 {
        net.inject(B, &frame(7, 53, b"", |datagram| datagram.truncate(cut)));
    }
    assert_eq!(net.shards[B].counters().udp_malformed, 12);
    assert_eq!(net.hears(B, server), None);
    // A packet longer than its datagram is padded, not wrong.
    net.inject(
        B,
        &frame(7, 53, b"hello", |datagram| datagram.extend([9; 10])),
    );
    assert_eq!(net.hears(B, server).unwrap(), b"hello");
}

#[test]
fn rfc8200_8_1_without_a_checksum_is_dropped_over_ipv6() {
    let mut net = Net::v6();
    let server = net.udp_at(B, ANY6, 53);
    let client = net.udp_at(A, ANY6, 5000);
    let end = SocketAddr::new(ADDRESSES_V6[B].into(), 53);
    net.say(A, client, to(end), b"first").unwrap();
    net.run(10_000);
    let (record, bytes) = net.hear(B, server).unwrap();
    assert_eq!(
        (&bytes[..], record.from),
        (&b"first"[..], SocketAddr::new(ADDRESSES_V6[A].into(), 5000))
    );
    net.hand = Box::new(|_, flying| {
        if let Some((header, _)) = flying.v6()
            && header.next_header == udp::PROTOCOL
        {
            let at = ethernet::HEADER_LEN + ipv6::HEADER_LEN + udp::CHECKSUM_OFFSET;
            flying.bytes[at..at + 2].fill(0);
        }
        true
    });
    net.say(A, client, to(end), b"second").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, server), None);
    assert_eq!(net.shards[B].counters().udp_checksum, 1);
}

#[test]
fn rfc1122_4_1_3_1_a_closed_port_is_unreachable_and_the_peer_is_told() {
    let mut net = Net::new();
    let end = net.end(B, 53);
    let client = net.udp_to(A, end);
    net.say(A, client, peer(), b"anybody?").unwrap();
    net.run(10_000);
    assert_eq!(net.shards[B].counters().udp_no_port, 1);
    assert_eq!(net.shards[B].counters().icmp_errors_out, 1);
    // RFC 1122 4.1.3.3: passed to the program.
    let view = net.view(A, client);
    assert_eq!(view.error, errno::ECONNREFUSED);
    assert!(view.poll().contains(Poll::ERR));
    assert_eq!(net.shards[A].take_error(client), errno::ECONNREFUSED);
    assert_eq!(net.shards[A].take_error(client), 0);
}

#[test]
fn rfc1122_4_1_3_1_unreachable_is_said_only_so_often() {
    let mut net = Net::new();
    for _ in 0..3000 {
        net.inject(B, &frame(7, 53, b"x", |_| {}));
    }
    let counters = net.shards[B].counters();
    assert_eq!(counters.icmp_errors_out, 1000);
    assert_eq!(counters.icmp_errors_limited, 2000);
}

#[test]
fn rfc1122_4_1_3_3_without_a_peer_errors_are_told_to_who_asks() {
    let mut net = Net::new();
    net.introduce();
    let client = net.udp_at(A, ANY, 5000);
    let end = net.end(B, 53);
    net.say(A, client, to(end), b"one").unwrap();
    net.run(10_000);
    assert_eq!(net.view(A, client).error, 0);
    let now = net.now();
    net.shards[A]
        .set_option(client, Opt::ReceiveErrors(true), now)
        .unwrap();
    net.say(A, client, to(end), b"two").unwrap();
    net.run(10_000);
    assert!(net.view(A, client).flags.contains(ViewFlags::REPORTS));
    let report = net.shards[A].take_report(client).unwrap();
    assert_eq!(
        (report.errno, report.kind, report.code),
        (errno::ECONNREFUSED, 3, 3)
    );
    assert_eq!((report.to, report.offender), (end, ADDRESSES[B].into()));
    assert_eq!(&report.payload[..], b"two");
    assert_eq!(net.shards[A].take_report(client), Err(Error::WouldBlock));
    assert_eq!(net.view(A, client).error, 0);
}

#[test]
fn rfc5927_an_error_about_nothing_that_was_sent_is_ignored() {
    let mut net = Net::new();
    let end = net.end(B, 53);
    let client = net.udp_to(A, end);
    let mut quoted = vec![0; ipv4::HEADER_LEN + udp::HEADER_LEN];
    let local = net.view(A, client).local.port();
    for (port, expected) in [(local.wrapping_add(1), 0), (local, errno::ECONNREFUSED)] {
        ipv4::Header {
            dont_fragment: false,
            ..ipv4::Header::new(
                ADDRESSES[A],
                ADDRESSES[B],
                udp::PROTOCOL,
                udp::HEADER_LEN as u16,
            )
        }
        .emit(&mut quoted);
        udp::Header {
            src_port: port,
            dst_port: 53,
            payload_len: 0,
        }
        .emit(&mut quoted[ipv4::HEADER_LEN..]);
        let message = icmpv4::Message::Unreachable {
            code: icmpv4::unreachable::PORT,
            next_hop_mtu: 0,
            original: &quoted,
        };
        let mut body = vec![0; message.encoded_len()];
        message.emit(&mut body);
        let mut bytes = packet(ADDRESSES[B], ADDRESSES[A], &body, MACS[A]);
        bytes[6..12].copy_from_slice(&MACS[B].0);
        bytes[ethernet::HEADER_LEN + 9] = ipv4::PROTOCOL_ICMP;
        bytes[ethernet::HEADER_LEN + 10..ethernet::HEADER_LEN + 12].fill(0);
        let sum = checksum::Sum::of(&bytes[ethernet::HEADER_LEN..ethernet::HEADER_LEN + 20]);
        bytes[ethernet::HEADER_LEN + 10..ethernet::HEADER_LEN + 12]
            .copy_from_slice(&sum.finish().to_be_bytes());
        net.inject(A, &bytes);
        assert_eq!(net.view(A, client).error, expected);
    }
}

#[test]
fn the_most_specific_socket_has_the_datagram() {
    let mut net = Net::new();
    let reuse = Reuse {
        address: true,
        port: false,
    };
    let all = net.try_udp_at(B, ANY, 53, reuse).unwrap();
    let one = net.try_udp_at(B, ADDRESSES[B].into(), 53, reuse).unwrap();
    let tied = net.try_udp_at(B, ANY, 53, reuse).unwrap();
    let from = net.end(A, 5000);
    net.shards[B].connect_datagram(tied, from).unwrap();
    let client = net.udp_at(A, ANY, 5000);
    let other = net.udp_at(A, ANY, 5001);
    let end = net.end(B, 53);
    net.say(A, client, to(end), b"tied").unwrap();
    net.say(A, other, to(end), b"one").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, tied).unwrap(), b"tied");
    assert_eq!(net.hears(B, one).unwrap(), b"one");
    net.close(B, one);
    net.shards[B].disconnect_datagram(tied).unwrap();
    net.say(A, other, to(end), b"last").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, tied).unwrap(), b"last", "the one bound last");
    net.close(B, tied);
    net.say(A, other, to(end), b"all").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, all).unwrap(), b"all");
}

#[test]
fn of_two_sockets_with_one_peer_the_second_takes_over_from_the_first() {
    let mut net = Net::new();
    let reuse = Reuse {
        address: true,
        port: false,
    };
    let from = net.end(A, 5000);
    let tied = [(); 2].map(|()| {
        let id = net.try_udp_at(B, ANY, 53, reuse).unwrap();
        net.shards[B].connect_datagram(id, from).unwrap();
        id
    });
    let client = net.udp_at(A, ANY, 5000);
    let end = net.end(B, 53);
    net.say(A, client, to(end), b"first").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, tied[0]).unwrap(), b"first");
    net.close(B, tied[0]);
    net.say(A, client, to(end), b"second").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, tied[1]).unwrap(), b"second");
    net.close(B, tied[1]);
    net.close(A, client);
    net.assert_clean();
}

#[test]
fn reuse_port_spreads_senders_over_the_group() {
    let mut net = Net::new();
    let reuse = Reuse {
        address: false,
        port: true,
    };
    let group = [(); 4].map(|()| net.try_udp_at(B, ANY, 53, reuse).unwrap());
    assert_eq!(
        net.try_udp_at(B, ANY, 53, Reuse::default()),
        Err(Error::AddressInUse)
    );
    for port in 0..400 {
        net.inject(B, &frame(1024 + port, 53, b"x", |_| {}));
    }
    for id in group {
        let mut count = 0;
        while net.hears(B, id).is_some() {
            count += 1;
        }
        assert!((50..150).contains(&count), "{count} of 400");
    }
}

#[test]
fn a_connected_socket_hears_its_peer_alone() {
    let mut net = Net::new();
    let end = net.end(A, 5000);
    let server = net.udp_at(B, ANY, 53);
    net.shards[B].connect_datagram(server, end).unwrap();
    assert_eq!(net.view(B, server).local, net.end(B, 53));
    net.inject(B, &frame(5001, 53, b"other", |_| {}));
    assert_eq!(net.hears(B, server), None);
    net.inject(B, &frame(5000, 53, b"peer", |_| {}));
    assert_eq!(net.hears(B, server).unwrap(), b"peer");
    // Back to everybody, at the address that it was bound to.
    net.shards[B].disconnect_datagram(server).unwrap();
    assert_eq!(net.view(B, server).local, SocketAddr::new(ANY, 53));
    net.inject(B, &frame(5001, 53, b"other", |_| {}));
    assert_eq!(net.hears(B, server).unwrap(), b"other");
    assert_eq!(
        net.say(B, server, peer(), b"x"),
        Err(Error::DestinationRequired)
    );
}

#[test]
fn rfc6056_3_3_ephemeral_ports_are_spread() {
    let mut net = Net::new();
    let end = net.end(B, 53);
    let mut ports: Vec<u16> = (0..500)
        .map(|_| {
            let id = net.udp_to(A, end);
            net.view(A, id).local.port()
        })
        .collect();
    let near = ports.windows(2).filter(|two| two[0].abs_diff(two[1]) == 1);
    assert!(near.count() < 5);
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 500);
}

#[test]
fn rfc3493_5_3_one_socket_serves_both_families() {
    let mut net = Net::v6();
    let server = net.udp_at(B, ANY6, 53);
    let v4 = net.udp_at(A, ANY, 5000);
    let v6 = net.udp_at(A, ANY6, 5001);
    let (end4, end6) = (net.end(B, 53), SocketAddr::new(ADDRESSES_V6[B].into(), 53));
    net.say(A, v4, to(end4), b"four").unwrap();
    net.say(A, v6, to(end6), b"six").unwrap();
    net.run(20_000);
    for _ in 0..2 {
        let (record, bytes) = net.hear(B, server).unwrap();
        assert_eq!(bytes == b"four", record.from.is_ipv4());
        net.say(B, server, to(record.from), &bytes).unwrap();
    }
    net.run(20_000);
    assert_eq!(net.hears(A, v4).unwrap(), b"four");
    assert_eq!(net.hears(A, v6).unwrap(), b"six");
}

#[test]
fn a_full_receive_buffer_drops_and_counts() {
    let mut net = Net::new();
    let server = net.udp_at(B, ANY, 53);
    let now = net.now();
    net.shards[B]
        .set_option(server, Opt::ReceiveBuffer(4096), now)
        .unwrap();
    for _ in 0..100 {
        net.inject(B, &frame(7, 53, &[1; 80], |_| {}));
    }
    // 128 bytes each, and one may stick out.
    let dropped = net.shards[B].counters().udp_receive_full;
    assert_eq!(dropped, 100 - 8192 / 128);
    let mut heard = 0;
    while net.hears(B, server).is_some() {
        heard += 1;
    }
    assert_eq!(heard + dropped, 100);
    net.inject(B, &frame(7, 53, b"x", |_| {}));
    assert_eq!(net.hear(B, server).unwrap().0.dropped, dropped as u32);
    net.shards[B].for_each_socket(now, |socket| assert_eq!(socket.dropped, dropped));
    assert_eq!(net.shards[B].memory().in_use(), 0, "idle, without a buffer");
}

#[test]
fn rfc1122_4_1_3_6_a_datagram_from_all_hosts_or_ourselves_is_dropped() {
    let mut net = Net::new();
    let server = net.udp_at(B, ANY, 53);
    let mut datagram = vec![0; 8];
    udp::Header {
        src_port: 53,
        dst_port: 53,
        payload_len: 0,
    }
    .emit(&mut datagram);
    for src in [
        [255; 4],
        [10, 0, 0, 255],
        [224, 0, 0, 1],
        [10, 0, 0, 2],
        [127, 0, 0, 1],
        [0; 4],
    ] {
        net.inject(B, &packet(src.into(), ADDRESSES[B], &datagram, MACS[B]));
    }
    // To us alone, but to a group of stations.
    net.inject(
        B,
        &packet(ADDRESSES[A], ADDRESSES[B], &datagram, Mac::BROADCAST),
    );
    assert_eq!(net.hears(B, server), None);
    assert_eq!(net.shards[B].counters().icmp_errors_out, 0);
}

#[test]
fn shut_sockets_neither_hear_nor_speak() {
    let mut net = Net::new();
    let end = net.end(A, 5000);
    let server = net.udp_at(B, ANY, 53);
    let now = net.now();
    assert_eq!(
        net.shards[B].shutdown(server, How::Write, now),
        Err(Error::NotConnected)
    );
    net.shards[B].connect_datagram(server, end).unwrap();
    assert_eq!(net.say(B, server, peer(), b"x"), Err(Error::BrokenPipe));
    net.inject(B, &frame(5000, 53, b"still heard", |_| {}));
    assert_eq!(net.hears(B, server).unwrap(), b"still heard");
    net.shards[B].shutdown(server, How::Read, now).unwrap();
    net.inject(B, &frame(5000, 53, b"no more", |_| {}));
    assert_eq!(net.hears(B, server), None);
    let poll = net.view(B, server).poll();
    assert!(poll.contains(Poll::HUP | Poll::IN | Poll::RDHUP));
}

#[test]
fn bind_refuses_what_is_not_ours_or_taken() {
    let mut net = Net::new();
    let refused = |net: &mut Net, address: [u8; 4], port| {
        net.try_udp_at(A, IpAddr::from(address), port, Reuse::default())
            .unwrap_err()
    };
    assert_eq!(
        refused(&mut net, [10, 0, 0, 9], 53),
        Error::AddressNotAvailable
    );
    let taken = net.udp_at(A, ANY, 53);
    assert_eq!(refused(&mut net, [10, 0, 0, 1], 53), Error::AddressInUse);
    let again = net.shards[A].bind_datagram(taken, SocketAddr::new(ANY, 54), &Options::default());
    assert_eq!(again, Err(Error::Invalid));
    // TCP's ports are others.
    let tcp = net.shards[A].listen(OWNER, SocketAddr::new(ANY, 53), 1, Reuse::default());
    assert!(tcp.is_ok());
    let unbound = net.udp(A);
    let end = net.end(B, 53);
    assert_eq!(net.say(A, unbound, to(end), b"x"), Err(Error::Invalid));
}

#[test]
fn what_the_program_has_read_and_not_said_is_asked_for() {
    let mut net = Net::new();
    let server = net.udp_at(B, ANY, 53);
    net.inject(B, &frame(7, 53, b"x", |_| {}));
    let received = net.view(B, server).received;
    let now = net.now();
    assert_eq!(
        net.shards[B].consumed(server, received + 1, now),
        Err(Error::Invalid)
    );
    net.shards[B].consumed(server, received, now).unwrap();
    assert_eq!(net.hears(B, server), None);
    net.shards[B].consumed(server, 0, now).unwrap();
}
