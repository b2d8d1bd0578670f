//! When received data is acknowledged, and what window is announced (RFC 5681 4.2, RFC 9293
//! 3.8.6.2.2, 3.8.6.3).

use millrace_tcp::{Config, Duration, Settings};

use crate::support::script::base_config;
use crate::support::{Random, Script};

#[test]
fn rfc5681_4_2_every_second_full_segment_at_once() {
    let mut script = Script::past_quickack();
    for i in 0..4 {
        let at = 1 + 2_920 * i;
        script.inject(&format!(". {at}:{}(1460) ack 1", at + 1_460));
        if i > 0 {
            script.silent();
        }
        script.inject(&format!(". {}:{}(1460) ack 1", at + 1_460, at + 2_920));
        script.expect(&format!(". 1:1(0) ack {}", at + 2_920));
        script.silent();
    }
}

#[test]
fn an_aggregate_is_acknowledged_at_once() {
    let mut script = Script::past_quickack();
    script.inject(". 1:30001(30000) ack 1");
    script.expect(". 1:1(0) ack 30001");
}

#[test]
fn rfc9293_3_8_6_3_delay_of_40_ms() {
    let mut script = Script::past_quickack();
    script.inject("P. 1:101(100) ack 1");
    script.silent();
    assert_eq!(script.tick(), Duration::from_millis(40));
    script.expect(". 1:1(0) ack 101");
    script.silent();
}

#[test]
fn quick_ack_sends_what_waits_and_ends_the_waiting_for_answers() {
    let mut script = Script::past_quickack();
    assert!(script.connection.quick_ack());
    script.inject("P. 1:101(100) ack 1");
    script.write(50);
    script.expect("P. 1:51(50) ack 101");
    assert!(!script.connection.quick_ack(), "the program answers");
    script.inject("P. 101:201(100) ack 51");
    script.silent();
    script.connection.set_quick_ack(true);
    assert!(script.connection.quick_ack());
    script.expect(". 51:51(0) ack 201");
    script.silent();
    // No acknowledgement waits, so that none is sent.
    script.connection.set_quick_ack(true);
    script.silent();
    assert_eq!(script.connection.deadline(), None);
    // The option acts once: the next acknowledgement waits again.
    script.inject("P. 201:301(100) ack 51");
    script.silent();
    assert_eq!(script.tick(), Duration::from_millis(40));
    script.expect(". 51:51(0) ack 301");
}

#[test]
fn without_quick_ack_new_segments_wait_for_the_answer() {
    let mut script = Script::established();
    script.connection.set_quick_ack(false);
    script.inject(". 1:1461(1460) ack 1");
    script.silent();
    assert_eq!(script.tick(), Duration::from_millis(40));
    script.expect(". 1:1(0) ack 1461");
}

#[test]
fn rfc9293_3_10_7_3_acknowledgement_of_the_syn_may_wait_for_payload() {
    for settings in [
        Settings {
            interactive: true,
            ..Settings::default()
        },
        Settings {
            defer_accept: 1,
            ..Settings::default()
        },
    ] {
        let connect = || {
            let mut script = Script::connecting(base_config(), settings);
            script.expect("S 0:0(0)");
            script.inject("S. 0:0(0) ack 1 win 60000 mss 1000");
            script.silent();
            script
        };
        let mut script = connect();
        script.write(100);
        script.expect("P. 1:101(100) ack 1");
        let mut script = connect();
        assert_eq!(script.tick(), Duration::from_millis(200));
        script.expect(". 1:1(0) ack 1");
        script.silent();
    }
}

#[test]
fn an_answer_carries_the_acknowledgement() {
    let mut script = Script::past_quickack();
    script.inject("P. 1:101(100) ack 1");
    script.write(50);
    script.expect("P. 1:51(50) ack 101");
    script.silent();
    assert!(
        script.tick() > Duration::from_millis(40),
        "no acknowledgement is left over"
    );
}

#[test]
fn full_segments_at_the_start_are_acknowledged_one_by_one() {
    let mut script = Script::established();
    for i in 0..16 {
        let at = 1 + 1_460 * i;
        script.inject(&format!(". {at}:{}(1460) ack 1", at + 1_460));
        script.expect(&format!(". 1:1(0) ack {}", at + 1_460));
    }
    script.inject(&format!(
        ". {}:{}(1460) ack 1",
        1 + 1_460 * 16,
        1 + 1_460 * 17
    ));
    script.silent();
}

#[test]
fn a_short_segment_at_the_start_waits_a_millisecond_for_the_answer() {
    let mut script = Script::established();
    script.inject("P. 1:101(100) ack 1");
    script.silent();
    assert_eq!(script.tick(), Duration::from_millis(1));
    script.expect(". 1:1(0) ack 101");
}

#[test]
fn t3_request_and_answer_need_no_acknowledgements_of_their_own() {
    let mut script = Script::established();
    for i in 0..50u64 {
        let at = 1 + 100 * i;
        script.inject(&format!("P. {at}:{}(100) ack {at}", at + 100));
        script.silent();
        script.write(100);
        script.expect(&format!("P. {at}:{}(100) ack {}", at + 100, at + 100));
        script.silent();
        script.pass(Duration::from_micros(100));
    }
}

