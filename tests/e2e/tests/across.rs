//! Sockets that travel in messages (SCM_RIGHTS) from one program of an engine to another, each
//! started by a `millrace run` of its own.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use millrace_e2e::engine::{self, Engine};
use millrace_e2e::{
    Context as _, Process, Result, Stack, World, command, compile, ensure, http, load,
    on_both_stacks_and_two_shards, seconds, wait_until,
};
use rustix::process::Signal;

on_both_stacks_and_two_shards!(
    what_is_passed_goes_on_there,
    what_both_keep_serves_both,
    who_is_killed_leaves_it_to_the_other,
    a_launcher_that_ends_leaves_its_listener,
    a_worker_serves_what_a_parent_accepts,
    haproxy_takes_the_listeners_of_another_program,
);

const PYTHON: &str = "/usr/bin/python3";
const PORT: u16 = 8000;

/// What programs are started on: the kernel, or one engine.
struct Stage {
    engine: Option<Engine>,
}

impl Stage {
    /// `more`: for the engine.
    fn set(world: &World, more: &[&str]) -> Result<Stage> {
        let engine = match world.stack {
            Stack::Kernel => None,
            Stack::Millrace => Some(Engine::up_with(world, more)?),
        };
        Ok(Stage { engine })
    }

    /// A program of its own.
    fn program(&self, words: &[&str]) -> Command {
        match &self.engine {
            None => command(words),
            Some(engine) => engine.run(words),
        }
    }

    /// How many sockets have gone from one program to another so far is `least` at least.
    fn strike(self, world: &World, least: u64) -> Result<()> {
        let Some(engine) = self.engine else {
            return Ok(());
        };
        let counters = engine::counters(world)?;
        let foreign = counters["in_flight"]["foreign"].as_u64();
        ensure!(foreign >= Some(least), "{counters}");
        engine.down(world)
    }
}

fn path_in(world: &World, name: &str) -> String {
    let path = world.directory().join(name);
    path.to_string_lossy().into_owned()
}

/// Runs cases of `across.py` between two programs. Where one is killed another takes its place.
fn run_cases(world: &World, cases: &[&str], least: u64) -> Result<()> {
    let stage = Stage::set(world, &["--loopback"])?;
    let (script, path) = (compile::script("across.py"), path_in(world, "path"));
    let words = [PYTHON, "-u", &script, "serve", &path];
    let mut server = world.start_on_subject(stage.program(&words))?;
    let words = [PYTHON, "-u", &script, "drive", &path, "127.0.0.1"];
    let mut driver = stage.program(&[&words, cases].concat());
    driver.stdin(Stdio::piped());
    let mut driver = world.start_on_subject(driver)?;
    let mut input = driver.stdin().context("it has a standard input")?;
    let mut killed = 0;
    let all = |driver: &Process| driver.stdout().matches("passed ").count() == cases.len();
    while !all(&driver) {
        wait_until("a case has passed", seconds(60), || {
            driver.ensure_not_failed()?;
            let wants = driver.stdout().matches("another").count();
            Ok(wants > killed || all(&driver))
        })?;
        if driver.stdout().matches("another").count() > killed {
            killed += 1;
            drop(server.wait(seconds(20))?);
            let words = [PYTHON, "-u", &script, "serve", &path];
            server = world.start_on_subject(stage.program(&words))?;
            input.write_all(b"\n")?;
        }
    }
    driver.wait(seconds(20))?.success()?;
    server.wait(seconds(20))?.success()?;
    stage.strike(world, least)
}

fn what_is_passed_goes_on_there(world: &World) -> Result<()> {
    let cases = [
        "unread",
        "unsent",
        "half_closed",
        "waiting",
        "many",
        "datagrams",
    ];
    run_cases(world, &cases, 10)
}

fn what_both_keep_serves_both(world: &World) -> Result<()> {
    let cases = [
        "shared_connection",
        "shared_listener",
        "asleep",
        "there_and_back",
    ];
    run_cases(world, &cases, 5)
}

fn who_is_killed_leaves_it_to_the_other(world: &World) -> Result<()> {
    let cases = [
        "killed_with_a_connection",
        "killed_with_a_listener",
        "shared_datagrams",
    ];
    run_cases(world, &cases, 3)
}

/// The launcher has ended before anybody receives its message.
fn a_launcher_that_ends_leaves_its_listener(world: &World) -> Result<()> {
    const LAUNCH: &str = "import socket, sys\nlink = socket.socket(socket.AF_UNIX)\nlink.connect(sys.argv[1])\n\
        listener = socket.create_server((sys.argv[2], int(sys.argv[3])))\n\
        socket.send_fds(link, [b'it'], [listener.fileno()])\n";
    const SERVE: &str = "import os, socket, sys\nhere = socket.socket(socket.AF_UNIX)\nhere.bind(sys.argv[1])\nhere.listen()\n\
        print('ready', flush=True)\nlink = here.accept()[0]\nsys.stdin.readline()\n\
        listener = socket.socket(fileno=socket.recv_fds(link, 10, 1)[1][0])\nprint('received', flush=True)\n\
        while True:\n    kept = listener.accept()[0]\n    kept.recv(1000)\n    \
        kept.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\nfour')\n    kept.close()\n";
    let stage = Stage::set(world, &[])?;
    let path = path_in(world, "path");
    let mut serve = stage.program(&[PYTHON, "-c", SERVE, &path]);
    serve.stdin(Stdio::piped());
    let mut server = world.start_on_subject(serve)?;
    wait_until("it waits for a listener", seconds(20), || {
        server.ensure_not_failed()?;
        Ok(server.stdout().contains("ready"))
    })?;
    let (ip, port) = (world.at(PORT).ip().to_string(), PORT.to_string());
    let launch = stage.program(&[PYTHON, "-c", LAUNCH, &path, &ip, &port]);
    world
        .start_on_subject(launch)?
        .wait(seconds(20))?
        .success()?;
    let mut input = server.stdin().context("it has a standard input")?;
    input.write_all(b"\n")?;
    let peer = world.peer_namespace();
    wait_until("it has received it", seconds(20), || {
        server.ensure_not_failed()?;
        Ok(server.stdout().contains("received"))
    })?;
    for _ in 0..20 {
        let got = peer.enter(|| http::get(world.at(PORT), "/"))?;
        ensure!(got == b"four", "{got:?}");
    }
    server.stop(Signal::TERM, seconds(20))?;
    stage.strike(world, 1)
}

