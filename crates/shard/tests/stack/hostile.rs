//! Frames that nobody honest sends. Names are the lines of the list of hostile inputs.

use std::net::{Ipv4Addr, SocketAddr};

use millrace_shard::Usage;
use millrace_tcp::State;
use millrace_wire::arp::{self, Operation};
use millrace_wire::checksum::{Sum, pseudo_v4};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ipv4;
use millrace_wire::tcp::{Flags, Header, Options, Seq};

use crate::net::{A, ADDRESSES, B, Flying, MACS, Net, Random, config};

/// A host on the link that is not a shard.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 66);
const HOST_MAC: Mac = Mac([2, 6, 6, 6, 6, 6]);

/// An IPv4 packet in a frame to side B, or to side A if it is for that.
pub fn packet(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 34 + payload.len()];
    let to = if dst == ADDRESSES[A] {
        MACS[A]
    } else {
        MACS[B]
    };
    ethernet::Header {
        dst: to,
        src: HOST_MAC,
        ethertype: EtherType::IPV4,
    }
    .emit(&mut bytes);
    let header = ipv4::Header {
        id: 1,
        dont_fragment: false,
        ..ipv4::Header::new(src, dst, protocol, payload.len() as u16)
    };
    header.emit(&mut bytes[14..]);
    bytes[34..].copy_from_slice(payload);
    bytes
}

/// An end of an IPv4 connection.
fn v4(end: SocketAddr) -> (Ipv4Addr, u16) {
    match end {
        SocketAddr::V4(end) => (*end.ip(), end.port()),
        SocketAddr::V6(end) => panic!("{end} is IPv6"),
    }
}

/// A TCP segment in a frame, with a good checksum.
pub fn segment(
    src: (Ipv4Addr, u16),
    dst: (Ipv4Addr, u16),
    seq: u32,
    ack: u32,
    flags: Flags,
    payload: &[u8],
) -> Vec<u8> {
    let header = Header {
        src_port: src.1,
        dst_port: dst.1,
        seq: Seq(seq),
        ack: Seq(ack),
        flags,
        window: 10_000,
        urgent: 0,
        options: Options {
            mss: flags.contains(Flags::SYN).then_some(1460),
            ..Options::default()
        },
    };
    let mut bytes = vec![0; header.header_len()];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    let sum = pseudo_v4(src.0, dst.0, 6, bytes.len() as u16) + Sum::of(&bytes);
    bytes[16..18].copy_from_slice(&sum.finish().to_be_bytes());
    packet(src.0, dst.0, 6, &bytes)
}

/// A SYN to side B.
pub fn syn(src: Ipv4Addr, src_port: u16, port: u16, seq: u32) -> Vec<u8> {
    segment(
        (src, src_port),
        (ADDRESSES[B], port),
        seq,
        0,
        Flags::SYN,
        &[],
    )
}

/// Lets side B know the hardware address of a host; returns what it sends.
pub fn introduce(net: &mut Net, host: Ipv4Addr) -> Vec<Flying> {
    let mut bytes = vec![0; 14 + arp::LEN];
    ethernet::Header {
        dst: Mac::BROADCAST,
        src: HOST_MAC,
        ethertype: EtherType::ARP,
    }
    .emit(&mut bytes);
    let request = arp::Packet {
        operation: Operation::REQUEST,
        sender_mac: HOST_MAC,
        sender_ip: host,
        target_mac: Mac([0; 6]),
        target_ip: ADDRESSES[B],
    };
    request.emit(&mut bytes[14..]);
    net.inject(B, &bytes)
}

fn acquainted() -> Net {
    let mut net = Net::new();
    net.listen(80, 16);
    introduce(&mut net, HOST);
    net
}

