//! Path MTU discovery (RFC 1191, RFC 8201, RFC 4821, RFC 8899).

use std::ops::Range;

use millrace_tcp::{
    Config, Connection, Duration, IcmpError, Instant, Limits, MtuProbing, Open, Outgoing,
    ReceiveBuffer, Settings, State,
};
use millrace_wire::tcp::{Flags, Options, Segment, Seq};

use crate::support::Script;
use crate::support::script::base_config;

/// A sender, and a path that loses segments that are too large. The receiver acknowledges all
/// arrivals at once, selectively if they are out of order.
struct Road {
    config: Config,
    sender: Connection,
    now: Instant,
    /// The largest payload that passes.
    width: u16,
    /// Ranges that have arrived.
    arrived: Vec<Range<u64>>,
    /// Payload sizes of the segments that were sent.
    sizes: Vec<u16>,
    /// How often the congestion window was lowered.
    lowered: u32,
    iss: Seq,
}

struct Nothing;

impl ReceiveBuffer for Nothing {
    fn store(&mut self, _: u64, _: &[u8]) -> bool {
        false
    }
}

const MOST: u16 = 1_460;

impl Road {
    fn new(mtu_probing: MtuProbing, default_mss: u16) -> Road {
        let config = Config {
            timestamps: false,
            mtu_probing,
            ..Config::default()
        };
        let now = Instant::from_millis(1_000_000);
        let iss = Seq(0xffff_f000);
        let open = Open {
            iss,
            timestamp_offset: 0,
            mss: MOST,
            default_mss,
            receive_limit: 65_535,
        };
        let settings = Settings {
            nodelay: true,
            ..Settings::default()
        };
        let sender = Connection::connect(&config, &settings.into(), open, now);
        let mut road = Road {
            config,
            sender,
            now,
            width: MOST,
            arrived: Vec::new(),
            sizes: Vec::new(),
            lowered: 0,
            iss,
        };
        road.sizes(0);
        road.now += Duration::from_millis(10);
        let options = Options {
            mss: Some(MOST),
            sack_permitted: true,
            window_scale: Some(7),
            ..Options::default()
        };
        road.answer(Flags::SYN | Flags::ACK, Seq(0), 0, options);
        assert_eq!(road.sender.state(), State::Established);
        road
    }

    fn answer(&mut self, flags: Flags, seq: Seq, received: u64, options: Options) {
        let segment = Segment {
            src_port: 80,
            dst_port: 40_000,
            seq,
            ack: self.iss + 1 + received as u32,
            flags,
            window: 60_000,
            urgent: 0,
            marked: false,
            options,
            payload: &[],
        };
        self.sender
            .on_segment(&self.config, &segment, &mut Nothing, self.now);
    }

    /// Lets the sender send. Segments that pass arrive, and are acknowledged 10 ms later. Returns
    /// the sizes.
    fn sizes(&mut self, max_payload: u32) -> Vec<u16> {
        let limits = Limits { max_payload };
        let mut sent: Vec<Outgoing> = Vec::new();
        while let Some(outgoing) = self.sender.poll_transmit(&self.config, &limits, self.now) {
            sent.push(outgoing);
        }
        let mut passed = Vec::new();
        let mut sizes = Vec::new();
        for outgoing in sent {
            let mut at = outgoing.payload.start;
            while at < outgoing.payload.end {
                let end = (at + u64::from(outgoing.segment_size)).min(outgoing.payload.end);
                sizes.push((end - at) as u16);
                if end - at <= u64::from(self.width) {
                    passed.push(at..end);
                }
                at = end;
            }
        }
        if !passed.is_empty() {
            self.now += Duration::from_millis(10);
        }
        for range in passed {
            self.take(range);
        }
        self.sizes.extend(&sizes);
        sizes
    }

    fn take(&mut self, range: Range<u64>) {
        self.arrived.push(range.clone());
        self.arrived.sort_by_key(|range| range.start);
        let mut received = 0;
        for range in &self.arrived {
            if range.start <= received {
                received = received.max(range.end);
            }
        }
        let mut options = Options::default();
        if range.start > received {
            let at = |offset: u64| self.iss + 1 + offset as u32;
            options.sack.push(at(range.start), at(range.end));
        }
        self.answer(Flags::ACK, Seq(1), received, options);
    }

    /// Writes `bytes` and waits until they are acknowledged. Returns how long that took.
    fn carry(&mut self, bytes: u64) -> Duration {
        let start = self.now;
        let info = self.sender.info(self.now);
        let end = info.unsent + info.bytes_acked + u64::from(info.in_flight) + bytes;
        self.sender.enqueue(end, true);
        while self.sender.acked() < end {
            let window = self.sender.congestion_window();
            let idle = self.sizes(1).is_empty();
            self.lowered += u32::from(self.sender.congestion_window() < window);
            if idle {
                let deadline = self.sender.deadline().expect("a timer runs");
                self.now = self.now.max(deadline);
                self.sender.on_timer(&self.config, self.now);
            }
            assert_eq!(self.sender.state(), State::Established);
            assert!(self.now - start < Duration::from_secs(600), "no progress");
        }
        self.now - start
    }

