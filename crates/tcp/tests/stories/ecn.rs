//! Explicit congestion notification (RFC 3168) and DCTCP (RFC 8257).

use millrace_tcp::{Algorithm, Config, Duration, Ecn, HalfOpen, Phase, Settings};
use millrace_wire::tcp::{Flags, Options, Segment, Seq};

use crate::support::Script;
use crate::support::script::{base_config, open};

fn asking() -> Config {
    Config {
        ecn: Ecn::Ask,
        ..base_config()
    }
}

/// A connection that has agreed on ECN.
fn agreed(congestion: Algorithm) -> Script {
    let settings = Settings {
        nodelay: true,
        congestion: Some(congestion),
        ..Settings::UNSET
    };
    let mut script = Script::connecting(asking(), settings);
    script.expect("SEC 0:0(0)");
    script.pass(Duration::from_millis(10));
    script.inject("SE. 0:0(0) ack 1 win 60000 mss 1000 sackOK");
    script.expect(". 1:1(0) ack 1");
    script
}

/// Ten segments in flight.
fn send_flight(congestion: Algorithm) -> Script {
    let mut script = agreed(congestion);
    script.write(10_000);
    for i in 0..10 {
        let outgoing = script.poll().expect("a segment");
        assert!(outgoing.may_mark, "{i}");
    }
    script.silent();
    script.pass(Duration::from_millis(10));
    script
}

#[test]
fn rfc3168_6_1_1_a_syn_that_asks_is_accepted_unless_it_is_switched_off() {
    let syn = |flags: Flags| Segment {
        src_port: 1,
        dst_port: 2,
        seq: Seq(1),
        ack: Seq(0),
        flags,
        window: 1_000,
        urgent: 0,
        marked: false,
        options: Options::default(),
        payload: &[],
    };
    let asks = Flags::SYN | Flags::ECE | Flags::CWR;
    let dctcp = Settings {
        congestion: Some(Algorithm::Dctcp),
        ..Settings::UNSET
    };
    for (ecn, settings, flags, agrees) in [
        (Ecn::Accept, Settings::UNSET, asks, true),
        (Ecn::Ask, Settings::UNSET, asks, true),
        (Ecn::Off, Settings::UNSET, asks, false),
        (Ecn::Off, dctcp, asks, true),
        (Ecn::Accept, Settings::UNSET, Flags::SYN, false),
        (Ecn::Accept, Settings::UNSET, Flags::SYN | Flags::ECE, false),
    ] {
        let config = Config {
            ecn,
            ..base_config()
        };
        let now = millrace_tcp::Instant::from_millis(1_000);
        let reply = HalfOpen::new(&config, &settings, open(), &syn(flags), now).reply(now);
        let mut expected = Flags::SYN | Flags::ACK;
        expected.set(Flags::ECE, agrees);
        assert_eq!(reply.flags, expected, "{ecn:?} {flags:?}");
        assert!(!reply.may_mark);
    }
}

#[test]
fn rfc3168_6_1_1_not_asked_for_unless_configured() {
    let mut script = Script::connecting(base_config(), Settings::UNSET);
    script.expect("S 0:0(0)");
    let dctcp = Settings {
        congestion: Some(Algorithm::Dctcp),
        ..Settings::UNSET
    };
    let mut script = Script::connecting(base_config(), dctcp);
    script.expect("SEC 0:0(0)");
}

#[test]
fn rfc3168_6_1_1_answers_that_do_not_agree() {
    for answer in ["S.", "SEC.", "SC."] {
        let mut script = Script::connecting(asking(), Settings::UNSET);
        script.expect("SEC 0:0(0)");
        script.inject(&format!("{answer} 0:0(0) ack 1 win 60000 mss 1000"));
        script.expect(". 1:1(0) ack 1");
        script.write(100);
        assert!(!script.poll().expect("a segment").may_mark, "{answer}");
        assert!(!script.connection.info(script.now).ecn);
    }
}

#[test]
fn rfc3168_6_1_1_1_a_syn_that_was_lost_asks_no_more() {
    let mut script = Script::connecting(asking(), Settings::UNSET);
    script.expect("SEC 0:0(0)");
    script.tick();
    script.expect("S 0:0(0)");
    script.inject("SE. 0:0(0) ack 1 win 60000 mss 1000");
    script.expect(". 1:1(0) ack 1");
    assert!(!script.connection.info(script.now).ecn);
}

