//! How a loss changes the window (RFC 5681, RFC 6675, RFC 9438, RFC 8985 7.4), and the
//! retransmission timer (RFC 6298 5).

use millrace_tcp::{Algorithm, Duration, Info, Phase, Settings};

use crate::support::Script;
use crate::support::script::{NODELAY, base_config};

/// Runs until the retransmission timer has expired.
fn time_out(script: &mut Script) {
    let before = info(script).timeouts;
    while info(script).timeouts == before {
        script.tick();
        if info(script).timeouts == before {
            script.drain();
        }
    }
}

fn info(script: &Script) -> Info {
    script.connection.info(script.now)
}

#[test]
fn rfc5681_3_1_the_threshold_comes_down_once_for_a_flight() {
    let mut script = Script::with(NODELAY).send_flight(10);
    assert_eq!(info(&script).ssthresh, u32::MAX);
    for _ in 0..4 {
        time_out(&mut script);
        assert_eq!((info(&script).ssthresh, info(&script).cwnd), (5_000, 1_000));
        script.expect(". 1:1001(1000) ack 1");
        script.silent();
    }
}

#[test]
fn rfc5681_3_2_the_first_duplicates_do_not_open_the_window() {
    let mut script = Script::without_sack().send_flight(10);
    script.write(5_000);
    for number in [10, 11] {
        script.inject(". 1:1(0) ack 1");
        assert_eq!(info(&script).cwnd, 10_000);
        let (from, to) = (number * 1_000 + 1, number * 1_000 + 1_001);
        script.expect(&format!(". {from}:{to}(1000) ack 1"));
        script.silent();
    }
    // Half of the ten in flight, though twelve were sent.
    script.inject(". 1:1(0) ack 1");
    assert_eq!(info(&script).ssthresh, 5_000);
}

#[test]
fn rfc5681_3_2_a_duplicate_that_reports_nothing_lets_nothing_out() {
    let mut script = Script::with(NODELAY).send_flight(10);
    script.write(5_000);
    script.silent();
    script.inject(". 1:1(0) ack 1 sack 1001:2001");
    script.expect(". 10001:11001(1000) ack 1");
    script.silent();
    for _ in 0..5 {
        script.inject(". 1:1(0) ack 1 sack 1001:2001");
        script.silent();
        script.inject(". 1:1(0) ack 1");
        script.silent();
    }
    assert_eq!(info(&script).ssthresh, u32::MAX);
}

#[test]
fn rfc5681_4_3_losses_in_two_flights_lower_the_window_twice() {
    let mut script = Script::with(NODELAY).send_flight(10);
    script.inject(". 1:1(0) ack 1 sack 1001:6001");
    assert_eq!(info(&script).ssthresh, 5_000);
    script.drain();
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 10001");
    assert_eq!(
        (info(&script).phase, info(&script).cwnd),
        (Phase::Open, 5_000)
    );
    let mut script = script.send_flight(5);
    script.inject(". 1:1(0) ack 10001 sack 11001:15001");
    assert_eq!(info(&script).ssthresh, 2_500);
}

#[test]
fn rfc6675_5_1_after_a_time_out_no_recovery_begins_before_its_end() {
    let mut script = Script::with(NODELAY).send_flight(10);
    script.inject(". 1:1(0) ack 1 sack 1001:6001");
    assert_eq!(info(&script).phase, Phase::Recovery);
    script.drain();
    time_out(&mut script);
    script.drain();
    let threshold = info(&script).ssthresh;
    // Acknowledgements that would begin a recovery, and begin it again.
    for (ack, end) in [(1, 7_001), (1_001, 8_001), (1_001, 9_001)] {
        script.pass(Duration::from_millis(10));
        script.inject(&format!(". 1:1(0) ack {ack} sack 2001:{end}"));
        script.drain();
        assert_eq!(info(&script).phase, Phase::Loss);
        assert_eq!(info(&script).ssthresh, threshold);
    }
    script.inject(". 1:1(0) ack 10001");
    assert_eq!(info(&script).phase, Phase::Open);
}

#[test]
fn rfc6675_5_reports_outlive_the_recovery_they_came_in() {
    let mut script = Script::with(NODELAY).send_flight(10);
    script.write(20_000);
    script.inject(". 1:1(0) ack 1 sack 1001:5001");
    script.inject(". 1:1(0) ack 1 sack 1001:10001");
    let sent = script.drain().join("\n");
    assert!(sent.contains("12001:13001(1000)"), "{sent}");
    script.inject(". 1:1(0) ack 1 sack 12001:13001 1001:10001");
    script.inject(". 1:1(0) ack 10001");
    assert_eq!(info(&script).sacked, 1_000);
}