    fn mss(&self) -> u16 {
        self.sender.info(self.now).send_mss
    }
}

/// As Linux with `tcp_mtu_probing` 1: when full segments vanish without a report, the transfer goes
/// on, and finds the size that passes.
#[test]
fn rfc4821_7_7_a_black_hole_is_passed_and_the_size_is_found() {
    for width in [1_452, 1_400, 1_300, 1_000] {
        let mut road = Road::new(MtuProbing::BlackHole, 536);
        road.carry(100_000);
        assert_eq!(road.mss(), MOST);
        road.width = width;
        let took = road.carry(3_000_000);
        assert!(took < Duration::from_secs(60), "{took:?} at {width}");
        assert!(
            road.mss() <= width && road.mss() + 8 > width,
            "{} of {width}",
            road.mss()
        );
        // A size that is known to pass needs no more time-outs, and one that is known not to is not
        // tried.
        road.sizes.clear();
        let timeouts = road.sender.info(road.now).timeouts;
        road.carry(1_000_000);
        assert_eq!(road.sender.info(road.now).timeouts, timeouts);
        assert!(road.sizes.iter().all(|&size| size <= width), "{width}");
    }
}

/// A path smaller than the base size: the size is halved again and again (Linux's
/// `tcp_mtu_probing`).
#[test]
fn rfc4821_7_7_a_very_narrow_path_is_passed_too() {
    for width in [900, 500, 200, 88] {
        let mut road = Road::new(MtuProbing::BlackHole, 536);
        road.width = width;
        road.carry(20_000);
        assert!(road.mss() <= width);
    }
}

/// Over IPv6 1,280 bytes pass everywhere: time-outs at that size have another cause.
#[test]
fn rfc8201_4_no_path_of_ipv6_needs_less_than_1280() {
    let mut road = Road::new(MtuProbing::BlackHole, 1_220);
    road.width = 1_230;
    road.carry(100_000);
    assert_eq!(road.mss(), 1_220);
    road.width = 0;
    road.sender.enqueue(200_000, true);
    for _ in 0..8 {
        road.sizes(1);
        road.now = road.sender.deadline().expect("a timer runs");
        road.sender.on_timer(&road.config, road.now);
    }
    assert_eq!(road.mss(), 1_220);
}

/// An outage has another cause too: the first probe after it has the full size again.
#[test]
fn rfc4821_7_3_after_an_outage_the_full_size_comes_back() {
    let mut road = Road::new(MtuProbing::BlackHole, 536);
    road.carry(100_000);
    road.width = 0;
    road.sender.enqueue(road.sender.acked() + 1_000_000, true);
    for _ in 0..7 {
        assert!(!road.sizes(1).is_empty());
        road.now = road.sender.deadline().expect("a timer runs");
        road.sender.on_timer(&road.config, road.now);
    }
    assert!(road.mss() < 984);
    road.width = MOST;
    road.carry(500_000);
    assert_eq!(road.mss(), MOST);
}

#[test]
fn rfc4821_7_7_a_lost_probe_is_no_sign_of_congestion() {
    let mut road = Road::new(MtuProbing::Always, 536);
    assert_eq!(road.mss(), 984);
    road.width = 1_200;
    road.carry(12_000_000);
    assert_eq!(road.lowered, 0);
    assert!((1_193..=1_200).contains(&road.mss()), "{}", road.mss());
    assert!(road.sizes.iter().any(|&size| size > 1_200));
    assert_eq!(road.sender.info(road.now).timeouts, 0);
}

#[test]
fn without_probing_routers_have_to_say_it() {
    let mut road = Road::new(MtuProbing::Off, 536);
    road.width = 1_000;
    road.sender.enqueue(100_000, true);
    for _ in 0..8 {
        road.sizes(1);
        road.now = road.sender.deadline().expect("a timer runs");
        road.sender.on_timer(&road.config, road.now);
    }
    assert_eq!(road.mss(), MOST);
    assert_eq!(road.sender.acked(), 0);
}

/// A finished search restarts after ten minutes: the path may have changed.
#[test]
fn rfc4821_7_5_a_larger_size_is_tried_again_in_time() {
    let mut road = Road::new(MtuProbing::BlackHole, 536);
    road.width = 1_300;
    road.carry(3_000_000);
    assert!(road.mss() <= 1_300);
    road.width = MOST;
    road.carry(1_000_000);
    assert!(road.mss() <= 1_300, "not at once");
    road.now += Duration::from_secs(601);
    // After so long a pause the window is small, and a probe waits until it has grown.
    road.carry(1_000_000);
    assert_eq!(road.mss(), MOST);
}