/// Repairs the IPv4 header checksum after a change.
pub fn repaired(mut bytes: Vec<u8>) -> Vec<u8> {
    let header_len = (usize::from(bytes[14] & 0xf) * 4).clamp(20, bytes.len() - 14);
    bytes[24..26].fill(0);
    let checksum = Sum::of(&bytes[14..14 + header_len]).finish();
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

#[test]
fn c12_malformed_ipv4_headers_are_dropped() {
    let mut net = acquainted();
    let good = syn(HOST, 1000, 80, 1);
    let changes: [(usize, &[u8]); 7] = [
        (14, &[0x44]),       // header length below 5
        (14, &[0x4f]),       // header beyond the packet
        (16, &[0xff, 0xff]), // total length beyond the frame
        (16, &[0, 19]),      // total length below the header
        (14, &[0x65]),       // version 6
        (14, &[0x05]),       // version 0
        (22, &[0]),          // no hops left
    ];
    for (at, change) in changes {
        let mut bytes = good.clone();
        bytes[at..at + change.len()].copy_from_slice(change);
        assert!(
            net.inject(B, &repaired(bytes)).is_empty(),
            "byte {at}: {change:x?}"
        );
    }
    let mut wrong_sum = good.clone();
    wrong_sum[24] ^= 0xff;
    assert!(net.inject(B, &wrong_sum).is_empty());
    assert_eq!(net.shards[B].counters().ip_malformed, 7);
    assert_eq!(net.shards[B].counters().ip_checksum, 1);
    assert_eq!(net.inject(B, &good).len(), 1);
}

#[test]
fn c12_source_routes_and_malformed_options_are_dropped() {
    let mut net = acquainted();
    for options in [
        [131, 7, 4, 1],
        [137, 3, 4, 0],
        [131, 0, 0, 0],
        [7, 200, 4, 0],
        [130, 1, 0, 0],
    ] {
        let plain = syn(HOST, 1000, 80, 1);
        let mut bytes = plain[..34].to_vec();
        bytes.extend_from_slice(&options);
        bytes.extend_from_slice(&plain[34..]);
        bytes[14] = 0x46;
        let total = (bytes.len() - 14) as u16;
        bytes[16..18].copy_from_slice(&total.to_be_bytes());
        // At most that the header makes no sense is said.
        let out = net.inject(B, &repaired(bytes));
        assert!(
            out.iter().all(|flying| flying.tcp().is_none()),
            "{options:?}"
        );
    }
    assert_eq!(net.shards[B].usage().half_open, 0);
}

#[test]
fn c13_impossible_sources_and_land_get_no_reply_and_no_state() {
    let mut net = acquainted();
    let sources: [[u8; 4]; 8] = [
        [255, 255, 255, 255],
        [10, 0, 0, 255],
        [10, 0, 0, 0],
        [224, 0, 0, 5],
        [0, 0, 0, 0],
        [127, 0, 0, 1],
        [240, 0, 0, 1],
        ADDRESSES[B].octets(),
    ];
    for source in sources {
        assert!(
            net.inject(B, &syn(source.into(), 80, 80, 1)).is_empty(),
            "{source:?}"
        );
    }
    assert_eq!(net.shards[B].counters().ip_bad_source, 8);
    assert_eq!(net.shards[B].usage().half_open, 0);
    assert!(net.shards[B].deadline().is_none_or(|at| at > net.now()));
}

#[test]
fn c14_syn_to_groups_is_ignored() {
    let mut net = acquainted();
    for dst in [[255, 255, 255, 255], [10, 0, 0, 255], [224, 0, 0, 1]] {
        let bytes = segment((HOST, 1000), (dst.into(), 80), 1, 0, Flags::SYN, &[]);
        assert!(net.inject(B, &bytes).is_empty());
    }
    // For us by IP, but for everybody by Ethernet.
    let mut bytes = syn(HOST, 1000, 80, 1);
    bytes[..6].fill(0xff);
    assert!(net.inject(B, &bytes).is_empty());
    assert_eq!(net.shards[B].usage().half_open, 0);
}

#[test]
fn c18_runts_jumbos_and_noise_do_no_harm() {
    let mut net = acquainted();
    let good = syn(HOST, 1000, 80, 1);
    for len in 0..good.len() {
        assert!(net.inject(B, &good[..len]).is_empty(), "{len} bytes");
    }
    for len in 0..20 {
        assert!(
            net.inject(B, &packet(HOST, ADDRESSES[B], 6, &vec![0; len]))
                .is_empty(),
            "payload of {len}"
        );
    }
    let mut padded = good.clone();
    padded.resize(65_600, 0xee);
    assert_eq!(net.inject(B, &padded).len(), 1);
    let mut random = Random(42);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(4) {
            let at = 12 + random.below(bytes.len() as u64 - 12) as usize;
            bytes[at] = random.next() as u8;
        }
        net.inject(B, &repaired(bytes));
    }
    net.run(100_000);
}

