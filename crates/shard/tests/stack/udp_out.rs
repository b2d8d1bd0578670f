//! How datagrams leave: fragments, pieces, full ports, unknown neighbours, all hosts of the link,
//! this host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use millrace_shard::{Discovery, Error, Opt, Poll, Reuse, SendTo, errno};
use millrace_wire::{ethernet, icmpv4, ipv4, udp};

use crate::datagrams::{ANY, ANY6, peer, to};
use crate::frames::encode;
use crate::hostile::{HOST, packet};
use crate::net::{A, ADDRESSES, ADDRESSES_V6, B, Flying, Net, Random, config, pattern};

#[test]
fn rfc1122_3_3_2_what_is_larger_than_the_link_goes_in_fragments() {
    for (mut net, address, any) in [
        (Net::new(), IpAddr::from(ADDRESSES[B]), ANY),
        (Net::v6(), IpAddr::from(ADDRESSES_V6[B]), ANY6),
    ] {
        let server = net.udp_at(B, any, 53);
        let client = net.udp_at(A, any, 5000);
        let most = if address.is_ipv4() { 65_507 } else { 65_527 };
        for len in [1472, 1473, 1452, 1453, 3000, 9001, most] {
            let payload: Vec<u8> = (0..len as u64).map(pattern).collect();
            net.say(A, client, to(SocketAddr::new(address, 53)), &payload)
                .unwrap();
            net.run(10_000);
            assert_eq!(
                net.hears(B, server).as_ref(),
                Some(&payload),
                "{len} bytes to {address}"
            );
        }
        let outcome = net.say(
            A,
            client,
            to(SocketAddr::new(address, 53)),
            &vec![0; most + 1],
        );
        assert_eq!(outcome, Err(Error::MessageSize));
    }
}

#[test]
fn rfc1191_who_wants_whole_packets_is_refused_what_the_link_does_not_take() {
    let mut net = Net::new();
    let end = net.end(B, 53);
    let server = net.udp_at(B, ANY, 53);
    let client = net.udp_to(A, end);
    let now = net.now();
    let always = Opt::DatagramMtuDiscover(Discovery::Always);
    net.shards[A].set_option(client, always, now).unwrap();
    assert_eq!(
        net.say(A, client, peer(), &[0; 1473]),
        Err(Error::MessageSize)
    );
    net.say(A, client, peer(), &[0; 1472]).unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, server).map(|bytes| bytes.len()), Some(1472));
    let whole = net.log.iter().filter_map(|(side, flying)| {
        let (_, packet) = ethernet::Header::parse(&flying.bytes).ok()?;
        let (header, ..) = ipv4::Header::parse(packet).ok()?;
        (*side == A && header.protocol == udp::PROTOCOL).then_some(header.dont_fragment)
    });
    assert!(whole.clone().count() == 1 && whole.clone().all(|whole| whole));
}