/// With segmentation offload a probe is still one segment.
#[test]
fn rfc4821_7_2_a_probe_is_one_segment_whatever_is_cut_below() {
    let mut road = Road::new(MtuProbing::Always, 536);
    road.carry(200_000);
    let mut probes = 0;
    road.width = 1_100;
    for _ in 0..50 {
        let limits = Limits {
            max_payload: 60_000,
        };
        let end = road.sender.acked() + 60_000;
        road.sender.enqueue(end, true);
        while let Some(outgoing) = road.sender.poll_transmit(&road.config, &limits, road.now) {
            if outgoing.segment_size > road.mss() {
                assert_eq!(outgoing.payload_len(), usize::from(outgoing.segment_size));
                probes += 1;
            }
            let mut at = outgoing.payload.start;
            while at < outgoing.payload.end {
                let end = (at + u64::from(outgoing.segment_size)).min(outgoing.payload.end);
                if end - at <= u64::from(road.width) {
                    road.take(at..end);
                }
                at = end;
            }
        }
        road.carry(0);
    }
    assert!(probes <= 12, "{probes}");
}

/// RFC 1191 6.3: a router's report is believed for ten minutes.
#[test]
fn rfc1191_6_3_a_path_that_became_smaller_is_tried_anew() {
    let mut script = Script::with(Settings {
        nodelay: true,
        ..Settings::default()
    });
    script.write(1_000);
    script.expect("P. 1:1001(1000) ack 1");
    script.icmp(IcmpError::FragmentationNeeded { max_segment: 600 }, 1);
    script.expect(". 1:601(600) ack 1");
    script.expect("P. 601:1001(400) ack 1");
    script.inject(". 1:1(0) ack 1001");
    script.pass(Duration::from_secs(590));
    script.write(1_000);
    script.expect(". 1001:1601(600) ack 1");
    script.expect("P. 1601:2001(400) ack 1");
    script.inject(". 1:1(0) ack 2001");
    script.pass(Duration::from_secs(11));
    script.write(1_000);
    script.expect("P. 2001:3001(1000) ack 1");
}

/// A limit learnt from other connections holds from the first segment on, and so does the peer's.
#[test]
fn rfc1191_6_2_a_connection_starts_with_what_is_known_of_its_path() {
    for (known, peer, used) in [(800, 1_460, 800), (800, 700, 700), (100, 1_460, 512)] {
        let mut script = Script::connecting(base_config(), Settings::default());
        script.expect("S 0:0(0)");
        script
            .connection
            .start_with_path_limit(&script.config, known, script.now);
        script.inject(&format!("S. 0:0(0) ack 1 mss {peer}"));
        script.expect(". 1:1(0) ack 1");
        script.write(2_000);
        script.expect(&format!(". 1:{}({used}) ack 1", used + 1));
    }
}

/// RFC 8899 5.1.2 (MAX_PROBES): where much is lost, neither time-outs in a row nor a lost probe
/// show that the size is too large. The full size comes back in spite of a window of few segments.
#[test]
fn rfc8899_5_1_2_on_a_crowded_path_segments_do_not_stay_small() {
    let mut road = Road::new(MtuProbing::BlackHole, 536);
    road.carry(20_000);
    for _ in 0..20 {
        // For a while nothing passes, then some segments do.
        road.width = 0;
        road.sender.enqueue(road.sender.acked() + 200_000, true);
        for _ in 0..5 {
            road.sizes(1);
            road.now = road.sender.deadline().expect("a timer runs");
            road.sender.on_timer(&road.config, road.now);
        }
        assert!(road.mss() < MOST);
        road.width = MOST;
        let before = road.sender.acked();
        road.carry(0);
        assert_eq!(
            road.mss(),
            MOST,
            "after {} bytes",
            road.sender.acked() - before
        );
    }
}

/// A size that has passed since it is in use is lowered after seven time-outs, not after four.
#[test]
fn rfc4821_7_7_a_size_that_passes_is_not_halved_for_congestion() {
    let mut road = Road::new(MtuProbing::BlackHole, 536);
    // The path carries the base size and no more, so that the search ends there.
    road.width = 990;
    road.carry(1_000_000);
    assert!((984..=990).contains(&road.mss()), "{}", road.mss());
    let found = road.mss();
    for timeouts in [4, 5] {
        road.width = 0;
        road.sender.enqueue(road.sender.acked() + 100_000, true);
        road.sizes(1);
        let before = road.sender.info(road.now).timeouts;
        while road.sender.info(road.now).timeouts < before + timeouts {
            road.now = road.sender.deadline().expect("a timer runs");
            road.sender.on_timer(&road.config, road.now);
            road.sizes(1);
        }
        assert!(road.mss() >= 984, "{} after {timeouts}", road.mss());
        road.width = 990;
        road.carry(0);
    }
    assert_eq!(road.mss(), found);
}
