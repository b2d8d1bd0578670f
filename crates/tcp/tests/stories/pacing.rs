//! Pacing: SO_MAX_PACING_RATE, and BBR (draft-cardwell-iccrg-bbr-congestion-control-00).

use millrace_tcp::{Algorithm, Config, Duration, Settings};

use crate::support::pair::{CLIENT, SERVER};
use crate::support::{Fate, Pair, Random, Script};

/// A connection paced at 1 MB/s, with segments of 1,000 bytes, after its first ten segments.
fn slow() -> Script {
    let settings = Settings {
        nodelay: true,
        max_pacing_rate: 1_000_000,
        ..Settings::UNSET
    };
    let mut script = Script::with(settings);
    script.write(10_000);
    for i in 0..10 {
        let outgoing = script.poll().expect("the initial window is not paced");
        assert_eq!(outgoing.payload.start, i * 1_000);
    }
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 10001");
    script
}

#[test]
fn a_bounded_rate_spreads_segments_over_time() {
    let mut script = slow();
    script.limits.max_payload = 65_000;
    script.write(6_000);
    // Two segments at a time, a millisecond for each. The first is late, and catches up by as much.
    script.expect(". 10001:12001(2000) ack 1");
    script.expect(". 12001:14001(2000) ack 1");
    script.silent();
    assert_eq!(script.tick(), Duration::from_micros(2_000));
    script.expect("P. 14001:16001(2000) ack 1");
}

/// A transmission that waited for its time, and leaves late, catches up with its delay and no more.
#[test]
fn what_is_served_late_catches_up() {
    let mut script = slow();
    script.limits.max_payload = 65_000;
    script.write(12_000);
    script.expect(". 10001:12001(2000) ack 1");
    script.expect(". 12001:14001(2000) ack 1");
    script.silent();
    // Due after two milliseconds.
    script.pass(Duration::from_millis(7));
    script.expect(". 14001:16001(2000) ack 1");
    script.expect(". 16001:18001(2000) ack 1");
    script.expect(". 18001:20001(2000) ack 1");
    script.silent();
}

#[test]
fn acknowledgements_do_not_wait_for_the_pace() {
    let mut script = slow();
    script.write(6_000);
    script.expect(". 10001:11001(1000) ack 1");
    script.expect(". 11001:12001(1000) ack 1");
    script.inject(". 1:1461(1460) ack 10001");
    script.expect(". 12001:12001(0) ack 1461");
    script.silent();
}

#[test]
fn nothing_runs_when_nothing_waits() {
    let mut script = slow();
    script.write(1_000);
    script.expect("P. 10001:11001(1000) ack 1");
    script.pass(Duration::from_millis(10));
    script.inject(". 1:1(0) ack 11001");
    script.silent();
    assert_eq!(script.connection.deadline(), None);
}

#[test]
fn a_rate_that_is_lifted_lets_go() {
    let mut script = slow();
    script.write(4_000);
    script.expect(". 10001:11001(1000) ack 1");
    script.expect(". 11001:12001(1000) ack 1");
    script.silent();
    let settings = Settings {
        max_pacing_rate: u64::MAX,
        ..*script.connection.settings()
    };
    script
        .connection
        .configure(&script.config, &settings.into(), script.now);
    script.expect(". 12001:13001(1000) ack 1");
    script.expect("P. 13001:14001(1000) ack 1");
}

/// A bottleneck, and how long a transfer at its rate lasts.
struct Bottleneck {
    megabits: u64,
    one_way_ms: u64,
    queue_ms: u64,
    /// Losses, per mille.
    loss: u64,
    seconds: u64,
}

/// Returns the used part of the rate, in percent, and the longest round trip after the first
/// second, in milliseconds.
fn fill(path: &Bottleneck, settings: Settings) -> (u64, u64) {
    let mut pair = Pair::new(&Config::default(), settings, Settings::default());
    pair.rate = path.megabits * 1_000_000;
    pair.delay = Duration::from_millis(path.one_way_ms);
    pair.patience = Duration::from_millis(path.queue_ms);
    for end in &mut pair.ends {
        end.limits.max_payload = 16_000;
        end.open.receive_limit = 6 << 20;
    }
    let (loss, mut random) = (path.loss, Random(11));
    pair.wire = Box::new(move |packet| {
        if packet.from == CLIENT && random.chance(loss) {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.connect();
    pair.run_for(Duration::from_secs(1));
    let start = pair.now;
    let total = path.megabits * 1_000_000 / 8 * path.seconds * 1_448 / 1_508;
    pair.write(CLIENT, total);
    let mut longest_us = 0;
    assert!(
        pair.run_until(Duration::from_secs(3_000), |pair| {
            if let Some(client) = &pair.ends[CLIENT].connection
                && pair.now - start > Duration::from_secs(1)
            {
                longest_us = longest_us.max(client.round_trip_us());
            }
            pair.ends[SERVER].read == total
        }),
        "stalled"
    );
    let used = path.seconds * 100_000_000 / (pair.now - start).as_micros().max(1);
    (used, u64::from(longest_us) / 1_000)
}

fn bbr() -> Settings {
    Settings {
        congestion: Some(Algorithm::Bbr),
        ..Settings::UNSET
    }
}

#[test]
fn a_rate_bounds_a_whole_transfer() {
    let path = Bottleneck {
        megabits: 100,
        one_way_ms: 5,
        queue_ms: 50,
        loss: 0,
        seconds: 1,
    };
    let settings = Settings {
        max_pacing_rate: 1_250_000,
        ..Settings::UNSET
    };
    // A tenth of the path's rate.
    let (used, _) = fill(&path, settings);
    assert!((9..=11).contains(&used), "{used} %");
}

#[test]
fn bbr_4_3_fills_the_path_and_leaves_the_queue_short() {
    for (megabits, one_way_ms, queue_ms) in
        [(20, 5, 200), (20, 25, 200), (100, 20, 100), (2, 40, 400)]
    {
        let path = Bottleneck {
            megabits,
            one_way_ms,
            queue_ms,
            loss: 0,
            seconds: 15,
        };
        let (used, longest_ms) = fill(&path, bbr());
        assert!(used >= 85, "{megabits} Mbit/s at {one_way_ms} ms: {used} %");
        // Without the bound the queue would fill: round trips of 200 ms and more.
        assert!(
            longest_ms < 2 * one_way_ms + queue_ms / 2,
            "{megabits} Mbit/s at {one_way_ms} ms: {longest_ms} ms"
        );
    }
}

#[test]
fn bbr_4_3_losses_that_are_not_congestion_do_not_slow_it() {
    let path = Bottleneck {
        megabits: 20,
        one_way_ms: 20,
        queue_ms: 100,
        loss: 20,
        seconds: 15,
    };
    let (used, _) = fill(&path, bbr());
    let (cubic, _) = fill(&path, Settings::UNSET);
    assert!(used >= 75 && used > 2 * cubic, "{used} %, CUBIC {cubic} %");
}

#[test]
fn bbr_4_3_shallow_queues_do_not_stop_it() {
    let path = Bottleneck {
        megabits: 50,
        one_way_ms: 20,
        queue_ms: 4,
        loss: 0,
        seconds: 10,
    };
    let (used, _) = fill(&path, bbr());
    assert!(used >= 70, "{used} %");
}
