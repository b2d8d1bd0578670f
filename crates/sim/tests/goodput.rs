//! The figures of `docs/goodput.md` are what the code gives. Some of the rows, for all of them take their time in a debug build.

use std::path::Path;

use millrace_sim::goodput::{ALGORITHMS, fairness_row, fast, goodput_row};

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

/// What reordering and a little loss leave of a fast link.
#[test]
fn t8_loss_and_reordering_leave_nine_tenths_of_a_fast_link() {
    for (name, algorithm) in ALGORITHMS.into_iter().step_by(2).take(2) {
        let clean = fast(algorithm, 200, 0, 0).goodput;
        let disturbed = fast(algorithm, 200, 10, 300).goodput;
        assert!(
            disturbed * 10 >= clean * 9,
            "{name}: {disturbed} of {clean}"
        );
    }
}
