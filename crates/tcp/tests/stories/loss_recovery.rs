//! Loss detection and recovery (RFC 5681, 6298, 6582, 6675, 6937, 8985, 2883, 3042).

use millrace_tcp::{Config, Duration, Info, Phase, State};

use crate::support::pair::{CLIENT, Packet, SERVER};
use crate::support::script::NODELAY;
use crate::support::{Fate, Pair, Script};

/// Sends `count` segments of 1,000 bytes.
fn send_flight(mut script: Script, count: i64) -> Script {
    script.write(count as u64 * 1_000);
    for i in 0..count {
        let flags = if i + 1 == count { "P." } else { "." };
        script.expect(&format!(
            "{flags} {}:{}(1000) ack 1",
            1 + 1_000 * i,
            1_001 + 1_000 * i
        ));
    }
    script.silent();
    script.pass(Duration::from_millis(10));
    script
}

fn info(script: &Script) -> Info {
    script.connection.info(script.now)
}

#[test]
fn rfc5681_3_2_third_duplicate_means_a_loss() {
    let mut script = send_flight(Script::without_sack(), 10);
    script.inject(". 1:1(0) ack 1");
    script.inject(". 1:1(0) ack 1");
    script.silent();
    script.inject(". 1:1(0) ack 1");
    script.expect(". 1:1001(1000) ack 1");
    script.silent();
    assert_eq!(info(&script).phase, Phase::Recovery);
    assert_eq!(info(&script).ssthresh, 5_000);
}

#[test]
fn rfc3042_first_two_duplicates_let_out_new_segments() {
    let mut script = send_flight(Script::without_sack(), 10);
    script.write(5_000);
    script.silent();
    script.inject(". 1:1(0) ack 1");
    script.expect(". 10001:11001(1000) ack 1");
    script.inject(". 1:1(0) ack 1");
    script.expect(". 11001:12001(1000) ack 1");
    script.silent();
}

#[test]
fn rfc6582_3_2_partial_acknowledgement_repairs_the_next_hole() {
    let mut script = send_flight(Script::without_sack(), 10);
    // 1 and 4 are lost: eight duplicate acknowledgements.
    for _ in 0..3 {
        script.inject(". 1:1(0) ack 1");
    }
    script.expect(". 1:1001(1000) ack 1");
    for _ in 0..5 {
        script.inject(". 1:1(0) ack 1");
    }
    script.inject(". 1:1(0) ack 3001");
    script.expect(". 3001:4001(1000) ack 1");
    assert_eq!(info(&script).phase, Phase::Recovery);
    script.inject(". 1:1(0) ack 10001");
    assert_eq!(info(&script).phase, Phase::Open);
    assert_eq!(info(&script).cwnd, 5_000);
}

#[test]
fn e9_one_fast_retransmission_per_window() {
    let mut script = send_flight(Script::without_sack(), 10);
    let mut sent = 0;
    for _ in 0..1_000 {
        script.inject(". 1:1(0) ack 1");
        sent += script.drain().len();
    }
    assert_eq!(sent, 1);
    let mut script = send_flight(Script::established(), 10);
    let mut sent = 0;
    for _ in 0..1_000 {
        script.inject(". 1:1(0) ack 1 sack 1001:10001");
        sent += script.drain().len();
    }
    assert_eq!(sent, 1);
}

#[test]
fn rfc6582_3_2_duplicates_after_a_time_out_do_not_start_recovery_again() {
    let mut script = send_flight(Script::without_sack(), 4);
    while script.connection.info(script.now).timeouts == 0 {
        script.tick();
        script.drain();
    }
    for _ in 0..5 {
        script.inject(". 1:1(0) ack 1");
        script.silent();
    }
    assert_eq!(info(&script).phase, Phase::Loss);
}