/// What a router says of a datagram holds for all that goes there for ten minutes, connections
/// among it.
#[test]
fn rfc1191_6_3_a_path_learned_from_a_datagram_is_everybodys() {
    let mut net = Net::new();
    let end = net.end(B, 53);
    let server = net.udp_at(B, ANY, 53);
    let client = net.udp_to(A, end);
    let now = net.now();
    for option in [
        Opt::ReceiveErrors(true),
        Opt::DatagramMtuDiscover(Discovery::Always),
    ] {
        net.shards[A].set_option(client, option, now).unwrap();
    }
    net.say(A, client, peer(), &[7; 1400]).unwrap();
    net.run(10_000);
    assert!(net.hears(B, server).is_some());
    assert_eq!(net.view(A, client).mtu, 1500);
    let sent = net.log.iter().find_map(|(side, flying)| {
        let (_, packet) = ethernet::Header::parse(&flying.bytes).ok()?;
        let (header, ..) = ipv4::Header::parse(packet).ok()?;
        (*side == A && header.protocol == udp::PROTOCOL).then(|| packet.to_vec())
    });
    let too_big = icmpv4::Message::Unreachable {
        code: icmpv4::unreachable::FRAGMENTATION_NEEDED,
        next_hop_mtu: 1000,
        original: &sent.unwrap()[..28 + 8],
    };
    net.inject(A, &packet(HOST, ADDRESSES[A], 1, &encode(&too_big)));
    let view = net.view(A, client);
    assert_eq!((view.mtu, view.error), (1000, errno::EMSGSIZE));
    let report = net.shards[A].take_report(client).unwrap();
    assert_eq!(
        (report.errno, report.kind, report.code, report.info),
        (errno::EMSGSIZE, 3, 4, 1000)
    );
    assert_eq!((report.to, &report.payload[..]), (end, &[7; 8][..]));
    let refused = net.say(A, client, peer(), &[0; 973]);
    assert_eq!(refused, Err(Error::MessageSize));
    net.say(A, client, peer(), &[0; 972]).unwrap();
    // Who does not insist sends on, in fragments.
    let other = net.udp_to(A, end);
    net.say(A, other, peer(), &[0; 1400]).unwrap();
    net.run(10_000);
    let heard = [net.hears(B, server), net.hears(B, server)];
    assert_eq!(
        heard.map(|bytes| bytes.map_or(0, |bytes| bytes.len())),
        [972, 1400]
    );
    // A connection begins with what the path takes.
    let listener = net.listen(80, 4);
    let stream = net.connect(80);
    net.run(10_000);
    net.shards[B].accept(listener).unwrap();
    let now = net.now();
    assert_eq!(net.shards[A].path_mtu(stream, now), Ok(1000));
    let info = net.shards[A].tcp_info(stream, now).unwrap();
    assert!(info.send_mss <= 960, "{}", info.send_mss);
    // In time it is tried anew.
    net.run(600_000_000);
    net.say(A, client, peer(), &[0; 1400]).unwrap();
}

#[test]
fn rfc8200_5_no_program_makes_packets_smaller_than_every_link_takes() {
    let mut net = Net::new();
    let client = net.udp(A);
    let now = net.now();
    for bytes in [1, 47, 48, 56, 1279] {
        let option = Opt::MtuV6(bytes);
        let refused = net.shards[A].set_option(client, option, now);
        assert_eq!(refused, Err(Error::Invalid), "{bytes}");
    }
    for bytes in [0, 1280] {
        let option = Opt::MtuV6(bytes);
        assert_eq!(net.shards[A].set_option(client, option, now), Ok(()));
    }
}

#[test]
fn a_full_port_keeps_datagrams_and_a_full_send_buffer_refuses() {
    let mut net = Net::new();
    net.introduce();
    let server = net.udp_at(B, ANY, 53);
    let end = net.end(B, 53);
    let client = net.udp_to(A, end);
    let now = net.now();
    net.shards[A]
        .set_option(client, Opt::SendBuffer(4096), now)
        .unwrap();
    net.ports[A].room = 0;
    let mut sent = 0u64;
    while net.say(A, client, peer(), &[sent as u8; 100]).is_ok() {
        net.transmit(A);
        sent += 1;
    }
    assert_eq!(sent, 8192u64.div_ceil(356));
    assert_eq!(net.say(A, client, peer(), b""), Err(Error::WouldBlock));
    assert!(!net.view(A, client).poll().contains(Poll::OUT));
    net.ports[A].room = 3;
    net.run(10_000);
    assert!(net.view(A, client).poll().contains(Poll::OUT));
    for number in 0..sent {
        assert_eq!(net.hears(B, server).unwrap(), [number as u8; 100]);
    }
    net.close(A, client);
    net.close(B, server);
    net.assert_clean();
}

#[test]
fn fragments_go_on_where_a_full_port_stopped_them() {
    let mut net = Net::new();
    net.introduce();
    let server = net.udp_at(B, ANY, 53);
    let end = net.end(B, 53);
    let client = net.udp_to(A, end);
    net.ports[A].room = 1;
    let payload: Vec<u8> = (0..20_000).map(pattern).collect();
    net.say(A, client, peer(), &payload).unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, server).unwrap(), payload);
}

