//! A shard between two ends in memory: what goes in on one side comes out on the other.

use std::io;
use std::os::fd::BorrowedFd;

use millrace_nic::Shard;
use millrace_offload::{Config, Instant};
use millrace_port::pair::{self, Pair, pair};
use millrace_port::{Capabilities, Counters, FRAME_MAX, Offload, Port, Relay, Relayed, RxMeta};
use millrace_wire::checksum::{self, Sum};
use millrace_wire::ipv4;
use millrace_wire::tcp::{self, Flags, Segment, Seq};
use millrace_wire::vnet::{self, Gso, VnetHeader};

struct Card {
    shard: Shard<Pair, Pair>,
    wire: Pair,
    kernel: Pair,
}

impl Card {
    fn new() -> Card {
        let (inner_wire, wire) = pair(pair::Config::default());
        let (inner_host, kernel) = pair(pair::Config {
            offload: true,
            ..pair::Config::default()
        });
        let config = Config {
            flows: 16,
            buffers: 128,
            ..Config::default()
        };
        Card {
            shard: Shard::new(inner_wire, inner_host, config),
            wire,
            kernel,
        }
    }
}

fn take(port: &mut Pair) -> Vec<(Vec<u8>, VnetHeader)> {
    let mut buffer = vec![0; FRAME_MAX];
    let mut frames = Vec::new();
    while let Some(frame) = port.receive_parts(&mut buffer, &mut []).expect("sound") {
        frames.push((buffer[..frame.len].to_vec(), frame.vnet));
    }
    frames
}

/// A frame of one flow; its checksum is finished, or left with `unfinished`.
fn frame(seq: u32, payload: &[u8], unfinished: bool) -> Vec<u8> {
    let ip = ipv4::Header {
        id: 5,
        ..ipv4::Header::new(
            [10, 0, 0, 1].into(),
            [10, 0, 0, 2].into(),
            tcp::PROTOCOL,
            (tcp::HEADER_LEN + payload.len()) as u16,
        )
    };
    let header = tcp::Header {
        src_port: 7,
        dst_port: 8,
        seq: Seq(seq),
        ack: Seq(1),
        flags: Flags::ACK,
        window: 100,
        urgent: 0,
        options: tcp::Options::default(),
    };
    let mut segment = vec![0; tcp::HEADER_LEN];
    header.emit(&mut segment);
    segment.extend_from_slice(payload);
    let pseudo = checksum::pseudo_v4(ip.src, ip.dst, ip.protocol, ip.payload_len);
    let field = if unfinished {
        pseudo.fold()
    } else {
        (pseudo + Sum::of(&segment)).finish()
    };
    segment[16..18].copy_from_slice(&field.to_be_bytes());
    let mut frame = vec![2; 12];
    frame.extend([8, 0]);
    frame.resize(34, 0);
    ip.emit(&mut frame[14..]);
    frame.extend(segment);
    frame
}

fn parse(frame: &[u8]) -> Segment<'_> {
    let (ip, _, payload) = ipv4::Header::parse(&frame[14..]).expect("a packet");
    assert!(ipv4::verify(&frame[14..]));
    assert!(checksum::verify_v4(ip.src, ip.dst, 6, payload));
    Segment::parse(payload).expect("a segment")
}

#[test]
fn segments_from_the_wire_reach_the_kernel_as_one_unit() {
    let mut card = Card::new();
    let plain = VnetHeader::default();
    for i in 0..10u32 {
        let payload = [i as u8; 1000];
        let bytes = frame(i * 1000, &payload, false);
        assert!(card.wire.send_parts(&bytes, &[], &plain).expect("sound"));
    }
    let round = card.shard.round(Instant(1)).expect("sound");
    assert_eq!((round.received, round.served, round.sent), (10, 1, 0));
    let units = take(&mut card.kernel);
    assert_eq!(units.len(), 1);
    let (unit, vnet) = &units[0];
    assert_eq!(unit.len(), 54 + 10_000);
    assert_eq!((vnet.gso, vnet.gso_size), (Gso::TCP_V4, 1000));
    let expected: Vec<u8> = (0..10).flat_map(|i| [i; 1000]).collect();
    assert_eq!(unit[54..], expected);
    assert!(card.shard.round(Instant(2)).expect("sound").is_idle());
}

#[test]
fn a_newcomer_ends_the_burst_and_goes_before_bulk() {
    let mut card = Card::new();
    let plain = VnetHeader::default();
    let mut syn = frame(0, &[], false);
    // Another port, and the flag.
    syn[35] = 9;
    syn[47] = Flags::SYN.bits();
    let segment = &mut syn[34..];
    segment[16..18].fill(0);
    let pseudo = checksum::pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 20);
    let sum = (pseudo + Sum::of(segment)).finish();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let data = |i: u32| frame(i * 100, &[i as u8; 100], false);
    for bytes in [data(0), data(1), syn.clone(), data(2), data(3)] {
        assert!(card.wire.send_parts(&bytes, &[], &plain).expect("sound"));
    }
    let round = card.shard.round(Instant(1)).expect("sound");
    assert_eq!((round.received, round.served), (3, 0));
    let lens = |frames: Vec<(Vec<u8>, VnetHeader)>| -> Vec<usize> {
        frames.iter().map(|(bytes, _)| bytes.len()).collect()
    };
    assert_eq!(lens(take(&mut card.kernel)), [54]);
    let round = card.shard.round(Instant(2)).expect("sound");
    assert_eq!((round.received, round.served), (2, 1));
    assert_eq!(lens(take(&mut card.kernel)), [454]);
}

