//! Reordering, duplicates, overlaps.

use millrace_wire::tcp::Flags;

use crate::support::{Bench, Spec, ranges};

fn shuffled(offsets: &[u32]) -> Vec<Spec> {
    offsets.iter().map(|&i| Spec::data(i * 100, 100)).collect()
}

/// With a SYN before it the start of the stream is known.
fn started() -> Bench {
    let mut bench = Bench::small();
    let mut syn = Spec::bare(0, Flags::SYN);
    syn.seq = syn.seq.wrapping_sub(1);
    bench.feed(&syn);
    bench.outs.0.clear();
    bench
}

#[test]
fn what_comes_out_of_order_is_put_in_order() {
    for order in [
        &[1, 0, 2, 3][..],
        &[3, 2, 1, 0],
        &[0, 2, 1, 3],
        &[2, 0, 3, 1],
        &[0, 3, 2, 1],
    ] {
        let mut bench = started();
        assert_eq!(
            ranges(&bench.burst(&shuffled(order))),
            [(0, 400)],
            "{order:?}"
        );
    }
}

#[test]
fn a_hole_is_waited_for_and_then_shown() {
    let mut bench = started();
    let outs = bench.burst(&shuffled(&[0, 2, 3]));
    assert_eq!(outs.len(), 0, "the hole may be filled");
    bench.pass(2_000_000);
    assert_eq!(ranges(&bench.taken()), [(0, 100), (200, 200)]);
    assert_eq!(bench.receive.counters().flush_hole, 2, "both units");
    // What fills it now is late, and passes at once; what follows the rest is expected.
    bench.feed(&Spec::data(100, 100));
    assert_eq!(ranges(&bench.taken()), [(100, 100)]);
    assert_eq!(ranges(&bench.burst(&shuffled(&[4, 5]))), [(400, 200)]);
}

#[test]
fn a_hole_filled_in_a_later_burst_makes_one_unit() {
    let mut bench = started();
    assert_eq!(bench.burst(&shuffled(&[1, 2])).len(), 0);
    bench.now += 10_000;
    assert_eq!(ranges(&bench.burst(&shuffled(&[0]))), [(0, 300)]);
    assert_eq!(bench.receive.counters().reordered, 1);
}

#[test]
fn a_hole_is_waited_for_however_old_what_is_before_it_is() {
    let mut bench = started();
    let not_drained = |bench: &mut Bench| {
        let now = millrace_offload::Instant(bench.now);
        bench.receive.end_of_burst(false, now, &mut bench.outs);
        bench.pass(100_000);
    };
    for i in 0..15 {
        bench.feed(&Spec::data(i * 10, 10));
        not_drained(&mut bench);
    }
    bench.outs.0.clear();
    let at = 150
        - bench
            .receive
            .flows(millrace_offload::Instant(0))
            .map(|flow| flow.held)
            .sum::<u32>();
    assert!(at < 50, "what came since a millisecond is held");
    bench.feed(&Spec::data(160, 10));
    not_drained(&mut bench);
    assert_eq!(bench.taken().len(), 0);
    bench.feed(&Spec::data(150, 10));
    not_drained(&mut bench);
    bench.pass(5_000_000);
    assert_eq!(ranges(&bench.taken()), [(at, 170 - at)]);
}

#[test]
fn what_is_held_already_is_dropped() {
    let mut bench = started();
    let outs = bench.burst(&shuffled(&[0, 1, 1, 0, 2, 1]));
    assert_eq!(ranges(&outs), [(0, 300)]);
    assert_eq!(bench.receive.counters().duplicates, 3);
}

#[test]
fn what_was_handed_on_is_never_dropped() {
    let mut bench = started();
    assert_eq!(ranges(&bench.burst(&shuffled(&[0, 1]))), [(0, 200)]);
    // The host may not have kept it: it is for the host to say.
    assert_eq!(ranges(&bench.burst(&shuffled(&[0]))), [(0, 100)]);
    assert_eq!(ranges(&bench.burst(&shuffled(&[2]))), [(200, 100)]);
}

#[test]
fn overlaps_are_trimmed() {
    let mut bench = started();
    let specs = [
        Spec::data(0, 100),
        Spec::data(300, 100),
        // Over the end of the first and the start of the second.
        Spec::data(50, 300),
    ];
    assert_eq!(ranges(&bench.burst(&specs)), [(0, 400)]);
    assert_eq!(bench.receive.counters().trimmed, 1);
}

#[test]
fn a_segment_that_covers_another_passes_behind_it() {
    let mut bench = started();
    let specs = [
        Spec::data(0, 100),
        Spec::data(200, 100),
        Spec::data(150, 250),
    ];
    assert_eq!(
        ranges(&bench.burst(&specs)),
        [(0, 100), (200, 100), (150, 250)]
    );
}

#[test]
fn a_push_beyond_a_hole_flushes_when_the_hole_is_filled() {
    let mut bench = started();
    let specs = [
        Spec::data(100, 100).pushed(),
        Spec::data(200, 100),
        Spec::data(0, 100),
    ];
    for spec in &specs {
        bench.feed(spec);
    }
    let outs = bench.taken();
    assert_eq!(ranges(&outs), [(0, 200), (200, 100)]);
    assert!(outs[0].segment().flags.contains(Flags::PSH));
}

#[test]
fn numbers_far_from_what_is_expected_pass_and_are_followed() {
    let mut bench = started();
    assert_eq!(ranges(&bench.burst(&[Spec::data(0, 100)])), [(0, 100)]);
    let far = 100 << 20;
    for i in 0..3 {
        bench.feed(&Spec::data(far + i * 100, 100));
        assert_eq!(ranges(&bench.taken()), [(far + i * 100, 100)]);
    }
    let specs: Vec<_> = (3..6).map(|i| Spec::data(far + i * 100, 100)).collect();
    assert_eq!(ranges(&bench.burst(&specs)), [(far + 300, 300)]);
}

#[test]
fn a_full_unit_does_not_show_the_hole_behind_it() {
    let mut bench = started();
    let specs: Vec<_> = (0..40)
        .chain(41..48)
        .chain([40, 48])
        .map(|i| Spec::data(i * 1400, 1400))
        .collect();
    let outs = bench.burst(&specs);
    assert_eq!(ranges(&outs), [(0, 46 * 1400), (46 * 1400, 3 * 1400)]);
}

#[test]
fn a_hole_is_filled_even_when_what_is_held_is_as_much_as_can_be() {
    let mut bench = started();
    let specs: Vec<_> = (1..=45)
        .chain([0])
        .map(|i| Spec::data(i * 1400, 1400))
        .collect();
    let outs = bench.burst(&specs);
    assert_eq!(ranges(&outs), [(0, 46 * 1400)]);
}
