//! What the engine's process may do, thread by thread, and what others may do to it.

use std::fs;
use std::process::Command;

use millrace_e2e::engine::{self, Engine};
use millrace_e2e::{
    Context as _, Link, Process, Result, SUBJECT, World, compile, ensure, load, on_millrace,
    scenario, seconds,
};
use rustix::process::{Pid, Signal};

on_millrace!(
    its_memory_is_kept_from_its_own_user,
    the_command_line_decides,
    whoever_is_not_root_stays_who_they_are,
);

mod threads_have_their_roles {
    use super::*;

    #[test]
    fn tap() {
        scenario::run_on_pipeline(Link::Tap, 1, 2, super::threads_have_their_roles);
    }

    #[test]
    fn xdp() {
        scenario::run_on_pipeline(Link::Xdp, 1, 2, super::threads_have_their_roles);
    }
}

const PORT: u16 = 7700;
const PYTHON: &str = "/usr/bin/python3";
/// A user without rights.
const NOBODY: u32 = 65534;
/// `CAP_SYS_RESOURCE`.
const RESOURCE: u64 = 1 << 24;

/// A field of a thread's `status`, as it is written there.
fn field(status: &str, name: &str) -> Result<String> {
    let lines = status.lines().filter_map(|line| line.split_once(":\t"));
    let mut found = lines.filter(|(key, _)| *key == name);
    let (_, value) = found
        .next()
        .with_context(|| format!("no {name}: {status}"))?;
    Ok(value.to_owned())
}

/// Name and `status` of each thread.
fn threads(pid: Pid) -> Result<Vec<(String, String)>> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))?;
    let status = tasks.flatten().map(|task| task.path().join("status"));
    // One that closes for a user may end meanwhile.
    let status = status.filter_map(|path| fs::read_to_string(path).ok());
    let named = status.map(|status| Ok((field(&status, "Name")?, status)));
    named.collect()
}

/// The user that the engine is, whichever of the four that a process is.
fn user(pid: Pid) -> Result<u32> {
    let (_, status) = threads(pid)?.into_iter().next().context("no thread")?;
    let users = field(&status, "Uid")?;
    let mut users = users.split('\t');
    let user = users.next().context("no user")?;
    ensure!(users.all(|other| other == user), "{status}");
    Ok(user.parse()?)
}

/// An engine with a server on it.
fn serve(world: &World, more: &[&str]) -> Result<(Engine, Process)> {
    let engine = Engine::up_with(world, more)?;
    let server = compile::program("server")?;
    let words = [&server[..], "echo", &SUBJECT.to_string(), &PORT.to_string()];
    let mut server = world.start_on_subject(engine.run(&words))?;
    world.wait_for_port(&mut server, PORT)?;
    Ok((engine, server))
}

fn converse(world: &World) -> Result<()> {
    let peer = world.peer_namespace();
    peer.enter(|| load::short_conversations(world.at(PORT), 200))
}

/// No thread has asked for a call that is not in its role's table.
fn ensure_none_refused(world: &World) -> Result<()> {
    let counters = engine::counters(world)?;
    ensure!(
        counters["process"]["calls_refused"].as_u64() == Some(0),
        "{counters}"
    );
    Ok(())
}