#[test]
fn rfc6675_5_lost_segments_are_sent_again_in_order() {
    let mut script = send_flight(Script::established(), 10);
    // 1, 3 and 5 are lost.
    script.inject(". 1:1(0) ack 1 sack 1001:2001");
    script.inject(". 1:1(0) ack 1 sack 3001:4001 1001:2001");
    script.silent();
    script.inject(". 1:1(0) ack 1 sack 5001:6001 3001:4001 1001:2001");
    script.expect(". 1:1001(1000) ack 1");
    script.inject(". 1:1(0) ack 1 sack 5001:7001 3001:4001 1001:2001");
    script.inject(". 1:1(0) ack 1 sack 5001:8001 3001:4001 1001:2001");
    script.expect(". 2001:3001(1000) ack 1");
    script.inject(". 1:1(0) ack 1 sack 5001:9001 3001:4001 1001:2001");
    script.inject(". 1:1(0) ack 1 sack 5001:10001 3001:4001 1001:2001");
    script.expect(". 4001:5001(1000) ack 1");
    script.silent();
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 10001");
    let info = info(&script);
    assert_eq!(
        (info.phase, info.cwnd, info.segments_retransmitted),
        (Phase::Open, 5_000, 3)
    );
    assert_eq!((info.sacked, info.lost, info.retransmitted), (0, 0, 0));
}

#[test]
fn rfc6675_5_more_than_two_segments_of_bytes_above_mean_a_loss() {
    // One acknowledgement that reports a long block suffices: receivers of aggregates send no more.
    let mut script = send_flight(Script::established(), 10);
    script.inject(". 1:1(0) ack 1 sack 1001:5001");
    script.expect(". 1:1001(1000) ack 1");
}

#[test]
fn rfc6937_3_1_reduction_is_spread_over_the_round_trip() {
    let mut script = send_flight(Script::established(), 10);
    script.write(20_000);
    // 1 is lost, and nine acknowledgements come one by one. Throughout the round trip less leaves
    // than arrives.
    let mut sent = Vec::new();
    for i in 2..=10 {
        script.inject(&format!(". 1:1(0) ack 1 sack 1001:{}", i * 1_000 + 1));
        sent.push(script.drain().len());
    }
    // Two by limited transmit, then the retransmission, then five twelfths of the delivered bytes.
    assert_eq!(sent[..3], [1, 1, 1], "{sent:?}");
    assert_eq!(sent[3..].iter().sum::<usize>(), 2, "{sent:?}");
    assert!(sent[3..].iter().all(|&count| count <= 1), "{sent:?}");
}

#[test]
fn rfc6298_5_time_outs_back_off_and_recover() {
    let mut script = send_flight(Script::established(), 1);
    assert!(script.tick() > Duration::from_millis(190));
    script.expect("P. 1:1001(1000) ack 1");
    for wait in [2, 4, 8, 16] {
        assert_eq!(script.tick().as_millis() / 210, wait);
        script.expect("P. 1:1001(1000) ack 1");
        script.silent();
    }
    assert_eq!(
        (
            info(&script).backoff,
            info(&script).cwnd,
            info(&script).ssthresh
        ),
        (5, 1_000, 2_000)
    );
    script.inject(". 1:1(0) ack 1001");
    assert_eq!(
        (info(&script).backoff, info(&script).phase),
        (0, Phase::Open)
    );
    // Karn's rule: the sample would have been many seconds.
    assert_eq!(info(&script).srtt_us, 10_000);
}

#[test]
fn rfc6298_5_after_a_time_out_the_rest_goes_out_in_slow_start() {
    let mut script = send_flight(Script::without_sack(), 8);
    while info(&script).timeouts == 0 {
        script.tick();
        if info(&script).timeouts == 0 {
            // The tail loss probe, which is lost too.
            script.drain();
        }
    }
    script.expect(". 1:1001(1000) ack 1");
    script.silent();
    script.inject(". 1:1(0) ack 1001");
    script.expect(". 1001:2001(1000) ack 1");
    script.expect(". 2001:3001(1000) ack 1");
    script.silent();
    script.inject(". 1:1(0) ack 3001");
    script.expect(". 3001:4001(1000) ack 1");
    script.expect(". 4001:5001(1000) ack 1");
}

#[test]
fn rfc6675_5_1_after_a_time_out_what_is_held_is_not_sent_again() {
    let mut script = send_flight(Script::established(), 4);
    script.inject(". 1:1(0) ack 1 sack 2001:3001");
    while info(&script).timeouts == 0 {
        script.tick();
        if info(&script).timeouts == 0 {
            script.drain();
        }
    }
    script.expect(". 1:1001(1000) ack 1");
    script.inject(". 1:1(0) ack 1001 sack 2001:3001");
    script.expect(". 1001:2001(1000) ack 1");
    script.expect("P. 3001:4001(1000) ack 1");
    script.silent();
}

