//! What the designs that this comes from said of themselves, beside what this run, or another
//! command, says of ours.

use millrace_bench::figures::short;
use millrace_bench::report::{Original, Scenario};
use millrace_e2e::others::EMBEDDED;

/// A figure of theirs, and where ours is.
struct Known {
    what: &'static str,
    theirs: &'static str,
    ours: Ours,
}

enum Ours {
    /// Millrace beside the kernel in these scenarios; embedded as well, where it is measured.
    Ratios(&'static [&'static str]),
    /// Measured by another command, or why it is not.
    Told(&'static str),
}

const KNOWN: [Known; 8] = [
    Known {
        what: "mTCP: 64-byte transactions on 8,192 connections, beside Linux",
        theirs: "9.5 times: 428,000 a second to 45,000, 8 cores, 10 Gbit/s",
        ours: Ours::Ratios(&["wire-short-8k-natural", "wire-short-8k-strict"]),
    },
    Known {
        what: "mTCP: a web server's requests (lighttpd there, nginx here), beside Linux",
        theirs: "+320 %",
        ours: Ours::Ratios(&["nginx-64", "nginx-4k", "nginx-keep-64"]),
    },
    Known {
        what: "mTCP: an SSL proxy (SSLShader there, nginx with TLS here), beside Linux",
        theirs: "+33 %",
        ours: Ours::Ratios(&["nginx-tls-4k", "nginx-tls-keep-4k"]),
    },
    Known {
        what: "mTCP: 8,000 downloads of 10 MiB that share 10 Gbit/s",
        theirs: "fair, as plotted",
        ours: Ours::Told(
            "Jain's index 0.993 in simulation (`cargo xtask sim --scale`); 1,000 on a real link by `make fairness`; 8,000 on a real link of that rate: not measured, there is none",
        ),
    },
    Known {
        what: "Decoupling, 4 to 14 cores of an OCTEON: bit/Hz of each core at 10 Gbit/s",
        theirs: "0.625 to 0.688, flat; the concurrent scheme falls to 0.319",
        ours: Ours::Told(
            "not measured: it takes as many cores; docs/scaling.md has both schemes on two, and instructions for a packet up to 14 shards",
        ),
    },
    Known {
        what: "Receive offload on a network processor: 64 connections, aggregation on to off",
        theirs: "5.2 times: 4.75 Gbit/s to 0.913",
        ours: Ours::Told(
            "10.1 times: 39.5 Gbit/s to 3.92, on the machine of docs/measurements.md (`nic`)",
        ),
    },
    Known {
        what: "The same on one connection",
        theirs: "1.54 times: 1.256 Gbit/s to 0.813",
        ours: Ours::Told("10.1 times: 42.3 Gbit/s to 4.21, likewise"),
    },
    Known {
        what: "BCL-3: IP over user-level messages on Myrinet, without receive checksums to with",
        theirs: "1.25 times: 938.6 Mbit/s to 748.1; 48.1 us one way",
        ours: Ours::Told("not measured: no such network here, and no such link in millrace"),
    },
];

/// The table, with what these scenarios say.
pub fn originals(scenarios: &[Scenario]) -> Vec<Original> {
    let all = KNOWN.iter();
    all.map(|known| Original {
        what: known.what.to_owned(),
        theirs: known.theirs.to_owned(),
        ours: match known.ours {
            Ours::Told(told) => told.to_owned(),
            Ours::Ratios(names) => {
                let each = names.iter().map(|name| ratio(scenarios, name));
                each.collect::<Vec<_>>().join("; ")
            }
        },
    })
    .collect()
}

fn ratio(scenarios: &[Scenario], name: &str) -> String {
    let mut scenarios = scenarios.iter();
    let scenario = scenarios.find(|scenario| scenario.name == name);
    let times = |stack: &str| Some(short(scenario?.ratio(stack, "kernel")?.median));
    match (times("millrace"), times(EMBEDDED)) {
        (Some(ours), None) => format!("{ours} times ({name})"),
        (Some(ours), Some(embedded)) => format!("{ours} times, embedded {embedded} ({name})"),
        (None, _) => format!("not in this run (`make bench ARGS='--only {name}'`)"),
    }
}
