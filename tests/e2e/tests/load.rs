//! `millrace load` against servers on the kernel and on millrace, from addresses of its own on the
//! peer's device.

use std::cell::Cell;

use millrace_e2e::programs::Nginx;
use millrace_e2e::{
    Context as _, Process, Result, Stack, World, compile, content, ensure, on_both_stacks, seconds,
};
use rustix::process::Signal;
use serde_json::Value;

on_both_stacks!(
    transactions_of_every_kind,
    requests_to_nginx,
    an_open_loop_begins_what_is_offered,
    who_does_not_answer_is_named,
    two_shards_share_the_connections,
);

const PORT: u16 = 7000;

/// The generator, with these words behind what its link takes.
///
/// Each has up to thirty addresses of its own: neighbours remember for a second where one was.
fn start(world: &World, words: &str) -> Result<Process> {
    // A test has a thread and a world of its own.
    thread_local!(static STARTED: Cell<u8> = const { Cell::new(0) });
    let first = 10 + STARTED.replace(STARTED.get().wrapping_add(1)) % 8 * 30;
    let device = match world.stack {
        Stack::Kernel => "veth0",
        Stack::Millrace => "mr0",
    };
    let link = format!("--link packet:{device} --addr 10.9.0.{first}/24");
    let words = words.split(' ').chain(link.split(' '));
    let words: Vec<&str> = ["load"].into_iter().chain(words).collect();
    world.start_on_peer(world.millrace(&words))
}

/// What it reports as JSON; nothing must have failed.
fn load(world: &World, words: &str) -> Result<Value> {
    let ended = start(world, &format!("{words} --warm-up 0.2 --json"))?.wait(seconds(60))?;
    let report: Value =
        serde_json::from_slice(&ended.success()?.stdout).context(words.to_owned())?;
    ensure!(
        report["failures"] == serde_json::json!({}),
        "{words}: {report}"
    );
    ensure!(report["unsuccessful"] == 0, "{words}: {report}");
    Ok(report)
}

/// A number of a report.
fn number(report: &Value, name: &str) -> Result<u64> {
    report[name]
        .as_u64()
        .with_context(|| format!("{name}: {report}"))
}

fn server(world: &World, mode: &str) -> Result<Process> {
    let at = world.at(PORT);
    let program = compile::program("server")?;
    let (ip, port) = (at.ip().to_string(), PORT.to_string());
    world.serve(&[&program[..], mode, &ip, &port], PORT)
}

fn transactions_of_every_kind(world: &World) -> Result<()> {
    let target = world.at(PORT);
    for (mode, workload) in [
        ("short", "short -c 100 --sources 20"),
        ("echo", "short -c 50 --closes client --size 4000"),
        ("echo", "pingpong -c 300 --sources 30"),
        ("echo", "pingpong --size 4000"),
        ("sink", "in -c 4"),
        ("source", "out -c 4"),
    ] {
        let server = server(world, mode)?;
        let (name, rest) = workload.split_once(' ').context("words")?;
        let report = load(world, &format!("{name} {target} {rest} -d 1"))?;
        let (bytes_in, bytes_out) = (number(&report, "bytes_in")?, number(&report, "bytes_out")?);
        let moved = match name {
            "in" => bytes_out,
            "out" => bytes_in,
            _ => number(&report, "operations")?,
        };
        ensure!(moved > 0, "{workload}: {report}");
        let latency = &report["latency_us"];
        let ordered =
            ["least", "p50", "p90", "p99", "p99.9", "largest"].map(|name| latency[name].as_f64());
        ensure!(ordered.is_sorted(), "{workload}: {report}");
        server.stop(Signal::TERM, seconds(15))?;
    }
    Ok(())
}

fn requests_to_nginx(world: &World) -> Result<()> {
    let words = Nginx {
        port: PORT,
        main: "daemon off;",
        http: "",
        server: "",
    }
    .configure(world)?;
    let server = world.serve(&words, PORT)?;
    let www = world.directory().join("www");
    content::write_file(&www.join("small"), 1, 1000)?;
    content::write_file(&www.join("large"), 2, 3 << 20)?;
    let url = format!("http://{}", world.at(PORT));
    for (rest, bytes) in [
        ("small -c 100 --sources 10", 1000),
        ("small -c 50 --sources 10 --no-keep-alive", 1000),
        ("large -c 4", 3 << 20),
    ] {
        let report = load(world, &format!("http {url}/{rest} -d 1"))?;
        let operations = number(&report, "operations")?;
        ensure!(operations > 0, "{rest}: {report}");
        // Some more are under way at either end.
        ensure!(
            number(&report, "bytes_in")? >= operations.saturating_sub(100) * bytes,
            "{rest}: {report}"
        );
    }
    let missing = start(world, &format!("http {url}/missing -c 2 -d 1"))?.wait(seconds(30))?;
    let said = missing.success()?.text();
    ensure!(said.contains("answers were no success"), "{said}");
    server.stop(Signal::TERM, seconds(15))?;
    Ok(())
}

fn an_open_loop_begins_what_is_offered(world: &World) -> Result<()> {
    let server = server(world, "echo")?;
    let target = world.at(PORT);
    let report = load(world, &format!("pingpong {target} -c 20 --rate 500 -d 2"))?;
    // No more than are due, however fast it goes; one for each connection may have been under way
    // when it began to count.
    let operations = number(&report, "operations")?;
    let seconds = report["seconds"].as_f64().context("seconds")?;
    ensure!(
        operations > 0 && operations as f64 <= 500.0 * seconds + 21.0,
        "{report}"
    );
    // More than one connection does: what cannot begin is late, and is counted.
    let words = format!("pingpong {target} --rate 1000000 -d 1");
    let report = load(world, &words)?;
    ensure!(number(&report, "overdue")? > 0, "{report}");
    let largest = report["latency_us"]["largest"]
        .as_f64()
        .context("a latency")?;
    let least = report["latency_us"]["least"]
        .as_f64()
        .context("a latency")?;
    ensure!(
        largest > 10.0 * least,
        "the last ones were meant to begin long before: {report}"
    );
    server.stop(Signal::TERM, millrace_e2e::seconds(15))?;
    Ok(())
}

fn who_does_not_answer_is_named(world: &World) -> Result<()> {
    let server = server(world, "sink")?;
    let target = world.at(PORT + 1);
    for (words, expected) in [
        (
            format!("pingpong {target} -c 3 -d 60"),
            "is a server listening there?",
        ),
        (
            "pingpong 10.9.0.254:7 -d 1".to_owned(),
            "10.9.0.254:7 has answered nothing",
        ),
    ] {
        let ended = start(world, &words)?.wait(millrace_e2e::seconds(30))?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(ended.success().is_err(), "{words}: {said}");
        ensure!(said.contains(expected), "{words}: {said}");
    }
    server.stop(Signal::TERM, seconds(15))?;
    Ok(())
}

fn two_shards_share_the_connections(world: &World) -> Result<()> {
    let server = server(world, "short")?;
    let target = world.at(PORT);
    let report = load(
        world,
        &format!("short {target} -c 40 --sources 8 --shards 2 -d 1"),
    )?;
    ensure!(number(&report, "operations")? > 0, "{report}");
    server.stop(Signal::TERM, seconds(15))?;
    Ok(())
}
