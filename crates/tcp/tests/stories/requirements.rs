//! Single requirements that no longer test shows. `docs/compliance` says which test shows which
//! requirement.

use millrace_tcp::{Config, Duration, Events, Keepalive, Phase, Settings, State};
use millrace_wire::tcp::Flags;

use crate::support::pair::{CLIENT, SERVER};
use crate::support::script::{NODELAY, base_config};
use crate::support::{Fate, Pair, Script};

#[test]
fn rfc9293_3_1_a_window_above_32767_is_no_negative_one() {
    let mut script = Script::with(NODELAY);
    script.write(200_000);
    let (mut sent, mut acked) = (0, 1);
    for _ in 0..4 {
        sent += script.drain().len();
        script.pass(Duration::from_millis(10));
        for _ in 0..10 {
            acked += 1_000;
            script.inject(&format!(". 1:1(0) ack {acked} win 65535"));
        }
    }
    sent += script.drain().len();
    let in_flight = script.connection.info(script.now).in_flight;
    assert_eq!(in_flight as usize, sent * 1_000 - 40_000);
    assert!(in_flight > 32_767, "{in_flight}");
}

#[test]
fn rfc9293_3_5_3_a_reset_may_carry_data_which_is_not_delivered() {
    let mut script = Script::established();
    script.inject("R. 1:31(30) ack 1");
    assert_eq!(script.state(), State::Closed);
    assert!(script.events().contains(Events::RESET));
    assert_eq!(script.connection.received(), 0);
    script.silent();
}

#[test]
fn rfc9293_3_7_1_the_segment_size_is_announced_on_syns_alone() {
    let mut pair = Pair::with_defaults();
    pair.connect();
    pair.write(CLIENT, 20_000);
    pair.write(SERVER, 20_000);
    pair.run_for(Duration::from_secs(1));
    pair.close(CLIENT);
    pair.run_for(Duration::from_secs(1));
    for end in &pair.ends {
        assert!(end.sent.len() > 10);
        for packet in &end.sent {
            let syn = packet.flags.contains(Flags::SYN);
            assert_eq!(packet.options.mss, syn.then_some(1_460), "{packet:?}");
        }
    }
}

#[test]
fn rfc9293_3_7_1_a_peer_that_announces_no_size_gets_the_default() {
    let mut script = Script::active(base_config(), Settings::default(), "");
    script.write(2_000);
    script.expect(". 1:537(536) ack 1");
}

#[test]
fn rfc9293_3_7_1_the_lesser_of_both_sizes_is_used_less_the_options() {
    // We announce 1,460; 12 bytes are for timestamps.
    for (announced, used) in [("mss 1000", 988), ("mss 1460", 1_448), ("mss 9000", 1_448)] {
        let config = Config {
            timestamps: true,
            ..base_config()
        };
        let mut script = Script::active(config, Settings::default(), announced);
        script.write(10_000);
        assert_eq!(script.poll().expect("a segment").payload_len(), used);
    }
}

#[test]
fn rfc9293_3_8_2_lost_handshakes_leave_one_segment() {
    for (lost, first) in [(0, 10), (1, 10), (2, 1), (3, 1)] {
        let mut script = Script::connecting(base_config(), Settings::default());
        script.expect("S 0:0(0)");
        for _ in 0..lost {
            script.tick();
            script.expect("S 0:0(0)");
        }
        script.pass(Duration::from_millis(10));
        script.inject("S. 0:0(0) ack 1 mss 1000 sackOK");
        script.write(20_000);
        assert_eq!(script.drain().len(), first, "{lost} lost");
    }
}

#[test]
fn rfc5681_3_1_lost_answers_to_the_syn_leave_one_segment() {
    // The SYN-ACK is sent again after one second and after three.
    for (lost_ms, first) in [(0, 10), (500, 10), (2_000, 1)] {
        let mut pair = Pair::with_defaults();
        if lost_ms > 0 {
            pair.wire = Box::new(|packet| {
                if packet.from == SERVER {
                    Fate::Drop
                } else {
                    Fate::Deliver
                }
            });
        }
        pair.connect();
        pair.run_for(Duration::from_millis(lost_ms));
        pair.wire = Box::new(|_| Fate::Deliver);
        pair.run_until(Duration::from_secs(30), |pair| {
            pair.state(SERVER) == State::Established
        });
        let before = pair.ends[SERVER].sent.len();
        pair.write(SERVER, 20_000);
        let sent = pair.ends[SERVER].sent.len() - before;
        assert_eq!(sent, first, "{lost_ms} ms without answers");
    }
}