#[test]
fn rfc2018_8_a_peer_that_reneges_gets_everything_again() {
    let mut script = send_flight(Script::established(), 4);
    script.inject(". 1:1(0) ack 1 sack 1001:3001");
    script.drain();
    // The peer acknowledges the first segment, and has forgotten the others.
    script.inject(". 1:1(0) ack 1001");
    let mut again = Vec::new();
    for _ in 0..5 {
        script.tick();
        again.extend(script.drain());
        if again.iter().any(|segment| segment.contains("1001:2001")) {
            break;
        }
    }
    assert!(
        again.iter().any(|segment| segment.contains("1001:2001")),
        "{again:?}"
    );
}

#[test]
fn rfc8985_7_tail_is_probed_before_the_time_out() {
    let mut script = send_flight(Script::established(), 4);
    script.inject(". 1:1(0) ack 2001");
    // The last two are lost.
    assert!(script.tick() <= Duration::from_millis(20));
    script.expect("P. 3001:4001(1000) ack 1");
    script.silent();
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 2001 sack 3001:4001");
    // The probe shows that earlier segments are lost. RACK waits a quarter of a round trip at most.
    if script.poll().is_none() {
        assert!(script.tick() <= Duration::from_millis(5));
        script.expect(". 2001:3001(1000) ack 1");
    }
    assert_eq!(info(&script).timeouts, 0);
}

#[test]
fn rfc8985_7_3_probe_is_new_data_if_there_is_some() {
    let mut script = send_flight(Script::established(), 10);
    script.write(3_000);
    script.silent();
    script.tick();
    script.expect(". 10001:11001(1000) ack 1");
    script.silent();
    assert!(
        script.tick() > Duration::from_millis(150),
        "one probe, then the time-out"
    );
}

#[test]
fn rfc8985_6_reordering_is_waited_for_once_it_has_been_seen() {
    let mut script = send_flight(Script::established(), 8);
    script.pass(Duration::from_millis(10));
    // The first segment comes late: the path reorders.
    script.inject(". 1:1(0) ack 1 sack 1001:2001");
    script.inject(". 1:1(0) ack 2001");
    script.inject(". 1:1(0) ack 8001");
    assert_eq!(info(&script).phase, Phase::Open);
    script.write(8_000);
    assert_eq!(script.drain().len(), 8);
    script.pass(Duration::from_millis(10));
    // Now three selective acknowledgements above a gap prove no loss yet ...
    script.inject(". 1:1(0) ack 8001 sack 9001:13001");
    script.silent();
    assert_eq!(info(&script).lost, 0);
    // ... but a quarter of a round trip later they do.
    assert!(script.tick() <= Duration::from_millis(5));
    script.expect(". 8001:9001(1000) ack 1");
}

#[test]
fn rfc8985_6_lost_retransmission_is_noticed_without_a_time_out() {
    let mut script = send_flight(Script::established(), 10);
    script.write(20_000);
    script.inject(". 1:1(0) ack 1 sack 1001:5001");
    script.expect(". 1:1001(1000) ack 1");
    script.drain();
    // Segments sent after the retransmission arrive; the retransmission does not.
    let mut again = 0;
    for i in 0..12i64 {
        script.pass(Duration::from_millis(3));
        script.inject(&format!(". 1:1(0) ack 1 sack 1001:{}", 6_001 + 1_000 * i));
        again += script
            .drain()
            .iter()
            .filter(|segment| segment.contains(" 1:1001"))
            .count();
        let sent = info(&script).in_flight as i64;
        if 7_001 + 1_000 * i > sent {
            break;
        }
    }
    assert!(again >= 1);
    assert_eq!(info(&script).timeouts, 0);
}

#[test]
fn rfc2883_reports_of_duplicates_are_counted_and_nothing_else() {
    let mut script = send_flight(Script::established(), 4);
    script.inject(". 1:1(0) ack 2001 sack 1:1001");
    assert_eq!((info(&script).dsacks, info(&script).sacked), (1, 0));
    script.inject(". 1:1(0) ack 2001 sack 3001:3501 3001:4001");
    assert_eq!((info(&script).dsacks, info(&script).sacked), (2, 1_000));
    script.silent();
}

