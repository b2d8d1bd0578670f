//! When segments leave: Nagle, cork, the peer's window (RFC 9293 3.7.4, 3.8.6).

use millrace_tcp::{Config, Duration, Error, Settings, State};

use crate::support::Script;
use crate::support::pair::{CLIENT, Pair, SERVER};
use crate::support::script::{NODELAY, base_config};

#[test]
fn rfc9293_3_7_4_nagle_holds_the_second_short_segment() {
    let mut script = Script::established();
    script.write(10);
    script.expect("P. 1:11(10) ack 1");
    script.write(10);
    script.write(10);
    script.silent();
    script.inject(". 1:1(0) ack 11");
    script.expect("P. 11:31(20) ack 1");
}

#[test]
fn minshall_full_segments_in_flight_do_not_hold_a_short_one() {
    let mut script = Script::established();
    script.write(1_010);
    script.expect(". 1:1001(1000) ack 1");
    script.expect("P. 1001:1011(10) ack 1");
    script.write(5);
    script.silent();
    script.inject(". 1:1(0) ack 1001");
    script.silent();
    script.inject(". 1:1(0) ack 1011");
    script.expect("P. 1011:1016(5) ack 1");
}

#[test]
fn nodelay_sends_at_once() {
    let mut script = Script::with(NODELAY);
    for i in 0..5 {
        script.write(10);
        script.expect(&format!("P. {}:{}(10) ack 1", 1 + 10 * i, 11 + 10 * i));
    }
}

#[test]
fn setting_nodelay_lets_out_what_was_held() {
    let mut script = Script::established();
    script.write(10);
    script.expect("P. 1:11(10) ack 1");
    script.write(10);
    script.silent();
    script
        .connection
        .configure(&script.config, &NODELAY.into(), script.now);
    script.expect("P. 11:21(10) ack 1");
}

#[test]
fn cork_holds_short_segments_for_200_ms() {
    let mut script = Script::with(Settings {
        cork: true,
        ..NODELAY
    });
    script.write(1_500);
    script.expect(". 1:1001(1000) ack 1");
    script.silent();
    script.inject(". 1:1(0) ack 1001");
    script.silent();
    assert_eq!(script.tick(), Duration::from_millis(200));
    script.expect("P. 1001:1501(500) ack 1");
    // Once only.
    script.inject(". 1:1(0) ack 1501");
    script.write(10);
    script.silent();
    script
        .connection
        .configure(&script.config, &NODELAY.into(), script.now);
    script.expect("P. 1501:1511(10) ack 1");
}

#[test]
fn more_to_come_holds_a_short_segment() {
    let mut script = Script::with(NODELAY);
    script.connection.enqueue(300, false);
    script.silent();
    script.connection.enqueue(800, true);
    script.expect("P. 1:801(800) ack 1");
    script.connection.enqueue(900, false);
    script.silent();
    script.inject(". 1:1(0) ack 801");
    script.silent();
    script.tick();
    script.expect("P. 801:901(100) ack 1");
}

#[test]
fn a_run_is_whole_segments_unless_it_is_the_tail() {
    let mut script = Script::with(NODELAY);
    script.limits.max_payload = 65_000;
    script.write(12_345);
    // The initial window is ten segments of 1,000.
    script.expect(". 1:10001(10000) ack 1");
    script.silent();
    script.inject(". 1:1(0) ack 10001");
    script.expect("P. 10001:12346(2345) ack 1");
}

#[test]
fn max_payload_bounds_a_run() {
    let mut script = Script::with(NODELAY);
    script.limits.max_payload = 3_500;
    script.write(9_000);
    for i in 0..3 {
        let (from, to) = (1 + 3_000 * i, 3_001 + 3_000 * i);
        script.expect(&format!(
            "{} {from}:{to}(3000) ack 1",
            if i == 2 { "P." } else { "." }
        ));
    }
}

