//! Connections that go on while they move from shard to shard.

use std::fs;

use millrace_e2e::content::write_file;
use millrace_e2e::engine::{self, Engine};
use millrace_e2e::programs::Nginx;
use millrace_e2e::{
    Context as _, Link, PEER, Process, Result, SUBJECT, World, compile, ensure, scenario, seconds,
    wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

const PYTHON: &str = "/usr/bin/python3";

/// How many shards serve, one after the other.
const COUNTS: [u16; 10] = [3, 1, 2, 3, 2, 1, 3, 1, 2, 1];

/// The connections that shards have which are not to serve: none, since they have moved.
fn left_behind(world: &World, serving: u16) -> Result<Vec<Value>> {
    let mut sockets = engine::sockets(world)?;
    sockets.retain(|socket| {
        socket["state"] == "ESTAB" && socket["shard"].as_u64() >= Some(serving.into())
    });
    Ok(sockets)
}

/// The sum of something that shards count.
fn sum(counters: &Value, part: &str, name: &str) -> u64 {
    let shards = counters["shards"].as_array().into_iter().flatten();
    shards.filter_map(|shard| shard[part][name].as_u64()).sum()
}

/// Streams both ways, written and read without a pause, go to where their buckets go: none is left
/// where nobody serves, and every byte is as it was sent.
#[test]
fn streams_go_on_while_they_move() {
    scenario::run_on_pipeline(Link::Tap, 1, 1, |world| {
        let up = Engine::up_with(world, &["--shards-max", "3"])?;
        let (echo, pour) = (compile::script("scaled.py"), compile::script("poured.py"));
        let (peer, subject) = (PEER.to_string(), SUBJECT.to_string());
        let serve = |address| [PYTHON, "-u", &echo, "serve", address];
        let servers = [
            world.start_on_subject(up.run(&serve(&subject)))?,
            world.peer(&serve(&peer))?,
        ];
        wait_until("the servers listen", seconds(20), || {
            let ready = |server: &Process| server.stdout().contains("ready");
            Ok(servers.iter().all(ready))
        })?;
        let words = |address| [PYTHON, "-u", &pour, address];
        let pourers = [
            world.peer(&words(&subject))?,
            world.start_on_subject(up.run(&words(&peer)))?,
        ];
        let said = |pourer: &Process| pourer.stdout().lines().count();
        let go_on = || {
            let before = pourers.each_ref().map(said);
            let waited = wait_until("all streams go on", seconds(60), || {
                let now = pourers.each_ref().map(said);
                let mut each = now.iter().zip(before);
                Ok(each.all(|(now, before)| *now > before + 1))
            });
            waited.with_context(|| {
                let errors = pourers.each_ref().map(Process::stderr);
                format!("{errors:?} {:?}", engine::sockets(world))
            })
        };
        go_on()?;
        for count in COUNTS {
            engine::scale(world, Some(count))?;
            let left = left_behind(world, count)?;
            ensure!(left.is_empty(), "with {count} shards: {left:?}");
            go_on()?;
        }
        for pourer in pourers {
            let text = pourer.stop(Signal::TERM, seconds(60))?.success()?.text();
            ensure!(text.ends_with("all as sent\n"), "{text}");
        }
        let counters = engine::counters(world)?;
        let taken = sum(&counters, "shard", "connections_taken");
        ensure!(taken > 50, "{taken} have moved");
        for (part, name) in [
            ("shard", "connections_lost"),
            ("worker", "handed_dropped"),
            ("worker", "nonsense"),
        ] {
            ensure!(sum(&counters, part, name) == 0, "{name}: {counters}");
        }
        for server in servers {
            server.stop(Signal::KILL, seconds(15))?;
        }
        // What was used elsewhere is back where it belongs.
        wait_until("nothing is left", seconds(90), || {
            let counters = engine::counters(world)?;
            let programs = counters["shards"].as_array().into_iter().flatten();
            let mut programs = programs.filter_map(|shard| shard["programs"].as_array());
            Ok(programs.all(Vec::is_empty))
        })?;
        up.down(world)
    });
}

/// nginx knows nothing of it: every request is answered, on connections that are kept and on those
/// that are not.
#[test]
fn nginx_answers_while_its_connections_move() {
    scenario::run_on_pipeline(Link::Tap, 1, 1, |world| {
        let up = Engine::up_with(world, &["--shards-max", "3"])?;
        let nginx = Nginx {
            port: 80,
            main: "daemon off;",
            http: "",
            server: "",
        };
        let words = nginx.configure(world)?;
        let mut server = world.start_on_subject(up.run(&words))?;
        world.wait_for_port(&mut server, 80)?;
        write_file(&world.directory().join("www/4k"), 1, 4096)?;
        ensure!(fs::metadata(world.directory().join("www/4k"))?.len() == 4096);
        let url = format!("http://{SUBJECT}/4k");
        let ab = ["ab", "-q", "-k", "-c", "30", "-n", "60000", &url];
        let mut load = world.peer(&ab)?;
        // Slots that are used again at once, beside those that move.
        let ab = ["ab", "-q", "-c", "20", "-n", "20000", &url];
        let short = world.peer(&ab)?;
        let mut moved = 0;
        while load.is_running()? || moved < COUNTS.len() {
            engine::scale(world, Some(COUNTS[moved % COUNTS.len()]))?;
            moved += 1;
        }
        let said = load.wait(seconds(60))?.success()?.text();
        for line in [
            "Complete requests:      60000",
            "Failed requests:        0",
            "Keep-Alive requests:    60000",
            "HTML transferred:       245760000 bytes",
        ] {
            ensure!(said.contains(line), "ab does not say {line:?}:\n{said}");
        }
        let said = short.wait(seconds(60))?.success()?.text();
        for line in ["Complete requests:      20000", "Failed requests:        0"] {
            ensure!(said.contains(line), "ab does not say {line:?}:\n{said}");
        }
        let counters = engine::counters(world)?;
        ensure!(
            sum(&counters, "shard", "connections_taken") > 0,
            "{counters}"
        );
        ensure!(
            sum(&counters, "shard", "connections_lost") == 0,
            "{counters}"
        );
        server.stop(Signal::KILL, seconds(15))?;
        up.down(world)
    });
}
