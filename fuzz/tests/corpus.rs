//! The corpus, and mutants of it, through every target. More are looked for by `cargo xtask fuzz`.

use std::path::Path;

use millrace_fuzz::{Mutator, target};

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

fn check(name: &str, mutants: u64) {
    let target = target(name).unwrap();
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has no corpus");
    for input in &corpus {
        target(input);
    }
    for seed in 0..mutants {
        let mutant = Mutator::new(seed).mutant(&corpus);
        let failed = std::panic::catch_unwind(|| target(&mutant)).is_err();
        assert!(!failed, "{name}: mutant of seed {seed}: {mutant:?}");
    }
}

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
