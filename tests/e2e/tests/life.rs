//! How things begin and end: exit status, signals, and the death of either side.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::thread;

use millrace_e2e::content::{ensure_same, write_file};
use millrace_e2e::engine::{self, Engine};
use millrace_e2e::{
    Context as _, PEER, Process, Result, SUBJECT, World, compile, ensure, http, load,
    on_both_stacks_and_two_shards, on_millrace, seconds, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

on_both_stacks_and_two_shards!(
    the_exit_status_is_the_programs,
    output_and_input_pass_through,
    sigint_and_sigterm_reach_the_program,
    a_killed_program_resets_its_connections,
    a_program_that_ends_closes_its_connections,
);

on_millrace!(
    a_killed_engine_fails_calls_and_hangs_none,
    a_killed_engine_wakes_an_event_loop,
    a_killed_program_frees_what_it_held,
    a_program_that_scribbles_harms_itself_alone,
    an_engine_serves_several_programs,
    a_daemon_keeps_its_engine,
    ss_shows_connections_and_listeners,
    sockets_of_other_kinds_go_to_the_kernel,
);

const PORT: u16 = 7001;
const PYTHON: &str = "/usr/bin/python3";

/// `blocking.py` on the stack under test, listening.
fn start_blocking(world: &World) -> Result<Process> {
    let server = world.subject(&[
        PYTHON,
        &compile::script("blocking.py"),
        &SUBJECT.to_string(),
        &PORT.to_string(),
    ])?;
    wait_until("the server listens", seconds(10), || {
        Ok(server.stdout().contains("ready"))
    })?;
    Ok(server)
}

/// A connection from the peer.
fn connect(world: &World) -> Result<TcpStream> {
    Ok(world
        .peer_namespace()
        .enter(|| http::connect(world.at(PORT)))?)
}

/// The process with this name in its command line, `millrace` itself excepted.
fn find_process(world: &World, name: &str) -> Result<Pid> {
    let matches = |pid: &Pid| {
        let line = fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero()))
            .unwrap_or_default();
        let first = line.split('\0').next().unwrap_or_default();
        line.contains(name) && !first.ends_with("millrace") && !first.starts_with("millrace")
    };
    world
        .subject_namespace()
        .processes()?
        .into_iter()
        .find(matches)
        .with_context(|| format!("no process {name}"))
}

fn the_exit_status_is_the_programs(world: &World) -> Result<()> {
    for (script, expected) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let ended = world.subject(&["sh", "-c", script])?.wait(seconds(15))?;
        ensure!(
            ended.shell_status() == expected,
            "{script:?}: {} and {:?}",
            ended.status,
            ended.error_text()
        );
    }
    Ok(())
}

fn output_and_input_pass_through(world: &World) -> Result<()> {
    let mut command = world.on_subject(&["sh", "-c", "cat; echo to-stderr >&2; pwd"]);
    command.stdin(Stdio::piped()).current_dir("/usr");
    let mut running = world.start_on_subject(command)?;
    running
        .stdin()
        .context("a pipe")?
        .write_all(b"from-stdin\n")?;
    let ended = running.wait(seconds(15))?.success()?;
    ensure!(ended.text() == "from-stdin\n/usr\n", "{:?}", ended.text());
    ensure!(
        ended.error_text().contains("to-stderr"),
        "{:?}",
        ended.error_text()
    );
    Ok(())
}

