//! Which threads an engine has, on which cores, and what is said when they cannot be had.

use millrace_e2e::engine::{self, Engine};
use millrace_e2e::{
    Link, Result, SUBJECT, World, bail, ensure, on_millrace, scenario, seconds, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

on_millrace!(
    what_makes_no_sense_is_refused_with_a_way_out,
    programs_have_the_cores_that_are_left,
);

const PYTHON: &str = "/usr/bin/python3";

/// What `millrace run` says when the engine does not start.
fn refused(world: &World, line: &str) -> Result<String> {
    let mut run = world.millrace(&["run"]);
    run.args(line.split(' ')).args(["--", "true"]);
    let ended = world.start_on_subject(run)?.wait(seconds(20))?;
    ensure!(ended.status.code() == Some(125), "{line}: {ended:?}");
    Ok(ended.error_text())
}

fn what_makes_no_sense_is_refused_with_a_way_out(world: &World) -> Result<()> {
    for (line, said) in [
        ("--topology rtc --io-threads 1", "leave one of the two out"),
        ("--loopback --io-threads 1", "there is none without --link"),
        (
            "--loopback --topology pipeline",
            "there is none without --link",
        ),
        ("--cores 0,0 --shards 2", "core 0 twice"),
        ("--cores 4095", "core 4095; this process may use"),
        (
            "--cores 0 --shards 2",
            "1 for 2 threads (2 shards): name 2, or leave it out",
        ),
        (
            "--cores 0 --io-threads 1 --shards 2",
            "1 for 3 threads (1 I/O thread and 2 shards)",
        ),
    ] {
        let message = refused(world, line)?;
        ensure!(message.contains(said), "{line}: {message}");
    }
    Ok(())
}

fn programs_have_the_cores_that_are_left(world: &World) -> Result<()> {
    let cores = "import os; print(sorted(os.sched_getaffinity(0)))";
    let run = |more: &[&str]| -> Result<String> {
        let mut run = world.millrace(&["run", "--loopback"]);
        run.args(more).args(["--", PYTHON, "-c", cores]);
        let ended = world.start_on_subject(run)?.wait(seconds(20))?;
        Ok(ended.success()?.text().trim().to_owned())
    };
    let all = run(&[])?;
    let names: Vec<&str> = all.trim_matches(['[', ']']).split(", ").collect();
    let [first, .., last] = names[..] else {
        bail!("this test needs two cores, and has {all}");
    };
    ensure!(run(&["--cores", first])? == all, "none are left");
    let left = run(&["--cores", &format!("{first},{last}")])?;
    ensure!(left == format!("[{last}]"), "{left} of {all}");
    Ok(())
}

/// A device with fewer queues than shards gets I/O threads, and that is said.
#[test]
fn auto_makes_a_pipeline_for_want_of_queues() {
    scenario::run_over(Link::Xdp, 1, |world| {
        let addr = format!("{SUBJECT}/24");
        let mut run = world.millrace(&["run", "--link", "xdp:veth0", "--addr", &addr]);
        run.args(["--shards", "3", "--", "iperf3", "-s", "--forceflush"]);
        let server = world.start_on_subject(run)?;
        // It takes one client at a time, so nobody knocks.
        wait_until("iperf3 listens", seconds(20), || {
            Ok(server.stdout().contains("Server listening"))
        })?;
        let said = server.stderr();
        let part = "a pipeline of 1 I/O thread and 3 shards: the device has fewer queues";
        ensure!(said.contains(part), "{said}");
        let counters = engine::counters(world)?;
        ensure!(counters["topology"] == "pipeline", "{counters}");
        let line = format!("iperf3 -c {SUBJECT} -P 4 -n 20M");
        let words: Vec<&str> = line.split(' ').collect();
        world.run_on_peer(&words, seconds(60))?.success()?;
        server.stop(Signal::TERM, seconds(15)).map(drop)
    });
}

/// Rounds that the I/O threads have run, and times they have slept.
fn turns(counters: &Value) -> Vec<u64> {
    let threads = counters["io_threads"].as_array().into_iter().flatten();
    threads
        .flat_map(|thread| [&thread["rounds"], &thread["sleeps"]])
        .filter_map(Value::as_u64)
        .collect()
}

/// Nobody sends anything, so nobody wakes up: but for what the kernel says by itself, which is little.
#[test]
fn idle_threads_sleep() {
    scenario::run_on_pipeline(Link::Tap, 2, 2, |world| {
        let up = Engine::up(world)?;
        // Whatever the device's being new makes the kernel say comes first.
        let mut before = turns(&engine::counters(world)?);
        ensure!(before.len() == 4, "{before:?}");
        wait_until("the I/O threads sleep", seconds(30), || {
            std::thread::sleep(std::time::Duration::from_millis(500));
            let now = turns(&engine::counters(world)?);
            let turned = now
                .iter()
                .zip(&before)
                .any(|(now, before)| now - before > 4);
            before = now;
            Ok(!turned)
        })?;
        up.down(world)
    });
}