#[test]
fn rfc9293_3_8_3_a_time_out_measures_nothing() {
    let mut script = Script::with(NODELAY);
    script.write(100);
    script.expect("P. 1:101(100) ack 1");
    script.tick();
    script.expect("P. 1:101(100) ack 1");
    script.pass(Duration::from_millis(70));
    let before = script.connection.info(script.now);
    // The acknowledgement does not tell which of the two arrived.
    script.inject(". 1:1(0) ack 101");
    let after = script.connection.info(script.now);
    assert_eq!(after.bytes_acked, 100);
    assert_eq!(
        (before.srtt_us, before.rttvar_us),
        (after.srtt_us, after.rttvar_us)
    );
    // A segment that is sent once yields a sample again.
    script.write(100);
    script.drain();
    script.pass(Duration::from_millis(70));
    script.inject(". 1:1(0) ack 201");
    assert!(script.connection.info(script.now).srtt_us > before.srtt_us);
}

#[test]
fn rfc9293_3_8_4_keepalive_is_off_unless_asked_for_and_waits_two_hours() {
    let mut script = Script::established();
    assert_eq!(script.connection.deadline(), None);
    let asked = Settings {
        keepalive: Some(Keepalive::default()),
        ..Settings::UNSET
    };
    script
        .connection
        .configure(&script.config, &asked.into(), script.now);
    let start = script.now;
    let mut sent = Vec::new();
    while sent.is_empty() {
        script.tick();
        sent = script.drain();
    }
    assert!((script.now - start).as_secs() >= 7_199);
    assert_eq!(sent, [". 0:0(0) ack 1 win 65535"], "without data");
}

#[test]
fn rfc9293_3_8_6_a_peer_that_takes_its_window_back_and_answers_is_kept() {
    let mut script = Script::with(NODELAY);
    script.write(3_000);
    script.drain();
    script.inject(". 1:1(0) ack 1001 win 0");
    let start = script.now;
    while (script.now - start).as_secs() < 5_000 {
        script.tick();
        for segment in script.drain() {
            assert!(segment.contains("1001:2001(1000)"), "{segment}");
            script.pass(Duration::from_millis(10));
            script.inject(". 1:1(0) ack 1001 win 0");
        }
    }
    assert_eq!(script.state(), State::Established);
    // A peer that falls silent is given up.
    let start = script.now;
    while script.state() == State::Established {
        script.tick();
        script.drain();
    }
    assert!((script.now - start).as_secs() < 1_200);
}

#[test]
fn rfc9293_3_8_6_what_a_shut_window_does_not_stop() {
    let mut script = Script::past_quickack();
    script.inject(". 1:65536(65535) ack 1");
    script.expect(". 1:1(0) ack 65536 win 0");
    assert!(!script.events().contains(Events::URGENT));
    script.inject("PU. 65536:65537(1) ack 1 urg 1");
    assert!(script.events().contains(Events::URGENT));
    assert_eq!(script.connection.urgent(), Some(65_535));
    script.expect(". 1:1(0) ack 65536 win 0");
    script.inject("R 65536:65536(0)");
    assert!(script.events().contains(Events::RESET));
}

#[test]
fn rfc9293_3_9_1_2_the_last_segment_of_what_is_queued_is_pushed() {
    let mut script = Script::with(NODELAY);
    script.write(2_500);
    script.expect(". 1:1001(1000) ack 1");
    script.expect(". 1001:2001(1000) ack 1");
    script.expect("P. 2001:2501(500) ack 1");
    script.silent();
}

#[test]
fn rfc9293_3_10_7_4_a_batch_of_segments_gets_one_acknowledgement() {
    let mut script = Script::established();
    for i in 0..20 {
        let at = 1 + 1_000 * i;
        script.inject(&format!(". {at}:{}(1000) ack 1", at + 1_000));
    }
    script.expect(". 1:1(0) ack 20001");
    script.silent();
}

#[test]
fn rfc9293_3_10_8_every_time_out_is_twice_the_one_before() {
    let mut script = Script::with(NODELAY);
    script.write(100);
    script.expect("P. 1:101(100) ack 1");
    let mut last = script.tick();
    script.drain();
    for _ in 0..5 {
        let waited = script.tick();
        assert_eq!(script.drain().len(), 1);
        assert_eq!(waited.as_micros(), 2 * last.as_micros());
        last = waited;
    }
    assert_eq!(script.connection.info(script.now).phase, Phase::Loss);
}