#[test]
fn c9_impossible_blocks_are_ignored() {
    for blocks in [
        "5001:5001",
        "6001:5001",
        "-5000:-4000",
        "11001:12001",
        "5001:10002",
        "1:1001",
        "-100:2000",
        "1:90000",
    ] {
        let mut script = send_flight(Script::established(), 10);
        for _ in 0..10 {
            script.inject(&format!(". 1:1(0) ack 1 sack {blocks}"));
        }
        script.silent();
        assert_eq!(
            (info(&script).sacked, info(&script).lost),
            (0, 0),
            "{blocks}"
        );
    }
}

#[test]
fn c9_sack_of_one_byte_blocks_costs_a_bounded_scoreboard() {
    let mut script = Script::established();
    script.config.scoreboard_ranges = 64;
    let mut script = send_flight(script, 10);
    for at in (2..10_000i64).step_by(6) {
        script.inject(&format!(
            ". 1:1(0) ack 1 sack {at}:{} {}:{} {}:{}",
            at + 1,
            at + 2,
            at + 3,
            at + 4,
            at + 5
        ));
        assert!(script.drain().len() <= 10);
    }
    assert!(info(&script).sacked <= 64);
    script.inject(". 1:1(0) ack 10001");
    assert_eq!(
        (info(&script).phase, info(&script).sacked),
        (Phase::Open, 0)
    );
}

#[test]
fn sack_is_ignored_unless_agreed_on() {
    let mut script = send_flight(Script::without_sack(), 10);
    script.inject(". 1:1(0) ack 1 sack 1001:9001");
    script.silent();
    assert_eq!(info(&script).sacked, 0);
}

#[test]
fn e8_optimistic_acknowledgements_do_not_raise_the_window() {
    let mut script = send_flight(Script::established(), 10);
    let before = info(&script).cwnd;
    for i in 0..100 {
        script.pass(Duration::from_millis(600));
        script.inject(&format!(". 1:1(0) ack {}", 20_001 + 1_000 * i));
    }
    assert!(info(&script).cwnd <= before);
    assert_eq!(script.connection.acked(), 0);
}

#[test]
fn e8_acknowledging_in_pieces_gains_nothing() {
    let mut whole = send_flight(Script::established(), 10);
    whole.inject(". 1:1(0) ack 10001");
    let mut pieces = send_flight(Script::established(), 10);
    for i in 1..=1_000 {
        pieces.inject(&format!(". 1:1(0) ack {}", 1 + 10 * i));
    }
    assert_eq!(info(&whole).cwnd, 20_000);
    assert!(info(&pieces).cwnd <= 20_000);
}

#[test]
fn lost_fin_and_lost_data_before_it_are_repaired() {
    for drop in 0..6 {
        let mut pair = Pair::new(&Config::default(), NODELAY, NODELAY);
        pair.connect();
        pair.run_for(Duration::from_millis(50));
        let first = pair.ends[CLIENT].sent.len();
        pair.wire = Box::new(move |packet: &Packet| {
            if packet.from == CLIENT && packet.index == first + drop {
                Fate::Drop
            } else {
                Fate::Deliver
            }
        });
        pair.write(CLIENT, 7_000);
        pair.close(CLIENT);
        pair.run_for(Duration::from_secs(3));
        assert_eq!(pair.ends[SERVER].read, 7_000, "without packet {drop}");
        assert_eq!(
            (pair.state(CLIENT), pair.state(SERVER)),
            (State::TimeWait, State::Closed)
        );
    }
}

#[test]
fn a_single_loss_in_a_long_transfer_costs_no_time_out() {
    for (sack, timestamps) in [(true, true), (true, false), (false, true), (false, false)] {
        for drop in [20usize, 37, 61] {
            let config = millrace_tcp::Config {
                selective_ack: sack,
                timestamps,
                ..Default::default()
            };
            let mut pair = Pair::new(&config, NODELAY, NODELAY);
            pair.connect();
            pair.wire = Box::new(move |packet| {
                if packet.from == CLIENT && packet.index == drop {
                    Fate::Drop
                } else {
                    Fate::Deliver
                }
            });
            pair.write(CLIENT, 400_000);
            assert!(
                pair.run_until(Duration::from_secs(5), |pair| pair.ends[SERVER].read
                    == 400_000)
            );
            let info = pair.connection(CLIENT).info(pair.now);
            assert_eq!(
                info.timeouts, 0,
                "sack {sack}, timestamps {timestamps}, packet {drop}"
            );
            assert_eq!(info.segments_retransmitted, 1);
        }
    }
}

