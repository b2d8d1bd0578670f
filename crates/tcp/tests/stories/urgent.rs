//! Urgent data (RFC 9293 3.8.5, RFC 6093).

use millrace_tcp::{Events, Settings};
use proptest::prelude::*;

use crate::support::Script;

/// The urgent pointer of the next segment, and the segment in the notation.
fn next(script: &mut Script) -> (String, u16) {
    let outgoing = script.poll().expect("a segment");
    let line = crate::support::notation::Line::of(&outgoing, script.iss, script.irs);
    let flags = line.to_string().split(" ack").next().map(String::from);
    (flags.expect("text"), outgoing.urgent)
}

#[test]
fn rfc6093_3_1_pointer_is_the_number_after_the_urgent_byte() {
    let mut script = Script::with(Settings {
        nodelay: true,
        ..Settings::UNSET
    });
    script.write(3);
    script.connection.send_urgent();
    assert_eq!(next(&mut script), ("PU. 1:4(3)".into(), 3));
    // Later data is not urgent. Its segments carry the pointer only if they begin before the mark.
    script.write(5);
    assert_eq!(next(&mut script).1, 0);
    script.inject(". 1:1(0) ack 4");
    script.write(5);
    assert_eq!(next(&mut script), ("P. 9:14(5)".into(), 0));
}

#[test]
fn rfc9293_3_8_5_urgent_data_is_not_held_back() {
    let mut script = Script::established();
    script.write(3);
    script.expect("P. 1:4(3) ack 1");
    script.write(2);
    script.silent();
    script.connection.send_urgent();
    assert_eq!(next(&mut script), ("PU. 4:6(2)".into(), 2));
}

#[test]
fn rfc9293_3_8_5_every_segment_up_to_the_mark_announces_it() {
    let mut script = Script::with(Settings {
        nodelay: true,
        ..Settings::UNSET
    });
    script.limits.max_payload = 65_000;
    script.write(2_500);
    script.connection.send_urgent();
    assert_eq!(next(&mut script), ("U. 1:1001(1000)".into(), 2_500));
    assert_eq!(next(&mut script), ("U. 1001:2001(1000)".into(), 1_500));
    assert_eq!(next(&mut script), ("PU. 2001:2501(500)".into(), 500));
    // Retransmissions carry the pointer too.
    while script.connection.info(script.now).timeouts == 0 {
        script.tick();
        if script.connection.info(script.now).timeouts == 0 {
            script.drain();
        }
    }
    assert_eq!(next(&mut script), ("U. 1:1001(1000)".into(), 2_500));
}

#[test]
fn rfc6093_2_2_only_the_latest_mark_counts() {
    let mut script = Script::established();
    assert_eq!(script.connection.urgent(), None);
    script.inject("PU. 1:4(3) ack 1 urg 3");
    assert_eq!(script.connection.urgent(), Some(2));
    assert!(script.events().contains(Events::URGENT | Events::READABLE));
    // All bytes stay in the stream.
    assert_eq!(script.read(), [1, 2, 3]);
    // The mark may come before its byte.
    script.inject("U. 4:5(1) ack 1 urg 100");
    assert_eq!(script.connection.urgent(), Some(102));
    script.inject("U. 5:6(1) ack 1 urg 10");
    assert_eq!(script.connection.urgent(), Some(102), "not back");
    script.inject("U. 1:4(3) ack 1 urg 3");
    assert_eq!(script.connection.urgent(), Some(102), "not what was read");
}

#[test]
fn rfc6093_3_2_pointer_of_zero_is_that_of_one() {
    let mut script = Script::established();
    script.inject("U. 1:3(2) ack 1 urg 0");
    assert_eq!(script.connection.urgent(), Some(0));
}

proptest! {
    /// No pointer disturbs the stream, wherever it points.
    #[test]
    fn c15_any_pointer_leaves_the_stream_alone(pointers in proptest::collection::vec(any::<u16>(), 1..30)) {
        let mut script = Script::established();
        let mut latest = None;
        for (i, pointer) in pointers.iter().enumerate() {
            let at = 1 + i as i64;
            script.inject(&format!("PU. {at}:{}(1) ack 1 urg {pointer}", at + 1));
            script.drain();
            let mark = script.connection.urgent();
            prop_assert!(mark >= latest);
            latest = mark;
        }
        prop_assert_eq!(script.connection.received(), pointers.len() as u64);
    }
}
