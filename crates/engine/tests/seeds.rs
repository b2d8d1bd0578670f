//! Random programs against an engine in this process.
//!
//! They write any content into the region, submit any requests, send any control messages and
//! descriptors, fork and die in any order. The engine must neither panic nor wait, must serve
//! another program as before, and must keep nothing of them when they are gone.
//! `MILLRACE_SEEDS=0..10000` runs other seeds. A failure names its seed.

mod common;

use std::time::{Duration, Instant};

use common::stranger::Stranger;
use common::{Program, end, engine_with_shards, holdings, transfer};

/// The variable that tells a process to run seeds: the engine, the first seed, and the end.
const CHILD: &str = "MILLRACE_TEST_SEEDS";
/// How long the engine may take to return to its former state.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs seeds in child processes, which then end, beside a program that goes on.
fn random_programs(name: &str, shards: u16, seeds: std::ops::Range<u64>) {
    const BATCH: u64 = 25;
    let thread = engine_with_shards(name, shards);
    let victim = Program::attach(name);
    let listener = victim.listener(7000);
    let client = victim.connect(7000);
    let server = victim.accept(listener);
    transfer(&victim, client, server, 100_000, || ());
    let before = holdings(name);
    let mut next = seeds.start;
    while next < seeds.end {
        let batch = next..seeds.end.min(next + BATCH);
        next = batch.end;
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "runs_seeds", "--nocapture"])
            .env(
                CHILD,
                format!(
                    "{name}-{} {} {}",
                    std::process::id(),
                    batch.start,
                    batch.end
                ),
            )
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let status = loop {
            transfer(&victim, client, server, 20_000, || ());
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
        };
        assert!(status.success(), "seeds {batch:?}: {status}");
        let end = Instant::now() + PATIENCE;
        while holdings(name) != before {
            let now = holdings(name);
            assert!(
                Instant::now() < end,
                "after seeds {batch:?} programs hold {now:?} where they held {before:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(
            !thread.is_finished(),
            "seeds {batch:?} have ended the engine"
        );
    }
    drop(victim);
    end(name, thread);
}

/// The bytes of a seed: some hundreds or thousands (xorshift).
fn bytes_of(seed: u64) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    };
    let count = 256 + next() % 2304;
    (0..count).map(|_| next() as u8).collect()
}

/// What the processes of [`random_programs`] do. In any other process it does nothing.
#[test]
fn runs_seeds() {
    let Ok(words) = std::env::var(CHILD) else {
        return;
    };
    let words: Vec<&str> = words.split(' ').collect();
    let seeds = words[1].parse().unwrap()..words[2].parse().unwrap();
    for seed in seeds {
        Stranger::new(words[0], &bytes_of(seed)).run();
    }
}

fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(named) = std::env::var("MILLRACE_SEEDS") else {
        return usual;
    };
    let (first, end) = named.split_once("..").expect("MILLRACE_SEEDS=FIRST..END");
    first.parse().unwrap()..end.parse().unwrap()
}

#[test]
fn random_programs_leave_an_engine_as_it_was() {
    random_programs("seeds", 1, seeds(0..50));
}

#[test]
fn random_programs_leave_an_engine_of_two_shards_as_it_was() {
    random_programs("seeds-two", 2, seeds(50..100));
}