#[test]
fn t7_a_lost_flight_of_every_second_segment_is_repaired_without_a_time_out() {
    let mut pair = Pair::new(&Config::default(), NODELAY, NODELAY);
    pair.connect();
    pair.wire = Box::new(|packet| {
        let lost =
            packet.from == CLIENT && (40..60).contains(&packet.index) && packet.index % 2 == 0;
        if lost { Fate::Drop } else { Fate::Deliver }
    });
    pair.write(CLIENT, 400_000);
    assert!(
        pair.run_until(Duration::from_secs(5), |pair| pair.ends[SERVER].read
            == 400_000)
    );
    let info = pair.connection(CLIENT).info(pair.now);
    assert_eq!((info.timeouts, info.segments_retransmitted), (0, 10));
}

#[test]
fn t8_mild_reordering_costs_nothing_once_it_is_known() {
    let mut pair = Pair::new(&Config::default(), NODELAY, NODELAY);
    // Every 20th packet is overtaken by a quarter of a one-way trip.
    pair.wire = Box::new(|packet| {
        if packet.from == CLIENT && packet.index % 20 == 7 {
            Fate::Delay(Duration::from_micros(1_200))
        } else {
            Fate::Deliver
        }
    });
    pair.rate = 100_000_000;
    pair.connect();
    pair.write(CLIENT, 5_000_000);
    assert!(
        pair.run_until(Duration::from_secs(60), |pair| pair.ends[SERVER].read
            == 5_000_000)
    );
    let info = pair.connection(CLIENT).info(pair.now);
    assert_eq!(info.timeouts, 0);
    assert!(
        info.segments_retransmitted < 10,
        "{}",
        info.segments_retransmitted
    );
}

#[test]
fn rfc4015_needless_time_out_is_undone() {
    let mut script = send_flight(Script::with_timestamps(), 10);
    let before = info(&script).cwnd;
    // The network pauses for longer than the time-out.
    while info(&script).timeouts == 0 {
        script.tick();
        script.drain();
    }
    assert_eq!(info(&script).phase, Phase::Loss);
    script.pass(Duration::from_millis(20));
    // Then the first transmission is acknowledged, as its timestamp shows.
    let first = 1_000_020 + 12_345;
    script.inject(&format!(". 1:1(0) ack 2001 ts 800000:{first}"));
    assert_eq!((info(&script).lost, info(&script).ssthresh), (0, u32::MAX));
    assert!(info(&script).cwnd >= before);
    // Nothing else is sent again.
    script.silent();
    script.inject(&format!(". 1:1(0) ack 10001 ts 800000:{first}"));
    assert_eq!(info(&script).phase, Phase::Open);
}

#[test]
fn rfc3522_3_2_time_out_that_was_right_is_not_undone() {
    let mut script = send_flight(Script::with_timestamps(), 10);
    while info(&script).timeouts == 0 {
        script.tick();
        script.drain();
    }
    let again = info(&script);
    script.pass(Duration::from_millis(20));
    let second = script.now.as_millis() as u32 - 20 + 12_345;
    script.inject(&format!(". 1:1(0) ack 1001 ts 800000:{second}"));
    assert_eq!(
        (info(&script).phase, info(&script).ssthresh),
        (Phase::Loss, again.ssthresh)
    );
}

#[test]
fn rfc4015_needless_fast_retransmission_is_undone() {
    let mut script = send_flight(Script::with_timestamps(), 10);
    let first = script.now.as_millis() as u32 - 10 + 12_345;
    script.inject(". 1:1(0) ack 1 sack 1001:6001");
    script.expect(". 1:1001(1000) ack 1");
    script.pass(Duration::from_millis(2));
    // The first segment had merely been overtaken.
    script.inject(&format!(". 1:1(0) ack 6001 ts 800000:{first}"));
    assert_eq!(
        (info(&script).ssthresh, info(&script).phase),
        (u32::MAX, Phase::Open)
    );
    assert!(info(&script).cwnd >= 10_000);
}