#[test]
fn rfc9438_4_8_after_a_time_out_slow_start_leads_to_seven_tenths() {
    let mut script = Script::with(NODELAY);
    let cubic = Settings {
        congestion: Some(Algorithm::Cubic),
        ..NODELAY
    };
    script
        .connection
        .configure(&script.config, &cubic.into(), script.now);
    let mut script = script.send_flight(10);
    time_out(&mut script);
    assert_eq!((info(&script).ssthresh, info(&script).cwnd), (7_000, 1_000));
    script.drain();
    let mut acked = 1;
    let mut windows = Vec::new();
    for _ in 0..10 {
        acked += 1_000;
        script.pass(Duration::from_millis(10));
        script.inject(&format!(". 1:1(0) ack {acked}"));
        script.drain();
        windows.push(info(&script).cwnd);
    }
    // In slow start each acknowledged segment adds one; after it growth is slow.
    assert_eq!(windows[..4], [2_000, 3_000, 4_000, 5_000]);
    assert!((7_000..8_000).contains(&windows[9]), "{windows:?}");
}

/// The last of four segments is lost, and sent again as a tail loss probe.
fn probed() -> Script {
    let mut script = Script::with(NODELAY).send_flight(4);
    script.inject(". 1:1(0) ack 2001");
    script.tick();
    script.expect("P. 3001:4001(1000) ack 1");
    script.silent();
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 4001");
    assert_eq!(info(&script).ssthresh, u32::MAX);
    script
}

#[test]
fn rfc8985_7_4_2_a_loss_that_the_probe_repaired_lowers_the_window() {
    let mut script = probed().send_flight(8);
    // No DSACK came: only the probe arrived.
    script.inject(". 1:1(0) ack 8001");
    assert_eq!(info(&script).ssthresh, 4_000);
    assert!(info(&script).cwnd <= 5_000);
    // The window comes down once.
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 12001");
    assert_eq!(
        (info(&script).phase, info(&script).ssthresh),
        (Phase::Open, 4_000)
    );
}

#[test]
fn rfc8985_7_4_2_a_probe_that_came_twice_repaired_nothing() {
    // The DSACK comes at once, or with a later acknowledgement.
    for later in [false, true] {
        let mut script = probed();
        if !later {
            script.inject(". 1:1(0) ack 4001 sack 3001:4001");
        }
        let mut script = script.send_flight(8);
        if later {
            script.inject(". 1:1(0) ack 4001 sack 3001:4001");
        }
        script.inject(". 1:1(0) ack 8001");
        assert_eq!(info(&script).ssthresh, u32::MAX);
        assert_eq!(info(&script).phase, Phase::Open);
    }
}

#[test]
fn rfc8985_7_3_nothing_is_probed_again_before_a_round_trip_was_measured() {
    // The peer has received the tail twice; the acknowledgement does not tell which transmission.
    let mut script = probed();
    script.inject(". 1:1(0) ack 4001 sack 3001:4001");
    let mut script = script.send_flight(4);
    script.tick();
    assert_eq!(info(&script).timeouts, 1, "and not a probe");
    // After a new round trip sample the tail is probed again.
    let mut script = probed();
    script.inject(". 1:1(0) ack 4001 sack 3001:4001");
    let mut script = script.send_flight(4);
    script.inject(". 1:1(0) ack 8001");
    let mut script = script.send_flight(4);
    script.tick();
    script.expect("P. 11001:12001(1000) ack 1");
    assert_eq!(info(&script).timeouts, 0);
}

#[test]
fn rfc8985_6_3_what_was_sent_just_before_a_time_out_is_not_sent_again() {
    let mut script = Script::with(NODELAY).send_flight(1);
    let rto_us = u64::from(info(&script).rto_us);
    script.pass(Duration::from_micros(rto_us - 10_000 - 5_000));
    script.write(2_000);
    assert_eq!(script.drain().len(), 2);
    time_out(&mut script);
    assert_eq!(info(&script).lost, 1_000);
    // However full the window is, the first segment alone is sent again.
    script.expect(". 1:1001(1000) ack 1");
    script.silent();
    // It had merely been late.
    script.pass(Duration::from_millis(2));
    script.inject(". 1:1(0) ack 1001");
    script.silent();
    // After a time-out of their own the others are lost too.
    time_out(&mut script);
    assert_eq!(info(&script).timeouts, 2);
    script.expect(". 1001:2001(1000) ack 1");
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 2001");
    script.expect("P. 2001:3001(1000) ack 1");
}

