//! Single requirements on the stack as a whole. `docs/compliance` says which requirement is shown
//! where.

use std::net::SocketAddr;

use millrace_shard::{Error, Opt, Options, Reuse};
use millrace_wire::ipv4;
use millrace_wire::tcp::Flags;

use crate::hostile::{HOST, introduce, repaired, syn};
use crate::net::{A, ADDRESSES, ADDRESSES_V6, B, Net, OWNER};

/// Takes the option with the segment size out of SYNs of this many bytes of link and IP header.
fn without_segment_size(net: &mut Net, headers: usize) {
    net.hand = Box::new(move |_, flying| {
        let options = headers + 20;
        if flying.bytes.len() >= options + 4 && flying.bytes[options..options + 2] == [2, 4] {
            flying.bytes[options..options + 4].fill(1);
        }
        true
    });
}

#[test]
fn rfc9293_3_7_1_the_default_segment_size_is_that_of_the_family() {
    // The ports vouch for checksums, so that what is changed on the way is taken.
    let mut net = Net::new().with_offloads();
    without_segment_size(&mut net, 34);
    let (client, server, _) = net.pair();
    let stamps = 12;
    for (side, id) in [(A, client), (B, server)] {
        let info = net.shards[side].tcp_info(id, net.now()).unwrap();
        assert_eq!(info.send_mss, 536 - stamps);
    }
    let mut net = Net::v6().with_offloads();
    without_segment_size(&mut net, 54);
    let (client, server, _) = net.pair_v6();
    for (side, id) in [(A, client), (B, server)] {
        let info = net.shards[side].tcp_info(id, net.now()).unwrap();
        assert_eq!(info.send_mss, 1_220 - stamps);
    }
}

#[test]
fn rfc9293_3_9_2_3_no_connection_is_opened_to_a_group() {
    let mut net = Net::v6();
    let now = net.now();
    net.log.clear();
    for remote in [
        "224.0.0.1:80",
        "255.255.255.255:80",
        "10.0.0.255:80",
        "240.0.0.1:80",
        "[ff02::1]:80",
        "[ff05::2]:80",
    ] {
        let remote: SocketAddr = remote.parse().unwrap();
        let refused = net.shards[A].connect(OWNER, None, remote, &Options::default(), now);
        assert_eq!(refused, Err(Error::NetworkUnreachable), "{remote}");
    }
    net.run(1_000_000);
    assert_eq!(net.count(A, Flags::SYN), 0);
}

#[test]
fn rfc9293_3_9_1_1_a_port_is_listened_on_while_it_connects() {
    let mut net = Net::new();
    let reuse = Reuse {
        address: true,
        port: false,
    };
    let local = SocketAddr::new(ADDRESSES[B].into(), 5000);
    // Nobody answers: the connect stays in SYN-SENT.
    let now = net.now();
    let opening = net.shards[B].bind(OWNER, local, reuse).unwrap();
    let silent = SocketAddr::new(HOST.into(), 80);
    introduce(&mut net, HOST);
    net.shards[B].connect_bound(opening, silent, now).unwrap();
    let listener = net.shards[B].listen(OWNER, local, 16, reuse).unwrap();
    // And a second connection is half open while a third is opened.
    net.inject(B, &syn(HOST, 1000, 5000, 1));
    let client = net.connect(5000);
    net.run(10_000);
    assert!(net.shards[B].accept(listener).is_ok());
    assert_eq!(net.view(A, client).error, 0);
    assert_eq!(net.view(B, opening).error, 0);
}

#[test]
fn rfc9293_3_9_1_1_the_local_address_is_the_programs_or_is_chosen_and_stays() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let now = net.now();
    let local = SocketAddr::new(ADDRESSES[A].into(), 7777);
    let remote = SocketAddr::new(ADDRESSES[B].into(), 80);
    let told = net.shards[A]
        .connect(OWNER, Some(local), remote, &Options::default(), now)
        .unwrap();
    assert_eq!(net.view(A, told).local, local);
    let chosen = net.connect(80);
    net.run(10_000);
    assert_eq!(net.view(A, chosen).local.ip(), ADDRESSES[A]);
    assert_eq!(net.view(B, listener).pending_accepts, 2);
    net.send(A, chosen, &[1; 5_000]);
    net.run(10_000);
    let sent = net.log.iter().filter(|(from, _)| *from == A);
    for (header, _) in sent.filter_map(|(_, flying)| flying.tcp()) {
        assert_eq!((header.src, header.dst), (ADDRESSES[A], ADDRESSES[B]));
    }
}

#[test]
fn rfc9293_3_9_2_hop_limit_and_diffserv_field_are_the_programs() {
    let mut net = Net::new();
    let (client, _, _) = net.pair();
    let mut seen = Vec::new();
    for (ttl, tos) in [(9, 0x88), (200, 0x20)] {
        let now = net.now();
        for option in [Opt::Ttl(ttl), Opt::Tos(tos)] {
            net.shards[A].set_option(client, option, now).unwrap();
        }
        net.log.clear();
        net.send(A, client, b"x");
        net.run(100_000);
        let (_, first) = net.log.iter().find(|(from, _)| *from == A).unwrap();
        let (header, _) = first.tcp().unwrap();
        seen.push((header.ttl, header.tos));
    }
    assert_eq!(seen, [(9, 0x88), (200, 0x20)]);
}

#[test]
fn rfc9293_3_9_2_1_options_of_ip_that_mean_nothing_to_tcp_are_ignored() {
    let mut net = Net::new();
    net.listen(80, 16);
    introduce(&mut net, HOST);
    // Router alert, a route to record, a timestamp, an option that nobody knows; padded.
    for (i, option) in [
        [148, 4, 0, 0, 0, 0, 0, 0],
        [7, 7, 4, 0, 0, 0, 0, 0],
        [68, 8, 5, 0, 0, 0, 0, 0],
        [222, 3, 9, 1, 1, 1, 1, 0],
    ]
    .iter()
    .enumerate()
    {
        let plain = syn(HOST, 1000 + i as u16, 80, 1);
        let mut bytes = plain[..34].to_vec();
        bytes.extend_from_slice(option);
        bytes.extend_from_slice(&plain[34..]);
        bytes[14] = 0x47;
        let total = (bytes.len() - 14) as u16;
        bytes[16..18].copy_from_slice(&total.to_be_bytes());
        let answer = net.inject(B, &repaired(bytes));
        assert_eq!(answer.len(), 1, "{option:?}");
        let (header, segment) = answer[0].tcp().unwrap();
        assert_eq!(segment.flags, Flags::SYN | Flags::ACK);
        assert_eq!(
            usize::from(header.payload_len),
            answer[0].bytes.len() - 14 - ipv4::HEADER_LEN
        );
    }
}

#[test]
fn rfc9293_3_9_2_2_errors_of_icmp_reach_the_program() {
    let mut net = Net::v6();
    let remote = SocketAddr::new(ADDRESSES_V6[B].into(), 81);
    // Nobody listens there: the program learns why its connect failed.
    let client = net.connect_to(remote);
    net.run(100_000);
    assert_eq!(
        net.shards[A].take_error(client),
        millrace_shard::errno::ECONNREFUSED
    );
}