fn threads_have_their_roles(world: &World) -> Result<()> {
    let (engine, server) = serve(world, &["--shards-max", "3"])?;
    converse(world)?;
    engine::scale(world, Some(3))?;
    converse(world)?;
    engine::scale(world, Some(1))?;
    engine::sockets(world)?;
    let pid = engine::pid(world)?;
    ensure!(user(pid)? != 0, "the engine is root");
    let threads = threads(pid)?;
    // What this process has, an engine that it starts can keep.
    let own = fs::read_to_string("/proc/self/status")?;
    let resource = u64::from_str_radix(&field(&own, "CapPrm")?, 16)? & RESOURCE;
    for name in ["millrace-shard2", "millrace-io0"] {
        let is_there = threads.iter().any(|(own, _)| own == name);
        ensure!(is_there, "no {name}: {threads:?}");
    }
    for (name, status) in threads {
        let is_control = !["millrace-shard", "millrace-io", "millrace-close"]
            .iter()
            .any(|other| name.starts_with(other));
        let kept = if is_control { resource } else { 0 };
        for (set, expected) in [
            ("CapPrm", kept),
            ("CapEff", kept),
            ("CapInh", 0),
            ("CapAmb", 0),
            ("CapBnd", 0),
        ] {
            let set_of = u64::from_str_radix(&field(&status, set)?, 16)?;
            ensure!(set_of == expected, "{name}: {status}");
        }
        ensure!(
            field(&status, "Groups")?.trim().is_empty(),
            "{name}: {status}"
        );
        ensure!(field(&status, "NoNewPrivs")? == "1", "{name}: {status}");
        ensure!(field(&status, "Seccomp")? == "2", "{name}: {status}");
    }
    ensure_none_refused(world)?;
    server.stop(Signal::TERM, seconds(20))?;
    engine.down(world)
}

/// What of the engine a process of this user can get at: the names of the ways, one a line.
fn reached(world: &World, pid: Pid, user: u32) -> Result<String> {
    let script = compile::script("reach_process.py");
    let (pid, user) = (pid.as_raw_nonzero().to_string(), user.to_string());
    let mut command = Command::new(PYTHON);
    command.args([&script, &pid, &user]);
    let ended = world.start_on_subject(command)?.wait(seconds(20))?;
    Ok(ended.success()?.text())
}

fn its_memory_is_kept_from_its_own_user(world: &World) -> Result<()> {
    let (engine, server) = serve(world, &[])?;
    let pid = engine::pid(world)?;
    for user in [user(pid)?, NOBODY] {
        let reached = reached(world, pid, user)?;
        ensure!(reached.is_empty(), "user {user} reaches: {reached}");
    }
    server.stop(Signal::TERM, seconds(20))?;
    engine.down(world)
}

fn the_command_line_decides(world: &World) -> Result<()> {
    let more = ["--user", "4711", "--no-seccomp", "--dumpable"];
    let (engine, server) = serve(world, &more)?;
    let pid = engine::pid(world)?;
    ensure!(user(pid)? == 4711);
    for (name, status) in threads(pid)? {
        ensure!(field(&status, "Seccomp")? == "0", "{name}: {status}");
        ensure!(field(&status, "NoNewPrivs")? == "1", "{name}: {status}");
    }
    let reached = reached(world, pid, 4711)?;
    ensure!(reached.contains("memory\n"), "its user reaches: {reached}");
    server.stop(Signal::TERM, seconds(20))?;
    engine.down(world)?;
    let nobody = world.millrace(&[
        "run",
        "--loopback",
        "--user",
        "no-such-user",
        "--",
        "/bin/true",
    ]);
    let ended = world.start_on_subject(nobody)?.wait(seconds(20))?;
    ensure!(
        ended.error_text().contains("useradd"),
        "{}",
        ended.error_text()
    );
    Ok(())
}

fn whoever_is_not_root_stays_who_they_are(world: &World) -> Result<()> {
    let script = compile::script("as_user.py");
    let run = |more: &[&str]| -> Result<_> {
        let mut command = Command::new(PYTHON);
        let binary = millrace_e2e::world::millrace();
        command.arg(&script).arg(NOBODY.to_string()).arg(binary);
        command.args(["run", "--loopback"]).args(more).arg("--");
        let client = "import socket as s; l=s.create_server(('127.0.0.1',0)); s.create_connection(l.getsockname()); print('connected')";
        command.args([PYTHON, "-c", client]);
        world.start_on_subject(command)?.wait(seconds(20))
    };
    let ended = run(&[])?.success()?;
    ensure!(ended.text() == "connected\n", "{}", ended.text());
    let error = run(&["--user", "root"])?.error_text();
    ensure!(error.contains("without --user"), "{error}");
    Ok(())
}
