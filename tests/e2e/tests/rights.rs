//! Sockets that travel between processes in messages (SCM_RIGHTS).

use std::collections::HashSet;
use std::fs;
use std::process::{Command, Stdio};

use millrace_e2e::content::write_file;
use millrace_e2e::engine::{self, Engine};
use millrace_e2e::{
    Context as _, Link, Process, Result, Stack, World, command, compile, ensure, http, load,
    on_both_stacks_and_two_shards, on_millrace, scenario, seconds, wait_until,
};
use rustix::process::Signal;

on_both_stacks_and_two_shards!(
    sockets_travel_at_random,
    threads_pass_what_children_do_not_keep,
    multiprocessing_passes_connections_and_listeners,
    node_cluster_passes_connections,
    node_cluster_shares_a_listener,
    haproxy_hands_its_listeners_on,
    systemd_hands_a_listener_on,
);
on_millrace!(
    what_cannot_be_passed_is_refused,
    those_outside_see_a_closed_socket_and_pass_it_on,
);

const PYTHON: &str = "/usr/bin/python3";
const PORT: u16 = 8000;

/// The command that runs `words` at 127.0.0.1, which has no link.
fn at_loopback(world: &World, words: &[&str]) -> Command {
    match world.stack {
        Stack::Kernel => command(words),
        Stack::Millrace => {
            let shards = world.shards.to_string();
            let mut run = world.millrace(&["run", "--loopback", "--shards", &shards, "--"]);
            run.args(words);
            run
        }
    }
}

fn run_at_loopback(world: &World, words: &[&str]) -> Result<String> {
    let running = world.start_on_subject(at_loopback(world, words))?;
    Ok(running.wait(seconds(120))?.success()?.text())
}

