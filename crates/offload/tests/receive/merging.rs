//! What a unit is made of, and what its header says.

use millrace_offload::Config;
use millrace_wire::tcp::{Flags, Seq, Timestamps};
use millrace_wire::vnet::{self, Gso};
use proptest::prelude::*;

use crate::support::{Bench, Spec, ranges};

#[test]
fn segments_in_a_row_become_one_unit() {
    for (v6, vlan) in [
        (false, None),
        (true, None),
        (false, Some(7)),
        (true, Some(7)),
    ] {
        let mut bench = Bench::small();
        let specs: Vec<_> = (0..10)
            .map(|i| Spec {
                v6,
                vlan,
                ack: 77 + i,
                window: 500 + i as u16,
                timestamps: Some(Timestamps {
                    value: 9 + i,
                    echo: 3 + i,
                }),
                ..Spec::data(i * 1000, 1000)
            })
            .collect();
        let outs = bench.burst(&specs);
        assert_eq!(ranges(&outs), [(0, 10_000)]);
        let unit = &outs[0];
        assert_eq!(unit.segments, 10);
        let kind = if v6 { Gso::TCP_V6 } else { Gso::TCP_V4 };
        assert_eq!((unit.vnet.gso, unit.vnet.gso_size), (kind, 1000));
        assert_eq!(unit.vnet.flags, vnet::Flags::NEEDS_CSUM);
        // The first's clock; the last's acknowledgement, window and echo.
        let segment = unit.segment();
        assert_eq!((segment.ack, segment.window), (Seq(86), 509));
        let timestamps = segment.options.timestamps;
        assert_eq!(timestamps, Some(Timestamps { value: 9, echo: 12 }));
    }
}

#[test]
fn a_unit_is_no_larger_than_an_ip_packet_can_be() {
    let mut bench = Bench::small();
    let specs: Vec<_> = (0..100).map(|i| Spec::data(i * 1448, 1448)).collect();
    let outs = bench.burst(&specs);
    let sizes: Vec<u32> = ranges(&outs).iter().map(|range| range.1).collect();
    assert_eq!(sizes, [45 * 1448, 45 * 1448, 10 * 1448]);
}

#[test]
fn the_largest_unit_can_be_chosen() {
    let mut bench = Bench::new(Config {
        aggregate: 4000,
        ..Config::default()
    });
    let specs: Vec<_> = (0..7).map(|i| Spec::data(i * 1000, 1000)).collect();
    assert_eq!(
        ranges(&bench.burst(&specs)),
        [(0, 3000), (3000, 3000), (6000, 1000)]
    );
}

#[test]
fn without_aggregation_frames_pass_as_they_are() {
    let mut bench = Bench::new(Config {
        aggregate: 0,
        ..Config::default()
    });
    let specs: Vec<_> = (0..5).rev().map(|i| Spec::data(i * 100, 100)).collect();
    let outs = bench.burst(&specs);
    for (out, spec) in outs.iter().zip(&specs) {
        assert_eq!(out.bytes, spec.build());
    }
    assert_eq!(outs.len(), 5);
}

#[test]
fn segments_that_differ_in_what_a_receiver_acts_on_do_not_merge() {
    let first = Spec::data(0, 100);
    let next = Spec::data(100, 100);
    let timestamps = |value| Some(Timestamps { value, echo: 3 });
    for (what, other) in [
        (
            "congestion experienced",
            Spec {
                tos: 3,
                ..next.clone()
            },
        ),
        (
            "differentiated services",
            Spec {
                tos: 0x20,
                ..next.clone()
            },
        ),
        (
            "congestion echoed",
            Spec {
                flags: Flags::ACK | Flags::ECE,
                ..next.clone()
            },
        ),
        (
            "window reduced",
            Spec {
                flags: Flags::ACK | Flags::CWR,
                ..next.clone()
            },
        ),
        (
            "an older acknowledgement",
            Spec {
                ack: 76,
                ..next.clone()
            },
        ),
        (
            "an older clock",
            Spec {
                timestamps: timestamps(8),
                ..next.clone()
            },
        ),
        (
            "no timestamps",
            Spec {
                timestamps: None,
                ..next.clone()
            },
        ),
    ] {
        let mut bench = Bench::small();
        let outs = bench.burst(&[first.clone(), other.clone()]);
        assert_eq!(ranges(&outs), [(0, 100), (100, 100)], "{what}");
        assert_eq!(outs[1].segment().flags, other.flags, "{what}");
        let tos = outs[1].packet()[1];
        assert_eq!(tos, other.tos, "{what}");
    }
    let mut bench = Bench::small();
    assert_eq!(ranges(&bench.burst(&[first, next])), [(0, 200)]);
}

/// RFC 3168 6.1.2: CWR is on the first segment, and a unit that begins with it says so.
#[test]
fn rfc3168_6_1_2_cwr_begins_a_unit() {
    let mut bench = Bench::small();
    let first = Spec {
        flags: Flags::ACK | Flags::CWR,
        ..Spec::data(0, 100)
    };
    let outs = bench.burst(&[first, Spec::data(100, 100)]);
    assert_eq!(outs.len(), 1);
    assert_eq!(outs[0].vnet.gso, Gso(Gso::TCP_V4.0 | Gso::ECN.0));
}

#[test]
fn flows_and_virtual_lans_are_kept_apart() {
    let mut bench = Bench::small();
    let mut specs = Vec::new();
    for i in 0..4 {
        for (port, vlan) in [(1, None), (2, None), (1, Some(1)), (1, Some(2))] {
            specs.push(Spec {
                port,
                vlan,
                ..Spec::data(i * 100, 100)
            });
        }
    }
    let outs = bench.burst(&specs);
    assert_eq!(ranges(&outs), [(0, 400); 4]);
}

proptest! {
    /// Checksums made from partial sums are those of a full look at every byte, at whatever
    /// lengths.
    #[test]
    fn checksums_by_increment_are_full_checksums(
        lens in prop::collection::vec(1u32..300, 1..60),
        v6: bool, stamped: bool, tos in 0u8..4,
    ) {
        let mut bench = Bench::new(Config { finish_checksums: true, buffers: 128, flows: 2, ..Config::default() });
        let mut offset = 0;
        let mut specs = Vec::new();
        for len in lens {
            let timestamps = stamped.then_some(Timestamps { value: offset, echo: 1 });
            specs.push(Spec { v6, timestamps, tos, ..Spec::data(offset, len) });
            offset += len;
        }
        let outs = bench.burst(&specs);
        prop_assert_eq!(outs.len(), 1);
        prop_assert!(!outs[0].vnet.flags.contains(vnet::Flags::NEEDS_CSUM));
        prop_assert_eq!(outs[0].range(), (0, offset));
    }
}
