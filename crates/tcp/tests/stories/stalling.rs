//! A transfer must not stall: whatever is lost, and whichever options the peer has, the repair goes
//! on at the speed of round trips and does not wait for a series of time-outs.

use std::collections::HashMap;

use millrace_tcp::{Config, Duration, Settings};

use crate::support::pair::{CLIENT, SERVER};
use crate::support::random::Random;
use crate::support::{Fate, Pair};

const BYTES: u64 = 300_000;

fn config(sack: bool, timestamps: bool) -> Config {
    Config {
        selective_ack: sack,
        timestamps,
        ..Config::default()
    }
}

/// A segment is lost twice at most: each further loss may double the time-out.
const TIMES: usize = 1;

/// How long a transfer with a round trip of 10 ms takes if the client's packets with these numbers
/// are lost.
fn transfer(config: &Config, lost: &[usize]) -> Duration {
    let mut pair = Pair::new(config, Settings::default(), Settings::default());
    pair.connect();
    assert!(pair.run_until(Duration::from_secs(5), |pair| {
        pair.ends[CLIENT].connection.is_some() && pair.ends[SERVER].connection.is_some()
    }));
    let (begin, first) = (pair.now, pair.ends[CLIENT].sent.len());
    let lost: Vec<usize> = lost.iter().map(|number| first + number).collect();
    let mut times = HashMap::new();
    pair.wire = Box::new(move |packet| {
        let times: &mut usize = times.entry(packet.seq.0).or_default();
        if packet.from == CLIENT && lost.contains(&packet.index) && *times < TIMES {
            *times += 1;
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    pair.write(CLIENT, BYTES);
    let done = pair.run_until(Duration::from_secs(300), |pair| {
        pair.ends[SERVER].read == BYTES
    });
    assert!(done, "{} of {BYTES} bytes", pair.ends[SERVER].read);
    pair.now - begin
}

const OPTIONS: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

#[test]
fn rfc5682_2_1_a_lost_first_flight_costs_one_time_out() {
    for (sack, timestamps) in OPTIONS {
        for flight in 1..=11 {
            let lost: Vec<usize> = (0..flight).collect();
            let took = transfer(&config(sack, timestamps), &lost);
            assert!(
                took < Duration::from_millis(800),
                "sack {sack}, timestamps {timestamps}, the first {flight} packets lost: {took:?}"
            );
        }
    }
}

/// Packets lost among the first ones, from seeds.
#[test]
fn what_is_lost_at_random_is_repaired_in_round_trips() {
    for seed in 0..150 {
        let mut random = Random(seed);
        let span = 2 + random.below(60) as usize;
        let per_mille = 50 + random.below(450);
        let lost: Vec<usize> = (0..span).filter(|_| random.chance(per_mille)).collect();
        for (sack, timestamps) in OPTIONS {
            let took = transfer(&config(sack, timestamps), &lost);
            assert!(
                took < Duration::from_secs(5),
                "seed {seed}, sack {sack}, timestamps {timestamps}: {took:?} for {lost:?}"
            );
        }
    }
}
