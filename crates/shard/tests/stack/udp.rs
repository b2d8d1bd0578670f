//! UDP: RFC 768, RFC 1122 4.1, RFC 8200 8.1, and what Linux's sockets do beyond.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_shard::{
    DatagramOpt, Discovery, Error, How, Opt, Options, Poll, Reuse, SendTo, SocketId, ViewFlags,
    errno,
};
use millrace_wire::ethernet::{EtherType, Mac};
use millrace_wire::record::Record;
use millrace_wire::{checksum, ethernet, icmpv4, ipv4, ipv6, udp};

use crate::net::{
    A, ADDRESSES, ADDRESSES_V6, B, Flying, MACS, Net, OWNER, Random, config, pattern,
};

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

impl Net {
    fn udp(&mut self, side: usize) -> SocketId {
        self.shards[side]
            .datagram(OWNER, &Options::default(), 0)
            .expect("socket")
    }

    fn udp_at(&mut self, side: usize, address: IpAddr, port: u16) -> SocketId {
        self.try_udp_at(side, address, port, Reuse::default())
            .expect("bind")
    }

    fn try_udp_at(
        &mut self,
        side: usize,
        address: IpAddr,
        port: u16,
        reuse: Reuse,
    ) -> Result<SocketId, Error> {
        let id = self.udp(side);
        let options = Options {
            reuse,
            ..Options::default()
        };
        let local = SocketAddr::new(address, port);
        let bound = self.shards[side].bind_datagram(id, local, &options);
        bound.map(|()| id).inspect_err(|_| self.close(side, id))
    }

    fn udp_to(&mut self, side: usize, remote: SocketAddr) -> SocketId {
        let id = self.udp(side);
        self.shards[side]
            .connect_datagram(id, remote)
            .expect("connect");
        id
    }

    fn say(&mut self, side: usize, id: SocketId, what: SendTo, bytes: &[u8]) -> Result<(), Error> {
        let now = self.now();
        self.shards[side].send_to(id, &what, bytes.len(), |to| to.copy_from_slice(bytes), now)
    }

    fn hear(&mut self, side: usize, id: SocketId) -> Result<(Record, Vec<u8>), Error> {
        let mut out = vec![0; 70_000];
        let record = self.shards[side].recv_from(id, &mut out, false)?;
        out.truncate(record.payload_len as usize);
        Ok((record, out))
    }

    fn hears(&mut self, side: usize, id: SocketId) -> Option<Vec<u8>> {
        self.hear(side, id).ok().map(|(_, bytes)| bytes)
    }

    fn end(&self, side: usize, port: u16) -> SocketAddr {
        SocketAddr::new(ADDRESSES[side].into(), port)
    }

    /// Everybody knows everybody's station.
    fn introduce(&mut self) {
        let a = self.udp_at(A, ANY, 9999);
        let to = to(self.end(B, 9));
        self.say(A, a, to, b"").unwrap();
        self.run(10_000);
        self.close(A, a);
    }
}

fn to(end: SocketAddr) -> SendTo {
    SendTo {
        to: Some(end),
        ..SendTo::default()
    }
}

fn peer() -> SendTo {
    SendTo::default()
}

/// A frame from A to B.
fn frame(
    src_port: u16,
    dst_port: u16,
    payload: &[u8],
    change: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut datagram = vec![0; udp::HEADER_LEN];
    udp::Header {
        src_port,
        dst_port,
        payload_len: payload.len() as u16,
    }
    .emit(&mut datagram);
    datagram.extend_from_slice(payload);
    let (src, dst) = (ADDRESSES[A], ADDRESSES[B]);
    let len = datagram.len() as u16;
    let sum = checksum::pseudo_v4(src, dst, udp::PROTOCOL, len) + checksum::Sum::of(&datagram);
    datagram[6..8].copy_from_slice(&udp::checksum_to_send(sum.finish()).to_be_bytes());
    change(&mut datagram);
    packet(src, dst, &datagram, MACS[B])
}

fn packet(src: Ipv4Addr, dst: Ipv4Addr, datagram: &[u8], to: Mac) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
    ethernet::Header {
        dst: to,
        src: MACS[A],
        ethertype: EtherType::IPV4,
    }
    .emit(&mut bytes);
    ipv4::Header {
        src,
        dst,
        protocol: udp::PROTOCOL,
        ttl: 61,
        tos: 0x10,
        id: 1,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: 0,
        payload_len: datagram.len() as u16,
    }
    .emit(&mut bytes[ethernet::HEADER_LEN..]);
    bytes.extend_from_slice(datagram);
    bytes
}

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
        .set_option(client, Opt::Datagram(DatagramOpt::ErrorsV4(true)), now)
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
            src: ADDRESSES[A],
            dst: ADDRESSES[B],
            protocol: udp::PROTOCOL,
            ttl: 64,
            tos: 0,
            id: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            payload_len: udp::HEADER_LEN as u16,
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
fn rfc1191_a_path_that_takes_less_is_learned_and_refused_to_who_wants_whole_packets() {
    let mut net = Net::new();
    let end = net.end(B, 53);
    let server = net.udp_at(B, ANY, 53);
    let client = net.udp_to(A, end);
    let now = net.now();
    let always = Opt::Datagram(DatagramOpt::DiscoveryV4(Discovery::Always));
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
        .set_option(client, Opt::Datagram(DatagramOpt::Cork(false)), now)
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
        let may = |on| Opt::Datagram(DatagramOpt::Broadcast(on));
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
        .set_option(client, Opt::Datagram(DatagramOpt::Broadcast(true)), now)
        .unwrap();
    net.say(A, client, to(end), b"x").unwrap();
    net.run(10_000);
    assert_eq!(net.shards[B].counters().icmp_errors_out, 0);
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

fn is_fragment(flying: &Flying) -> bool {
    let header = ipv4::Header::parse(&flying.bytes[ethernet::HEADER_LEN..]);
    header.is_ok_and(|(header, ..)| header.is_fragment())
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