#[test]
fn h4_fragments_that_belong_to_nothing_are_not_answered() {
    let mut net = acquainted();
    for (flags, offset) in [(0x20, 0), (0x20, 1), (0, 1), (0x1f, 0xff)] {
        let mut bytes = syn(HOST, 1000, 80, 1);
        (bytes[20], bytes[21]) = (flags, offset);
        assert!(net.inject(B, &repaired(bytes)).is_empty());
    }
    let counters = net.shards[B].counters();
    assert_eq!(counters.ip_fragments + counters.ip_malformed, 4);
    assert!(counters.ip_fragments >= 3);
}

#[test]
fn c1_c2_bad_offsets_and_checksums_are_dropped_and_counted() {
    let mut net = acquainted();
    let good = syn(HOST, 1000, 80, 1);
    for checksum in [[0, 0], [0xff, 0xff], [good[50] ^ 1, good[51]]] {
        let mut bytes = good.clone();
        bytes[50..52].copy_from_slice(&checksum);
        assert!(net.inject(B, &bytes).is_empty());
    }
    assert_eq!(net.shards[B].counters().tcp_checksum, 3);
    for offset in [0x00, 0x40, 0xf0] {
        let mut bytes = good.clone();
        let old = Sum::of(&bytes[46..48]);
        bytes[46] = offset;
        let checksum = millrace_wire::checksum::update(
            u16::from_be_bytes([bytes[50], bytes[51]]),
            old,
            Sum::of(&bytes[46..48]),
        );
        bytes[50..52].copy_from_slice(&checksum.to_be_bytes());
        assert!(net.inject(B, &bytes).is_empty(), "offset {offset:x}");
    }
    assert_eq!(net.shards[B].counters().tcp_malformed, 3);
}

#[test]
fn a10_a11_odd_flags_make_no_connection_and_no_reset_for_a_reset() {
    let mut net = acquainted();
    for port in [80, 81] {
        for bits in 0..=255u8 {
            let flags = Flags::from_bits_retain(bits);
            let bytes = segment(
                (HOST, 1000 + u16::from(bits)),
                (ADDRESSES[B], port),
                5,
                6,
                flags,
                b"x",
            );
            let out = net.inject(B, &bytes);
            let answers: Vec<_> = out.iter().filter_map(Flying::tcp).collect();
            if flags.contains(Flags::RST) {
                assert!(answers.is_empty(), "{flags:?}");
            }
            let clean = flags & (Flags::SYN | Flags::ACK | Flags::FIN | Flags::RST) == Flags::SYN;
            let accepted = answers
                .iter()
                .any(|(_, segment)| segment.flags.contains(Flags::SYN));
            assert_eq!(accepted, clean && port == 80, "{flags:?}");
        }
    }
    assert_eq!(net.shards[B].counters().passive_opens, 0);
}

#[test]
fn a8_an_ack_to_a_listener_is_reset_with_its_own_number() {
    let mut net = acquainted();
    let out = net.inject(
        B,
        &segment((HOST, 1000), (ADDRESSES[B], 80), 5, 77, Flags::ACK, &[]),
    );
    let (_, reset) = out[0].tcp().unwrap();
    assert_eq!((reset.flags, reset.seq), (Flags::RST, Seq(77)));
}