#[test]
fn quick_mode_returns_after_a_pause() {
    let mut script = Script::past_quickack();
    script.config.quick_ack_segments = 16;
    script.inject(". 1:1461(1460) ack 1");
    script.tick();
    script.expect(". 1:1(0) ack 1461");
    script.pass(Duration::from_secs(5));
    script.inject(". 1461:2921(1460) ack 1");
    script.expect(". 1:1(0) ack 2921");
}

#[test]
fn e5_window_does_not_open_by_less_than_a_segment() {
    let mut script = Script::past_quickack();
    script.inject(". 1:65536(65535) ack 1");
    script.expect(". 1:1(0) ack 65536 win 0");
    script.connection.consumed(100, script.now);
    script.silent();
    script.connection.consumed(1_000, script.now);
    script.silent();
    script.connection.consumed(1_460, script.now);
    script.expect(". 1:1(0) ack 65536 win 1460");
    // A window probe shows the window, which has not grown.
    script.connection.consumed(1_500, script.now);
    script.pass(Duration::from_secs(1));
    script.inject(". 65535:65535(0) ack 1");
    script.expect(". 1:1(0) ack 65536 win 1460");
}

#[test]
fn window_updates_are_sent_when_it_doubles() {
    let mut script = Script::past_quickack();
    script.inject(". 1:65536(65535) ack 1");
    script.expect(". 1:1(0) ack 65536 win 0");
    let mut updates = 0;
    for upto in (1_000..=65_000).step_by(1_000) {
        script.connection.consumed(upto, script.now);
        updates += script.drain().len();
    }
    assert!((4..=8).contains(&updates), "{updates}");
}

#[test]
fn rfc9293_3_8_6_announced_window_never_shrinks() {
    let config = Config {
        timestamps: false,
        ..Config::default()
    };
    let mut script = Script::active(config, Settings::default(), "mss 1000 sackOK wscale 3");
    let mut edge = 0i64;
    let mut at = 1i64;
    for i in 0..500i64 {
        let len = 1 + (i * 7_919) % 1_400;
        script.inject(&format!(". {at}:{}({len}) ack 1", at + len));
        at += len;
        if i % 3 == 0 {
            script.connection.consumed((at - 1) as u64 / 2, script.now);
        }
        if script.connection.info(script.now).receive_window < 2_000 {
            script.read();
        }
        while let Some(ack) = script.poll() {
            let next = i64::from(ack.ack - script.irs) + (i64::from(ack.window) << 9);
            // What a shift of 9 cannot express may be missing.
            assert!(next > edge - 512, "from {edge} to {next}");
            edge = edge.max(next);
        }
    }
}

#[test]
fn set_receive_limit_opens_the_window() {
    let config = Config {
        timestamps: false,
        ..Config::default()
    };
    let mut script = Script::active(config, Settings::default(), "mss 1000 sackOK wscale 3");
    script.inject(". 1:1461(1460) ack 1");
    script.drain();
    assert_eq!(
        script.connection.info(script.now).receive_window,
        65_535 - 1_460
    );
    script.connection.set_receive_limit(1 << 20);
    script.inject(". 1461:2921(1460) ack 1");
    script.expect(&format!(
        ". 1:1(0) ack 2921 win {}",
        ((1 << 20) - 2_920) >> 9
    ));
}

#[test]
fn keepalive_probe_of_the_peer_is_answered() {
    let mut script = Script::established();
    script.inject("P. 1:101(100) ack 1");
    script.tick();
    script.expect(". 1:1(0) ack 101");
    script.pass(Duration::from_secs(7_200));
    script.inject(". 100:100(0) ack 1");
    script.expect(". 1:1(0) ack 101");
    // With a byte of garbage, as RFC 9293 3.8.4 allows.
    script.inject(". 100:101(1) ack 1");
    script.expect(". 1:1(0) ack 101 sack 100:101");
}

#[test]
fn e9_exchange_of_unwanted_acknowledgements_dies_down() {
    // Two ends that reject each other's segments: ours answers at most twice a second.
    let mut script = Script::established();
    let mut answers = 0;
    for _ in 0..1_000 {
        script.pass(Duration::from_millis(1));
        script.inject(". -500:-500(0) ack 1");
        answers += script.drain().len();
    }
    assert!(answers <= 3, "{answers}");
}

#[test]
fn rfc5681_4_2_no_segment_gets_two_acknowledgements() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut script = Script::established();
        for _ in 0..200 {
            // In order, again, out of order, out of the window; with a pause now and then.
            let next = 1 + script.connection.received() as i64;
            let at = (next - 2_000 + random.below(6_000) as i64).max(1);
            let at = if random.chance(400) { next } else { at };
            let len = random.below(1_460) as i64;
            script.inject(&format!(". {at}:{}({len}) ack 1", at + len));
            let sent = script.drain();
            assert!(sent.len() <= 1, "{sent:?}");
            if random.chance(100) {
                script.pass(Duration::from_millis(300));
                assert!(script.drain().len() <= 1);
            }
        }
    }
}
