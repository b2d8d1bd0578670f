//! Overlaps, gaps, and a FIN among them (RFC 9293 3.10.7.4; group D of the hostile inputs).

use millrace_tcp::{Config, Events, Settings, State};

use crate::support::Script;
use crate::support::script::base_config;

#[test]
fn d1_bytes_once_received_never_change() {
    // Old and new ranges that overlap in every way: before, left, inside, equal, around, right,
    // after.
    for (first, second) in [
        ((200, 300), (100, 150)),
        ((200, 300), (150, 250)),
        ((200, 300), (220, 280)),
        ((200, 300), (200, 300)),
    ]
    .into_iter()
    .chain([
        ((200, 300), (150, 350)),
        ((200, 300), (250, 350)),
        ((200, 300), (350, 400)),
        ((200, 300), (300, 350)),
    ]) {
        let mut script = Script::established();
        let mut put = |fill: u8, (from, to): (u64, u64)| {
            script.fill = Some(fill);
            script.inject(&format!(". {from}:{to}({}) ack 1", to - from));
        };
        put(1, first);
        put(2, second);
        put(3, (1, 500));
        let text = script.text();
        assert_eq!(text.len(), 499);
        for (i, byte) in text.iter().enumerate() {
            let number = i as u64 + 1;
            let expected = match () {
                () if (first.0..first.1).contains(&number) => 1,
                () if (second.0..second.1).contains(&number) => 2,
                () => 3,
            };
            assert_eq!(
                *byte, expected,
                "byte {number} of {first:?} then {second:?}"
            );
        }
    }
}

#[test]
fn d2_many_small_islands_are_bounded() {
    let mut script = Script::active(
        Config {
            out_of_order_ranges: 16,
            ..base_config()
        },
        Settings::default(),
        "mss 1000 sackOK",
    );
    for i in 0..10_000u64 {
        let at = 2 + 2 * i;
        script.inject(&format!(". {at}:{}(1) ack 1", at + 1));
    }
    let acks = script.drain();
    assert_eq!(acks.len(), 4);
    assert!(
        acks[3].ends_with("sack 32:33 30:31 28:29 26:27"),
        "{acks:?}"
    );
    // Bytes that were not reported were not kept; the rest joins up.
    for at in 1..=33u64 {
        script.inject(&format!(". {at}:{}(1) ack 1", at + 1));
    }
    assert_eq!(script.connection.received(), 33);
}

#[test]
fn d3_fin_out_of_order_waits_for_the_data() {
    let mut script = Script::established();
    script.inject("F. 101:201(100) ack 1");
    script.expect(". 1:1(0) ack 1 sack 101:201");
    assert_eq!(script.state(), State::Established);
    script.inject(". 1:101(100) ack 1");
    script.expect(". 1:1(0) ack 202");
    assert_eq!(script.state(), State::CloseWait);
    assert_eq!(script.text().len(), 200);
    assert_eq!(script.events(), Events::READABLE | Events::PEER_CLOSED);
}

#[test]
fn d3_data_beyond_the_fin_is_ignored() {
    let mut script = Script::established();
    script.inject("F. 101:201(100) ack 1");
    script.expect(". 1:1(0) ack 1 sack 101:201");
    script.inject(". 201:301(100) ack 1");
    script.inject(". 151:301(150) ack 1");
    script.inject(". 1:101(100) ack 1");
    assert!(
        script
            .drain()
            .last()
            .is_some_and(|ack| ack.starts_with(". 1:1(0) ack 202"))
    );
    assert_eq!(script.text().len(), 200);
    script.inject(". 202:302(100) ack 1");
    script.drain();
    assert_eq!(script.text().len(), 200);
    assert_eq!(script.state(), State::CloseWait);
}

#[test]
fn d3_data_over_an_early_fin_ends_at_it() {
    // Nothing is stored beyond the gap, so that the data is processed as in order.
    let mut script = Script::established();
    script.inject("F. 51:51(0) ack 1");
    script.expect(". 1:1(0) ack 1");
    script.inject(". 1:101(100) ack 1");
    script.expect(". 1:1(0) ack 52");
    assert_eq!(script.text().len(), 50);
    assert_eq!(script.state(), State::CloseWait);
}

#[test]
fn d3_second_fin_with_another_number_is_ignored() {
    let mut script = Script::established();
    script.inject("F. 101:201(100) ack 1");
    script.inject("F. 301:401(100) ack 1");
    script.inject("F. 51:151(100) ack 1");
    script.drain();
    script.inject(". 1:101(100) ack 1");
    script.expect(". 1:1(0) ack 202");
    assert_eq!(script.text().len(), 200);
}

#[test]
fn d3_fin_below_data_already_received_is_ignored() {
    let mut script = Script::established();
    script.inject(". 301:401(100) ack 1");
    script.inject("F. 101:201(100) ack 1");
    script.drain();
    script.inject(". 1:101(100) ack 1");
    script.inject(". 201:301(100) ack 1");
    script.drain();
    assert_eq!(script.text().len(), 400);
    assert_eq!(script.state(), State::Established);
}

