//! What each congestion control makes of a path: goodput over loss, round trip and queue, and how
//! fairly flows share. Runs are a function of what is asked, so that the figures can be kept and
//! compared.

use millrace_shard::Options;
use millrace_tcp::congestion::Custom;
use millrace_tcp::{Algorithm, Duration, Settings};

use crate::host::{HostId, Tuning};
use crate::link::Link;
use crate::network::Network;
use crate::nic::Nic;
use crate::stream::{Received, Sink, Source};

/// Bits per second of the tables' bottleneck.
const RATE: u64 = 10_000_000;
/// Payload in a full frame, and the frame, in bytes: goodput is reckoned against what can be got
/// through.
const PAYLOAD: (u64, u64) = (1_448, 1_514);
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
    /// Of all flows, or of every other one.
    pub algorithm: Algorithm,
    /// Of the others.
    pub against: Option<Algorithm>,
    /// What [`Algorithm::Custom`] means.
    pub custom: Option<Custom>,
    /// Connections that share the path.
    pub flows: usize,
    /// A flow starts this many milliseconds after the one before it, less where they would not all
    /// have begun in half of the warm-up.
    pub apart_ms: u64,
    /// Bits per second of the bottleneck.
    pub rate: u64,
    /// In microseconds, without waiting.
    pub round_trip_us: u64,
    /// Frames lost on the way there, of ten thousand.
    pub loss: u64,
    /// Frames held up and overtaken on the way there, of ten thousand, and by how many microseconds
    /// at most.
    pub reordered: (u64, u64),
    /// In quarters of the product of rate and round trip.
    pub queue: u64,
    /// By how many microseconds at most the sender's thread wakes late, each time.
    pub late_us: u64,
    /// Before it counts, and while it does, in seconds.
    pub warm_up_s: u64,
    /// See `warm_up_s`.
    pub measured_s: u64,
}

impl Default for Scenario {
    /// One flow of CUBIC over 10 Mbit/s and 50 ms, nothing lost but in a queue of what the path
    /// holds.
    fn default() -> Scenario {
        Scenario {
            algorithm: Algorithm::Cubic,
            against: None,
            custom: None,
            flows: 1,
            apart_ms: 300,
            rate: RATE,
            round_trip_us: 50_000,
            loss: 0,
            reordered: (0, 0),
            queue: 4,
            late_us: 0,
            warm_up_s: 2,
            measured_s: 20,
        }
    }
}

/// What came of a [`Scenario`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Part of the path's capacity that arrived as payload, in thousandths.
    pub goodput: u64,
    /// Jain's index of the flows' shares, in thousandths.
    pub fairness: u64,
    /// The least share, in thousandths of an equal one.
    pub least: u64,
    /// What the first algorithm's flows have of all, in thousandths.
    pub share: u64,
}

/// Both hosts of a scenario, with the programs on them; the first sends.
fn set_up(scenario: &Scenario) -> (Network, HostId, [Received; 2]) {
    let mut network = Network::new(1);
    let held = scenario.rate / 8 * scenario.round_trip_us / 1_000_000;
    let delay = Duration::from_micros(scenario.round_trip_us / 2);
    let there = Link {
        rate: Some(scenario.rate),
        queue_bytes: (held * scenario.queue / 4).max(2 * PAYLOAD.1),
        mark_from: Some((held / 4).max(10 * PAYLOAD.1)),
        delay,
        loss: scenario.loss as f64 / 10_000.0,
        reorder: scenario.reordered.0 as f64 / 10_000.0,
        reorder_delay: Duration::from_micros(scenario.reordered.1),
        spare_arp: true,
        ..Link::default()
    };
    let back = Link {
        delay,
        ..Link::default()
    };
    // Thousands of flows are not to be bound by the memory of one host.
    let client = network.add_host_with(Nic::Segment, there, |config| {
        config.limits.send_memory = u64::MAX;
        config.tcp.custom.extend(scenario.custom);
    });
    let late = Duration::from_micros(scenario.late_us);
    network.tune(
        client,
        Tuning {
            late,
            ..Tuning::default()
        },
    );
    let server = network.add_host(Nic::Segment, back);
    let received = [Received::default(), Received::default()];
    let algorithms = [
        scenario.algorithm,
        scenario.against.unwrap_or(scenario.algorithm),
    ];
    let addresses = [80, 81].map(|port| network.address_of(server, port));
    for (address, received) in addresses.into_iter().zip(&received) {
        network.run_program(server, Sink::new(address, received.clone()));
    }
    let gap_us = scenario.warm_up_s * 500_000 / scenario.flows as u64;
    let gap = Duration::from_micros(gap_us.min(scenario.apart_ms * 1_000));
    let mut start = network.now();
    for flow in 0..scenario.flows {
        let kind = flow % 2;
        let options = Options {
            tcp: Settings {
                congestion: Some(algorithms[kind]),
                ..Settings::default()
            },
            ..Options::default()
        };
        network.run_program(client, Source::new(addresses[kind], start, options));
        start += gap;
    }
    (network, client, received)
}

