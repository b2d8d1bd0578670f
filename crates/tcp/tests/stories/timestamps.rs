//! Timestamps (RFC 7323; group F of the hostile inputs).

use millrace_tcp::{Config, Duration, Phase, Settings, State};
use millrace_wire::tcp::Seq;

use crate::support::Script;
use crate::support::script::{PEER_CLOCK, base_config, open};

const DAY: Duration = Duration::from_secs(24 * 3_600);

#[test]
fn rfc7323_3_2_on_every_segment_once_agreed_on() {
    let mut script = Script::with_timestamps();
    script.write(100);
    let data = script.poll().expect("data");
    let stamps = data.options.timestamps.expect("stamped");
    assert_eq!(stamps.echo, PEER_CLOCK + 10);
    script.connection.shutdown_write(script.now);
    assert!(script.poll().expect("a FIN").options.timestamps.is_some());
    script.connection.abort();
    assert!(script.poll().expect("a RST").options.timestamps.is_some());
}

#[test]
fn c11_segment_without_the_option_is_dropped() {
    let mut script = Script::with_timestamps();
    script.inject("P. 1:101(100) ack 1 nots");
    script.silent();
    assert_eq!(script.connection.received(), 0);
    // A RST needs no timestamp.
    script.inject("R 1:1(0) nots");
    assert_eq!(script.state(), State::Closed);
}

#[test]
fn b4_clock_starts_at_a_point_of_its_own() {
    let script = Script::connecting(
        Config {
            timestamps: true,
            ..base_config()
        },
        Settings::default(),
    );
    let mut script = script;
    let syn = script.poll().expect("a SYN");
    let stamps = syn.options.timestamps.expect("stamped");
    assert_eq!(
        stamps.value,
        (script.now.as_millis() as u32).wrapping_add(open().timestamp_offset)
    );
    assert_eq!(stamps.echo, 0);
}

#[test]
fn f1_older_timestamp_is_dropped_and_acknowledged() {
    let mut script = Script::with_timestamps();
    script.pass(Duration::from_secs(1));
    script.inject("P. 1:101(100) ack 1");
    script.pass(Duration::from_millis(40));
    script.expect(". 1:1(0) ack 101");
    script.peer_clock_back = 500;
    script.inject("P. 101:201(100) ack 1");
    script.expect(". 1:1(0) ack 101");
    script.silent();
    assert_eq!(script.connection.received(), 100);
    script.peer_clock_back = 0;
    script.inject("P. 101:201(100) ack 1");
    assert_eq!(script.connection.received(), 200);
}

#[test]
fn f1_old_acknowledgements_are_answered_rarely() {
    let mut script = Script::with_timestamps();
    script.pass(Duration::from_secs(1));
    script.inject("P. 1:101(100) ack 1");
    script.pass(Duration::from_millis(40));
    script.drain();
    script.peer_clock_back = 500;
    let mut answers = 0;
    for _ in 0..100 {
        script.inject(". 101:101(0) ack 1");
        answers += script.drain().len();
    }
    assert_eq!(answers, 1);
}

#[test]
fn f2_after_24_days_of_silence_any_timestamp_is_good() {
    let mut script = Script::with_timestamps();
    script.inject("P. 1:101(100) ack 1");
    script.pass(Duration::from_millis(40));
    script.drain();
    script.pass(Duration::from_secs(25 * DAY.as_secs()));
    script.peer_clock_back = 25 * 24 * 3_600_000 + 100_000;
    script.inject("P. 101:201(100) ack 1");
    assert_eq!(script.connection.received(), 200);
}

#[test]
fn f2_clock_wraps() {
    let mut script = Script::with_timestamps();
    for i in 0..10u32 {
        script.inject(&format!(
            "P. {}:{}(1) ack 1 ts {}:0",
            i + 1,
            i + 2,
            (PEER_CLOCK + 100).wrapping_add(i.wrapping_mul(0x3000_0000))
        ));
        script.pass(Duration::from_millis(50));
        script.drain();
    }
    assert_eq!(script.connection.received(), 10);
}

#[test]
fn f3_timestamp_of_a_segment_beyond_the_gap_is_not_taken() {
    let mut script = Script::with_timestamps();
    script.inject(&format!(
        ". 1001:1101(100) ack 1 ts {}:0",
        PEER_CLOCK + 1_000_000
    ));
    let ack = script.poll().expect("an acknowledgement");
    assert_eq!(
        ack.options.timestamps.expect("stamped").echo,
        PEER_CLOCK + 10
    );
    script.inject("P. 1:101(100) ack 1");
    assert_eq!(script.connection.received(), 100);
}

#[test]
fn rfc7323_4_3_delayed_acknowledgement_echoes_the_earliest() {
    let mut script = Script::with_timestamps();
    script.inject(&format!(". 1:101(100) ack 1 ts {}:0", PEER_CLOCK + 20));
    script.inject(&format!(". 101:201(100) ack 1 ts {}:0", PEER_CLOCK + 30));
    script.tick();
    let ack = script.poll().expect("an acknowledgement");
    assert_eq!(
        ack.options.timestamps.expect("stamped").echo,
        PEER_CLOCK + 20
    );
}