#[test]
fn what_waits_for_a_neighbour_is_bounded_and_leaves_when_it_answers() {
    let mut net = Net::new();
    let server = net.udp_at(B, ANY, 53);
    let end = net.end(B, 53);
    let client = net.udp_to(A, end);
    net.say(A, client, peer(), b"first").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, server).unwrap(), b"first");
    let nobody = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 77).into(), 53);
    let lost = net.udp_to(A, nobody);
    for _ in 0..1000 {
        net.say(A, lost, peer(), b"lost").unwrap();
        net.transmit(A);
    }
    assert!(net.shards[A].counters().neighbour_queue_dropped > 800);
    for (side, id) in [(A, lost), (A, client), (B, server)] {
        net.close(side, id);
    }
    net.assert_clean();
}

#[test]
fn pieces_of_a_large_send_are_datagrams_of_their_own() {
    let mut net = Net::new();
    net.introduce();
    let server = net.udp_at(B, ANY, 53);
    let end = net.end(B, 53);
    let client = net.udp_to(A, end);
    net.ports[A].room = 5;
    let payload: Vec<u8> = (0..10_000).map(pattern).collect();
    let cut = |segment| SendTo {
        segment,
        ..SendTo::default()
    };
    net.say(A, client, cut(1000), &payload).unwrap();
    net.say(A, client, cut(1000), &payload[..1500]).unwrap();
    net.say(A, client, cut(1000), &payload[..10]).unwrap();
    net.run(10_000);
    for piece in payload.chunks(1000) {
        assert_eq!(net.hears(B, server).unwrap(), piece);
    }
    for len in [1000, 500, 10] {
        assert_eq!(net.hears(B, server).unwrap().len(), len);
    }
    assert_eq!(net.say(A, client, cut(1473), &payload), Err(Error::Invalid));
    assert_eq!(net.say(A, client, cut(10), &payload), Err(Error::Invalid));
}

#[test]
fn what_is_held_back_leaves_as_one_datagram() {
    let mut net = Net::new();
    let server = net.udp_at(B, ANY, 53);
    let end = net.end(B, 53);
    let client = net.udp_to(A, end);
    let more = SendTo {
        more: true,
        ..SendTo::default()
    };
    net.say(A, client, more, b"one ").unwrap();
    net.say(A, client, more, &[b'x'; 5000]).unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, server), None);
    net.say(A, client, peer(), b" two").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, server).unwrap().len(), 5008);
    net.say(A, client, more, b"corked").unwrap();
    let now = net.now();
    net.shards[A]
        .set_option(client, Opt::UdpCork(false), now)
        .unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, server).unwrap(), b"corked");
    net.say(A, client, more, b"never sent").unwrap();
    assert_eq!(
        net.say(A, client, more, &[0; 65_507]),
        Err(Error::MessageSize)
    );
    net.say(A, client, more, b"closed with it").unwrap();
    net.close(A, client);
    net.close(B, server);
    net.assert_clean();
}

#[test]
fn rfc1122_3_3_6_all_hosts_of_the_link_hear_who_may_speak_to_them() {
    let mut net = Net::new();
    let reuse = Reuse {
        address: true,
        port: false,
    };
    let heard = [(); 2].map(|()| net.try_udp_at(B, ANY, 67, reuse).unwrap());
    let here = net.udp_at(A, ANY, 67);
    let deaf = net.try_udp_at(B, ADDRESSES[B].into(), 67, reuse).unwrap();
    let client = net.udp_at(A, ANY, 68);
    for all in [Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 0, 255)] {
        let end = SocketAddr::new(all.into(), 67);
        assert_eq!(net.say(A, client, to(end), b"x"), Err(Error::AccessDenied));
        assert_eq!(
            net.shards[A].connect_datagram(client, end),
            Err(Error::AccessDenied)
        );
        let now = net.now();
        let may = |on| Opt::Broadcast(on);
        net.shards[A].set_option(client, may(true), now).unwrap();
        net.say(A, client, to(end), b"who?").unwrap();
        net.run(10_000);
        for id in heard {
            let (record, bytes) = net.hear(B, id).unwrap();
            assert_eq!((&bytes[..], record.to), (&b"who?"[..], all.into()));
        }
        assert_eq!(net.hears(A, here).unwrap(), b"who?");
        assert_eq!(net.hears(B, deaf), None);
        net.shards[A].set_option(client, may(false), now).unwrap();
    }
    // RFC 1122 3.2.2: nobody is told that nobody hears.
    let end = SocketAddr::new(Ipv4Addr::BROADCAST.into(), 99);
    let now = net.now();
    net.shards[A]
        .set_option(client, Opt::Broadcast(true), now)
        .unwrap();
    net.say(A, client, to(end), b"x").unwrap();
    net.run(10_000);
    assert_eq!(net.shards[B].counters().icmp_errors_out, 0);
}

