//! How long RACK waits for reordered segments (RFC 8985 6.2), and when the tail is not probed
//! (7.2).

use millrace_tcp::{Duration, Phase};

use crate::support::Script;
use crate::support::script::NODELAY;

#[test]
fn rfc8985_6_2_reports_of_duplicates_widen_the_window_to_a_round_trip() {
    let mut script = Script::with(NODELAY).send_flight(8);
    // The path reorders: the first segment comes late.
    script.inject(". 1:1(0) ack 1 sack 1001:2001");
    script.inject(". 1:1(0) ack 2001");
    script.inject(". 1:1(0) ack 8001");
    let mut acked = 8_001;
    let mut waits = Vec::new();
    for _ in 0..12 {
        script = script.send_flight(8);
        let (next, end) = (acked + 1_000, acked + 8_000);
        script.inject(&format!(
            ". 1:1(0) ack {acked} sack {next}:{}",
            acked + 5_000
        ));
        script.silent();
        let waited = script.tick().as_micros();
        let srtt_us = u64::from(script.connection.info(script.now).srtt_us);
        assert!(waited <= srtt_us, "{waited} of {srtt_us}");
        script.expect(&format!(". {acked}:{next}(1000) ack 1"));
        waits.push(waited);
        // The retransmission was spurious: both arrive, and the peer reports that.
        script.inject(&format!(". 1:1(0) ack {end} sack {acked}:{next}"));
        acked = end;
    }
    // A quarter of the least round trip of 10 ms; then a quarter more each time.
    assert_eq!(waits[..3], [2_500, 5_000, 7_500]);
    assert!(waits.is_sorted(), "{waits:?}");
}

#[test]
fn rfc8985_6_2_the_window_shrinks_after_sixteen_recoveries_without_reports() {
    let mut script = Script::with(NODELAY).send_flight(8);
    // The path reorders, and one wait was in vain.
    script.inject(". 1:1(0) ack 1 sack 1001:2001");
    script.inject(". 1:1(0) ack 2001");
    script.inject(". 1:1(0) ack 8001 sack 1:1001");
    let mut acked = 8_001;
    let mut waits = Vec::new();
    for _ in 0..18 {
        // The losses leave a window of two segments.
        script = script.send_flight(2);
        let (next, end) = (acked + 1_000, acked + 2_000);
        script.inject(&format!(". 1:1(0) ack {acked} sack {next}:{end}"));
        script.silent();
        waits.push(script.tick().as_micros());
        script.expect(&format!(". {acked}:{next}(1000) ack 1"));
        script.pass(Duration::from_millis(10));
        script.inject(&format!(". 1:1(0) ack {end}"));
        acked = end;
    }
    assert_eq!(waits[..16], [5_000; 16], "{waits:?}");
    assert_eq!(waits[16..], [2_500; 2], "{waits:?}");
}

#[test]
fn rfc8985_6_2_an_acknowledgement_that_came_too_soon_tells_no_time() {
    let mut script = Script::with(NODELAY).send_flight(10);
    script.inject(". 1:1(0) ack 1 sack 1001:5001");
    script.expect(". 1:1001(1000) ack 1");
    // A round trip takes 10 ms: the transmission that arrived is the first one, which was late.
    // Segments sent before the second one are not overdue for it.
    script.pass(Duration::from_millis(2));
    script.inject(". 1:1(0) ack 5001");
    let info = script.connection.info(script.now);
    assert_eq!((info.lost, info.phase), (0, Phase::Recovery));
    script.silent();
}

#[test]
fn rfc8985_7_2_nothing_is_probed_during_recovery() {
    let mut script = Script::with(NODELAY).send_flight(10);
    script.inject(". 1:1(0) ack 1 sack 1001:6001");
    script.expect(". 1:1001(1000) ack 1");
    assert_eq!(script.connection.info(script.now).phase, Phase::Recovery);
    script.drain();
    let rto_us = u64::from(script.connection.info(script.now).rto_us);
    assert_eq!(script.tick().as_micros(), rto_us);
    assert_eq!(script.connection.info(script.now).timeouts, 1);
}