#[test]
fn d4_stream_across_the_wrap_of_sequence_numbers() {
    // The script's ISS lies 256 below the wrap.
    let mut script = Script::established();
    for i in 0..5u64 {
        script.write(100);
        script.expect(&format!("P. {}:{}(100) ack 1", 1 + 100 * i, 101 + 100 * i));
        script.inject(&format!(". 1:1(0) ack {}", 101 + 100 * i));
    }
    assert_eq!(script.connection.acked(), 500);
}

#[test]
fn d5_superset_of_delivered_data_delivers_the_new_part() {
    let mut script = Script::established();
    script.fill = Some(1);
    script.inject("P. 1:101(100) ack 1");
    script.fill = Some(2);
    script.inject("P. 1:201(200) ack 1");
    script.expect(". 1:1(0) ack 201 sack 1:101");
    let text = script.text();
    assert!(text[..100].iter().all(|&byte| byte == 1) && text[100..].iter().all(|&byte| byte == 2));
}

#[test]
fn d5_subset_of_delivered_data_is_reported() {
    let mut script = Script::established();
    script.inject("P. 1:201(200) ack 1");
    script.inject("P. 51:151(100) ack 1");
    script.expect(". 1:1(0) ack 201 sack 51:151");
    assert_eq!(script.text().len(), 200);
    // The duplicate is reported once.
    script.inject("P. 201:202(1) ack 1");
    script.tick();
    script.expect(". 1:1(0) ack 202");
}

#[test]
fn rfc2883_4_what_comes_before_the_first_byte_was_not_received() {
    let mut script = Script::established();
    script.inject(". 0:51(51) ack 1");
    script.expect(". 1:1(0) ack 51");
}

#[test]
fn rfc2883_4_duplicate_beyond_a_gap_is_reported_before_its_block() {
    let mut script = Script::established();
    script.inject(". 101:301(200) ack 1");
    script.expect(". 1:1(0) ack 1 sack 101:301");
    script.inject(". 151:251(100) ack 1");
    script.expect(". 1:1(0) ack 1 sack 151:251 101:301");
}

#[test]
fn d6_what_is_right_of_the_window_is_trimmed() {
    let mut script = Script::established();
    // The script's buffer is 65,535 bytes.
    script.inject(". 60001:61001(1000) ack 1");
    script.expect(". 1:1(0) ack 1 sack 60001:61001");
    script.inject(". 65036:66036(1000) ack 1");
    script.expect(". 1:1(0) ack 1 sack 65036:65536 60001:61001");
    assert_eq!(script.received.bytes.len(), 65_535);
}

#[test]
fn d6_zero_window_takes_acknowledgements_but_no_payload() {
    let mut script = Script::established();
    script.write(100);
    script.expect("P. 1:101(100) ack 1");
    script.inject(". 1:65536(65535) ack 1");
    script.expect(". 101:101(0) ack 65536 win 0");
    script.inject("P. 65536:65537(1) ack 101");
    script.expect(". 101:101(0) ack 65536 win 0");
    assert_eq!(script.connection.acked(), 100);
    assert_eq!(script.connection.received(), 65_535);
    script.inject("R 65536:65536(0)");
    assert_eq!(script.state(), State::Closed);
}

#[test]
fn d6_fin_at_a_shut_window_is_taken() {
    let mut script = Script::established();
    script.inject(". 1:65536(65535) ack 1");
    script.expect(". 1:1(0) ack 65536 win 0");
    script.inject("F. 65536:65536(0) ack 1");
    script.expect(". 1:1(0) ack 65537");
    assert_eq!(script.state(), State::CloseWait);
}

#[test]
fn rfc2018_4_blocks_report_the_latest_first() {
    let mut script = Script::established();
    for start in [201, 401, 601, 801, 1001] {
        script.inject(&format!(". {start}:{}(100) ack 1", start + 100));
        script.poll();
    }
    script.inject(". 301:401(100) ack 1");
    script.expect(". 1:1(0) ack 1 sack 201:501 1001:1101 801:901 601:701");
}

#[test]
fn rfc5681_4_2_filling_a_gap_is_acknowledged_at_once() {
    let mut script = Script::established();
    script.inject(". 101:201(100) ack 1");
    script.expect(". 1:1(0) ack 1 sack 101:201");
    script.inject(". 1:51(50) ack 1");
    script.expect(". 1:1(0) ack 51 sack 101:201");
    script.inject(". 51:101(50) ack 1");
    script.expect(". 1:1(0) ack 201");
}

#[test]
fn without_memory_nothing_is_acknowledged() {
    let mut script = Script::established();
    script.received.full = true;
    script.inject("P. 1:101(100) ack 1");
    script.inject("P. 201:301(100) ack 1");
    script.silent();
    assert_eq!(script.connection.received(), 0);
    script.received.full = false;
    script.inject("P. 1:301(300) ack 1");
    assert_eq!(script.connection.received(), 300);
}

#[test]
fn without_selective_acknowledgement_every_disordered_segment_is_answered() {
    // A peer that counts duplicate acknowledgements must see them all, though the segments came in
    // one batch.
    let mut script = Script::without_sack();
    for start in [1001, 2001, 3001] {
        script.inject(&format!(". {start}:{}(1000) ack 1", start + 1000));
    }
    for _ in 0..3 {
        script.expect(". 1:1(0) ack 1");
    }
    script.silent();
}
