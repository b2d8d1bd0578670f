//! Trains: what is joined for a stack of our own, and that the stack sees the same stream and the
//! same holes as without.

use millrace_offload::Train;
use millrace_wire::checksum::{self, Sum};
use millrace_wire::offload::{ChecksumState, Frame};
use millrace_wire::tcp::{self, Flags, Options, Segment, Seq, Timestamps};
use millrace_wire::{ipv4, ipv6};

const ACK: Flags = Flags::ACK;

/// A segment to be sent.
#[derive(Clone, Copy)]
struct Spec {
    port: u16,
    offset: u32,
    len: u32,
    flags: Flags,
    tos: u8,
    ack: u32,
    clock: Option<u32>,
    v6: bool,
}

fn data(offset: u32, len: u32) -> Spec {
    Spec {
        port: 7,
        offset,
        len,
        flags: ACK,
        tos: 0,
        ack: 5,
        clock: Some(9),
        v6: false,
    }
}

fn byte_at(offset: u32) -> u8 {
    (offset.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

/// Just before the numbers wrap.
const START: u32 = u32::MAX - 5000;

fn frame(spec: &Spec) -> Vec<u8> {
    let header = tcp::Header {
        src_port: spec.port,
        dst_port: 80,
        seq: Seq(START.wrapping_add(spec.offset)),
        ack: Seq(spec.ack),
        flags: spec.flags,
        window: 100,
        urgent: 0,
        options: Options {
            timestamps: spec.clock.map(|value| Timestamps { value, echo: 1 }),
            ..Options::default()
        },
    };
    let mut segment = vec![0; header.header_len()];
    header.emit(&mut segment);
    segment.extend((spec.offset..spec.offset + spec.len).map(byte_at));
    let len = segment.len() as u16;
    let mut frame = vec![2; 12];
    let sum = if spec.v6 {
        let ip = ipv6::Header {
            src: [1; 16].into(),
            dst: [2; 16].into(),
            next_header: tcp::PROTOCOL,
            hop_limit: 64,
            traffic_class: spec.tos,
            flow_label: 77,
            payload_len: len,
        };
        frame.extend([0x86, 0xdd]);
        frame.resize(14 + ipv6::HEADER_LEN, 0);
        ip.emit(&mut frame[14..]);
        checksum::pseudo_v6(ip.src, ip.dst, tcp::PROTOCOL, len.into())
    } else {
        let ip = ipv4::Header {
            tos: spec.tos,
            id: spec.offset as u16,
            ..ipv4::Header::new(
                [10, 0, 0, 1].into(),
                [10, 0, 0, 2].into(),
                tcp::PROTOCOL,
                len,
            )
        };
        frame.extend([8, 0]);
        frame.resize(14 + ipv4::HEADER_LEN, 0);
        ip.emit(&mut frame[14..]);
        checksum::pseudo_v4(ip.src, ip.dst, tcp::PROTOCOL, len)
    };
    let sum = (sum + Sum::of(&segment)).finish();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    frame.extend(segment);
    // As short frames are on a wire.
    frame.resize(frame.len().max(60), 0);
    frame
}

/// What the stack was given: port, offset, length and flags.
type Given = (u16, u32, u32, Flags);

/// Looks at a frame as a stack does, in full; `None` for one that it would drop.
fn look(frame: &Frame<'_>) -> Option<Given> {
    let packet = &frame.bytes[14..];
    let (valid, segment) = if packet[0] >> 4 == 4 {
        assert!(ipv4::verify(packet), "IP checksum");
        let (ip, _, segment) = ipv4::Header::parse(packet).expect("a packet");
        let valid = checksum::verify_v4(ip.src, ip.dst, tcp::PROTOCOL, segment);
        (valid, segment)
    } else {
        let (ip, segment) = ipv6::Header::parse(packet).expect("a packet");
        let valid = checksum::verify_v6(ip.src, ip.dst, tcp::PROTOCOL, segment);
        (valid, segment)
    };
    if frame.checksum == ChecksumState::Unchecked && !valid {
        return None;
    }
    let segment = Segment::parse(segment).expect("a segment");
    let offset = segment.seq.0.wrapping_sub(START);
    for (index, &byte) in segment.payload.iter().enumerate() {
        assert_eq!(byte, byte_at(offset + index as u32), "of {offset}");
    }
    if frame.segment_size > 0 {
        assert!(segment.payload.len() > usize::from(frame.segment_size));
    }
    let len = segment.payload.len() as u32;
    Some((segment.src_port, offset, len, segment.flags))
}

fn give(train: &mut Train, frame: &[u8], given: &mut Vec<Given>) {
    train.buffer()[..frame.len()].copy_from_slice(frame);
    train.frame(frame.len(), ChecksumState::Unchecked, 0, &mut |frame| {
        given.extend(look(frame));
    });
}

/// What a stack is given of one burst.
fn burst(train: &mut Train, specs: &[Spec]) -> Vec<Given> {
    let mut given = Vec::new();
    for spec in specs {
        give(train, &frame(spec), &mut given);
    }
    train.end_of_burst(&mut |frame| given.extend(look(frame)));
    given
}

#[test]
fn segments_in_a_row_become_one() {
    for (v6, clock, size) in [
        (false, Some(1), 1448),
        (true, None, 1440),
        (false, None, 100),
    ] {
        let mut train = Train::default();
        let specs: Vec<_> = (0..10)
            .map(|i| Spec {
                v6,
                clock,
                ..data(i * size, size)
            })
            .collect();
        assert_eq!(burst(&mut train, &specs), [(7, 0, 10 * size, ACK)]);
        assert_eq!(train.counters().segments, 10);
        let next: Vec<_> = specs
            .iter()
            .map(|s| Spec {
                offset: s.offset + 10 * size,
                ..*s
            })
            .collect();
        assert_eq!(burst(&mut train, &next), [(7, 10 * size, 10 * size, ACK)]);
    }
}

#[test]
fn a_train_ends_with_a_push_and_when_it_is_full() {
    let mut train = Train::default();
    let mut specs: Vec<_> = (0..5).map(|i| data(i * 1448, 1448)).collect();
    specs[2].flags |= Flags::PSH;
    assert_eq!(
        burst(&mut train, &specs),
        [
            (7, 0, 3 * 1448, ACK | Flags::PSH),
            (7, 3 * 1448, 2 * 1448, ACK)
        ]
    );
    let mut train = Train::default();
    let specs: Vec<_> = (0..100).map(|i| data(i * 1448, 1448)).collect();
    let lens: Vec<_> = burst(&mut train, &specs)
        .iter()
        .map(|given| given.2)
        .collect();
    assert_eq!(lens, [45 * 1448, 45 * 1448, 10 * 1448]);
}

#[test]
fn what_differs_in_anything_else_is_not_joined() {
    let first = data(0, 1000);
    let next = data(1000, 1000);
    let others = [
        Spec { tos: 3, ..next },
        Spec { ack: 6, ..next },
        Spec {
            clock: Some(10),
            ..next
        },
        Spec {
            clock: None,
            ..next
        },
        Spec {
            flags: ACK | Flags::ECE,
            ..next
        },
        Spec {
            flags: ACK | Flags::CWR,
            ..next
        },
        Spec {
            flags: ACK | Flags::URG,
            ..next
        },
        Spec {
            flags: ACK | Flags::FIN,
            ..next
        },
        Spec { port: 8, ..next },
        Spec { v6: true, ..next },
        Spec { len: 0, ..next },
    ];
    for other in others {
        let given = burst(&mut Train::default(), &[first, other]);
        assert_eq!(given.len(), 2, "{:?}", other.flags);
        assert_eq!(given[0], (7, 0, 1000, ACK));
    }
}

/// RFC 5681 4.2: each segment beyond a hole is answered, so the stack sees each.
#[test]
fn while_there_is_a_hole_each_segment_is_seen() {
    let mut train = Train::default();
    let row = |from: u32, to: u32| (from..to).map(|i| data(i * 1000, 1000));
    let first: Vec<_> = row(0, 3).chain(row(4, 8)).collect();
    assert_eq!(burst(&mut train, &first).len(), 1 + 4);
    assert_eq!(burst(&mut train, &row(8, 12).collect::<Vec<_>>()).len(), 4);
    assert_eq!(burst(&mut train, &row(3, 4).collect::<Vec<_>>()).len(), 1);
    assert_eq!(burst(&mut train, &row(12, 20).collect::<Vec<_>>()).len(), 1);
}

#[test]
fn a_damaged_segment_is_a_hole() {
    let mut train = Train::default();
    let mut given = Vec::new();
    for at in [0, 3] {
        for i in 0..6 {
            let mut bytes = frame(&data(at * 100_000 + i * 1000, 1000));
            if i == at {
                bytes[500] ^= 1;
            }
            give(&mut train, &bytes, &mut given);
        }
        train.end_of_burst(&mut |frame| given.extend(look(frame)));
        let seen = std::mem::take(&mut given);
        let len: u32 = seen.iter().map(|given| given.2).sum();
        assert_eq!(len, 5000, "{seen:?}");
        let behind = 5 - at;
        assert!(
            seen.len() as u32 >= behind,
            "each behind it is seen: {seen:?}"
        );
    }
}

#[test]
fn any_traffic_is_the_same_stream_in_the_same_order() {
    let mut state = 1u64;
    let mut below = move |end: u32| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((state >> 33) as u32) % end
    };
    for seed in 0..200 {
        let mut train = Train::default();
        let mut at = [0; 3];
        let (mut sent, mut given) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            let flow = below(3);
            let len = [1, 20, 200, 1448][below(4) as usize];
            let mut spec = Spec {
                port: flow as u16,
                v6: flow == 1,
                ..data(at[flow as usize], len)
            };
            match below(12) {
                0 => spec.offset += 1000,
                1 => spec.offset = spec.offset.saturating_sub(700),
                2 => spec.flags |= Flags::PSH,
                3 => spec.len = 0,
                4 => spec.flags |= Flags::FIN,
                _ => {}
            }
            // Most of the time one goes on for a while.
            for _ in 0..1 + below(5) {
                let mut bytes = frame(&spec);
                let damaged = below(40) == 0;
                if damaged {
                    let tcp_at = bytes.len() - spec.len as usize - 1;
                    bytes[tcp_at.max(40)] ^= 0x10;
                } else {
                    sent.push((spec.port, spec.offset, spec.len, spec.flags));
                }
                give(&mut train, &bytes, &mut given);
                spec.offset += spec.len;
                spec.flags -= Flags::FIN;
            }
            at[flow as usize] = spec.offset;
            if below(10) == 0 {
                train.end_of_burst(&mut |frame| given.extend(look(frame)));
            }
        }
        train.end_of_burst(&mut |frame| given.extend(look(frame)));
        // Cut what was joined where the segments were.
        let mut rest = sent.iter();
        for unit in &given {
            let (mut offset, end) = (unit.1, unit.1 + unit.2);
            loop {
                let next = rest.next().expect("not more than was sent");
                assert_eq!((next.0, next.1), (unit.0, offset), "seed {seed}");
                offset += next.2;
                if offset == end {
                    assert_eq!(next.3, unit.3, "seed {seed}");
                    break;
                }
                assert_eq!(next.3, ACK, "seed {seed}");
            }
        }
        assert_eq!(rest.next(), None, "seed {seed}: all that was sent");
    }
}
