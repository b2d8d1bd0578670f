//! The figures of `docs/goodput.md` and the pictures of `docs/plots` are what the code gives. Some
//! of them, for all take their time in a debug build.

use std::path::{Path, PathBuf};

use millrace_sim::goodput::{ALGORITHMS, Scenario, fairness_row, fast, goodput_row, run};
use millrace_sim::plots;
use millrace_tcp::Algorithm;

/// A path below `docs`.
fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

/// Whether the page has this row.
fn check(row: &str) {
    let page = std::fs::read_to_string(docs("goodput.md")).expect("docs/goodput.md");
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

/// Two of the pictures, drawn again.
#[test]
fn windows_over_time() {
    for plot in plots::all() {
        if !["dctcp", "cubic-loss"].contains(&plot.name) {
            continue;
        }
        let path = docs("plots").join(plot.name).with_extension("svg");
        let kept = std::fs::read_to_string(&path).expect("a picture for each");
        assert!(
            kept == plots::draw(&plot),
            "{} is not what the code gives. If that is meant: cargo xtask sim --plots",
            path.display()
        );
    }
}

/// The page has the text about the pictures, and the directory has them and no others, each small.
#[test]
fn every_picture_is_kept_and_told_of() {
    let page = std::fs::read_to_string(docs("goodput.md")).expect("docs/goodput.md");
    assert!(page.ends_with(&plots::section()), "cargo xtask sim --table");
    let mut names: Vec<String> = std::fs::read_dir(docs("plots"))
        .expect("docs/plots")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let size = entry.metadata().expect("its size").len();
            assert!(size <= 60 << 10, "{}: {size} bytes", entry.path().display());
            entry.file_name().to_string_lossy().into_owned()
        })
        .collect();
    names.sort();
    let mut expected = plots::all().map(|plot| format!("{}.svg", plot.name));
    expected.sort();
    assert_eq!(names, expected, "cargo xtask sim --plots");
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

/// What a thread that wakes up to 10 ms late does not send in time it sends when it wakes: the rate
/// that BBR finds is the path's and not the thread's
/// (draft-cardwell-iccrg-bbr-congestion-control-00 4.2.1). One frame of a hundred is lost as well,
/// so that one repair follows the other (4.2.3.5).
#[test]
fn bbr_4_2_1_a_thread_that_wakes_late_keeps_the_rate() {
    for late_us in [3_000, 10_000] {
        let outcome = run(&Scenario {
            algorithm: Algorithm::Bbr,
            rate: 100_000_000,
            round_trip_us: 100_000,
            loss: 100,
            late_us,
            warm_up_s: 5,
            measured_s: 5,
            ..Scenario::default()
        });
        assert!(outcome.goodput >= 800, "{late_us} us late: {outcome:?}");
    }
}

/// The probe of the round trip takes 200 ms every 10 s, and what its few segments deliver is no
/// rate: it costs a fiftieth, however many round trips go by meanwhile
/// (draft-cardwell-iccrg-bbr-congestion-control-00 4.3.4).
#[test]
fn bbr_4_3_4_a_probe_of_the_round_trip_leaves_the_rate_as_it_was() {
    let outcome = run(&Scenario {
        algorithm: Algorithm::Bbr,
        rate: 20_000_000,
        round_trip_us: 10_000,
        warm_up_s: 9,
        measured_s: 3,
        ..Scenario::default()
    });
    assert!(outcome.goodput >= 900, "{outcome:?}");
}
