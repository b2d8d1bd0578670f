//! ICMP (RFC 5927, RFC 1191, RFC 1122 4.2.3.9; group G of the hostile inputs).

use millrace_tcp::{Error, Events, IcmpError, Settings, State};

use crate::support::Script;
use crate::support::script::base_config;

const REFUSED: IcmpError = IcmpError::Unreachable(Error::ConnectionRefused);
const NO_HOST: IcmpError = IcmpError::Unreachable(Error::HostUnreachable);

fn nodelay() -> Script {
    Script::with(Settings {
        nodelay: true,
        ..Settings::default()
    })
}

#[test]
fn g1_unreachable_is_a_soft_error_once_established() {
    let mut script = nodelay();
    script.write(100);
    script.expect("P. 1:101(100) ack 1");
    script.icmp(REFUSED, 1);
    script.icmp(NO_HOST, 1);
    assert_eq!(script.state(), State::Established);
    assert_eq!(script.connection.error(), None);
    // The report is the error if a time-out follows.
    while script.state() == State::Established {
        script.tick();
        script.drain();
    }
    assert_eq!(script.connection.error(), Some(Error::HostUnreachable));
}

#[test]
fn g2_report_about_what_is_not_in_flight_is_ignored() {
    let mut script = nodelay();
    script.write(1_000);
    script.expect("P. 1:1001(1000) ack 1");
    for quoted in [0, 1_001, -5, 100_000] {
        script.icmp(NO_HOST, quoted);
        script.icmp(IcmpError::FragmentationNeeded { max_segment: 600 }, quoted);
    }
    assert_eq!(script.connection.take_soft_error(), None);
    assert_eq!(script.connection.info(script.now).send_mss, 1_000);
}

#[test]
fn rfc1191_smaller_path_sends_again_in_smaller_segments() {
    let mut script = nodelay();
    script.write(3_000);
    for _ in 0..3 {
        script.poll().expect("in the window");
    }
    let cwnd = script.connection.info(script.now).cwnd;
    script.icmp(IcmpError::FragmentationNeeded { max_segment: 600 }, 1);
    for i in 0..5 {
        script.expect(&format!(
            "{} {}:{}(600) ack 1",
            if i == 4 { "P." } else { "." },
            1 + 600 * i,
            601 + 600 * i
        ));
    }
    script.silent();
    // It is no sign of congestion.
    assert_eq!(script.connection.info(script.now).cwnd, cwnd);
    script.inject(". 1:1(0) ack 3001");
    script.write(600);
    script.expect("P. 3001:3601(600) ack 1");
}

#[test]
fn g3_absurd_mtus() {
    for (claimed, used) in [
        (0, 512),
        (28, 512),
        (511, 512),
        (999, 999),
        (1_000, 1_000),
        (9_000, 1_000),
    ] {
        let mut script = nodelay();
        script.write(1_000);
        script.expect("P. 1:1001(1000) ack 1");
        script.icmp(
            IcmpError::FragmentationNeeded {
                max_segment: claimed,
            },
            1,
        );
        assert_eq!(
            script.connection.info(script.now).send_mss,
            used,
            "{claimed}"
        );
    }
}

#[test]
fn g6_in_syn_sent_an_error_ends_it_if_it_quotes_our_syn() {
    for (report, error) in [
        (REFUSED, Error::ConnectionRefused),
        (NO_HOST, Error::HostUnreachable),
    ] {
        let mut script = Script::connecting(base_config(), Settings::default());
        script.expect("S 0:0(0)");
        script.icmp(report, 1);
        script.icmp(report, -1);
        assert_eq!(script.state(), State::SynSent);
        script.icmp(report, 0);
        assert_eq!(script.state(), State::Closed);
        assert_eq!(script.connection.error(), Some(error));
        assert!(script.events().contains(Events::CLOSED));
    }
}

#[test]
fn smaller_path_known_before_the_handshake_is_kept() {
    let mut script = Script::connecting(base_config(), Settings::default());
    script.expect("S 0:0(0)");
    script.icmp(IcmpError::FragmentationNeeded { max_segment: 700 }, 0);
    script.write(1_400);
    script.inject("S. 0:0(0) ack 1 mss 1460");
    script.expect(". 1:701(700) ack 1");
}