fn sigint_and_sigterm_reach_the_program(world: &World) -> Result<()> {
    for (signal, name, status) in [(Signal::INT, "INT", 3), (Signal::TERM, "TERM", 4)] {
        let script = format!(
            "trap 'echo got {name}; exit {status}' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let running = world.subject(&["sh", "-c", &script])?;
        wait_until("the program runs", seconds(10), || {
            Ok(running.stdout().contains("ready"))
        })?;
        let ended = running.stop(signal, seconds(10))?;
        ensure!(
            ended.text().contains(&format!("got {name}")) && ended.status.code() == Some(status),
            "{} {:?}",
            ended.status,
            ended.text()
        );
    }
    Ok(())
}

fn a_killed_program_resets_its_connections(world: &World) -> Result<()> {
    // Bytes that the program has not read are lost with it: the peer learns that by a reset.
    let server = start_blocking(world)?;
    let mut idle = connect(world)?;
    wait_until("the first is accepted", seconds(10), || {
        Ok(server.stdout().contains("accept ok"))
    })?;
    let mut unread = connect(world)?;
    unread.write_all(b"nobody reads this")?;
    kill_process(find_process(world, "blocking.py")?, Signal::KILL)?;
    ensure!(server.wait(seconds(15))?.shell_status() == 137);
    let mut buffer = [0; 16];
    ensure!(
        matches!(idle.read(&mut buffer), Ok(0)),
        "a connection with nothing unread ends well"
    );
    let error = unread.read(&mut buffer).err().map(|error| error.kind());
    ensure!(error == Some(ErrorKind::ConnectionReset), "{error:?}");
    Ok(())
}

fn a_program_that_ends_closes_its_connections(world: &World) -> Result<()> {
    // It writes, then ends without closing: everything arrives, then the end of the stream.
    let script = format!(
        "import socket, os\nlistener = socket.create_server(('{SUBJECT}', {PORT}))\nprint('ready', flush=True)\n\
         connection = listener.accept()[0]\nconnection.sendall(b'x' * 300000)\nos._exit(5)"
    );
    let server = world.subject(&[PYTHON, "-c", &script])?;
    wait_until("the server listens", seconds(10), || {
        Ok(server.stdout().contains("ready"))
    })?;
    let mut stream = connect(world)?;
    let mut got = Vec::new();
    stream.read_to_end(&mut got)?;
    ensure!(got == [b'x'; 300_000], "{} bytes", got.len());
    ensure!(server.wait(seconds(15))?.status.code() == Some(5));
    Ok(())
}

fn a_killed_engine_fails_calls_and_hangs_none(world: &World) -> Result<()> {
    let server = start_blocking(world)?;
    let mut stream = connect(world)?;
    stream.write_all(b"hello")?;
    wait_until("the server waits in recv", seconds(10), || {
        Ok(server.stdout().contains("recv 5"))
    })?;
    engine::kill(world)?;
    // It goes on to its end: each of its calls returns.
    let ended = server.wait(seconds(15))?;
    let said = ended.text();
    let after: Vec<&str> = said
        .lines()
        .skip_while(|line| *line != "recv 5")
        .skip(1)
        .collect();
    ensure!(after.len() == 5, "{said}");
    ensure!(
        after.iter().all(|line| line
            .split(' ')
            .nth(1)
            .is_some_and(|outcome| outcome.starts_with('E'))),
        "{said}"
    );
    Ok(())
}

fn a_killed_engine_wakes_an_event_loop(world: &World) -> Result<()> {
    let script = "import socket, select, sys\n\
                  listener = socket.create_server((sys.argv[1], int(sys.argv[2])))\nprint('ready', flush=True)\n\
                  connection = listener.accept()[0]\nconnection.setblocking(False)\n\
                  poll = select.epoll()\npoll.register(connection, select.EPOLLIN)\nprint('waiting', flush=True)\n\
                  events = poll.poll()\nassert events[0][1] & (select.EPOLLERR | select.EPOLLHUP), events\n\
                  try:\n    connection.recv(1)\nexcept OSError as error:\n    print('error', error.errno, flush=True)\n";
    let server = world.subject(&[
        PYTHON,
        "-c",
        script,
        &SUBJECT.to_string(),
        &PORT.to_string(),
    ])?;
    wait_until("the server listens", seconds(10), || {
        Ok(server.stdout().contains("ready"))
    })?;
    let _stream = connect(world)?;
    wait_until("the server waits", seconds(10), || {
        Ok(server.stdout().contains("waiting"))
    })?;
    engine::kill(world)?;
    let ended = server.wait(seconds(15))?;
    ensure!(
        ended.text().contains("error "),
        "{:?} {:?}",
        ended.text(),
        ended.error_text()
    );
    Ok(())
}

fn a_killed_program_frees_what_it_held(world: &World) -> Result<()> {
    let engine = Engine::up(world)?;
    let program = compile::program("server")?;
    for _ in 0..3 {
        let server = world.start_on_subject(engine.run(&[
            &program,
            "echo",
            &SUBJECT.to_string(),
            &PORT.to_string(),
        ]))?;
        wait_until("the server listens", seconds(10), || {
            Ok(server.stdout().contains("ready"))
        })?;
        let mut streams = world
            .peer_namespace()
            .enter(|| load::hold(world.at(PORT), 200))?;
        load::echo_on_all(&mut streams)?;
        engine::wait_for_connections(world, 200)?;
        kill_process(find_process(world, "programs/server")?, Signal::KILL)?;
        ensure!(server.wait(seconds(15))?.shell_status() == 137);
        let mut buffer = [0; 1];
        let is_over = |mut stream: TcpStream| !matches!(stream.read(&mut buffer), Ok(1..));
        ensure!(
            streams.into_iter().all(is_over),
            "every connection has ended"
        );
        wait_until("no socket is left", seconds(10), || {
            Ok(engine::sockets(world)?
                .iter()
                .all(|socket| socket["state"] == "TIME-WAIT"))
        })?;
    }
    engine.down(world)
}

/// nginx on the peer with one file of `len` bytes; its URL.
fn file_on_peer(world: &World, len: usize) -> Result<(Process, String)> {
    fs::create_dir_all(world.directory().join("www"))?;
    write_file(&world.directory().join("www/file"), 9, len)?;
    let server = world.serve_on_peer(
        &[
            PYTHON,
            "-m",
            "http.server",
            "8080",
            "--directory",
            &world.directory().join("www").to_string_lossy(),
        ],
        8080,
    )?;
    Ok((server, format!("http://{PEER}:8080/file")))
}

fn a_program_that_scribbles_harms_itself_alone(world: &World) -> Result<()> {
    let engine = Engine::up(world)?;
    let (_server, url) = file_on_peer(world, 100_000_000)?;
    let sink = compile::program("server")?;
    let _sink = world.serve_on_peer(&[&sink, "sink", "0.0.0.0", "9999"], 9999)?;
    let mad = compile::program("scribble")?;
    let mad = world.start_on_subject(engine.run(&[&mad, &PEER.to_string(), "9999", "4"]))?;
    wait_until("the program scribbles", seconds(10), || {
        Ok(mad.stdout().contains("scribbled"))
    })?;
    for round in 0..3 {
        let got = world.directory().join("got");
        let curl = engine.run(&["curl", "-sS", "--fail", "-o", &got.to_string_lossy(), &url]);
        world
            .start_on_subject(curl)?
            .wait(seconds(30))?
            .success()
            .with_context(|| format!("transfer {round}"))?;
        ensure_same(&world.directory().join("www/file"), &got)?;
    }
    mad.wait(seconds(20))?;
    // The engine lives, and has nothing left of the mad program.
    wait_until("no connection is left", seconds(20), || {
        Ok(engine::connections(world)? == 0)
    })?;
    engine.down(world)
}

fn an_engine_serves_several_programs(world: &World) -> Result<()> {
    let engine = Engine::up(world)?;
    let (_server, url) = file_on_peer(world, 10_000_000)?;
    let transfer = |number: usize| -> Result<()> {
        let got = world.directory().join(format!("got{number}"));
        world
            .start_on_subject(engine.run(&[
                "curl",
                "-sS",
                "--fail",
                "-o",
                &got.to_string_lossy(),
                &url,
            ]))?
            .wait(seconds(30))?
            .success()?;
        ensure_same(&world.directory().join("www/file"), &got)
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..6)
            .map(|number| scope.spawn(move || transfer(number)))
            .collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a transfer does not panic"))
    })?;
    // Two programs cannot have one port: the second is told so, as by the kernel.
    let words = [
        &compile::program("server")?,
        "echo",
        &SUBJECT.to_string(),
        &PORT.to_string(),
    ];
    let first = world.start_on_subject(engine.run(&words))?;
    wait_until("the first listens", seconds(10), || {
        Ok(first.stdout().contains("ready"))
    })?;
    let second = world
        .start_on_subject(engine.run(&words))?
        .wait(seconds(15))?;
    ensure!(
        second.status.code() == Some(1) && second.error_text().contains("Address already in use"),
        "{:?}",
        second.error_text()
    );
    first.stop(Signal::TERM, seconds(15))?;
    engine.down(world)
}