#[test]
fn e10_resets_are_limited_and_make_no_state() {
    let mut limited = config(B);
    limited.limits.resets_per_second = 100;
    let mut net = Net::with(config(A), limited);
    introduce(&mut net, HOST);
    let mut answered = 0;
    for i in 0..5000u16 {
        answered += net
            .inject(
                B,
                &segment(
                    (HOST, i),
                    (ADDRESSES[B], i),
                    5,
                    6,
                    Flags::FIN | Flags::ACK,
                    &[],
                ),
            )
            .len();
    }
    assert_eq!(answered, 100);
    assert_eq!(net.shards[B].counters().resets_limited, 4900);
    assert_eq!(net.shards[B].usage().table, 0);
}

#[test]
fn e1_a_real_client_connects_during_a_syn_flood() {
    let mut small = config(B);
    small.limits.half_open = 256;
    let mut net = Net::with(config(A), small);
    let listener = net.listen(80, 64);
    let mut random = Random(5);
    introduce(&mut net, HOST);
    let mut flood = |net: &mut Net, count: u32| {
        for _ in 0..count {
            net.inject(
                B,
                &syn(HOST, random.next() as u16, 80, random.next() as u32),
            );
        }
    };
    flood(&mut net, 5_000);
    let client = net.connect(80);
    for _ in 0..20 {
        flood(&mut net, 1_000);
        net.run(1_000);
    }
    assert_eq!(net.shards[B].usage().half_open, 256);
    let server = net.shards[B]
        .accept(listener)
        .expect("connected during the flood");
    assert!(net.shards[B].counters().cookies_accepted >= 1);
    // What the SYN offered was not forgotten.
    let info = net.shards[B].tcp_info(server, net.now()).unwrap();
    assert!(info.selective_ack && info.timestamps && info.send_scale.is_some());
    assert!(info.srtt_us < 100_000, "{}", info.srtt_us);
    net.transfer((A, client), (B, server), 300_000);
    net.transfer((B, server), (A, client), 300_000);
}

#[test]
fn b6_without_a_flood_no_cookie_is_believed() {
    let mut net = acquainted();
    let out = net.inject(
        B,
        &segment((HOST, 1000), (ADDRESSES[B], 80), 5, 77, Flags::ACK, &[]),
    );
    assert_eq!(out[0].tcp().unwrap().1.flags, Flags::RST);
    assert_eq!(net.shards[B].counters().cookies_refused, 0);
}

#[test]
fn e2_half_open_connections_expire_and_never_reach_accept() {
    let mut net = acquainted();
    net.inject(B, &syn(HOST, 1000, 80, 1));
    let start = net.now_us;
    net.log.clear();
    net.run(62_000_000);
    assert_eq!(net.shards[B].usage().half_open, 1);
    assert_eq!(net.count(B, Flags::SYN), 5);
    net.run(2_000_000);
    assert_eq!(net.shards[B].usage().half_open, 0);
    assert_eq!(net.shards[B].counters().half_open_expired, 1);
    assert_eq!(net.shards[B].counters().passive_opens, 0);
    assert!(net.now_us - start <= 64_000_000);
}

#[test]
fn e7_ten_thousand_connects_and_resets_leave_nothing() {
    let mut net = Net::new();
    let listener = net.listen(80, 64);
    for _ in 0..10_000 {
        let client = net.connect(80);
        net.run(300);
        let server = net.shards[B].accept(listener).expect("connected");
        let now = net.now();
        net.shards[A].abort(client, now).unwrap();
        net.run(100);
        net.close(B, server);
        net.log.clear();
    }
    let usage = net.shards[A].usage();
    assert_eq!(
        usage,
        Usage {
            neighbours: 1,
            ..Usage::default()
        }
    );
    net.close(B, listener);
    net.assert_clean();
}

#[test]
fn a2_a4_blind_resets_and_syns_in_the_window_do_not_kill() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    let (local, remote) = (net.view(B, server).local, net.view(B, server).remote);
    let mut random = Random(17);
    for _ in 0..2000 {
        for flags in [Flags::RST, Flags::SYN, Flags::RST | Flags::ACK] {
            let bytes = segment(v4(remote), v4(local), random.next() as u32, 0, flags, &[]);
            net.inject(B, &bytes);
        }
    }
    assert_eq!(net.view(B, server).state, Some(State::Established));
    net.transfer((A, client), (B, server), 50_000);
}
