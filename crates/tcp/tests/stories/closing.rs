//! Closing (RFC 9293 3.6).

use millrace_tcp::{Config, Duration, Error, Events, Keepalive, Settings, State};

use crate::support::pair::{CLIENT, SERVER};
use crate::support::script::base_config;
use crate::support::{Fate, Pair, Script};

#[test]
fn rfc9293_3_6_normal_close() {
    let mut pair = Pair::with_defaults();
    pair.connect();
    pair.run_for(Duration::from_millis(50));
    pair.write(CLIENT, 5_000);
    pair.close(CLIENT);
    pair.run_for(Duration::from_millis(100));
    assert_eq!(
        (pair.state(CLIENT), pair.state(SERVER)),
        (State::TimeWait, State::Closed)
    );
    assert_eq!(pair.ends[SERVER].read, 5_000);
    pair.run_for(Duration::from_secs(59));
    assert_eq!(pair.state(CLIENT), State::TimeWait);
    pair.run_for(Duration::from_secs(2));
    assert_eq!(pair.state(CLIENT), State::Closed);
}

#[test]
fn rfc9293_3_6_simultaneous_close() {
    let mut pair = Pair::with_defaults();
    pair.connect();
    pair.run_for(Duration::from_millis(50));
    pair.close(CLIENT);
    pair.close(SERVER);
    pair.run_for(Duration::from_millis(8));
    assert_eq!(
        (pair.state(CLIENT), pair.state(SERVER)),
        (State::Closing, State::Closing)
    );
    pair.run_for(Duration::from_millis(8));
    assert_eq!(
        (pair.state(CLIENT), pair.state(SERVER)),
        (State::TimeWait, State::TimeWait)
    );
}

#[test]
fn rfc9293_3_6_half_close() {
    let mut pair = Pair::with_defaults();
    pair.ends[SERVER].close_on_end = false;
    pair.connect();
    pair.run_for(Duration::from_millis(50));
    pair.shutdown(CLIENT);
    pair.run_for(Duration::from_millis(50));
    assert_eq!(
        (pair.state(CLIENT), pair.state(SERVER)),
        (State::FinWait2, State::CloseWait)
    );
    // FIN-WAIT-2 with a program lasts as long as the program wants.
    pair.run_for(Duration::from_secs(600));
    pair.write(SERVER, 200_000);
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.ends[CLIENT].read, 200_000);
    pair.close(SERVER);
    pair.run_for(Duration::from_millis(50));
    assert_eq!(
        (pair.state(CLIENT), pair.state(SERVER)),
        (State::TimeWait, State::Closed)
    );
}

#[test]
fn fin_rides_on_the_last_segment_and_is_sent_again() {
    let mut script = Script::established();
    script.write(100);
    script.connection.shutdown_write(script.now);
    script.expect("FP. 1:101(100) ack 1");
    script.silent();
    assert_eq!(script.state(), State::FinWait1);
    script.tick();
    script.expect("FP. 1:101(100) ack 1");
    // The data is acknowledged; the FIN is not.
    script.inject(". 1:1(0) ack 101");
    assert_eq!(script.state(), State::FinWait1);
    script.tick();
    script.expect("F. 101:101(0) ack 1");
    script.inject(". 1:1(0) ack 102");
    assert_eq!(script.state(), State::FinWait2);
    assert_eq!(script.connection.acked(), 100);
}

#[test]
fn fin_ends_what_nagle_would_hold() {
    let mut script = Script::established();
    script.write(10);
    script.expect("P. 1:11(10) ack 1");
    script.write(10);
    script.silent();
    script.connection.shutdown_write(script.now);
    script.expect("FP. 11:21(10) ack 1");
}

