//! Runs a scenario with many seeds, and says how to run the one again that failed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use millrace_sim::Network;

/// Runs `scenario` with the seeds 0 to `count` - 1; with `MILLRACE_SEED` in the environment with
/// that one, with `MILLRACE_SEEDS` with so many. `test` is the name of the test that calls this.
pub fn for_seeds(test: &str, count: u64, scenario: impl Fn(&mut Network)) {
    let setting = |name| {
        std::env::var(name).ok().map(|value| {
            value
                .parse::<u64>()
                .unwrap_or_else(|_| panic!("{name}={value} is no number"))
        })
    };
    let seeds = match setting("MILLRACE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("MILLRACE_SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        let mut network = Network::new(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(&mut network))) {
            eprintln!("the latest frames:\n{}", network.trace());
            eprintln!("again with: MILLRACE_SEED={seed} cargo test -p millrace-sim {test}");
            resume_unwind(panic);
        }
    }
}