/// What a sender knew at some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Which of the flows, from 0.
    pub flow: usize,
    /// In milliseconds from the start.
    pub at_ms: u64,
    /// Congestion window, in bytes.
    pub cwnd: u32,
    /// Bytes on the way as the sender has it: sent and neither acknowledged in any way nor taken
    /// for lost, or sent again.
    pub in_flight: u32,
    /// Smoothed round trip, in microseconds.
    pub srtt_us: u32,
}

/// Runs a scenario, and looks at its senders every `step_ms` milliseconds, warm-up or not.
pub fn trace(scenario: &Scenario, step_ms: u64) -> Vec<Sample> {
    let (mut network, client, _) = set_up(scenario);
    let mut samples = Vec::new();
    let end = (scenario.warm_up_s + scenario.measured_s) * 1_000;
    for at_ms in (step_ms..=end).step_by(step_ms as usize) {
        network.run_for(Duration::from_millis(step_ms));
        let stack = network.stack(client);
        stack.for_each_socket(network.now(), |socket| {
            if let Some(tcp) = &socket.tcp {
                samples.push(Sample {
                    // The programs of this host are the sources, in their order.
                    flow: socket.owner.0 as usize,
                    at_ms,
                    cwnd: tcp.cwnd,
                    in_flight: (tcp.in_flight + tcp.retransmitted)
                        .saturating_sub(tcp.sacked + tcp.lost),
                    srtt_us: tcp.srtt_us,
                });
            }
        });
    }
    samples
}

/// Lets time pass, in pieces: frames that never cease are told by their number.
fn pass(network: &mut Network, seconds: u64) {
    for _ in 0..seconds * 10 {
        network.run_for(Duration::from_millis(100));
    }
}

/// Runs a scenario.
pub fn run(scenario: &Scenario) -> Outcome {
    let (mut network, _, received) = set_up(scenario);
    pass(&mut network, scenario.warm_up_s);
    let before = received.each_ref().map(|kind| kind.borrow().clone());
    pass(&mut network, scenario.measured_s);
    let shares_of = |kind: usize| -> Vec<u64> {
        let (now, before) = (received[kind].borrow(), &before[kind]);
        let share = |(port, bytes): (&u16, &u64)| bytes - before.get(port).copied().unwrap_or(0);
        now.iter().map(share).collect()
    };
    let first = shares_of(0);
    let own: u64 = first.iter().sum();
    let mut shares = [first, shares_of(1)].concat();
    // Of which nothing has come at all.
    shares.resize(scenario.flows, 0);
    let sum: u64 = shares.iter().sum();
    let squares: u128 = shares.iter().map(|share| u128::from(*share).pow(2)).sum();
    let capacity = scenario.rate / 8 * scenario.measured_s * PAYLOAD.0 / PAYLOAD.1;
    Outcome {
        goodput: sum * 1_000 / capacity,
        fairness: (u128::from(sum).pow(2) * 1_000)
            .checked_div(squares * scenario.flows as u128)
            .unwrap_or(0) as u64,
        least: shares.iter().min().map_or(0, |least| {
            least * scenario.flows as u64 * 1_000 / sum.max(1)
        }),
        share: own * 1_000 / sum.max(1),
    }
}

/// A row of the first table: goodput over all round trips and queues.
pub fn goodput_row(name: &str, algorithm: Algorithm, loss: u64) -> String {
    let mut row = format!("| {name} | {}.{:02} % |", loss / 100, loss % 100);
    for round_trip_ms in ROUND_TRIPS_MS {
        for queue in QUEUES {
            let outcome = run(&Scenario {
                algorithm,
                round_trip_us: round_trip_ms * 1_000,
                loss,
                queue,
                ..Scenario::default()
            });
            row += &format!(" {} |", percent(outcome.goodput));
        }
    }
    row
}

