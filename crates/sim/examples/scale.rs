//! A flood of a million requests, and eight thousand downloads that share a link. Prints what came
//! of them.

use std::time::Instant;

use millrace_sim::flood;
use millrace_sim::goodput::{Scenario, run};

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
    // The fairness test of mTCP (NSDI 2014): as many as 10 Gbit/s carry 10 MiB each of in 67
    // seconds. And with a fifth of the rate, where a flow's share of what the path and its queue
    // hold is two segments.
    for (rate, queue, measured_s) in [(10, 1, 67), (2, 4, 120)] {
        let start = Instant::now();
        let outcome = run(&Scenario {
            flows: 8_000,
            rate: rate * 1_000_000_000,
            queue,
            warm_up_s: 30,
            measured_s,
            ..Scenario::default()
        });
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "8,000 downloads over {rate} Gbit/s, 50 ms, a queue of {queue}/4 of what the path holds, {measured_s} s: Jain's index 0.{:03}, the least share {:.2} of an equal one, goodput {:.1} %; {seconds:.1} s",
            outcome.fairness,
            outcome.least as f64 / 1e3,
            outcome.goodput as f64 / 10.0,
        );
    }
}