#[test]
fn large_units_of_the_kernel_are_cut_for_a_wire_that_cannot() {
    let mut card = Card::new();
    let payload: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
    let vnet = VnetHeader {
        flags: vnet::Flags::NEEDS_CSUM,
        gso: Gso::TCP_V4,
        header_len: 54,
        gso_size: 1460,
        csum_start: 34,
        csum_offset: 16,
    };
    let unit = frame(100, &payload, true);
    assert!(card.kernel.send_parts(&unit, &[], &vnet).expect("sound"));
    // And one that says of itself what is not so.
    let lie = VnetHeader {
        csum_start: 9,
        ..vnet
    };
    assert!(card.kernel.send_parts(&unit, &[], &lie).expect("sound"));
    // And one of which only the checksum is left.
    let single = VnetHeader {
        gso: Gso::NONE,
        gso_size: 0,
        ..vnet
    };
    let small = frame(20_100, b"end", true);
    assert!(card.kernel.send_parts(&small, &[], &single).expect("sound"));
    assert_eq!(card.shard.round(Instant(1)).expect("sound").sent, 3);
    let frames = take(&mut card.wire);
    let mut stream = Vec::new();
    for (bytes, vnet) in &frames {
        assert_eq!(*vnet, VnetHeader::default());
        let segment = parse(bytes);
        assert_eq!(segment.seq, Seq(100 + stream.len() as u32));
        stream.extend_from_slice(segment.payload);
    }
    assert_eq!(frames.len(), 15);
    assert_eq!(stream, [&payload[..], b"end"].concat());
    assert_eq!(card.shard.unsound(), 1);
}

#[test]
fn what_is_not_tcp_passes_both_ways_unharmed_and_in_order() {
    let mut card = Card::new();
    let plain = VnetHeader::default();
    let kinds: [[u8; 2]; 5] = [[8, 6], [0x86, 0xdd], [0x88, 0xcc], [8, 0], [0, 40]];
    let frames: Vec<Vec<u8>> = kinds
        .iter()
        .enumerate()
        .map(|(i, kind)| [&[2; 12][..], kind, &[i as u8; 90]].concat())
        .collect();
    for bytes in &frames {
        assert!(card.wire.send_parts(bytes, &[], &plain).expect("sound"));
        assert!(card.kernel.send_parts(bytes, &[], &plain).expect("sound"));
    }
    card.shard.round(Instant(1)).expect("sound");
    let bytes = |taken: Vec<(Vec<u8>, VnetHeader)>| -> Vec<Vec<u8>> {
        taken.into_iter().map(|(bytes, _)| bytes).collect()
    };
    assert_eq!(bytes(take(&mut card.kernel)), frames);
    assert_eq!(bytes(take(&mut card.wire)), frames);
}

/// A wire that has frames left when it is flushed for the first time.
struct Slow {
    pair: Pair,
    flushed: bool,
}

impl Port for Slow {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        self.pair.receive(buffer)
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        self.pair.send(head, payload, offload)
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(std::mem::replace(&mut self.flushed, true))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pair.descriptor()
    }

    fn capabilities(&self) -> Capabilities {
        self.pair.capabilities()
    }

    fn counters(&self) -> Counters {
        self.pair.counters()
    }
}

impl Relay for Slow {
    fn receive_parts(&mut self, buffer: &mut [u8], rest: &mut [u8]) -> io::Result<Option<Relayed>> {
        self.pair.receive_parts(buffer, rest)
    }

    fn send_parts(
        &mut self,
        head: &[u8],
        payload: &[&[u8]],
        vnet: &VnetHeader,
    ) -> io::Result<bool> {
        self.pair.send_parts(head, payload, vnet)
    }
}

#[test]
fn a_wire_that_has_frames_left_is_tried_again_soon() {
    let (wire, _other) = pair(pair::Config::default());
    let (host, _kernel) = pair(pair::Config {
        offload: true,
        ..pair::Config::default()
    });
    let slow = Slow {
        pair: wire,
        flushed: false,
    };
    let mut shard = Shard::new(slow, host, Config::default());
    let now = Instant(5);
    assert_eq!(shard.deadline(), None);
    assert!(shard.round(now).expect("sound").is_idle());
    let again = shard.deadline().expect("it does not sleep for good");
    assert!(again > now && again <= now.after(1_000_000));
    assert!(shard.round(again).expect("sound").is_idle());
    assert_eq!(shard.deadline(), None);
}