/// How flows of one kind, or of two, share a path of 50 ms; with a hundred it is ten times as wide.
fn shared(algorithm: Algorithm, against: Option<Algorithm>, flows: usize, queue: u64) -> Outcome {
    run(&Scenario {
        algorithm,
        against,
        flows,
        rate: if flows < 100 { RATE } else { 10 * RATE },
        queue,
        warm_up_s: if flows < 100 { 10 } else { 20 },
        measured_s: 40,
        ..Scenario::default()
    })
}

/// A row of the second table: how `flows` share, and what they use, over all queues.
pub fn fairness_row(name: &str, algorithm: Algorithm, flows: usize) -> String {
    let mut row = format!("| {name} | {flows} |");
    for queue in QUEUES {
        let outcome = shared(algorithm, None, flows, queue);
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

/// A row of the third table: what the first of two kinds has, over all queues.
pub fn mixed_row(kinds: [(&str, Algorithm); 2], flows: usize) -> String {
    let [(name, algorithm), (other, against)] = kinds;
    let mut row = format!("| {name} beside {other} | {flows} |");
    for queue in QUEUES {
        let outcome = shared(algorithm, Some(against), flows, queue);
        row += &format!(
            " {} | {} |",
            percent(outcome.share),
            percent(outcome.goodput)
        );
    }
    row
}

/// A gigabit and a queue of four times what the path holds.
pub fn fast(algorithm: Algorithm, round_trip_us: u64, loss: u64, reordered: u64) -> Outcome {
    run(&Scenario {
        algorithm,
        rate: 1_000_000_000,
        round_trip_us,
        loss,
        reordered: (reordered, round_trip_us),
        queue: 16,
        warm_up_s: 1,
        measured_s: 2,
        ..Scenario::default()
    })
}

/// A row of the table of reordering.
pub fn reordering_row(name: &str, algorithm: Algorithm, round_trip_us: u64) -> String {
    let of_ms = (round_trip_us / 1_000, round_trip_us % 1_000 / 100);
    let mut row = format!("| {name} | {}.{} ms |", of_ms.0, of_ms.1);
    for (loss, reordered) in [(0, 0), (10, 0), (0, 300), (10, 300)] {
        let outcome = fast(algorithm, round_trip_us, loss, reordered);
        row += &format!(" {} |", percent(outcome.goodput));
    }
    row
}

fn percent(thousandths: u64) -> String {
    format!("{}.{}", thousandths / 10, thousandths % 10)
}

/// The tables, with what they mean, and what the plots show: the whole of `docs/goodput.md`.
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
    text += "\n## Reordering\n\
         \n\
         The same over 1 Gbit/s and a queue of four times what the path holds, in 2 seconds after 1 to start: without mishaps, with 0.1 % of the frames lost, with 3 % \
         held up for up to a round trip and so overtaken, and with both. What is overtaken costs next to nothing; that loss costs CUBIC and NewReno half of a path of 1 ms is \
         their law (1.22 / sqrt(0.001) segments in flight make 39, the path holds 83).\n\
         \n\
         | control | round trip | % | 0.1 % lost | 3 % reordered | both |\n\
         |---|--:|--:|--:|--:|--:|\n";
    for (name, algorithm) in ALGORITHMS {
        for round_trip_us in [200, 1_000] {
            text += &reordering_row(name, algorithm, round_trip_us);
            text.push('\n');
        }
    }
    text += "\n## Fairness\n\
         \n\
         Connections that start 0.3 seconds apart and share such a path with a round trip of 50 ms, without loss but in the queue: Jain's index of their shares (1 \
         is equal, 1/n is one that has all) and their goodput together, in 40 seconds after 10 to start; a hundred have ten times the rate, and 20 to start.\n\
         \n";
    text += "| control | flows |";
    for queue in QUEUES {
        text += &format!(" queue {}: index | % |", parts(queue));
    }
    text += &format!("\n|---|--:|{}\n", "--:|".repeat(6));
    for (name, algorithm) in ALGORITHMS {
        for flows in [2, 10, 100] {
            text += &fairness_row(name, algorithm, flows);
            text.push('\n');
        }
    }
    text += "\nOf two kinds, half of the flows each: what the first kind has of all, and the goodput of all together, in percent.\n\n";
    text += "| controls | flows |";
    for queue in QUEUES {
        text += &format!(" queue {}: share | % |", parts(queue));
    }
    text += &format!("\n|---|--:|{}\n", "--:|".repeat(6));
    let [cubic, reno, bbr, _] = ALGORITHMS;
    for kinds in [[cubic, reno], [cubic, bbr], [reno, bbr]] {
        for flows in [2, 10, 100] {
            text += &mixed_row(kinds, flows);
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