#[test]
fn t1_8_kb_leave_in_one_flight() {
    let mut pair = Pair::with_defaults();
    pair.connect();
    pair.run_for(Duration::from_millis(50));
    let start = pair.now;
    pair.write(SERVER, 8_192);
    assert!(
        pair.run_until(Duration::from_secs(1), |pair| pair.ends[CLIENT].read
            == 8_192)
    );
    assert_eq!(pair.now - start, pair.delay);
}

#[test]
fn rfc9293_3_8_6_2_1_small_window_is_not_filled_in_pieces() {
    let mut script = Script::with(NODELAY);
    script.write(5_000);
    for i in 0..5u64 {
        script.poll().unwrap_or_else(|| panic!("segment {i}"));
    }
    script.inject(". 1:1(0) ack 5001 win 300");
    script.write(5_000);
    // 300 is neither a segment nor half of the largest window: it waits for the override timer.
    script.silent();
    assert_eq!(script.tick(), Duration::from_millis(200));
    script.expect(". 5001:5301(300) ack 1");
    script.silent();
}

/// A peer announces one byte from the start, and one more with each acknowledgement. It gets one
/// byte after each pause.
#[test]
fn rfc9293_3_8_6_2_1_a_window_that_was_never_larger_than_a_byte_is_not_followed() {
    let mut script = Script::active(base_config(), Settings::default(), "mss 1000");
    script.inject(". 1:1(0) ack 1 win 1");
    script.write(10_000);
    let (begin, mut segments) = (script.now, 0);
    let mut acked = 1;
    while script.now - begin < Duration::from_secs(5) {
        while let Some(sent) = script.poll() {
            if sent.payload_len() > 0 {
                segments += 1;
                acked += sent.payload_len() as u64;
                script.inject(&format!(". 1:1(0) ack {acked} win 1"));
            }
        }
        script.tick();
    }
    assert!((5..=50).contains(&segments), "{segments} in 5 s");
}

#[test]
fn rfc9293_3_8_6_2_1_half_of_the_largest_window_is_worth_sending() {
    let mut script = Script::active(base_config(), NODELAY, "mss 1000 win 600");
    script.write(5_000);
    script.expect(". 1:601(600) ack 1");
    script.inject(". 1:1(0) ack 601 win 300");
    script.expect(". 601:901(300) ack 1");
    script.inject(". 1:1(0) ack 901 win 299");
    script.silent();
}

#[test]
fn rfc9293_3_8_6_1_zero_window_is_probed_with_back_off() {
    let mut script = Script::with(NODELAY);
    script.write(1_000);
    script.expect("P. 1:1001(1000) ack 1");
    script.inject(". 1:1(0) ack 1001 win 0");
    script.write(1_000);
    script.silent();
    let mut last = Duration::ZERO;
    for _ in 0..20 {
        let waited = script.tick();
        assert!(
            waited == Duration::from_secs(120) || waited.as_micros() + 1 >= 2 * last.as_micros(),
            "{waited:?} after {last:?}"
        );
        last = waited;
        script.expect(". 1000:1000(0) ack 1");
        script.silent();
        script.inject(". 1:1(0) ack 1001 win 0");
        script.silent();
    }
    assert_eq!(last, Duration::from_secs(120));
    assert_eq!(script.state(), State::Established);
    script.inject(". 1:1(0) ack 1001 win 5000");
    script.expect("P. 1001:2001(1000) ack 1");
    assert!(script.tick() < Duration::from_secs(1), "back-off is over");
}

#[test]
fn e4_peer_that_answers_no_probe_is_given_up() {
    let mut script = Script::with(NODELAY);
    script.write(1_000);
    script.expect("P. 1:1001(1000) ack 1");
    script.inject(". 1:1(0) ack 1001 win 0");
    script.write(1_000);
    script.silent();
    let start = script.now;
    while script.state() == State::Established {
        script.tick();
        script.drain();
    }
    assert!((script.now - start).as_secs() >= 924 && (script.now - start).as_secs() < 1_100);
    assert_eq!(script.connection.error(), Some(Error::TimedOut));
}

