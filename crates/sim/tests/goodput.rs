//! The figures of `docs/goodput.md` are what the code gives. Some of the rows, for all of them take their time in a debug build.

use std::path::Path;

use millrace_sim::goodput::{ALGORITHMS, fairness_row, goodput_row};

/// Whether the page has this row.
fn check(row: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/goodput.md");
    let page = std::fs::read_to_string(path).expect("docs/goodput.md");
    assert!(
        page.lines().any(|line| line == row),
        "docs/goodput.md does not have\n{row}\nIf that is meant: cargo xtask sim --table"
    );
}

#[test]
fn goodput_over_loss_round_trip_and_queue() {
    for ((name, algorithm), loss) in ALGORITHMS.into_iter().zip([10, 100, 100, 0]) {
        check(&goodput_row(name, algorithm, loss));
    }
}

#[test]
fn fairness_of_two() {
    for (name, algorithm) in ALGORITHMS.into_iter().take(3) {
        check(&fairness_row(name, algorithm, 2));
    }
}
