//! When what is held is handed on.

use millrace_offload::Config;
use millrace_wire::tcp::Flags;

use crate::support::{Bench, Spec, ranges};

#[test]
fn a_push_is_handed_on_at_once() {
    let mut bench = Bench::small();
    bench.feed(&Spec::data(0, 100));
    assert_eq!(bench.taken().len(), 0);
    bench.feed(&Spec::data(100, 100).pushed());
    let outs = bench.taken();
    assert_eq!(ranges(&outs), [(0, 200)]);
    assert!(outs[0].segment().flags.contains(Flags::PSH));
    assert_eq!(bench.receive.counters().flush_push, 1);
}

#[test]
fn units_are_handed_on_one_of_each_flow_in_turn() {
    let mut bench = Bench::small();
    let of = |port: u16, i: u32| Spec {
        port,
        ..Spec::data(i * 1400, 1400)
    };
    // Two flows with two units and a half each.
    for i in 0..115u32 {
        for port in 1..=2u16 {
            bench.feed(&of(port, i));
        }
    }
    bench.outs.0.clear();
    // A message of another, and a frame that is not held: it waits for nobody.
    bench.feed(&Spec {
        port: 3,
        ..Spec::data(0, 64).pushed()
    });
    bench.feed(&Spec {
        port: 4,
        ..Spec::bare(0, Flags::SYN)
    });
    let port = |bench: &Bench, index: usize| bench.outs.0[index].segment().src_port;
    assert_eq!((bench.outs.0.len(), port(&bench, 0)), (1, 4));
    let mut order = Vec::new();
    while bench.receive.serve(1, &mut bench.outs) == 1 {
        order.push(port(&bench, bench.outs.0.len() - 1));
    }
    assert_eq!(order, [3, 1, 2, 1, 2]);
    bench.end_of_burst();
    assert_eq!(bench.taken().len(), 5 + 1 + 2, "the halves");
}

#[test]
fn what_passes_takes_what_is_before_it_out_of_turn() {
    let mut bench = Bench::small();
    for i in 0..100 {
        bench.feed(&Spec::data(i * 1400, 1400));
    }
    bench.feed(&Spec::bare(100 * 1400, Flags::ACK | Flags::FIN));
    let outs = std::mem::take(&mut bench.outs.0);
    assert_eq!(outs.len(), 4, "three units, and the end");
    assert_eq!(bench.receive.serve(9, &mut bench.outs), 0);
    assert_eq!(bench.receive.free_buffers(), 256);
}

#[test]
fn a_slow_flow_is_not_made_to_wait() {
    let mut bench = Bench::small();
    for i in 0..10 {
        bench.pass(1_000_000);
        assert_eq!(
            ranges(&bench.burst(&[Spec::data(i * 100, 100)])),
            [(i * 100, 100)]
        );
    }
    assert_eq!(bench.receive.counters().flush_burst, 10);
}

/// Messages that are answered one by one, however fast, as long as there and back takes 5 us: after
/// each burst nothing is held, so nobody waits for a timer.
#[test]
fn a_message_that_is_waited_for_is_never_held_after_its_burst() {
    for pushed in [true, false] {
        for there_and_back in [5_100, 8_000, 28_000, 400_000, 70_000_000] {
            let mut bench = Bench::small();
            for i in 0..200 {
                let message = Spec::data(i * 64, 64);
                let message = if pushed { message.pushed() } else { message };
                assert_eq!(ranges(&bench.burst(&[message])), [(i * 64, 64)]);
                assert_eq!(bench.receive.deadline(), None, "{pushed} {there_and_back}");
                bench.pass(there_and_back);
            }
            let counters = bench.receive.counters();
            assert_eq!(counters.flush_push + counters.flush_burst, 200);
        }
    }
}

#[test]
fn time_outs_are_told_apart() {
    let mut bench = Bench::new(Config {
        hold_max: 20_000,
        ..Config::default()
    });
    let mut at = bench.warm_up();
    // It goes on for longer than anything is held.
    while bench.receive.counters().flush_held == 0 {
        bench.feed(&Spec::data(at, 10));
        let now = millrace_offload::Instant(bench.now);
        bench.receive.end_of_burst(false, now, &mut bench.outs);
        bench.pass(900);
        at += 10;
        assert!(at < 100_000_000, "{:?}", bench.receive.counters());
    }
    bench.pass(1_000_000);
    // A hole that nothing fills.
    let before = *bench.receive.counters();
    bench.burst(&[Spec::data(at + 100, 10)]);
    bench.pass(2_000_000);
    let after = bench.receive.counters();
    assert_eq!(after.flush_hole, before.flush_hole + 1);
    assert_eq!(after.flush_held, before.flush_held);
}

#[test]
fn a_fast_flow_is_held_across_bursts_for_some_intervals() {
    let mut bench = Bench::small();
    let at = bench.warm_up();
    // One by one after a pause: soon they are fast again.
    for i in 0..20 {
        bench.burst(&[Spec::data(at + i * 100, 100)]);
        bench.pass(1_000);
    }
    let held = at + 2000
        - bench
            .receive
            .flows(millrace_offload::Instant(0))
            .next()
            .map_or(0, |flow| flow.held);
    assert!(held < at + 2000, "more is expected soon");
    let before = bench.receive.counters().flush_timeout;
    bench.outs.0.clear();
    bench.pass(Config::default().idle_hold_max);
    assert_eq!(ranges(&bench.taken()), [(held, at + 2000 - held)]);
    assert_eq!(bench.receive.counters().flush_timeout, before + 1);
    assert_eq!(bench.receive.deadline(), None);
}