#[test]
fn rfc9293_3_10_7_4_fin_and_ack_of_ours_in_one_segment() {
    let mut script = Script::established();
    script.connection.close(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.inject("F. 1:1(0) ack 2");
    script.expect(". 2:2(0) ack 2");
    assert_eq!(script.state(), State::TimeWait);
    assert!(script.events().contains(Events::TIME_WAIT));
    assert_eq!(script.connection.deadline(), None);
    assert!(
        script
            .connection
            .time_wait(&script.config, script.now)
            .is_some()
    );
}

#[test]
fn e6_fin_wait_2_without_a_program_ends_after_60_s() {
    let mut script = Script::established();
    script.connection.close(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.inject(". 1:1(0) ack 2");
    assert_eq!(script.state(), State::FinWait2);
    script.pass(Duration::from_secs(59));
    assert_eq!(script.state(), State::FinWait2);
    script.pass(Duration::from_secs(2));
    assert_eq!(script.state(), State::Closed);
    script.silent();
}

#[test]
fn e6_segments_do_not_prolong_fin_wait_2_without_a_program() {
    let mut script = Script::established();
    script.connection.close(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.inject(". 1:1(0) ack 2");
    script.pass(Duration::from_secs(30));
    script.inject(". 1:1(0) ack 2");
    script.pass(Duration::from_secs(29));
    assert_eq!(script.state(), State::FinWait2);
    script.pass(Duration::from_secs(2));
    assert_eq!(script.state(), State::Closed);
    script.silent();
}

#[test]
fn e6_tcp_linger2_sets_the_wait() {
    let settings = Settings {
        fin_wait_s: Some(5),
        keepalive: Some(Keepalive::default()),
        ..Settings::default()
    };
    let mut script = Script::with(settings);
    script.connection.close(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.inject(". 1:1(0) ack 2");
    script.pass(Duration::from_millis(4_990));
    assert_eq!(script.state(), State::FinWait2);
    script.pass(Duration::from_millis(20));
    assert_eq!(script.state(), State::Closed);
}

/// As in Linux, a negative TCP_LINGER2 tells the peer at once that nobody waits.
#[test]
fn e6_tcp_linger2_may_forbid_the_wait() {
    let settings = Settings {
        fin_wait_s: Some(0),
        ..Settings::default()
    };
    let mut script = Script::with(settings);
    script.connection.close(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.inject(". 1:1(0) ack 2");
    script.expect("R. 2:2(0) ack 1");
    assert_eq!(script.state(), State::Closed);
    // So it is for a program that shut down first and closed in FIN-WAIT-2.
    let mut script = Script::with(settings);
    script.connection.shutdown_write(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.inject(". 1:1(0) ack 2");
    assert_eq!(script.state(), State::FinWait2);
    script.connection.close(script.now);
    script.expect("R. 2:2(0) ack 1");
    // If the peer's FIN comes with the acknowledgement, the connection is done.
    let mut script = Script::with(settings);
    script.connection.close(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.inject("F. 1:1(0) ack 1");
    script.expect(". 2:2(0) ack 2");
    assert_eq!(script.state(), State::Closing);
}

/// Linux's `tcp_fin_time`: on a slow path the wait is at least 3.5 time-outs.
#[test]
fn e6_a_short_fin_wait_leaves_time_for_a_fin_that_was_lost() {
    let mut script = Script::connecting(
        base_config(),
        Settings {
            fin_wait_s: Some(1),
            ..Settings::default()
        },
    );
    script.expect("S 0:0(0)");
    script.pass(Duration::from_millis(900));
    script.inject("S. 0:0(0) ack 1 win 60000 mss 1000 sackOK");
    script.expect(". 1:1(0) ack 1");
    script.connection.close(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.pass(Duration::from_millis(900));
    script.inject(". 1:1(0) ack 2");
    let rto_us = u64::from(script.connection.info(script.now).rto_us);
    assert!(rto_us > 1_500_000, "{rto_us}");
    script.pass(Duration::from_micros(rto_us * 3));
    assert_eq!(script.state(), State::FinWait2);
    script.pass(Duration::from_micros(rto_us));
    assert_eq!(script.state(), State::Closed);
}

#[test]
fn e6_closing_in_fin_wait_2_starts_the_wait() {
    let mut script = Script::established();
    script.connection.shutdown_write(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.inject(". 1:1(0) ack 2");
    script.pass(Duration::from_secs(1_000));
    assert_eq!(script.state(), State::FinWait2);
    script.connection.close(script.now);
    script.pass(Duration::from_secs(61));
    assert_eq!(script.state(), State::Closed);
}

#[test]
fn e6_last_ack_and_closing_end_with_the_retransmissions() {
    let mut script = Script::established();
    script.inject("F. 1:1(0) ack 1");
    script.connection.close(script.now);
    assert_eq!(script.state(), State::LastAck);
    script.expect("F. 1:1(0) ack 2");
    let start = script.now;
    while script.state() == State::LastAck {
        script.tick();
        script.drain();
    }
    assert_eq!(script.state(), State::Closed);
    let lasted = script.now - start;
    assert!(
        lasted >= Duration::from_secs(100) && lasted < Duration::from_secs(300),
        "{lasted:?}"
    );
}

#[test]
fn rfc2525_2_17_close_with_unread_data_resets() {
    let mut script = Script::established();
    script.inject("P. 1:101(100) ack 1");
    script.connection.close(script.now);
    script.expect("R. 1:1(0) ack 101");
    assert_eq!(script.state(), State::Closed);
}

#[test]
fn rfc9293_3_6_1_data_after_close_resets() {
    let mut script = Script::established();
    script.connection.close(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.inject("P. 1:101(100) ack 2");
    script.expect("R. 2:2(0) ack 1");
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.connection.received(), 0);
}

#[test]
fn half_closed_reader_still_gets_data() {
    let mut script = Script::established();
    script.connection.shutdown_write(script.now);
    script.expect("F. 1:1(0) ack 1");
    script.inject("P. 1:101(100) ack 2");
    assert_eq!(script.connection.received(), 100);
    assert_eq!(script.state(), State::FinWait2);
}

#[test]
fn close_in_syn_sent_says_nothing() {
    let mut script = Script::connecting(base_config(), Settings::default());
    script.expect("S 0:0(0)");
    script.connection.close(script.now);
    script.silent();
    assert_eq!(script.state(), State::Closed);
}

#[test]
fn close_before_the_handshake_is_complete_sends_what_was_queued() {
    let mut script = Script::connecting(base_config(), Settings::default());
    script.expect("S 0:0(0)");
    script.inject("S 0:0(0) mss 1000");
    script.expect("S. 0:0(0) ack 1");
    script.write(50);
    script.connection.close(script.now);
    script.silent();
    script.inject(". 1:1(0) ack 1");
    script.expect("FP. 1:51(50) ack 1");
    assert_eq!(script.state(), State::FinWait1);
}

#[test]
fn lost_last_acknowledgement_is_repeated_from_time_wait() {
    let mut pair = Pair::with_defaults();
    pair.connect();
    pair.run_for(Duration::from_millis(50));
    let client = pair.ends[CLIENT].sent.len();
    // After the handshake the client sends FIN and then the last ACK, which is lost.
    pair.wire = Box::new(move |packet| {
        if packet.from == CLIENT && packet.index == client + 1 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.close(CLIENT);
    pair.run_for(Duration::from_millis(100));
    assert_eq!(
        (pair.state(CLIENT), pair.state(SERVER)),
        (State::TimeWait, State::LastAck)
    );
    pair.run_for(Duration::from_millis(500));
    assert_eq!(
        (pair.state(CLIENT), pair.state(SERVER)),
        (State::TimeWait, State::Closed)
    );
}

#[test]
fn retransmitted_fin_in_close_wait_is_acknowledged() {
    let mut script = Script::established();
    script.inject("F. 1:1(0) ack 1");
    script.expect(". 1:1(0) ack 2");
    script.inject("F. 1:1(0) ack 1");
    script.expect(". 1:1(0) ack 2");
}

#[test]
fn retransmission_gives_up_after_the_configured_time() {
    let mut script = Script::established();
    script.write(100);
    script.expect("P. 1:101(100) ack 1");
    let start = script.now;
    let mut times = 0;
    while script.state() == State::Established {
        script.tick();
        times += script.drain().len();
    }
    let lasted = script.now - start;
    assert!(
        lasted > Duration::from_secs(900) && lasted < Duration::from_secs(1_050),
        "{lasted:?}"
    );
    assert_eq!(times, 15);
    assert_eq!(script.connection.error(), Some(Error::TimedOut));
    assert!(script.events().contains(Events::TIMED_OUT | Events::CLOSED));
}

#[test]
fn rfc5482_user_timeout_ends_it_in_time() {
    let mut script = Script::with(Settings {
        user_timeout_ms: Some(5_000),
        ..Settings::default()
    });
    script.write(100);
    script.expect("P. 1:101(100) ack 1");
    let start = script.now;
    while script.state() == State::Established {
        script.tick();
        script.drain();
    }
    assert_eq!((script.now - start).as_millis(), 5_000);
    assert_eq!(script.connection.error(), Some(Error::TimedOut));
}

#[test]
fn closed_connection_gives_up_sooner() {
    let mut script = Script::active(Config::default(), Settings::default(), "mss 1000");
    script.write(100);
    script.connection.close(script.now);
    script.expect("FP. 1:101(100) ack 1");
    let start = script.now;
    while script.state() != State::Closed {
        script.tick();
        script.drain();
    }
    assert!((script.now - start).as_secs() < 210);
}
