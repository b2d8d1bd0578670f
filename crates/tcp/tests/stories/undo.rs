//! Spurious losses without timestamps: F-RTO (RFC 5682) and DSACK (RFC 3708, RFC 2883). With
//! timestamps: see `loss_recovery`.

use millrace_tcp::{Duration, Info, Phase};

use crate::support::Script;

fn info(script: &Script) -> Info {
    script.connection.info(script.now)
}

/// Ten segments of 1,000 bytes in flight with more queued, and a time-out: the first segment is
/// sent again.
fn timed_out(mut script: Script) -> Script {
    script.write(10_000);
    script.drain();
    script.pass(Duration::from_millis(10));
    while info(&script).timeouts == 0 {
        script.tick();
        if info(&script).timeouts == 0 {
            // The tail loss probe.
            script.drain();
        }
    }
    script.write(10_000);
    script.expect(". 1:1001(1000) ack 1");
    script.silent();
    assert_eq!(info(&script).phase, Phase::Loss);
    script
}

#[test]
fn rfc5682_2_1_needless_time_out_is_undone() {
    let mut script = timed_out(Script::without_sack());
    // Step 2b: the first acknowledgement lets new data out, and nothing is sent again meanwhile.
    script.inject(". 1:1(0) ack 1001");
    script.expect(". 10001:11001(1000) ack 1");
    script.expect(". 11001:12001(1000) ack 1");
    script.silent();
    // Step 3b: the next acknowledges bytes that were never sent again.
    script.inject(". 1:1(0) ack 2001");
    let after = info(&script);
    assert_eq!((after.lost, after.ssthresh), (0, u32::MAX));
    assert!(after.cwnd >= 10_000, "{}", after.cwnd);
    let more = script.drain();
    assert!(more.iter().all(|line| !line.contains(" 2001:")), "{more:?}");
    assert_eq!(
        after.segments_retransmitted, 2,
        "with the probe of the tail"
    );
}

#[test]
fn rfc5682_2_1_duplicate_after_the_probe_means_that_the_loss_was_real() {
    let mut script = timed_out(Script::without_sack());
    script.inject(". 1:1(0) ack 1001");
    script.expect(". 10001:11001(1000) ack 1");
    script.expect(". 11001:12001(1000) ack 1");
    script.inject(". 1:1(0) ack 1001");
    assert_eq!(info(&script).phase, Phase::Loss);
    assert!(info(&script).lost > 0);
    script.inject(". 1:1(0) ack 3001");
    assert_eq!(info(&script).ssthresh, 5_000);
    script.expect(". 3001:4001(1000) ack 1");
}

#[test]
fn rfc5682_2_1_duplicate_before_the_probe_means_that_the_loss_was_real() {
    let mut script = timed_out(Script::without_sack());
    script.inject(". 1:1(0) ack 1");
    script.silent();
    script.inject(". 1:1(0) ack 1001");
    script.expect(". 1001:2001(1000) ack 1");
    script.expect(". 2001:3001(1000) ack 1");
}

#[test]
fn rfc5682_2_1_without_anything_new_the_repair_goes_on() {
    let mut script = Script::without_sack();
    script.write(10_000);
    script.drain();
    while info(&script).timeouts == 0 {
        script.tick();
        if info(&script).timeouts == 0 {
            script.drain();
        }
    }
    script.expect(". 1:1001(1000) ack 1");
    script.inject(". 1:1(0) ack 1001");
    script.expect(". 1001:2001(1000) ack 1");
    script.expect(". 2001:3001(1000) ack 1");
}

#[test]
fn rfc5682_3_1_needless_time_out_is_undone_by_selective_acknowledgements() {
    let mut script = timed_out(Script::established());
    script.inject(". 1:1(0) ack 1001");
    script.expect(". 10001:11001(1000) ack 1");
    script.expect(". 11001:12001(1000) ack 1");
    script.silent();
    // A segment in the middle arrives: it was in the network all the time.
    script.inject(". 1:1(0) ack 1001 sack 3001:4001");
    assert_eq!((info(&script).lost, info(&script).ssthresh), (0, u32::MAX));
}

#[test]
fn rfc5682_3_1_selective_acknowledgement_of_the_probe_alone_means_that_the_loss_was_real() {
    let mut script = timed_out(Script::established());
    script.inject(". 1:1(0) ack 1001");
    script.expect(". 10001:11001(1000) ack 1");
    script.expect(". 11001:12001(1000) ack 1");
    script.inject(". 1:1(0) ack 1001 sack 10001:11001");
    assert_eq!(info(&script).phase, Phase::Loss);
    script.expect(". 1001:2001(1000) ack 1");
}

/// Ten segments in flight. The first is sent again though it was merely overtaken.
fn hasty() -> Script {
    let mut script = Script::established();
    script.write(10_000);
    script.drain();
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 1 sack 1001:6001");
    script.expect(". 1:1001(1000) ack 1");
    assert_eq!(info(&script).ssthresh, 5_000);
    script
}

#[test]
fn rfc3708_2_needless_fast_retransmission_is_undone_by_the_report_of_a_duplicate() {
    let mut script = hasty();
    script.inject(". 1:1(0) ack 10001");
    assert_eq!(
        (info(&script).phase, info(&script).ssthresh),
        (Phase::Open, 5_000)
    );
    // The retransmission arrives as a duplicate when nothing is in flight any more.
    script.inject(". 1:1(0) ack 10001 sack 1:1001");
    assert_eq!(info(&script).ssthresh, u32::MAX);
    assert!(info(&script).cwnd >= 10_000);
}

#[test]
fn rfc3708_2_in_the_midst_of_recovery() {
    let mut script = hasty();
    script.inject(". 1:1(0) ack 6001 sack 1:1001");
    let after = info(&script);
    assert_eq!(
        (after.phase, after.ssthresh, after.lost),
        (Phase::Open, u32::MAX, 0)
    );
}

#[test]
fn rfc3708_3_reports_of_something_else_undo_nothing() {
    let mut script = hasty();
    script.inject(". 1:1(0) ack 10001");
    // Half of the retransmitted bytes.
    script.inject(". 1:1(0) ack 10001 sack 1:501");
    assert_eq!(info(&script).ssthresh, 5_000);
    // A round trip later a report is too late.
    script.write(3_000);
    script.drain();
    script.inject(". 1:1(0) ack 13001");
    script.inject(". 1:1(0) ack 13001 sack 501:1001");
    assert_eq!(info(&script).ssthresh, 5_000);
}
