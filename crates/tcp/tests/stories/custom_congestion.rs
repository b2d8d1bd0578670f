//! Congestion control that a program brings.

use millrace_tcp::congestion::{Acked, Controller, Custom, Window};
use millrace_tcp::{Algorithm, Config, Duration, Info, Instant, Settings};

use crate::support::Script;

/// A constant window, in segments, and the calls that it received.
#[derive(Debug)]
struct Fixed {
    segments: u32,
}

impl Controller for Fixed {
    fn start(&mut self, window: &mut Window, mss: u32) {
        window.cwnd = self.segments * mss;
    }

    fn on_ack(&mut self, window: &mut Window, acked: &Acked, _now: Instant) {
        assert_eq!((acked.mss, acked.rtt_us), (1_000, 10_000));
        window.cwnd = self.segments * acked.mss;
    }

    fn reduced(&mut self, window: &Window, _flight: u32, mss: u32, _now: Instant) -> u32 {
        assert!(window.cwnd > 0);
        self.segments * mss
    }

    fn on_timeout(&mut self) {}
}

const SIX: Custom = Custom::new("six", || Box::new(Fixed { segments: 6 }));
const NONE: Custom = Custom::new("none", || Box::new(Fixed { segments: 0 }));

fn with(at: u8) -> Settings {
    Settings {
        nodelay: true,
        congestion: Some(Algorithm::Custom(at)),
        ..Settings::UNSET
    }
}

fn config() -> Config {
    Config {
        timestamps: false,
        window_scaling: false,
        custom: vec![SIX, NONE],
        ..Config::default()
    }
}

/// A connection with one of them, segments of 1,000 bytes and a round trip of 10 ms.
fn under(at: u8) -> Script {
    Script::active(config(), with(at), "mss 1000 sackOK")
}

fn info(script: &Script) -> Info {
    script.connection.info(script.now)
}

#[test]
fn a_window_of_the_programs_own_bounds_the_flight() {
    let mut script = under(0);
    assert_eq!(info(&script).cwnd, 6_000);
    script.write(20_000);
    assert_eq!(script.drain().len(), 6);
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 6001");
    assert_eq!(script.drain().len(), 6, "it does not grow");
}

#[test]
fn rfc5681_3_2_fast_recovery_ends_at_the_programs_own_threshold() {
    let mut script = under(0);
    script.write(20_000);
    assert_eq!(script.drain().len(), 6);
    script.pass(Duration::from_millis(10));
    for end in [2_001, 3_001, 4_001] {
        script.inject(&format!(". 1:1(0) ack 1 sack 1001:{end}"));
        script.drain();
    }
    assert_eq!(info(&script).ssthresh, 6_000);
    let nxt = info(&script).in_flight + 1;
    script.pass(Duration::from_millis(10));
    script.inject(&format!(". 1:1(0) ack {nxt}"));
    assert_eq!(info(&script).cwnd, 6_000);
}

#[test]
fn a_window_is_one_segment_at_least() {
    let mut script = under(1);
    assert_eq!(info(&script).cwnd, 1_000);
    script.write(3_000);
    for end in [1_001, 2_001, 3_001] {
        assert_eq!(script.drain().len(), 1);
        script.pass(Duration::from_millis(10));
        script.inject(&format!(". 1:1(0) ack {end}"));
    }
    let before = info(&script).timeouts;
    script.write(1_000);
    script.drain();
    while info(&script).timeouts == before {
        script.tick();
        script.drain();
    }
    let threshold = info(&script).ssthresh;
    assert_eq!((info(&script).cwnd, threshold), (1_000, 1_000));
}

#[test]
fn it_is_chosen_and_left_while_the_connection_goes_on() {
    let mut script = Script::active(config(), Settings::default(), "mss 1000 sackOK");
    script
        .connection
        .configure(&script.config, &with(0).into(), script.now);
    assert_eq!(info(&script).cwnd, 10_000, "the window stays as it is");
    script.write(30_000);
    assert_eq!(script.drain().len(), 10);
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 10001");
    assert_eq!(info(&script).cwnd, 6_000);
    let reno = Settings {
        congestion: Some(Algorithm::NewReno),
        ..with(0)
    };
    script
        .connection
        .configure(&script.config, &reno.into(), script.now);
    script.drain();
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 16001");
    assert!(info(&script).cwnd > 6_000, "slow start again");
}

#[test]
fn names_are_linuxs_and_the_programs_own() {
    let config = config();
    assert_eq!(config.named("bbr"), Some(Algorithm::Bbr));
    assert_eq!(config.named("none"), Some(Algorithm::Custom(1)));
    assert_eq!(config.named("vegas"), None);
    assert!(config.has(Algorithm::Custom(1)) && !config.has(Algorithm::Custom(2)));
}
