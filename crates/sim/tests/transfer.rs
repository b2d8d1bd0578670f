//! Transfers both ways, byte for byte, under each mishap alone and all at once.

mod common;

use common::for_seeds;
use millrace_sim::soak::{impair_in_every_way, low_probability, transfer};
use millrace_tcp::Duration;

/// How many seeds each mishap is tried with.
const SEEDS: u64 = 100;

#[test]
fn over_a_clean_link() {
    for_seeds("over_a_clean_link", SEEDS, |network| {
        transfer(network, |_, _| {});
    });
}

#[test]
fn over_a_bottleneck() {
    for_seeds("over_a_bottleneck", SEEDS, |network| {
        transfer(network, |link, rng| {
            link.rate = Some(rng.between(1_000_000, 100_000_000));
            link.queue_bytes = rng.between(10_000, 200_000);
        });
    });
}

#[test]
fn with_loss() {
    for_seeds("with_loss", SEEDS, |network| {
        transfer(network, |link, rng| link.loss = low_probability(rng));
    });
}

#[test]
fn with_heavy_loss() {
    for_seeds("with_heavy_loss", SEEDS, |network| {
        transfer(network, |link, _| link.loss = 0.15);
    });
}

#[test]
fn with_loss_in_bursts() {
    for_seeds("with_loss_in_bursts", SEEDS, |network| {
        transfer(network, |link, rng| {
            link.burst_loss = low_probability(rng) / 10.0;
            link.burst = Duration::from_millis(rng.between(1, 400));
        });
    });
}

#[test]
fn with_reordering() {
    for_seeds("with_reordering", SEEDS, |network| {
        transfer(network, |link, rng| {
            link.reorder = low_probability(rng) * 3.0;
            link.reorder_delay = Duration::from_micros(rng.between(100, 50_000));
        });
    });
}

#[test]
fn with_jitter() {
    for_seeds("with_jitter", SEEDS, |network| {
        transfer(network, |link, rng| {
            link.jitter = Duration::from_micros(rng.between(100, 100_000));
        });
    });
}

#[test]
fn with_duplication() {
    for_seeds("with_duplication", SEEDS, |network| {
        transfer(network, |link, rng| {
            link.duplicate = low_probability(rng) * 5.0;
            link.reorder_delay = Duration::from_micros(rng.between(100, 500_000));
        });
    });
}

#[test]
fn c2_with_corruption() {
    for_seeds("c2_with_corruption", SEEDS, |network| {
        transfer(network, |link, rng| link.corrupt = low_probability(rng));
    });
}

#[test]
fn with_everything() {
    for_seeds("with_everything", 3 * SEEDS, |network| {
        transfer(network, impair_in_every_way);
    });
}