#[test]
fn e4_shut_window_ends_with_the_user_timeout() {
    let mut script = Script::with(Settings {
        user_timeout_ms: Some(30_000),
        ..NODELAY
    });
    script.write(1_000);
    script.expect("P. 1:1001(1000) ack 1");
    script.inject(". 1:1(0) ack 1001 win 0");
    script.write(1_000);
    script.silent();
    let start = script.now;
    let mut probes = 0;
    while script.state() == State::Established {
        script.tick();
        probes += script.drain().len();
        script.inject(". 1:1(0) ack 1001 win 0");
    }
    assert!(
        (script.now - start).as_secs() < 60,
        "{:?}",
        script.now - start
    );
    assert!(probes < 12);
}

#[test]
fn e4_shut_window_of_a_closed_connection_ends() {
    let mut script = Script::with(NODELAY);
    script.write(1_000);
    script.expect("P. 1:1001(1000) ack 1");
    script.inject(". 1:1(0) ack 1001 win 0");
    script.write(1_000);
    script.connection.close(script.now);
    script.silent();
    let start = script.now;
    while script.state() != State::Closed {
        script.tick();
        script.drain();
        script.inject(". 1:1(0) ack 1001 win 0");
    }
    // Linux: until probes come no closer than two minutes apart.
    let lasted = (script.now - start).as_secs();
    assert!((100..500).contains(&lasted), "{lasted} s");
}

#[test]
fn e5_tiny_windows_do_not_make_tiny_segments() {
    let mut script = Script::with(NODELAY);
    script.write(1_000);
    script.expect("P. 1:1001(1000) ack 1");
    script.write(100_000);
    script.drain();
    let mut sent = 0;
    let mut acked = 9_001;
    script.inject(&format!(". 1:1(0) ack {acked} win 1"));
    for _ in 0..1_000 {
        script.pass(Duration::from_millis(10));
        sent += script.drain().len();
        acked = acked.max(script.connection.info(script.now).in_flight as i64 + acked);
        script.inject(&format!(". 1:1(0) ack {acked} win 1"));
    }
    assert!(sent <= 10 * 10, "{sent} segments in 10 s");
}

#[test]
fn f5_shrunk_window_is_survived() {
    let mut script = Script::with(NODELAY);
    script.write(5_000);
    for _ in 0..5 {
        script.poll().expect("in the window");
    }
    // The peer takes back the window of bytes in flight.
    script.inject(". 1:1(0) ack 1001 win 500");
    script.write(5_000);
    script.silent();
    // Only the bytes that probe the edge are sent again.
    let mut again = Vec::new();
    while again.is_empty() {
        script.tick();
        again = script.drain();
    }
    assert!(
        !again.is_empty()
            && again
                .iter()
                .all(|segment| segment.contains("1001:2001(1000)")),
        "{again:?}"
    );
    script.inject(". 1:1(0) ack 5001 win 60000");
    script.expect(". 5001:6001(1000) ack 1");
}

#[test]
fn f5_window_shut_with_data_in_flight() {
    let mut script = Script::with(NODELAY);
    script.write(3_000);
    for _ in 0..3 {
        script.poll().expect("in the window");
    }
    script.inject(". 1:1(0) ack 1001 win 0");
    let start = script.now;
    for _ in 0..10 {
        script.tick();
        for segment in script.drain() {
            assert!(segment.contains("1001:2001(1000)"), "{segment}");
        }
    }
    assert!((script.now - start).as_secs() > 60, "backs off");
    script.inject(". 1:1(0) ack 1001 win 60000");
    let mut left = 2_000i64;
    for _ in 0..5 {
        for segment in script.drain() {
            left -= if segment.contains("(1000)") { 1_000 } else { 0 };
        }
        if left <= 0 {
            break;
        }
        script.inject(". 1:1(0) ack 2001 win 60000");
        script.tick();
    }
    assert!(left <= 0);
}

