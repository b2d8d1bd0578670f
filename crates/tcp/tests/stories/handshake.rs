//! Opening (RFC 9293 3.5).

use millrace_tcp::{Config, Duration, Error, Events, Settings, State};

use crate::support::pair::{CLIENT, SERVER};
use crate::support::script::base_config;
use crate::support::{Fate, Pair, Script};

#[test]
fn rfc9293_3_5_three_way_handshake() {
    let mut pair = Pair::with_defaults();
    pair.connect();
    pair.run_for(Duration::from_millis(20));
    assert_eq!(
        (pair.state(CLIENT), pair.state(SERVER)),
        (State::Established, State::Established)
    );
    assert!(pair.ends[SERVER].events.contains(Events::ESTABLISHED));
    assert_eq!(pair.connection(CLIENT).info(pair.now).srtt_us, 10_000);
    assert_eq!(pair.connection(SERVER).info(pair.now).srtt_us, 10_000);
}

#[test]
fn rfc9293_3_5_simultaneous_open() {
    let mut pair = Pair::with_defaults();
    pair.ends[SERVER].listening = false;
    pair.connect_from(CLIENT);
    pair.connect_from(SERVER);
    pair.write(CLIENT, 5_000);
    pair.write(SERVER, 7_000);
    pair.run_for(Duration::from_millis(100));
    assert_eq!(
        (pair.state(CLIENT), pair.state(SERVER)),
        (State::Established, State::Established)
    );
    assert_eq!(
        (pair.ends[CLIENT].read, pair.ends[SERVER].read),
        (7_000, 5_000)
    );
}

#[test]
fn syn_is_repeated_six_times_in_127_seconds() {
    let mut script = Script::connecting(base_config(), Settings::default());
    script.expect("S 0:0(0) mss 1460 sackOK");
    for wait in [1, 2, 4, 8, 16, 32] {
        assert_eq!(script.tick(), Duration::from_secs(wait));
        script.expect("S 0:0(0)");
        script.silent();
    }
    assert_eq!(script.tick(), Duration::from_secs(64));
    assert_eq!(script.events(), Events::TIMED_OUT | Events::CLOSED);
    assert_eq!(script.connection.error(), Some(Error::TimedOut));
    script.silent();
}

#[test]
fn syn_ack_is_repeated_five_times_in_63_seconds() {
    let mut pair = Pair::with_defaults();
    pair.wire = Box::new(|packet| {
        if packet.from == SERVER {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.connect();
    pair.wire = Box::new(|_| Fate::Drop);
    let start = pair.now + pair.delay;
    pair.run_until(Duration::from_secs(100), |pair| {
        pair.state(SERVER) == State::SynReceived
    });
    pair.run_until(Duration::from_secs(100), |pair| {
        pair.state(SERVER) == State::Closed
    });
    assert_eq!(pair.ends[SERVER].sent.len(), 6);
    assert_eq!(pair.now - start, Duration::from_secs(63));
}

#[test]
fn rfc9293_3_10_7_3_acknowledgement_with_data_completes_the_handshake() {
    let mut pair = Pair::with_defaults();
    // The client's first bare ACK is lost. Its data follows and completes the handshake.
    pair.wire = Box::new(|packet| {
        if packet.from == CLIENT && packet.index == 1 {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.connect();
    pair.run_for(Duration::from_millis(20));
    assert_eq!(pair.state(SERVER), State::SynReceived);
    pair.write(CLIENT, 100);
    pair.run_for(Duration::from_millis(20));
    assert_eq!(pair.state(SERVER), State::Established);
    assert_eq!(pair.ends[SERVER].read, 100);
}

#[test]
fn extensions_are_used_only_if_both_offer_them() {
    for (timestamps, scaling, sack) in [
        (false, true, true),
        (true, false, true),
        (true, true, false),
    ] {
        let mut pair = Pair::with_defaults();
        pair.ends[SERVER].config = Config {
            timestamps,
            window_scaling: scaling,
            selective_ack: sack,
            ..Config::default()
        };
        pair.connect();
        pair.write(CLIENT, 300_000);
        pair.run_for(Duration::from_secs(2));
        assert_eq!(pair.ends[SERVER].read, 300_000);
        for who in [CLIENT, SERVER] {
            let info = pair.connection(who).info(pair.now);
            assert_eq!(
                (
                    info.timestamps,
                    info.send_scale.is_some(),
                    info.selective_ack
                ),
                (timestamps, scaling, sack)
            );
            assert!(
                pair.ends[who].sent.iter().skip(1).all(|packet| packet
                    .options
                    .timestamps
                    .is_some()
                    == timestamps)
            );
        }
    }
}
