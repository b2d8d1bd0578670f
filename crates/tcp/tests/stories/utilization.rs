//! How much of a path's rate is used: long transfers through a bottleneck with a drop-tail queue
//! (T2, T9 of what users of other stacks met).

use millrace_tcp::{Algorithm, Config, Duration, Settings};

use crate::support::pair::{CLIENT, SERVER};
use crate::support::{Fate, Pair, Random};

/// The bottleneck.
struct Bottleneck {
    megabits: u64,
    one_way_ms: u64,
    queue_ms: u64,
    /// Losses, per mille.
    loss: u64,
}

/// Sends for 15 s at the full rate. Returns the used part of the rate, in percent, and the number
/// of time-outs.
fn fill(path: &Bottleneck, algorithm: Algorithm, selective_ack: bool) -> (u64, u32) {
    let config = Config {
        selective_ack,
        ..Config::default()
    };
    let settings = Settings {
        congestion: Some(algorithm),
        ..Settings::default()
    };
    let mut pair = Pair::new(&config, settings, settings);
    pair.rate = path.megabits * 1_000_000;
    pair.delay = Duration::from_millis(path.one_way_ms);
    pair.patience = Duration::from_millis(path.queue_ms);
    for end in &mut pair.ends {
        end.limits.max_payload = 16_000;
        end.open.receive_limit = 4 << 20;
    }
    let (loss, mut random) = (path.loss, Random(7));
    pair.wire = Box::new(move |_| {
        if random.chance(loss) {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.connect();
    pair.run_for(Duration::from_secs(3));
    let start = pair.now;
    let total = path.megabits * 1_000_000 / 8 * 15 * 1_448 / 1_508;
    pair.write(CLIENT, total);
    assert!(
        pair.run_until(Duration::from_secs(3_000), |pair| pair.ends[SERVER].read
            == total),
        "stalled"
    );
    let used = 15 * 100_000_000 / (pair.now - start).as_micros().max(1);
    (used, pair.connection(CLIENT).info(pair.now).timeouts)
}

#[test]
fn t2_a_long_transfer_fills_its_path() {
    // A queue of one bandwidth-delay product, and of a third of it.
    for (one_way_ms, queue_ms, least) in [(5, 10, 93), (20, 40, 90), (20, 14, 80), (50, 100, 85)] {
        for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
            let path = Bottleneck {
                megabits: 20,
                one_way_ms,
                queue_ms,
                loss: 0,
            };
            let (used, timeouts) = fill(&path, algorithm, true);
            assert!(
                used >= least,
                "{algorithm:?} at {one_way_ms} ms used {used} %"
            );
            // The very last segment may be lost, which only a time-out detects.
            assert!(timeouts <= 1, "{algorithm:?} at {one_way_ms} ms");
        }
    }
}

#[test]
fn t9_slow_uplinks_do_not_stall() {
    for megabits in [1, 2, 5] {
        let path = Bottleneck {
            megabits,
            one_way_ms: 15,
            queue_ms: 200,
            loss: 0,
        };
        let (used, timeouts) = fill(&path, Algorithm::Cubic, true);
        // The queue lengthens the round trip sevenfold within two round trips. One time-out may
        // come too early; it is undone.
        assert!(
            used >= 93 && timeouts <= 1,
            "{megabits} Mbit/s: {used} %, {timeouts} time-outs"
        );
    }
}

#[test]
fn some_loss_is_no_disaster() {
    // Mathis: about 1.2 segments per round trip over the root of the loss rate, which is 38
    // segments or 11 Mbit/s here.
    let path = Bottleneck {
        megabits: 10,
        one_way_ms: 20,
        queue_ms: 40,
        loss: 1,
    };
    let (used, timeouts) = fill(&path, Algorithm::Cubic, true);
    assert!(
        used >= 65 && timeouts <= 1,
        "{used} %, {timeouts} time-outs"
    );
}

#[test]
fn a_peer_without_selective_acknowledgement_is_served_as_well() {
    let path = Bottleneck {
        megabits: 10,
        one_way_ms: 10,
        queue_ms: 20,
        loss: 0,
    };
    let (used, timeouts) = fill(&path, Algorithm::Cubic, false);
    assert!(used >= 70, "{used} %, {timeouts} time-outs");
}