#[test]
fn f6_old_segment_does_not_change_the_window() {
    let mut script = Script::with(NODELAY);
    script.inject("P. 1:101(100) ack 1 win 5000");
    script.inject("P. 101:201(100) ack 1 win 6000");
    assert_eq!(script.connection.info(script.now).send_window, 6_000);
    script.inject(". 51:151(100) ack 1 win 10");
    script.inject(". 151:201(50) ack 0 win 10");
    assert_eq!(script.connection.info(script.now).send_window, 6_000);
}

#[test]
fn fin_waits_for_the_window() {
    let mut script = Script::with(NODELAY);
    script.inject(". 1:1(0) ack 1 win 100");
    script.write(100);
    script.expect("P. 1:101(100) ack 1");
    script.connection.shutdown_write(script.now);
    script.silent();
    script.inject(". 1:1(0) ack 101 win 100");
    script.expect("F. 101:101(0) ack 1");
}

#[test]
fn c6_absurd_segment_sizes() {
    for (mss, size) in [(0, 88), (1, 88), (48, 88), (65_535, 1_460)] {
        let mut script = Script::active(base_config(), NODELAY, &format!("mss {mss}"));
        script.write(20_000);
        let first = script.poll().expect("a segment");
        assert_eq!(first.payload_len(), size);
        assert_eq!(usize::from(first.segment_size), size);
    }
    // Without the option 536; with timestamps and SACK blocks on every segment never less than 48.
    let mut script = Script::active(base_config(), NODELAY, "");
    script.write(20_000);
    assert_eq!(script.poll().expect("a segment").payload_len(), 536);
    let mut script = Script::active(
        Config {
            timestamps: true,
            ..base_config()
        },
        NODELAY,
        "mss 1 sackOK",
    );
    script.inject(". 100:200(100) ack 1");
    script.inject(". 300:400(100) ack 1");
    script.inject(". 500:600(100) ack 1");
    script.write(20_000);
    let first = script.poll().expect("a segment");
    assert_eq!((first.payload_len(), first.options.sack.len()), (48, 3));
}

#[test]
fn max_segment_of_the_program_is_announced_and_kept() {
    let settings = Settings {
        max_segment: Some(700),
        ..NODELAY
    };
    let mut script = Script::connecting(base_config(), settings);
    script.expect("S 0:0(0) mss 700");
    script.inject("S. 0:0(0) ack 1 mss 1400");
    script.write(2_000);
    script.expect(". 1:701(700) ack 1");
}

#[test]
fn rfc7323_2_2_window_of_a_syn_is_not_scaled() {
    let mut script = Script::active(
        Config {
            timestamps: false,
            ..Config::default()
        },
        NODELAY,
        "mss 1000 wscale 4",
    );
    assert_eq!(script.connection.info(script.now).send_window, 60_000);
    script.inject(". 1:1(0) ack 1 win 1000");
    assert_eq!(script.connection.info(script.now).send_window, 16_000);
}

#[test]
fn data_may_leave_with_the_acknowledgement_of_the_syn() {
    let mut script = Script::connecting(base_config(), NODELAY);
    script.expect("S 0:0(0)");
    script.write(100);
    script.silent();
    script.inject("S. 0:0(0) ack 1 mss 1000");
    script.expect("P. 1:101(100) ack 1");
    script.silent();
}

#[test]
fn window_that_opens_a_little_is_used_after_a_while() {
    let mut script = Script::with(NODELAY);
    script.write(1_000);
    script.expect("P. 1:1001(1000) ack 1");
    script.inject(". 1:1(0) ack 1001 win 0");
    script.write(1_000);
    script.silent();
    script.inject(". 1:1(0) ack 1001 win 10");
    script.silent();
    script.tick();
    script.expect(". 1001:1011(10) ack 1");
}