fn a_daemon_keeps_its_engine(world: &World) -> Result<()> {
    let program = compile::program("server")?;
    // As a daemon it leaves the process group, which ends with the command.
    let line =
        format!("setsid sh -c '{program} echo {SUBJECT} {PORT} >/dev/null 2>&1 &'; echo started");
    world.run_on_subject(&["sh", "-c", &line], seconds(20))?;
    wait_until("the daemon serves", seconds(10), || {
        Ok(connect(world).is_ok())
    })?;
    let mut streams = world
        .peer_namespace()
        .enter(|| load::hold(world.at(PORT), 10))?;
    load::echo_on_all(&mut streams)?;
    drop(streams);
    // With its last process the engine ends, which is checked when the world ends.
    kill_process(find_process(world, "programs/server")?, Signal::TERM).map_err(Into::into)
}

fn ss_shows_connections_and_listeners(world: &World) -> Result<()> {
    let program = compile::program("server")?;
    let server = world.serve(
        &[&program, "echo", &SUBJECT.to_string(), &PORT.to_string()],
        PORT,
    )?;
    let mut streams = world
        .peer_namespace()
        .enter(|| load::hold(world.at(PORT), 3))?;
    load::echo_on_all(&mut streams)?;
    engine::wait_for_connections(world, 3)?;
    let sockets = engine::sockets(world)?;
    let pid = i64::from(
        find_process(world, "programs/server")?
            .as_raw_nonzero()
            .get(),
    );
    let listeners: Vec<_> = sockets
        .iter()
        .filter(|socket| socket["state"] == "LISTEN")
        .collect();
    ensure!(
        listeners.len() == 1 && listeners[0]["local"] == format!("{SUBJECT}:{PORT}"),
        "{listeners:?}"
    );
    for stream in &streams {
        let remote = stream.local_addr()?.to_string();
        let row = sockets
            .iter()
            .find(|socket| socket["remote"] == remote)
            .with_context(|| format!("{remote} is not in {sockets:?}"))?;
        ensure!(
            row["state"] == "ESTAB" && row["local"] == format!("{SUBJECT}:{PORT}"),
            "{row}"
        );
        ensure!(row["receive_queue"] == 0 && row["send_queue"] == 0, "{row}");
        ensure!(
            row["pids"]
                .as_array()
                .is_some_and(|pids| pids.iter().any(|value| value.as_i64() == Some(pid))),
            "{row}, pid {pid}"
        );
        for field in ["cwnd", "rtt_us", "retransmits"] {
            ensure!(row["tcp"][field].is_u64(), "{field} in {row}");
        }
    }
    let table = world
        .start_on_subject(world.millrace(&["ss"]))?
        .wait(seconds(10))?
        .success()?
        .text();
    ensure!(
        table.lines().count() == 5 && table.contains("LISTEN") && table.contains("ESTAB"),
        "{table}"
    );
    server.stop(Signal::TERM, seconds(15)).map(|_| ())
}

fn sockets_of_other_kinds_go_to_the_kernel(world: &World) -> Result<()> {
    let script = compile::script("other_kinds.py");
    world
        .run_on_subject(&[PYTHON, &script], seconds(20))
        .map(|_| ())
}