/// A parent that accepts hands each connection to a program that answers, and closes its own.
fn a_worker_serves_what_a_parent_accepts(world: &World) -> Result<()> {
    const PARENT: &str = "import socket, sys\nlink = socket.socket(socket.AF_UNIX)\nlink.connect(sys.argv[1])\n\
        listener = socket.create_server((sys.argv[2], int(sys.argv[3])), backlog=64)\n\
        while True:\n    kept = listener.accept()[0]\n    socket.send_fds(link, [b'i'], [kept.fileno()])\n    kept.close()\n";
    const WORKER: &str = "import socket, sys, threading\nhere = socket.socket(socket.AF_UNIX)\nhere.bind(sys.argv[1])\nhere.listen()\n\
        print('ready', flush=True)\nlink = here.accept()[0]\nbody = open(sys.argv[2], 'rb').read()\n\
        def answer(kept):\n    kept.recv(1000)\n    \
        kept.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n' % len(body) + body)\n    kept.close()\n\
        while True:\n    fds = socket.recv_fds(link, 1, 1)[1]\n    if not fds:\n        break\n    \
        threading.Thread(target=answer, args=(socket.socket(fileno=fds[0]),), daemon=True).start()\n";
    let stage = Stage::set(world, &[])?;
    let (path, body) = (path_in(world, "path"), world.directory().join("body"));
    millrace_e2e::content::write_file(&body, 5, 100_000)?;
    let expected = fs::read(&body)?;
    let words = [PYTHON, "-c", WORKER, &path, &body.to_string_lossy()];
    let worker = world.start_on_subject(stage.program(&words))?;
    wait_until("the worker waits", seconds(20), || {
        Ok(worker.stdout().contains("ready"))
    })?;
    let (ip, port) = (world.at(PORT).ip().to_string(), PORT.to_string());
    let parent = stage.program(&[PYTHON, "-c", PARENT, &path, &ip, &port]);
    let mut parent = world.start_on_subject(parent)?;
    let peer = world.peer_namespace();
    wait_until("it answers", seconds(20), || {
        parent.ensure_not_failed()?;
        Ok(peer.enter(|| http::get(world.at(PORT), "/")).is_ok())
    })?;
    load::fetch_while(peer, world.at(PORT), "/", &expected, (4, 4), || {
        for _ in 0..50 {
            let got = peer.enter(|| http::get(world.at(PORT), "/"))?;
            ensure!(got == expected, "{} bytes came", got.len());
        }
        Ok(())
    })?;
    parent.stop(Signal::TERM, seconds(20))?;
    worker.wait(seconds(20))?.success()?;
    stage.strike(world, 50)
}

/// A new HAProxy takes the listeners of one that was started by itself (`-x`), and no request is
/// lost.
fn haproxy_takes_the_listeners_of_another_program(world: &World) -> Result<()> {
    let stage = Stage::set(world, &[])?;
    let root = world.directory().to_string_lossy().into_owned();
    let (config, stats) = (format!("{root}/haproxy.cfg"), format!("{root}/stats"));
    let text = format!(
        "global\n  stats socket {stats} mode 600 level admin expose-fd listeners\n  hard-stop-after 10s\n\
         defaults\n  mode http\n  timeout client 5s\n  timeout server 5s\n  timeout connect 5s\n\
         frontend front\n  bind {}\n  http-request return status 200 content-type text/plain string \"as it was\"\n",
        world.at(PORT)
    );
    fs::write(&config, text)?;
    let start = |more: &[&str]| {
        let words = [&["haproxy", "-db", "-f", &config], more].concat();
        world.start_on_subject(stage.program(&words))
    };
    let mut server = start(&[])?;
    world.wait_for_port(&mut server, PORT)?;
    let peer = world.peer_namespace();
    let mut server = load::fetch_while(peer, world.at(PORT), "/", b"as it was", (4, 4), || {
        for _ in 0..5 {
            let old = haproxy_of(&server)?.to_string();
            let next = start(&["-x", &stats, "-sf", &old])?;
            let before = std::mem::replace(&mut server, next);
            before.wait(seconds(30))?.success()?;
            server.ensure_not_failed()?;
        }
        Ok(server)
    })?;
    server.ensure_not_failed()?;
    let got = peer.enter(|| http::get(world.at(PORT), "/"))?;
    ensure!(got == b"as it was", "{got:?}");
    let pid = haproxy_of(&server)?;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).context("a pid")?,
        Signal::USR1,
    )?;
    server.wait(seconds(30))?.success()?;
    stage.strike(world, 5)
}

/// The process of HAProxy's: itself, or the one that `millrace run` has started.
fn haproxy_of(server: &Process) -> Result<i32> {
    let pid = server.pid().as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let child = children.split_whitespace().next();
    let name = fs::read_to_string(format!("/proc/{pid}/comm"))?;
    match child.filter(|_| name.trim() != "haproxy") {
        Some(child) => Ok(child.parse()?),
        None => Ok(pid.get()),
    }
}