#[test]
fn rfc3168_6_1_3_a_mark_is_echoed_until_the_peer_has_reduced() {
    let mut script = agreed(Algorithm::Cubic);
    script.inject(". 1:1001(1000) ack 1 ce");
    script.expect("E. 1:1(0) ack 1001");
    script.inject(". 1001:2001(1000) ack 1");
    script.inject(". 2001:3001(1000) ack 1");
    script.expect("E. 1:1(0) ack 3001");
    // Segments with data echo the mark too.
    script.write(100);
    script.expect("PE. 1:101(100) ack 3001");
    script.inject("C. 3001:4001(1000) ack 101");
    script.expect(". 101:101(0) ack 4001");
    // A mark on the segment that carries CWR counts anew.
    script.inject("C. 4001:5001(1000) ack 101 ce");
    script.expect("E. 101:101(0) ack 5001");
}

#[test]
fn rfc3168_6_1_3_marks_without_an_agreement_mean_nothing() {
    let mut script = Script::established();
    script.inject(". 1:1461(1460) ack 1 ce");
    script.inject(". 1461:2921(1460) ack 1 ce");
    assert!(script.drain().iter().all(|line| line.starts_with(". ")));
    assert_eq!(script.connection.received(), 2_920);
    script.write(5_000);
    script.drain();
    script.inject("E. 2921:2921(0) ack 1001");
    assert_eq!(script.connection.info(script.now).ssthresh, u32::MAX);
}

#[test]
fn rfc3168_6_1_2_an_echo_reduces_the_window_once_in_a_round_trip() {
    let mut script = send_flight(Algorithm::NewReno);
    script.write(10_000);
    script.inject("E. 1:1(0) ack 1001");
    let info = script.connection.info(script.now);
    assert_eq!((info.cwnd, info.ssthresh), (5_000, 5_000));
    assert_eq!((info.phase, info.lost), (Phase::Reduced, 0));
    for ack in 2..=5 {
        script.inject(&format!("E. 1:1(0) ack {ack}001"));
    }
    let info = script.connection.info(script.now);
    assert_eq!(info.ssthresh, 5_000, "not again");
    // The next new segment alone carries CWR, and travels by itself.
    script.limits.max_payload = 65_000;
    script.inject(". 1:1(0) ack 7001");
    script.expect("C. 10001:11001(1000) ack 1");
    script.expect(". 11001:13001(2000) ack 1");
    // A round trip later an echo counts again.
    script.inject("E. 1:1(0) ack 10001");
    let before = script.connection.info(script.now).ssthresh;
    script.drain();
    script.inject("E. 1:1(0) ack 11001");
    assert!(script.connection.info(script.now).ssthresh < before);
}

#[test]
fn rfc3168_6_1_5_what_is_sent_again_may_not_be_marked() {
    let mut script = send_flight(Algorithm::NewReno);
    script.inject(". 1:1(0) ack 1 sack 1001:5001");
    let again = script.poll().expect("a segment");
    assert_eq!(again.payload, 0..1_000);
    assert!(!again.may_mark);
    // RFC 3168 6.1.2: CWR announces the reduction for a loss too.
    script.write(10_000);
    script.inject(". 1:1(0) ack 10001");
    script.expect("C. 10001:11001(1000) ack 1");
    script.inject("P. 1:1001(1000) ack 1");
    while let Some(outgoing) = script.poll() {
        assert_eq!(outgoing.may_mark, outgoing.payload_len() > 0);
    }
}

#[test]
fn rfc8257_3_2_every_change_of_marks_is_acknowledged_by_itself() {
    let mut script = agreed(Algorithm::Dctcp);
    // After the segments that are acknowledged at once.
    for i in 0..20 {
        script.inject(&format!(
            ". {}:{}(1000) ack 1",
            1 + i * 1_000,
            1_001 + i * 1_000
        ));
        script.drain();
    }
    script.inject(". 20001:20501(500) ack 1");
    script.silent();
    script.inject(". 20501:21001(500) ack 1 ce");
    script.expect(". 1:1(0) ack 20501");
    script.expect("E. 1:1(0) ack 21001");
    script.silent();
    // Marks go on, and acknowledgements are delayed as before.
    script.inject(". 21001:21501(500) ack 1 ce");
    script.silent();
    script.inject(". 21501:22001(500) ack 1");
    script.expect("E. 1:1(0) ack 21501");
    script.expect(". 1:1(0) ack 22001");
    script.silent();
}

#[test]
fn rfc8257_3_3_few_marks_reduce_little() {
    let mut script = send_flight(Algorithm::Dctcp);
    let mut acked = 10_001;
    script.inject(". 1:1(0) ack 10001");
    // Many round trips without a mark.
    for _ in 0..150 {
        script.write(10_000);
        script.drain();
        script.pass(Duration::from_millis(10));
        acked += 10_000;
        script.inject(&format!(". 1:1(0) ack {acked}"));
    }
    script.write(10_000);
    script.drain();
    let before = script.connection.info(script.now).cwnd;
    script.inject(&format!("E. 1:1(0) ack {}", acked + 1_000));
    let after = script.connection.info(script.now).cwnd;
    assert!(after >= before * 95 / 100, "{before} {after}");
}