#[test]
fn the_host_speaks_to_itself() {
    let mut net = Net::new();
    let server = net.udp_at(A, ANY, 53);
    for address in [Ipv4Addr::LOCALHOST, ADDRESSES[A], Ipv4Addr::UNSPECIFIED] {
        let end = SocketAddr::new(address.into(), 53);
        let client = net.udp_to(A, end);
        net.say(A, client, peer(), b"hello").unwrap();
        let (record, bytes) = net.hear(A, server).unwrap();
        assert_eq!(bytes, b"hello");
        net.say(A, server, to(record.from), b"back").unwrap();
        assert_eq!(net.hears(A, client).unwrap(), b"back");
        net.close(A, client);
        let nobody = net.udp_to(A, SocketAddr::new(address.into(), 54));
        net.say(A, nobody, peer(), b"x").unwrap();
        assert_eq!(net.shards[A].take_error(nobody), errno::ECONNREFUSED);
        net.close(A, nobody);
    }
    net.close(A, server);
    net.assert_clean();
}

#[test]
fn rfc1122_3_3_4_3_the_source_is_what_the_program_says_if_it_is_ours() {
    let mut net = Net::new();
    let server = net.udp_at(B, ANY, 53);
    let client = net.udp_at(A, ANY, 5000);
    let end = net.end(B, 53);
    let from = |address: IpAddr| SendTo {
        from: Some(address),
        hops: Some(3),
        class: Some(0xb8),
        ..to(end)
    };
    net.say(A, client, from(ADDRESSES[A].into()), b"x").unwrap();
    net.run(10_000);
    let (record, _) = net.hear(B, server).unwrap();
    assert_eq!((record.hops, record.class), (3, 0xb8));
    for not_ours in [Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::LOCALHOST] {
        let outcome = net.say(A, client, from(not_ours.into()), b"x");
        assert_eq!(outcome, Err(Error::Invalid));
    }
}

#[test]
fn datagrams_on_a_bad_link_arrive_whole_or_not_at_all() {
    for seed in 1..20 {
        let mut net = Net::with(config(A), config(B));
        net.introduce();
        let server = net.udp_at(B, ANY, 53);
        let end = net.end(B, 53);
        let client = net.udp_to(A, end);
        let mut random = Random(seed);
        net.hand = Box::new(move |_, flying| {
            match random.below(10) {
                0 => return false,
                // Two fragments of one packet could be damaged in ways that add up to nothing.
                1 if !is_fragment(flying) => {
                    let at = random.below(flying.bytes.len() as u64) as usize;
                    flying.bytes[at] ^= 1 << random.below(8);
                }
                _ => {}
            }
            true
        });
        let mut sent = Vec::new();
        let mut lens = Random(seed + 100);
        for number in 0..200u64 {
            let len = lens.below(4000);
            let payload: Vec<u8> = (0..len).map(|at| pattern(at + number * 977)).collect();
            let _ = net.say(A, client, peer(), &payload);
            sent.push(payload);
            net.run(200);
        }
        let mut heard = 0;
        while let Some(bytes) = net.hears(B, server) {
            assert!(
                sent.contains(&bytes),
                "seed {seed}: {} bytes that nobody sent",
                bytes.len()
            );
            heard += 1;
        }
        assert!(heard > 40, "seed {seed}: {heard}");
        net.close(A, client);
        net.close(B, server);
        net.hand = Box::new(|_, _| true);
        net.assert_clean();
    }
}

fn is_fragment(flying: &Flying) -> bool {
    let header = ipv4::Header::parse(&flying.bytes[ethernet::HEADER_LEN..]);
    header.is_ok_and(|(header, ..)| header.is_fragment())
}