#[test]
fn rfc6298_5_a_segment_waits_for_a_time_out_since_it_was_last_sent() {
    let mut script = Script::with(NODELAY).send_flight(10);
    script.write(20_000);
    script.inject(". 1:1(0) ack 1 sack 1001:5001");
    script.expect(". 1:1001(1000) ack 1");
    script.drain();
    // That one is lost too, as later segments show.
    let mut sent_at = None;
    for i in 0..6i64 {
        script.pass(Duration::from_millis(3));
        script.inject(&format!(". 1:1(0) ack 1 sack 1001:{}", 6_001 + 1_000 * i));
        for segment in script.drain() {
            if segment.contains(" 1:1001") {
                sent_at = Some(script.now);
            }
        }
    }
    let sent_at = sent_at.expect("sent a third time");
    time_out(&mut script);
    assert_eq!(
        (script.now - sent_at).as_micros(),
        u64::from(info(&script).rto_us)
    );
}

#[test]
fn rfc6298_5_7_after_a_lost_syn_data_waits_for_three_seconds() {
    for (lost, waits_ms) in [(false, 210), (true, 3_000)] {
        let mut script = Script::connecting(base_config(), NODELAY);
        script.expect("S 0:0(0)");
        if lost {
            script.tick();
            script.expect("S 0:0(0)");
        }
        script.pass(Duration::from_millis(10));
        script.inject("S. 0:0(0) ack 1 mss 1000");
        script.expect(". 1:1(0) ack 1");
        script.write(100);
        script.expect("P. 1:101(100) ack 1");
        assert_eq!(script.tick().as_millis(), waits_ms, "{lost}");
    }
}

#[test]
fn rfc6298_5_a_time_out_stays_doubled_until_a_round_trip_is_measured() {
    let mut script = Script::with(NODELAY).send_flight(1);
    let rto = Duration::from_micros(u64::from(info(&script).rto_us));
    for _ in 0..3 {
        time_out(&mut script);
        script.expect("P. 1:1001(1000) ack 1");
    }
    // The acknowledgement does not tell which of the four transmissions arrived: the path may be
    // that slow.
    script.inject(". 1:1(0) ack 1001");
    assert_eq!(info(&script).backoff, 0);
    script.write(1_000);
    script.expect("P. 1001:2001(1000) ack 1");
    let waits = script.connection.deadline().expect("a timer runs") - script.now;
    assert_eq!(waits.as_micros(), 8 * rto.as_micros());
    // This segment was sent once, and yields a sample.
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 2001");
    script.write(1_000);
    script.drain();
    let waits = script.connection.deadline().expect("a timer runs") - script.now;
    assert!(waits <= rto, "{waits:?}");
}

#[test]
fn rfc6298_5_the_timer_runs_while_something_is_in_flight() {
    let mut script = Script::with(NODELAY);
    let left = |script: &Script| {
        let deadline = script.connection.deadline()?;
        Some((deadline - script.now).as_micros())
    };
    assert_eq!(left(&script), None);
    // RFC 6298 5.1: data starts the timer; more data does not restart it.
    script.write(100);
    script.drain();
    let whole = u64::from(info(&script).rto_us);
    assert_eq!(left(&script), Some(whole));
    script.pass(Duration::from_millis(50));
    script.write(100);
    script.drain();
    assert_eq!(left(&script), Some(whole - 50_000));
    // RFC 6298 5.3: new acknowledgements restart it. 5.2: the last one stops it.
    script.inject(". 1:1(0) ack 101");
    assert_eq!(left(&script), Some(u64::from(info(&script).rto_us)));
    script.inject(". 1:1(0) ack 201");
    assert_eq!(left(&script), None);
    // Nothing is sent again before the time-out.
    script.write(100);
    script.drain();
    let whole = u64::from(info(&script).rto_us);
    script.pass(Duration::from_micros(whole - 1));
    script.silent();
    script.pass(Duration::from_micros(1));
    script.expect("P. 201:301(100) ack 1");
}
