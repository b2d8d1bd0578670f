//! redis-server: one thread and an event loop of its own, then with threads for its input and
//! output.

use std::fs;
use std::process::Stdio;

use millrace_e2e::content::write_file;
use millrace_e2e::programs::redis;
use millrace_e2e::{
    Ended, Link, PEER, Process, Result, SUBJECT, World, ensure, on_both_stacks_and_a_pipeline,
    process, scenario, seconds, wait_until,
};
use rustix::process::Signal;

on_both_stacks_and_a_pipeline!(
    takes_the_default_benchmark,
    takes_pipelines_of_32,
    saves_in_the_background_under_load,
    keeps_large_values,
    p2_io_threads_take_the_benchmark,
    answers_clients_on_the_stack_under_test,
);

const PORT: u16 = 6379;

/// What `redis-benchmark` runs when it is told nothing.
const DEFAULT_SET: [&str; 20] = [
    "PING_INLINE",
    "PING_MBULK",
    "SET",
    "GET",
    "INCR",
    "LPUSH",
    "RPUSH",
    "LPOP",
    "RPOP",
    "SADD",
    "HSET",
    "SPOP",
    "ZADD",
    "ZPOPMIN",
    "LPUSH (needed to benchmark LRANGE)",
    "LRANGE_100",
    "LRANGE_300",
    "LRANGE_500",
    "LRANGE_600",
    "MSET",
];

/// On shards of both kinds: with queues of the device, and with an I/O thread.
#[test]
fn takes_pipelines_of_32_over_xdp_on_mixed_shards() {
    scenario::run_mixed(Link::Xdp, 3, takes_pipelines_of_32);
}

/// A server on the stack under test.
fn start(world: &World, more: &str) -> Result<Process> {
    world.serve(&redis(world, &SUBJECT.to_string(), PORT, more), PORT)
}

/// `redis-cli` on the peer.
fn cli(world: &World, words: &str) -> Result<String> {
    let line = format!("redis-cli -h {SUBJECT} {words}");
    let words: Vec<&str> = line.split_whitespace().collect();
    Ok(world
        .run_on_peer(&words, seconds(20))?
        .text()
        .trim()
        .to_string())
}

/// The words of a benchmark against `address`.
fn benchmark_words(address: std::net::Ipv4Addr, more: &str) -> Vec<String> {
    format!("redis-benchmark -h {address} --csv {more}")
        .split_whitespace()
        .map(String::from)
        .collect()
}

/// Fails unless the output of `redis-benchmark --csv` has a rate for each of `tests`.
fn ensure_benchmarked(ended: Ended, tests: &[&str]) -> Result<()> {
    let said = ended.success()?.text();
    for test in tests {
        let line = said
            .lines()
            .find(|line| line.trim_start_matches('"').starts_with(test));
        let rate = line
            .and_then(|line| line.split("\",\"").nth(1))
            .and_then(|rate| rate.parse::<f64>().ok());
        ensure!(
            rate.is_some_and(|rate| rate > 0.0),
            "no rate of {test} in:\n{said}"
        );
    }
    Ok(())
}

/// The server has ended well.
fn stop(server: Process) -> Result<()> {
    server
        .stop(Signal::TERM, seconds(15))?
        .success()
        .map(|_| ())
}

fn takes_the_default_benchmark(world: &World) -> Result<()> {
    let server = start(world, "")?;
    let ended = world
        .peer(&benchmark_words(SUBJECT, "-n 10000"))?
        .wait(seconds(120))?;
    ensure_benchmarked(ended, &DEFAULT_SET)?;
    stop(server)
}

fn takes_pipelines_of_32(world: &World) -> Result<()> {
    let server = start(world, "")?;
    let ended = world
        .peer(&benchmark_words(
            SUBJECT,
            "-n 200000 -P 32 -t set,get,lpush,lrange_100",
        ))?
        .wait(seconds(120))?;
    ensure_benchmarked(ended, &["SET", "GET", "LRANGE_100"])?;
    stop(server)
}

fn saves_in_the_background_under_load(world: &World) -> Result<()> {
    let server = start(world, "")?;
    let load = world.peer(&benchmark_words(
        SUBJECT,
        "-n 200000 -r 10000 -d 400 -t set,get",
    ))?;
    for number in 1..=3 {
        let before = fs::read(world.directory().join("dump.rdb")).unwrap_or_default();
        ensure!(
            cli(world, "BGSAVE")?.contains("Background saving started"),
            "BGSAVE {number} was refused"
        );
        wait_until("the save has ended", seconds(20), || {
            Ok(cli(world, "INFO persistence")?.contains("rdb_bgsave_in_progress:0"))
        })?;
        ensure!(cli(world, "INFO persistence")?.contains("rdb_last_bgsave_status:ok"));
        ensure!(
            fs::read(world.directory().join("dump.rdb"))? != before,
            "save {number} wrote nothing new"
        );
    }
    ensure_benchmarked(load.wait(seconds(60))?, &["SET", "GET"])?;
    stop(server)
}

fn keeps_large_values(world: &World) -> Result<()> {
    let server = start(world, "")?;
    let file = world.directory().join("value");
    // redis-cli adds a line feed to what it prints.
    write_file(&file, 7, 20_000_000)?;
    let mut set = process::command(&["redis-cli", "-h", &SUBJECT.to_string(), "-x", "SET", "big"]);
    set.stdin(Stdio::from(fs::File::open(&file)?));
    ensure!(
        world
            .start_on_peer(set)?
            .wait(seconds(30))?
            .success()?
            .text()
            .trim()
            == "OK"
    );
    let got = world
        .run_on_peer(
            &["redis-cli", "-h", &SUBJECT.to_string(), "GET", "big"],
            seconds(30),
        )?
        .stdout;
    ensure!(
        got.strip_suffix(b"\n") == Some(&fs::read(&file)?[..]),
        "the value came back changed"
    );
    stop(server)
}

fn p2_io_threads_take_the_benchmark(world: &World) -> Result<()> {
    let server = start(world, "--io-threads 4 --io-threads-do-reads yes")?;
    let ended = world
        .peer(&benchmark_words(
            SUBJECT,
            "-n 20000 -c 64 -P 8 -t set,get,lrange_300",
        ))?
        .wait(seconds(120))?;
    ensure_benchmarked(ended, &["SET", "GET", "LRANGE_300"])?;
    stop(server)
}

fn answers_clients_on_the_stack_under_test(world: &World) -> Result<()> {
    let server = world.serve_on_peer(&redis(world, "0.0.0.0", PORT, ""), PORT)?;
    let cli = |words: &str| -> Result<String> {
        let line = format!("redis-cli -h {PEER} {words}");
        let words: Vec<&str> = line.split_whitespace().collect();
        Ok(world
            .run_on_subject(&words, seconds(20))?
            .text()
            .trim()
            .to_string())
    };
    ensure!(cli("SET key value")? == "OK");
    ensure!(cli("GET key")? == "value");
    let ended = world
        .subject(&benchmark_words(PEER, "-n 10000"))?
        .wait(seconds(120))?;
    ensure_benchmarked(ended, &DEFAULT_SET)?;
    let ended = world
        .subject(&benchmark_words(PEER, "-n 100000 -P 32 -t set,get"))?
        .wait(seconds(60))?;
    ensure_benchmarked(ended, &["SET", "GET"])?;
    stop(server)
}
