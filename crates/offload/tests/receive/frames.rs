//! The filter: what is held, what passes as it is, what is dropped.

use millrace_wire::tcp::Flags;
use millrace_wire::vnet::{self, VnetHeader};

use crate::support::{Bench, Spec, ranges};

#[test]
fn a_wrong_checksum_is_dropped_and_counted() {
    for v6 in [false, true] {
        let good = Spec {
            v6,
            ..Spec::data(0, 100)
        }
        .build();
        let tcp_at = if v6 { 54 } else { 34 };
        let mut bench = Bench::small();
        for at in tcp_at..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            bench.bytes(&bad);
        }
        bench.end_of_burst();
        assert_eq!(bench.taken().len(), 0);
        let counters = bench.receive.counters();
        assert_eq!(counters.bad_tcp_checksum, (good.len() - tcp_at) as u64);
    }
    let good = Spec::data(0, 100).build();
    let mut bench = Bench::small();
    // Version and length say what is to be looked at; the rest is what is looked at.
    for at in (14 + 8)..34 {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        bench.bytes(&bad);
    }
    assert_eq!(bench.receive.counters().bad_ip_checksum, 12);
    assert_eq!(bench.taken().len(), 0);
}

#[test]
fn what_the_port_vouches_for_is_not_verified() {
    let mut frame = Spec::data(0, 100).build();
    frame[34 + 16] ^= 0xff;
    for flags in [vnet::Flags::NEEDS_CSUM, vnet::Flags::DATA_VALID] {
        let mut bench = Bench::small();
        let vnet = VnetHeader {
            flags,
            csum_start: 34,
            csum_offset: 16,
            ..VnetHeader::default()
        };
        bench.with(&frame, vnet);
        bench.end_of_burst();
        assert_eq!(ranges(&bench.taken()), [(0, 100)]);
    }
}

#[test]
fn padding_of_a_short_frame_is_no_payload() {
    let mut frame = Spec::data(0, 1).build();
    frame.resize(frame.len() + 20, 0xee);
    let mut bench = Bench::small();
    bench.bytes(&frame);
    bench.feed(&Spec::data(1, 5));
    bench.end_of_burst();
    assert_eq!(ranges(&bench.taken()), [(0, 6)]);
}

#[test]
fn what_is_no_plain_segment_passes_byte_for_byte() {
    let mut fragment = Spec::data(0, 64).build();
    fragment[14 + 6] = 0x20;
    fragment[14 + 10] = 0;
    fragment[14 + 11] = 0;
    let sum = millrace_wire::checksum::Sum::of(&fragment[14..34]).finish();
    fragment[24..26].copy_from_slice(&sum.to_be_bytes());
    let arp = [&[0xff; 6][..], &[2; 6], &[8, 6], &[1; 28]].concat();
    let unknown = [&[2; 12][..], &[0x88, 0xcc], &[9; 50]].concat();
    let mut udp = Spec::data(0, 64).build();
    udp[14 + 9] = 17;
    udp[24..26].copy_from_slice(&[0; 2]);
    let sum = millrace_wire::checksum::Sum::of(&udp[14..34]).finish();
    udp[24..26].copy_from_slice(&sum.to_be_bytes());
    let mut frames = vec![fragment, arp, unknown, udp, vec![], vec![1], vec![0x81; 16]];
    for flags in [
        Flags::SYN,
        Flags::ACK,
        Flags::ACK | Flags::FIN,
        Flags::RST,
        Flags::empty(),
        Flags::all(),
    ] {
        frames.push(Spec::bare(0, flags).build());
    }
    frames.push(
        Spec {
            flags: Flags::ACK | Flags::URG,
            ..Spec::data(0, 10)
        }
        .build(),
    );
    let mut bench = Bench::small();
    for frame in &frames {
        bench.bytes(frame);
    }
    let outs = bench.taken();
    assert_eq!(outs.len(), frames.len());
    for (out, frame) in outs.iter().zip(&frames) {
        assert_eq!((&out.bytes, out.segments), (frame, 0));
    }
}

#[test]
fn a_unit_that_the_port_has_joined_passes_whole() {
    let vnet = VnetHeader {
        flags: vnet::Flags::DATA_VALID,
        gso: vnet::Gso::TCP_V4,
        header_len: 66,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    };
    let mut bench = Bench::small();
    bench.feed(&Spec::data(0, 500));
    bench.with(&Spec::data(500, 20_000).build(), vnet);
    bench.feed(&Spec::data(20_500, 500));
    bench.end_of_burst();
    let outs = bench.taken();
    assert_eq!(
        ranges(&outs),
        [(0, 500), (500, 20_000), (20_500, 500)],
        "in order, and what comes behind it is expected"
    );
    assert_eq!(outs[1].vnet, vnet);
}

#[test]
fn cut_frames_do_no_harm() {
    let mut bench = Bench::small();
    for v6 in [false, true] {
        for vlan in [None, Some(3)] {
            let spec = Spec {
                v6,
                vlan,
                ..Spec::data(0, 40)
            };
            let frame = spec.build();
            for len in 0..frame.len() {
                bench.bytes(&frame[..len]);
            }
        }
    }
    bench.end_of_burst();
    let counters = *bench.receive.counters();
    assert_eq!(counters.passed, counters.frames);
}
