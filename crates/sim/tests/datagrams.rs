//! Datagrams to and fro, under mishaps: each arrives whole or not at all, where it was sent to, and
//! what does not was counted by who dropped it.

mod common;

use common::for_seeds;
use millrace_sim::soak::{datagrams, impair_in_every_way, low_probability};
use millrace_tcp::Duration;

/// How many seeds each mishap is tried with.
const SEEDS: u64 = 100;

#[test]
fn rfc768_over_a_clean_link() {
    for_seeds("rfc768_over_a_clean_link", SEEDS, |network| {
        assert!(datagrams(network, |_, _| {}) > 0);
    });
}

#[test]
fn rfc1122_3_3_2_lost_fragments_lose_the_datagram() {
    let name = "rfc1122_3_3_2_lost_fragments_lose_the_datagram";
    for_seeds(name, SEEDS, |network| {
        datagrams(network, |link, rng| link.loss = 2.0 * low_probability(rng));
    });
}

#[test]
fn rfc768_doubled_and_overtaken() {
    for_seeds("rfc768_doubled_and_overtaken", SEEDS, |network| {
        datagrams(network, |link, rng| {
            link.duplicate = low_probability(rng) * 5.0;
            link.reorder = low_probability(rng) * 3.0;
            link.reorder_delay = Duration::from_micros(rng.between(100, 500_000));
        });
    });
}

#[test]
fn c2_damaged_datagrams_do_not_arrive() {
    for_seeds("c2_damaged_datagrams_do_not_arrive", SEEDS, |network| {
        datagrams(network, |link, rng| link.corrupt = low_probability(rng));
    });
}

#[test]
fn with_everything() {
    for_seeds("with_everything", 3 * SEEDS, |network| {
        datagrams(network, impair_in_every_way);
    });
}
