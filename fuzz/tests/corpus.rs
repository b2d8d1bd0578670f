//! The corpus, and mutants of it, through every target. More are looked for by `cargo xtask fuzz`.

mod common;

use common::check;

#[test]
fn parsers_survive_the_corpus_and_its_mutants() {
    check("parsers", 100_000);
}

#[test]
fn a_stack_survives_the_corpus_and_its_mutants() {
    check("stack", 3_000);
}

#[test]
fn shared_memory_survives_the_corpus_and_its_mutants() {
    check("shared", 20_000);
}

#[test]
fn offload_survives_the_corpus_and_its_mutants() {
    check("offload", 20_000);
}

#[test]
fn options_survive_the_corpus_and_its_mutants() {
    check("options", 100_000);
}

#[test]
fn fragments_survive_the_corpus_and_its_mutants() {
    check("fragments", 1_000);
}

#[test]
fn icmp_survives_the_corpus_and_its_mutants() {
    check("icmp", 1_000);
}

#[test]
fn every_state_survives_the_corpus_and_its_mutants() {
    check("states", 2_000);
}

#[test]
fn messages_over_ethernet_survive_the_corpus_and_its_mutants() {
    check("fabric", 5_000);
}

#[test]
fn messages_in_shared_memory_survive_the_corpus_and_its_mutants() {
    check("fabric_memory", 10_000);
}

#[test]
fn a_worker_survives_the_corpus_and_its_mutants() {
    check("worker", 1_000);
}
