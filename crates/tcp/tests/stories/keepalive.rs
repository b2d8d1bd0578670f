//! Keepalive and idle connections (RFC 9293 3.8.4).

use millrace_tcp::{Duration, Error, Events, Keepalive, Settings, State};

use crate::support::Script;

const ALIVE: Settings = Settings {
    nodelay: true,
    keepalive: Some(Keepalive {
        idle_s: 60,
        interval_s: 10,
        probes: 3,
    }),
    ..Settings::UNSET
};

/// Timers run in steps of a millisecond.
fn about(actual: Duration, expected: Duration) -> bool {
    actual.as_micros().abs_diff(expected.as_micros()) < 3_000
}

/// Advances until something is sent.
fn wait(script: &mut Script) -> (Duration, Vec<String>) {
    let start = script.now;
    loop {
        script.tick();
        let sent = script.drain();
        if !sent.is_empty() || script.connection.deadline().is_none() {
            return (script.now - start, sent);
        }
    }
}

#[test]
fn without_keepalive_an_idle_connection_runs_no_timer() {
    let script = Script::established();
    assert_eq!(script.connection.deadline(), None);
}

#[test]
fn silent_peer_is_probed_and_given_up() {
    let mut script = Script::with(ALIVE);
    let (waited, sent) = wait(&mut script);
    assert!(about(waited, Duration::from_secs(60)), "{waited:?}");
    assert_eq!(sent, [". 0:0(0) ack 1 win 65535"]);
    for _ in 0..2 {
        let (waited, sent) = wait(&mut script);
        assert!(about(waited, Duration::from_secs(10)), "{waited:?}");
        assert_eq!(sent.len(), 1);
    }
    let (waited, sent) = wait(&mut script);
    assert!(about(waited, Duration::from_secs(10)), "{waited:?}");
    assert!(sent[0].starts_with("R. 1:1(0) ack 1"), "{sent:?}");
    assert_eq!(script.connection.error(), Some(Error::TimedOut));
    assert!(script.events().contains(Events::TIMED_OUT | Events::CLOSED));
}

#[test]
fn peer_that_answers_lives() {
    let mut script = Script::with(ALIVE);
    for _ in 0..100 {
        let (waited, sent) = wait(&mut script);
        assert!(about(waited, Duration::from_secs(60)), "{waited:?}");
        assert_eq!(sent.len(), 1);
        script.inject(". 1:1(0) ack 1");
        script.silent();
    }
    assert_eq!(script.state(), State::Established);
}

#[test]
fn rfc1122_4_2_3_6_payload_answers_all_probes_before_it() {
    let mut script = Script::with(ALIVE);
    for _ in 0..2 {
        assert_eq!(wait(&mut script).1.len(), 1);
    }
    script.inject("P. 1:11(10) ack 1");
    script.pass(Duration::from_millis(50));
    script.drain();
    let heard = script.now;
    for seconds in [60, 70, 80] {
        let (_, sent) = wait(&mut script);
        assert_eq!(sent.len(), 1);
        let silent = script.now - heard + Duration::from_millis(50);
        assert!(about(silent, Duration::from_secs(seconds)), "{silent:?}");
    }
    assert_eq!(script.state(), State::Established);
}

#[test]
fn traffic_postpones_the_probe() {
    let mut script = Script::with(ALIVE);
    let mut at = 1;
    for _ in 0..20 {
        script.pass(Duration::from_secs(30));
        script.inject(&format!("P. {at}:{}(10) ack 1", at + 10));
        at += 10;
        script.pass(Duration::from_millis(50));
        assert!(
            script
                .drain()
                .iter()
                .all(|segment| segment.starts_with(". 1:1(0)"))
        );
    }
    let heard = script.now;
    let (waited, _) = wait(&mut script);
    assert!(
        about(script.now - heard, Duration::from_millis(59_950)),
        "{waited:?}"
    );
}

#[test]
fn user_timeout_governs_keepalive() {
    let mut script = Script::with(Settings {
        user_timeout_ms: Some(75_000),
        ..ALIVE
    });
    let start = script.now;
    while script.state() == State::Established {
        wait(&mut script);
    }
    let lasted = script.now - start;
    assert!(about(lasted, Duration::from_secs(80)), "{lasted:?}");
}

#[test]
fn keepalive_can_be_set_and_cleared_later() {
    let mut script = Script::established();
    script.pass(Duration::from_secs(100));
    script
        .connection
        .configure(&script.config, &ALIVE.into(), script.now);
    let (waited, sent) = wait(&mut script);
    // The peer has been silent for longer already.
    assert!(waited < Duration::from_millis(5));
    assert_eq!(sent.len(), 1);
    script
        .connection
        .configure(&script.config, &Settings::default().into(), script.now);
    assert_eq!(script.connection.deadline(), None);
}

#[test]
fn data_in_flight_is_its_own_probe() {
    let mut script = Script::with(ALIVE);
    script.write(100);
    script.expect("P. 1:101(100) ack 1");
    script.pass(Duration::from_secs(200));
    assert_eq!(script.state(), State::Established);
    assert!(
        script
            .drain()
            .iter()
            .all(|segment| segment.contains("1:101(100)"))
    );
}

#[test]
fn close_wait_is_kept_alive_too() {
    let mut script = Script::with(ALIVE);
    script.inject("F. 1:1(0) ack 1");
    script.expect(". 1:1(0) ack 2");
    let (waited, sent) = wait(&mut script);
    assert!(about(waited, Duration::from_secs(60)), "{waited:?}");
    assert_eq!(sent.len(), 1);
}