#[test]
fn rfc7323_4_1_samples_continue_where_karn_forbids_others() {
    let mut script = Script::with_timestamps();
    script.write(100);
    script.expect("P. 1:101(100) ack 1");
    script.tick();
    script.expect("P. 1:101(100) ack 1");
    script.pass(Duration::from_millis(50));
    let before = script.connection.info(script.now).srtt_us;
    script.inject(". 1:1(0) ack 101");
    let info = script.connection.info(script.now);
    // The echo says that the second transmission arrived: 50 ms, not 260.
    assert!(
        info.srtt_us > before && info.srtt_us < 20_000,
        "{}",
        info.srtt_us
    );
    assert_eq!(info.phase, Phase::Open);
}

#[test]
fn rfc2883_4_an_acknowledgement_of_a_duplicate_measures_nothing() {
    let mut script = Script::with_timestamps();
    script.write(100);
    let first = script.poll().expect("a segment");
    let echo = first.options.timestamps.expect("stamped").value;
    script.pass(Duration::from_millis(10));
    let before = script.connection.info(script.now);
    // The segment arrived, but its acknowledgement was lost. The retransmission is a duplicate, and
    // its answer still echoes the first timestamp.
    script.tick();
    script.expect("P. 1:101(100) ack 1");
    script.pass(Duration::from_millis(10));
    script.inject(&format!(
        ". 1:1(0) ack 101 ts {}:{echo} sack 1:101",
        PEER_CLOCK + 100
    ));
    let after = script.connection.info(script.now);
    assert_eq!(after.bytes_acked, 100);
    assert_eq!(
        (after.srtt_us, after.rto_us),
        (before.srtt_us, before.rto_us)
    );
    // The next round trip is sampled again.
    script.write(100);
    script.drain();
    script.pass(Duration::from_millis(30));
    script.inject(". 1:1(0) ack 201");
    assert!(script.connection.info(script.now).srtt_us > before.srtt_us);
}

#[test]
fn rfc7323_4_2_segment_size_allows_for_the_option() {
    let mut script = Script::with_timestamps();
    script.write(5_000);
    assert_eq!(script.poll().expect("a segment").payload_len(), 1_000);
    assert_eq!(script.iss, Seq(0xffff_ff00));
}

#[test]
fn rfc7323_3_2_nothing_is_echoed_on_a_syn() {
    let mut script = Script::connecting(Config::default(), Settings::default());
    let syn = script.poll().expect("a SYN");
    assert_eq!(syn.options.timestamps.expect("stamped").echo, 0);
}

#[test]
fn rfc7323_3_2_timestamps_that_were_not_agreed_on_are_ignored() {
    let mut script = Script::established();
    for (i, value) in [77, 5, 2_000_000_000].iter().enumerate() {
        let at = 1 + 100 * i;
        script.inject(&format!("P. {at}:{}(100) ack 1 ts {value}:9", at + 100));
        script.pass(Duration::from_millis(50));
        script.expect(&format!(". 1:1(0) ack {} nots", at + 100));
    }
    assert_eq!(script.connection.received(), 300);
}

#[test]
fn rfc7323_4_3_what_fills_a_gap_is_echoed_and_what_lies_beyond_is_not() {
    let mut script = Script::with_timestamps();
    let echoed = |script: &mut Script| {
        let ack = script.poll().expect("an acknowledgement");
        ack.options.timestamps.expect("stamped").echo - PEER_CLOCK
    };
    script.inject(&format!(". 1:101(100) ack 1 ts {}:0", PEER_CLOCK + 20));
    script.pass(Duration::from_millis(50));
    assert_eq!(echoed(&mut script), 20);
    script.inject(&format!(". 201:301(100) ack 1 ts {}:0", PEER_CLOCK + 30));
    assert_eq!(echoed(&mut script), 20);
    script.inject(&format!(". 101:201(100) ack 1 ts {}:0", PEER_CLOCK + 40));
    assert_eq!(echoed(&mut script), 40);
}

#[test]
fn rfc7323_5_3_a_timestamp_is_judged_when_its_segment_arrives() {
    let mut script = Script::with_timestamps();
    // The segment waits for a later retransmission, and so has a later timestamp.
    script.inject(&format!("P. 101:201(100) ack 1 ts {}:0", PEER_CLOCK + 20));
    script.inject(&format!(". 1:101(100) ack 1 ts {}:0", PEER_CLOCK + 900));
    assert_eq!(script.connection.received(), 200);
}

#[test]
fn rfc7323_5_2_a_reset_is_not_judged_by_its_timestamp() {
    let mut script = Script::with_timestamps();
    script.inject("P. 1:101(100) ack 1");
    script.peer_clock_back = 100_000;
    script.inject("P. 101:201(100) ack 1");
    assert_eq!(script.connection.received(), 100);
    script.inject("R 101:101(0)");
    assert_eq!(script.state(), State::Closed);
}