#[test]
fn while_frames_keep_coming_a_flow_is_held_for_the_others() {
    let mut bench = Bench::new(Config {
        hold_max: 300_000,
        ..Config::default()
    });
    let now = |bench: &Bench| millrace_offload::Instant(bench.now);
    for i in 0..40 {
        bench.feed(&Spec::data(i * 10, 10));
        let at = now(&bench);
        bench.receive.end_of_burst(false, at, &mut bench.outs);
        bench.pass(20_000);
    }
    bench.pass(1_000_000);
    // The first ones show how fast it is; the rest is held, within the limit.
    let counters = bench.receive.counters();
    assert!(counters.units < 10, "{counters:?}");
    let outs = bench.taken();
    assert!(outs.iter().all(|out| out.segments <= 1 + 300_000 / 20_000));
}

#[test]
fn a_steady_trickle_cannot_hold_bytes_for_longer_than_is_allowed() {
    let mut bench = Bench::new(Config {
        hold_max: 20_000,
        ..Config::default()
    });
    let at = bench.warm_up();
    for i in 0..200 {
        bench.burst(&[Spec::data(at + i * 10, 10)]);
        bench.pass(900);
    }
    bench.pass(100_000);
    let outs = bench.taken();
    assert!(outs.iter().all(|out| out.segments <= 1 + 20_000 / 900));
}

#[test]
fn what_passes_does_not_overtake_what_is_held() {
    let flags = [
        Flags::ACK,
        Flags::ACK | Flags::FIN,
        Flags::RST,
        Flags::ACK | Flags::URG,
        Flags::SYN,
    ];
    for flags in flags {
        let mut bench = Bench::small();
        bench.feed(&Spec::data(0, 100));
        bench.feed(&Spec::data(100, 100));
        bench.feed(&Spec::bare(200, flags));
        let outs = bench.taken();
        assert_eq!(ranges(&outs), [(0, 200), (200, 0)], "{flags:?}");
        assert_eq!(outs[1].segment().flags, flags);
    }
}

#[test]
fn a_fragment_of_any_flow_passes_behind_all() {
    let mut bench = Bench::small();
    for port in 1..4 {
        bench.feed(&Spec {
            port,
            ..Spec::data(0, 100)
        });
    }
    // The frame's second half: nothing tells the ports.
    let mut fragment = Spec::data(0, 64).build();
    fragment[14 + 7] = 8;
    fragment[24..26].copy_from_slice(&[0; 2]);
    let sum = millrace_wire::checksum::Sum::of(&fragment[14..34]).finish();
    fragment[24..26].copy_from_slice(&sum.to_be_bytes());
    bench.bytes(&fragment);
    let outs = bench.taken();
    assert_eq!(outs.len(), 4);
    assert_eq!(outs[3].bytes, fragment);
}

#[test]
fn flows_end_with_fin_and_reset() {
    for flags in [Flags::ACK | Flags::FIN, Flags::RST] {
        let mut bench = Bench::small();
        bench.burst(&[Spec::data(0, 100)]);
        let now = millrace_offload::Instant(bench.now);
        assert_eq!(bench.receive.flows(now).count(), 1);
        bench.burst(&[Spec::data(100, 100), Spec::bare(200, flags)]);
        assert_eq!(bench.receive.flows(now).count(), 0);
    }
}

#[test]
fn a_full_table_drops_the_flow_that_is_least_in_use() {
    let mut bench = Bench::small();
    for port in 0..20 {
        bench.feed(&Spec {
            port,
            ..Spec::data(0, 100)
        });
        bench.feed(&Spec {
            port,
            ..Spec::data(100, 100)
        });
    }
    bench.end_of_burst();
    assert_eq!(ranges(&bench.taken()), [(0, 200); 20]);
    let counters = bench.receive.counters();
    assert_eq!((counters.flows_created, counters.flows_evicted), (20, 12));
}

#[test]
fn a_flow_that_is_silent_is_forgotten() {
    let mut bench = Bench::small();
    bench.burst(&[Spec::data(0, 100)]);
    bench.pass(2 * Config::default().age_max);
    for _ in 0..8 {
        bench.end_of_burst();
    }
    assert_eq!(bench.receive.counters().flows_aged, 1);
}

#[test]
fn when_buffers_run_out_the_oldest_are_handed_on() {
    let mut bench = Bench::new(Config {
        buffers: 8,
        flows: 64,
        ..Config::default()
    });
    for port in 0..30 {
        bench.feed(&Spec {
            port,
            ..Spec::data(0, 10)
        });
        bench.now += 10;
        assert!(bench.receive.free_buffers() > 0);
    }
    assert!(bench.taken().len() >= 22);
    assert!(bench.receive.counters().flush_pressure >= 22);
}
