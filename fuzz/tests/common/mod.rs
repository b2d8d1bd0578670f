//! A target's corpus, and mutants of it.

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

/// Runs a target on its corpus, and on so many mutants of it.
pub fn check(name: &str, mutants: u64) {
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
