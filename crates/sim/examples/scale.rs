//! A flood of a million requests, and eight thousand downloads that share a link. Prints what came of them.

use std::time::Instant;

use millrace_sim::flood;
use millrace_sim::goodput::{Scenario, run};
use millrace_tcp::Algorithm;

fn main() {
    let start = Instant::now();
    let outcome = flood::run(1_000_000);
    let seconds = start.elapsed().as_secs_f64();
    let [half_open, limit] = outcome.half_open;
    println!(
        "flood of 1,000,000 SYNs: a client was served in {} ms, {half_open} of {limit} half-open at most, {} cookies, {} bytes in receive rings; {seconds:.1} s",
        outcome.served_us / 1_000,
        outcome.cookies,
        outcome.rings,
    );
    let start = Instant::now();
    let outcome = run(&Scenario {
        algorithm: Algorithm::Cubic,
        against: None,
        flows: 8_000,
        rate: 2_000_000_000,
        round_trip_ms: 50,
        loss: 0,
        queue: 4,
        warm_up_s: 30,
        measured_s: 120,
    });
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "8,000 downloads over 2 Gbit/s, 50 ms: Jain's index 0.{:03}, the least share {:.2} of an equal one, goodput {:.1} %; {seconds:.1} s",
        outcome.fairness,
        outcome.least as f64 / 1e3,
        outcome.goodput as f64 / 10.0,
    );
}
