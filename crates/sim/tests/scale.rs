//! Many at once: a flood of connection requests, and downloads that share a link.
//! `cargo xtask sim --scale` runs the same with far more.

use millrace_sim::flood;
use millrace_sim::goodput::{Scenario, run};

/// RFC 4987: a client gets through a flood of spoofed SYNs within three seconds, and the flood
/// takes no more memory than it may.
#[test]
fn e1_a_client_is_served_in_a_flood() {
    let outcome = flood::run(50_000);
    assert!(outcome.served_us < 3_000_000, "{outcome:?}");
    let [half_open, limit] = outcome.half_open;
    assert!(half_open <= limit && outcome.cookies > 0, "{outcome:?}");
    assert!(outcome.rings < 1 << 20, "{outcome:?}");
}

/// None of many starves.
#[test]
fn t9_a_hundred_share_a_link() {
    let outcome = run(&Scenario {
        flows: 100,
        rate: 50_000_000,
        warm_up_s: 15,
        measured_s: 10,
        ..Scenario::default()
    });
    assert!(
        outcome.fairness >= 900 && outcome.goodput >= 950,
        "{outcome:?}"
    );
    assert!(outcome.least >= 300, "{outcome:?}");
}
