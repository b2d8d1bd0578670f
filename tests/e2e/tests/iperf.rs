//! iperf3 as server and as client, in both directions, with one stream and with four.

use millrace_e2e::{
    Context as _, PEER, Result, SUBJECT, Stack, World, ensure, on_both_stacks, seconds,
};
use rustix::process::Signal;
use serde_json::Value;

on_both_stacks!(serves, is_served);

const PORT: u16 = 5201;
/// Arguments and the number of streams they ask for.
const KINDS: [(&str, usize); 4] = [("", 1), ("-R", 1), ("-P 4", 4), ("-P 4 -R", 4)];

/// The words of a client of `address`: ten seconds of millrace, and one of the kernel, which shows
/// that the test is right.
fn client(world: &World, address: std::net::Ipv4Addr, more: &str) -> Vec<String> {
    let length = match world.stack {
        Stack::Kernel => 1,
        Stack::Millrace => 10,
    };
    format!("iperf3 -c {address} -t {length} --json {more}")
        .split_whitespace()
        .map(String::from)
        .collect()
}

/// Fails unless each stream has carried data, and as much has arrived as was sent, but for what was
/// on its way at the end.
fn ensure_carried(said: &str, streams: usize) -> Result<()> {
    let report: Value = serde_json::from_str(said).context("reading what iperf3 says")?;
    ensure!(report["error"].is_null(), "iperf3: {}", report["error"]);
    let ended = report["end"]["streams"].as_array().context("streams")?;
    ensure!(ended.len() == streams, "{} streams", ended.len());
    for stream in ended {
        let bytes = |side: &str| stream[side]["bytes"].as_u64().unwrap_or(0);
        let (sent, received) = (bytes("sender"), bytes("receiver"));
        ensure!(
            received > 1 << 20,
            "a stream has carried {received} bytes: {stream}"
        );
        ensure!(received <= sent, "{received} bytes have arrived of {sent}");
    }
    Ok(())
}

fn serves(world: &World) -> Result<()> {
    let server = world.subject(&["iperf3", "-s", "-B", &SUBJECT.to_string(), "--forceflush"])?;
    millrace_e2e::wait_until("iperf3 listens", seconds(10), || {
        Ok(server.stdout().contains("listening"))
    })?;
    for (more, streams) in KINDS {
        let ended = world
            .run_on_peer(&client(world, SUBJECT, more), seconds(30))
            .with_context(|| format!("with {more:?}"))?;
        ensure_carried(&ended.text(), streams).with_context(|| format!("with {more:?}"))?;
    }
    server.stop(Signal::TERM, seconds(10)).map(|_| ())
}

fn is_served(world: &World) -> Result<()> {
    let server = world.peer(&["iperf3", "-s", "-p", &PORT.to_string(), "--forceflush"])?;
    millrace_e2e::wait_until("iperf3 listens", seconds(10), || {
        Ok(server.stdout().contains("listening"))
    })?;
    for (more, streams) in KINDS {
        let ended = world
            .run_on_subject(&client(world, PEER, more), seconds(30))
            .with_context(|| format!("with {more:?}"))?;
        ensure_carried(&ended.text(), streams).with_context(|| format!("with {more:?}"))?;
    }
    server.stop(Signal::TERM, seconds(10)).map(|_| ())
}