fn sockets_travel_at_random(world: &World) -> Result<()> {
    let script = compile::script("rights.py");
    let seed = std::env::var("MILLRACE_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse::<u64>().ok());
    let (from, to) = seed.map_or((0, 60), |seed| (seed, seed + 1));
    let (from, to) = (from.to_string(), to.to_string());
    let said = run_at_loopback(world, &[PYTHON, "-u", &script, "127.0.0.1", &from, &to])?;
    ensure!(said.ends_with(" seeds\n"), "{said}");
    Ok(())
}

fn threads_pass_what_children_do_not_keep(world: &World) -> Result<()> {
    let program = compile::program("rights_threads")?;
    for threads in ["1", "2", "3", "8"] {
        let said = run_at_loopback(world, &[&program, "127.0.0.1", threads, "150"])?;
        ensure!(said == "passed\n", "{said}");
    }
    Ok(())
}

fn multiprocessing_passes_connections_and_listeners(world: &World) -> Result<()> {
    let script = compile::script("passed.py");
    let words = [PYTHON, &script, "127.0.0.1", "fork", "forkserver", "spawn"];
    let said = run_at_loopback(world, &words)?;
    ensure!(said.lines().count() == 3, "{said}");
    Ok(())
}

/// Four workers of node's, and a file for them to serve.
fn cluster(directory: &std::path::Path, policy: &str) -> Result<(Vec<String>, Vec<u8>)> {
    write_file(&directory.join("64k"), 3, 64 << 10)?;
    let expected = fs::read(directory.join("64k"))?;
    let script = compile::script("cluster.js");
    let root = directory.to_string_lossy();
    let subject = millrace_e2e::SUBJECT.to_string();
    let words = ["node", &script, &root, &subject, &PORT.to_string(), policy];
    Ok((words.map(String::from).to_vec(), expected))
}

fn wait_for_cluster(server: &mut Process, count: usize) -> Result<()> {
    wait_until("the workers listen", seconds(30), || {
        server.ensure_not_failed()?;
        Ok(server.stdout().contains(&format!("{count} listen")))
    })
}

/// Every request is answered by a worker, and again when one of them has died.
fn ask_cluster(world: &World, policy: &str, least: usize) -> Result<()> {
    let (words, expected) = cluster(world.directory(), policy)?;
    let mut server = world.serve(&words, PORT)?;
    wait_for_cluster(&mut server, 4)?;
    let peer = world.peer_namespace();
    for listening in [5, 6] {
        let who = || -> Result<HashSet<Vec<u8>>> {
            let asked = (0..100).map(|_| Ok(http::get(world.at(PORT), "/who")?));
            asked.collect()
        };
        let fetch = || peer.enter(who);
        let workers = load::fetch_while(peer, world.at(PORT), "/64k", &expected, (4, 4), fetch)?;
        ensure!(workers.len() >= least, "only {workers:?} answer");
        peer.enter(|| http::get(world.at(PORT), "/die"))?;
        wait_for_cluster(&mut server, listening)?;
    }
    server.stop(Signal::TERM, seconds(20)).map(drop)
}

fn node_cluster_passes_connections(world: &World) -> Result<()> {
    ask_cluster(world, "rr", 4)
}

fn node_cluster_shares_a_listener(world: &World) -> Result<()> {
    ask_cluster(world, "none", 1)
}

/// Connections go from process to process while they go from shard to shard.
#[test]
fn node_cluster_passes_connections_that_move() {
    scenario::run_on_pipeline(Link::Tap, 1, 1, |world| {
        let up = Engine::up_with(world, &["--shards-max", "3"])?;
        let (words, expected) = cluster(world.directory(), "rr")?;
        let mut server = world.start_on_subject(up.run(&words))?;
        world.wait_for_port(&mut server, PORT)?;
        wait_for_cluster(&mut server, 4)?;
        let peer = world.peer_namespace();
        load::fetch_while(peer, world.at(PORT), "/64k", &expected, (4, 4), || {
            for count in [3, 1, 2, 3, 1, 3, 2, 1] {
                engine::scale(world, Some(count))?;
            }
            Ok(())
        })?;
        server.stop(Signal::TERM, seconds(20))?;
        up.down(world)
    });
}

/// A new process takes the listeners of the old one (`-x`), and no request is lost.
fn haproxy_hands_its_listeners_on(world: &World) -> Result<()> {
    let root = world.directory().to_string_lossy().into_owned();
    let config = format!(
        "global\n  stats socket {root}/stats mode 600 level admin expose-fd listeners\n  hard-stop-after 10s\n\
         defaults\n  mode http\n  timeout client 5s\n  timeout server 5s\n  timeout connect 5s\n\
         frontend front\n  bind {}\n  http-request return status 200 content-type text/plain string \"as it was\"\n",
        world.at(PORT)
    );
    fs::write(world.directory().join("haproxy.cfg"), config)?;
    let script = format!(
        "cd {root}; haproxy -D -f haproxy.cfg -p pid || exit\n\
         while read -r line; do haproxy -D -f haproxy.cfg -p pid -x stats -sf $(cat pid) && echo $line; done\n\
         kill -USR1 $(cat pid)\n"
    );
    let mut run = world.on_subject(&["sh", "-c", &script]);
    run.stdin(Stdio::piped());
    let mut server = world.start_on_subject(run)?;
    let mut input = server.stdin().context("it has a standard input")?;
    world.wait_for_port(&mut server, PORT)?;
    let peer = world.peer_namespace();
    load::fetch_while(peer, world.at(PORT), "/", b"as it was", (4, 4), || {
        for round in 0..5 {
            use std::io::Write as _;
            input.write_all(format!("again {round}\n").as_bytes())?;
            wait_until("the new process has taken over", seconds(20), || {
                server.ensure_not_failed()?;
                Ok(server.stdout().contains(&format!("again {round}")))
            })?;
        }
        Ok(())
    })?;
    if world.stack == Stack::Millrace {
        // Otherwise the new process would have bound one of its own.
        let counters = engine::counters(world)?;
        let claimed = counters["in_flight"]["claimed"].as_u64();
        ensure!(claimed >= Some(5), "{counters}");
    }
    drop(input);
    server.wait(seconds(30))?.success().map(drop)
}

/// A listener that came by exec, and connections that it accepts.
fn systemd_hands_a_listener_on(world: &World) -> Result<()> {
    let script = "import socket\nlistener = socket.socket(fileno=3)\nwhile True:\n    \
        kept = listener.accept()[0]\n    kept.recv(1000)\n    kept.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\nfour')\n    kept.close()\n";
    let at = world.at(PORT).to_string();
    let words = ["systemd-socket-activate", "-l", &at, PYTHON, "-c", script];
    let server = world.subject(&words)?;
    let peer = world.peer_namespace();
    wait_until("it answers", seconds(20), || {
        Ok(peer.enter(|| http::get(world.at(PORT), "/")).is_ok())
    })?;
    for _ in 0..20 {
        let got = peer.enter(|| http::get(world.at(PORT), "/"))?;
        ensure!(got == b"four", "{got:?}");
    }
    server.stop(Signal::TERM, seconds(20)).map(drop)
}

fn what_cannot_be_passed_is_refused(world: &World) -> Result<()> {
    let script = compile::script("passed_on.py");
    let words = [PYTHON, &script, "limits", "127.0.0.1"];
    let running = world.start_on_subject(at_loopback(world, &words))?;
    let ended = running.wait(seconds(60))?.success()?;
    let (said, errors) = (ended.text(), ended.error_text());
    ensure!(said.contains("all is as it should be"), "{said}");
    ensure!(errors.matches("ETOOMANYREFS").count() == 1, "{errors}");
    Ok(())
}

/// Starts one who receives and knows nothing of millrace, and gives it a connection of `program`'s.
fn give(world: &World, path: &str, mut give: Command) -> Result<(Process, Process)> {
    let script = compile::script("passed_on.py");
    let outside = world.start_on_subject(command(&[PYTHON, &script, "see", path]))?;
    wait_until("it listens", seconds(20), || {
        Ok(outside.stdout().contains("ready"))
    })?;
    give.stdin(Stdio::piped());
    let giver = world.start_on_subject(give)?;
    wait_until("it is received", seconds(20), || {
        Ok(giver.stdout().contains("given") && outside.stdout().contains("closed"))
    })?;
    Ok((outside, giver))
}

fn those_outside_see_a_closed_socket_and_pass_it_on(world: &World) -> Result<()> {
    use std::io::Write as _;
    let script = compile::script("passed_on.py");
    let path = world
        .directory()
        .join("path")
        .to_string_lossy()
        .into_owned();
    let words = [PYTHON, "-u", &script, "give", &path, "127.0.0.1"];
    let (outside, mut giver) = give(world, &path, at_loopback(world, &words))?;
    let mut input = giver.stdin().context("it has a standard input")?;
    input.write_all(b"back\n")?;
    let said = giver.wait(seconds(20))?.success()?.text();
    ensure!(said.ends_with("done\n"), "{said}");
    outside.wait(seconds(20))?.success().map(drop)
}
