//! Which threads an engine has, on which cores, and what is said when they cannot be had.

use std::io::Write as _;
use std::process::Stdio;

use millrace_e2e::engine::{self, Engine};
use millrace_e2e::process::command;
use millrace_e2e::{
    Link, PEER, Process, Result, SUBJECT, World, bail, compile, ensure, on_millrace, scenario,
    seconds, wait_until,
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
        (
            "--shards-max 2 --topology rtc",
            "--shards-max is for a pipeline",
        ),
        (
            "--balance --topology rtc --shards 2",
            "--balance is for a pipeline",
        ),
        (
            "--topology mixed --shards 2 --shards-max 3",
            "neither --topology rtc nor mixed",
        ),
        ("--topology mixed", "takes two --shards at least"),
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

/// Of two shards one has a queue and the other an I/O thread; both have connections, and what comes
/// to the wrong one finds the right one.
#[test]
fn shards_with_queues_and_without_are_one_engine() {
    scenario::run_mixed(Link::Xdp, 2, |world| {
        let up = Engine::up(world)?;
        let server = world.start_on_subject(up.run(&["iperf3", "-s", "--forceflush"]))?;
        wait_until("iperf3 listens", seconds(20), || {
            Ok(server.stdout().contains("Server listening"))
        })?;
        let line = format!("iperf3 -c {SUBJECT} -P 16 -n 40M");
        let words: Vec<&str> = line.split(' ').collect();
        world.run_on_peer(&words, seconds(60))?.success()?;
        let counters = engine::counters(world)?;
        ensure!(counters["topology"] == "mixed", "{counters}");
        ensure!(
            counters["io_threads"][0]["frames_in"].as_u64() > Some(0),
            "{counters}"
        );
        for shard in 0..2 {
            let worker = &counters["shards"][shard]["worker"];
            let moved =
                worker["frames_in"].as_u64() > Some(0) && worker["frames_out"].as_u64() > Some(0);
            ensure!(moved, "{counters}");
        }
        server.stop(Signal::TERM, seconds(15))?;
        up.down(world)
    });
}

/// What came by the queues of each shard.
fn frames_of_shards(world: &World) -> Result<Vec<u64>> {
    let counters = engine::counters(world)?;
    let shards = counters["shards"].as_array().into_iter().flatten();
    let frames = shards.filter_map(|shard| shard["worker"]["frames_in"].as_u64());
    Ok(frames.collect())
}

/// Programs on both sides go on talking while shards come and go: nothing is lost, and in the end
/// those that serve no more are empty.
#[test]
fn shards_come_and_go_while_connections_go_on() {
    scenario::run_on_pipeline(Link::Tap, 1, 2, |world| {
        let up = Engine::up_with(world, &["--shards-max", "3"])?;
        let script = compile::script("scaled.py");
        let (peer, subject) = (PEER.to_string(), SUBJECT.to_string());
        let words = |what, address| [PYTHON, "-u", &script, what, address];
        let servers = [
            world.start_on_subject(up.run(&words("serve", &subject)))?,
            world.peer(&words("serve", &peer))?,
        ];
        wait_until("the servers listen", seconds(20), || {
            Ok(servers
                .iter()
                .all(|server| server.stdout().contains("ready")))
        })?;
        let talkers = [
            world.peer(&words("talk", &subject))?,
            world.start_on_subject(up.run(&words("talk", &peer)))?,
        ];
        let said = |talker: &Process| talker.stdout().lines().count();
        let go_on = || {
            let before = talkers.each_ref().map(said);
            wait_until("they talk on", seconds(60), || {
                let now = talkers.each_ref().map(said);
                Ok(now
                    .iter()
                    .zip(before)
                    .all(|(now, before)| *now >= before + 2))
            })
        };
        go_on()?;
        for count in [3, 1, 2, 3, 1, 2, 1] {
            let shards = engine::scale(world, Some(count))?;
            let has_some = |shard: &Value| shard["buckets"].as_u64() > Some(100);
            let have: Vec<bool> = shards.iter().map(has_some).collect();
            let expected: Vec<bool> = (0..3).map(|shard| shard < count).collect();
            ensure!(have == expected, "with {count}: {shards:?}");
            let before = frames_of_shards(world)?;
            go_on()?;
            let after = frames_of_shards(world)?;
            let busy: Vec<bool> = after
                .iter()
                .zip(before)
                .map(|(now, before)| *now > before)
                .collect();
            ensure!(busy == expected, "with {count}: {after:?}");
        }
        for talker in talkers {
            let text = talker.stop(Signal::TERM, seconds(60))?.success()?.text();
            ensure!(text.ends_with("all as sent\n"), "{text}");
        }
        for server in servers {
            server.stop(Signal::KILL, seconds(15))?;
        }
        wait_until("two shards are empty", seconds(90), || {
            let shards = engine::scale(world, None)?;
            Ok(shards[1..].iter().all(|shard| shard["state"] == "idle"))
        })?;
        let counters = engine::counters(world)?;
        let shards = counters["shards"].as_array().into_iter().flatten();
        for shard in shards {
            ensure!(shard["worker"]["handed_dropped"] == 0, "{shard}");
        }
        up.down(world)
    });
}

/// The connections of one shard are busy, those of the other are not: after a while the other has
/// some of the flows, with their connections, and nothing was lost.
#[test]
fn flows_leave_a_shard_that_has_too_much_to_do() {
    scenario::run_on_pipeline(Link::Tap, 1, 2, |world| {
        let up = Engine::up_with(world, &["--balance"])?;
        let script = compile::script("scaled.py");
        let subject = SUBJECT.to_string();
        let words = |what| [PYTHON, "-u", &script, what, &subject];
        let server = world.start_on_subject(up.run(&words("serve")))?;
        wait_until("the server listens", seconds(20), || {
            Ok(server.stdout().contains("ready"))
        })?;
        let mut some = command(&words("some"));
        some.stdin(Stdio::piped());
        let mut talker = world.start_on_peer(some)?;
        wait_until("it has connected", seconds(30), || {
            Ok(talker.stdout().contains("connected"))
        })?;
        let is_first = |socket: &&Value| socket["shard"] == 0 && socket["state"] == "ESTAB";
        let port = |socket: &Value| Some(socket["remote"].as_str()?.rsplit_once(':')?.1.to_owned());
        let sockets = engine::sockets(world)?;
        let ports: Vec<String> = sockets.iter().filter(is_first).filter_map(port).collect();
        ensure!(ports.len() > 3, "{sockets:?}");
        if let Some(mut stdin) = talker.stdin() {
            writeln!(stdin, "{}", ports.join(" "))?;
        }
        wait_until("flows have moved", seconds(60), || {
            let shards = engine::scale(world, None)?;
            Ok(shards[1]["taken"].as_u64() > Some(0) && shards[0]["given"] == shards[1]["taken"])
        })?;
        let sockets = engine::sockets(world)?;
        let has_moved = |socket: &Value| {
            socket["shard"] == 1 && port(socket).is_some_and(|port| ports.contains(&port))
        };
        ensure!(sockets.iter().any(has_moved), "{sockets:?}");
        let text = talker.stop(Signal::TERM, seconds(60))?.success()?.text();
        ensure!(text.ends_with("all as sent\n"), "{text}");
        server.stop(Signal::KILL, seconds(15))?;
        up.down(world)
    });
}

/// Where the shards own the queues there is nobody to send new flows elsewhere; and no more shards
/// serve than there are.
#[test]
fn what_cannot_be_scaled_is_said() {
    let refused = |world: &World, shards: &str| -> Result<String> {
        let scale = world.millrace(&["scale", "--shards", shards]);
        let ended = world.start_on_subject(scale)?.wait(seconds(20))?;
        ensure!(ended.status.code() == Some(125), "{ended:?}");
        Ok(ended.error_text())
    };
    scenario::run_over(Link::Tap, 2, |world| {
        let up = Engine::up(world)?;
        let said = refused(world, "1")?;
        ensure!(said.contains("start it with --shards-max N"), "{said}");
        up.down(world)
    });
    scenario::run_on_pipeline(Link::Tap, 1, 1, |world| {
        let up = Engine::up_with(world, &["--shards-max", "2"])?;
        let said = refused(world, "3")?;
        ensure!(said.contains("start it with --shards-max 3"), "{said}");
        up.down(world)
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

/// Nobody sends anything, so nobody wakes up: but for what the kernel says by itself, which is
/// little.
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
