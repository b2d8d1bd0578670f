//! Transfers, and datagrams, over links that are impaired in every way, with one seed after the
//! other: `soak COUNT [FIRST]`. Prints how many seeds a second were run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use millrace_sim::{Network, soak};

fn main() -> ExitCode {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<u64>().ok());
    let (Some(Some(count)), Some(first), None) = (
        numbers.next(),
        numbers.next().unwrap_or(Some(0)),
        numbers.next(),
    ) else {
        eprintln!("usage: soak COUNT [FIRST]");
        return ExitCode::from(2);
    };
    let start = Instant::now();
    for seed in first..first.saturating_add(count) {
        let transfer = |network: &mut Network| soak::transfer(network, soak::impair_in_every_way);
        let datagrams = |network: &mut Network| {
            soak::datagrams(network, soak::impair_in_every_way);
        };
        let scenarios: [&dyn Fn(&mut Network); 2] = [&transfer, &datagrams];
        for scenario in scenarios {
            let mut network = Network::new(seed);
            if catch_unwind(AssertUnwindSafe(|| scenario(&mut network))).is_err() {
                eprintln!("the latest frames:\n{}", network.trace());
                eprintln!("seed {seed} fails; again with: cargo xtask sim --seeds 1 {seed}");
                return ExitCode::FAILURE;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{count} seeds in {seconds:.1} s: {:.0} a second",
        count as f64 / seconds
    );
    ExitCode::SUCCESS
}
