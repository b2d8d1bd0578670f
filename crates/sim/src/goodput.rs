//! What each congestion control makes of a path: goodput over loss, round trip and queue, and how fairly flows share. Runs are a function of what is asked, so that
//! the figures can be kept and compared.

use millrace_shard::Options;
use millrace_tcp::{Algorithm, Duration, Settings};

use crate::link::Link;
use crate::network::Network;
use crate::nic::Nic;
use crate::stream::{Received, Sink, Source};

/// Bits per second of the bottleneck.
const RATE: u64 = 10_000_000;
/// Payload in a full frame, and the frame, in bytes: goodput is reckoned against what can be got through.
const PAYLOAD: (u64, u64) = (1_448, 1_514);
/// A flow starts this much after the one before it.
const STAGGER: Duration = Duration::from_millis(300);

/// The congestion controls, with Linux's names for them.
pub const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("cubic", Algorithm::Cubic),
    ("reno", Algorithm::NewReno),
    ("bbr", Algorithm::Bbr),
    ("dctcp", Algorithm::Dctcp),
];
/// Round trips in milliseconds.
pub const ROUND_TRIPS_MS: [u64; 3] = [10, 50, 150];
/// Frames lost, of ten thousand.
pub const LOSSES: [u64; 4] = [0, 1, 10, 100];
/// Queues, in quarters of what the path holds.
pub const QUEUES: [u64; 3] = [1, 4, 16];

/// A path and what is on it.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Of all flows.
    pub algorithm: Algorithm,
    /// Connections that share the path.
    pub flows: usize,
    /// In milliseconds, without waiting.
    pub round_trip_ms: u64,
    /// Frames lost on the way there, of ten thousand.
    pub loss: u64,
    /// In quarters of the product of rate and round trip.
    pub queue: u64,
    /// Before it counts, and while it does, in seconds.
    pub warm_up_s: u64,
    /// See `warm_up_s`.
    pub measured_s: u64,
}

/// What came of a [`Scenario`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Part of the path's capacity that arrived as payload, in thousandths.
    pub goodput: u64,
    /// Jain's index of the flows' shares, in thousandths.
    pub fairness: u64,
}

/// Runs a scenario.
pub fn run(scenario: &Scenario) -> Outcome {
    let mut network = Network::new(1);
    let held = RATE / 8 * scenario.round_trip_ms / 1_000;
    let delay = Duration::from_micros(scenario.round_trip_ms * 500);
    let there = Link {
        rate: Some(RATE),
        queue_bytes: (held * scenario.queue / 4).max(2 * PAYLOAD.1),
        mark_from: Some((held / 4).max(10 * PAYLOAD.1)),
        delay,
        loss: scenario.loss as f64 / 10_000.0,
        spare_arp: true,
        ..Link::default()
    };
    let back = Link {
        delay,
        ..Link::default()
    };
    let client = network.add_host(Nic::Segment, there);
    let server = network.add_host(Nic::Segment, back);
    let address = network.address_of(server, 80);
    let received = Received::default();
    network.run_program(server, Sink::new(address, received.clone()));
    let options = Options {
        tcp: Settings {
            congestion: scenario.algorithm,
            ..Settings::default()
        },
        ..Options::default()
    };
    let mut start = network.now();
    for _ in 0..scenario.flows {
        network.run_program(client, Source::new(address, start, options));
        start += STAGGER;
    }
    network.run_for(Duration::from_secs(scenario.warm_up_s));
    let before = received.borrow().clone();
    network.run_for(Duration::from_secs(scenario.measured_s));
    let shares: Vec<u64> = received
        .borrow()
        .iter()
        .map(|(port, bytes)| bytes - before.get(port).copied().unwrap_or(0))
        .collect();
    let sum: u64 = shares.iter().sum();
    let squares: u128 = shares.iter().map(|share| u128::from(*share).pow(2)).sum();
    let capacity = RATE / 8 * scenario.measured_s * PAYLOAD.0 / PAYLOAD.1;
    Outcome {
        goodput: sum * 1_000 / capacity,
        fairness: (u128::from(sum).pow(2) * 1_000)
            .checked_div(squares * scenario.flows as u128)
            .unwrap_or(0) as u64,
    }
}

/// A row of the first table: goodput over all round trips and queues.
pub fn goodput_row(name: &str, algorithm: Algorithm, loss: u64) -> String {
    let mut row = format!("| {name} | {}.{:02} % |", loss / 100, loss % 100);
    for round_trip_ms in ROUND_TRIPS_MS {
        for queue in QUEUES {
            let outcome = run(&Scenario {
                algorithm,
                flows: 1,
                round_trip_ms,
                loss,
                queue,
                warm_up_s: 2,
                measured_s: 20,
            });
            row += &format!(" {} |", percent(outcome.goodput));
        }
    }
    row
}

/// A row of the second table: how `flows` share, and what they use, over all queues.
pub fn fairness_row(name: &str, algorithm: Algorithm, flows: usize) -> String {
    let mut row = format!("| {name} | {flows} |");
    for queue in QUEUES {
        let outcome = run(&Scenario {
            algorithm,
            flows,
            round_trip_ms: 50,
            loss: 0,
            queue,
            warm_up_s: 10,
            measured_s: 40,
        });
        let fairness = outcome.fairness;
        row += &format!(
            " {}.{:03} | {} |",
            fairness / 1_000,
            fairness % 1_000,
            percent(outcome.goodput)
        );
    }
    row
}

fn percent(thousandths: u64) -> String {
    format!("{}.{}", thousandths / 10, thousandths % 10)
}

/// Both tables, with what they mean: the whole of `docs/goodput.md`.
pub fn document() -> String {
    let mut text = String::from(
        "# Goodput\n\
         \n\
         What one connection makes of a path of 10 Mbit/s, in percent of the payload that it can carry: over loss, round trip, and the queue before the \
         bottleneck (in parts of what the path holds without it; drop-tail, and marking from a quarter of what the path holds, ten frames at least, which only \
         DCTCP asks for). Each figure is of 20 seconds of virtual time, after 2 to start.\n\
         \n\
         `cargo xtask sim --table` writes this page; runs are the same each time, and a test compares some of the rows. A change that moves a figure belongs in the \
         commit that causes it.\n\
         \n",
    );
    text += "| control | loss |";
    for round_trip_ms in ROUND_TRIPS_MS {
        for queue in QUEUES {
            text += &format!(" {round_trip_ms} ms, {} |", parts(queue));
        }
    }
    text += &format!("\n|---|---|{}\n", "--:|".repeat(9));
    for (name, algorithm) in ALGORITHMS {
        for loss in LOSSES {
            text += &goodput_row(name, algorithm, loss);
            text.push('\n');
        }
    }
    text += "\n## Fairness\n\
         \n\
         Connections that start 0.3 seconds apart and share such a path with a round trip of 50 ms, without loss but in the queue: Jain's index of their shares (1 \
         is equal, 1/n is one that has all) and their goodput together, in 40 seconds after 10 to start.\n\
         \n";
    text += "| control | flows |";
    for queue in QUEUES {
        text += &format!(" queue {}: index | % |", parts(queue));
    }
    text += &format!("\n|---|--:|{}\n", "--:|".repeat(6));
    for (name, algorithm) in ALGORITHMS {
        for flows in [2, 10] {
            text += &fairness_row(name, algorithm, flows);
            text.push('\n');
        }
    }
    text
}

fn parts(queue: u64) -> &'static str {
    match queue {
        1 => "1/4",
        4 => "1",
        _ => "4",
    }
}
