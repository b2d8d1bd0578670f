//! nginx: a master with two workers.

use std::fs;
use std::path::Path;

use millrace_e2e::content::{ensure_same, write_file};
use millrace_e2e::load::{fetch_while, hold};
use millrace_e2e::programs::Nginx;
use millrace_e2e::{
    Context as _, Link, Process, Result, World, ensure, http, on_both_stacks_and_a_pipeline,
    scenario, seconds, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

on_both_stacks_and_a_pipeline!(
    serves_files_of_every_size,
    serves_files_without_sendfile,
    keeps_connections_alive,
    opens_fast,
    holds_a_thousand_connections,
    p3_reload_under_load_loses_no_request,
    p3_binary_upgrade_under_load_loses_no_request,
    p4_reload_crashes_nothing,
);

const PORT: u16 = 80;
const SIZES: [(&str, usize); 5] = [
    ("0", 0),
    ("1", 1),
    ("4k", 4 << 10),
    ("1m", 1 << 20),
    ("100m", 100_000_000),
];

/// On shards of both kinds: with queues of the device, and with an I/O thread.
#[test]
fn keeps_connections_alive_over_xdp_on_mixed_shards() {
    scenario::run_mixed(Link::Xdp, 3, keeps_connections_alive);
}

/// Starts nginx in the foreground, with `http` in its `http` block.
fn start(world: &World, http: &str) -> Result<Process> {
    start_as(world, "daemon off;", http)
}

/// As [`start`], with `main` at the top of the configuration. Its master has written its pid and
/// has two workers.
fn start_as(world: &World, main: &str, http: &str) -> Result<Process> {
    let words = Nginx {
        port: PORT,
        main,
        http,
        server: "",
    }
    .configure(world)?;
    let server = world.serve(&words, PORT)?;
    let file = world.directory().join("nginx.pid");
    wait_until("nginx has two workers", seconds(15), || {
        Ok(master(&file).is_ok_and(|pid| workers(pid).is_ok_and(|workers| workers.len() == 2)))
    })?;
    Ok(server)
}

/// The master that a pid file names.
fn master(file: &Path) -> Result<Pid> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    text.trim()
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .context("a pid file holds a number")
}

/// nginx has ended well.
fn stop(world: &World, server: Process) -> Result<()> {
    kill_process(master(&world.directory().join("nginx.pid"))?, Signal::QUIT)?;
    server.wait(seconds(15))?.success().map(|_| ())
}

fn serves_files_of_every_size(world: &World) -> Result<()> {
    serves_files(world, "sendfile on;")
}

fn serves_files_without_sendfile(world: &World) -> Result<()> {
    serves_files(world, "sendfile off;")
}

fn serves_files(world: &World, more: &str) -> Result<()> {
    let server = start(world, more)?;
    for (name, size) in SIZES {
        let (file, got) = (
            world.directory().join("www").join(name),
            world.directory().join("got"),
        );
        write_file(&file, 1 + size as u64, size)?;
        let url = format!("http://{}/{name}", world.at(PORT));
        world.run_on_peer(
            &["curl", "-sS", "--fail", "-o", &got.to_string_lossy(), &url],
            seconds(30),
        )?;
        ensure_same(&file, &got)?;
        fs::remove_file(&got)?;
    }
    stop(world, server)
}

/// curl's second request comes with the SYN (RFC 7413): the kernel at its end counts those that
/// were taken.
fn opens_fast(world: &World) -> Result<()> {
    const FAST: u16 = 81;
    world.subject_namespace().set("ipv4.tcp_fastopen", "3")?;
    let words = Nginx {
        port: PORT,
        main: "daemon off;",
        http: "",
        server: &format!("listen {FAST} fastopen=16;"),
    }
    .configure(world)?;
    let server = world.serve(&words, PORT)?;
    let file = world.directory().join("www").join("page");
    write_file(&file, 1, 1000)?;
    let url = format!("http://{}/page", world.at(FAST));
    for _ in 0..3 {
        let words = [
            "curl",
            "-sS",
            "--fail",
            "--tcp-fastopen",
            "-o",
            "/dev/null",
            &url,
        ];
        world.run_on_peer(&words, seconds(10))?;
    }
    let counters = world.run_on_peer(&["cat", "/proc/net/netstat"], seconds(10))?;
    let counters = counters.text();
    let mut lines = counters.lines().filter(|line| line.starts_with("TcpExt:"));
    let names = lines.next().context("names")?.split(' ');
    let values = lines.next().context("values")?.split(' ');
    let taken = names
        .zip(values)
        .find(|(name, _)| *name == "TCPFastOpenActive");
    ensure!(taken.is_some_and(|(_, count)| count == "2"), "{taken:?}");
    stop(world, server)
}

fn keeps_connections_alive(world: &World) -> Result<()> {
    let server = start(world, "")?;
    write_file(&world.directory().join("www/4k"), 1, 4096)?;
    let url = format!("http://{}/4k", world.at(PORT));
    let said = world
        .run_on_peer(
            &["ab", "-q", "-k", "-c", "50", "-n", "20000", &url],
            seconds(60),
        )?
        .text();
    for line in [
        "Complete requests:      20000",
        "Failed requests:        0",
        "Keep-Alive requests:    20000",
        "HTML transferred:       81920000 bytes",
    ] {
        ensure!(said.contains(line), "ab does not say {line:?}:\n{said}");
    }
    stop(world, server)
}

fn holds_a_thousand_connections(world: &World) -> Result<()> {
    let server = start(world, "")?;
    fs::write(world.directory().join("www/1"), "x")?;
    world.peer_namespace().enter(|| -> Result<()> {
        let mut streams = hold(world.at(PORT), 1000)?;
        for round in 0..2 {
            for (number, stream) in streams.iter_mut().enumerate() {
                let body = http::get_on(stream, "/1")
                    .with_context(|| format!("round {round}, connection {number}"))?;
                ensure!(body == b"x");
            }
        }
        Ok(())
    })?;
    stop(world, server)
}

fn p3_reload_under_load_loses_no_request(world: &World) -> Result<()> {
    let server = start(world, "")?;
    write_file(&world.directory().join("www/4k"), 1, 4096)?;
    let body = fs::read(world.directory().join("www/4k"))?;
    let master = master(&world.directory().join("nginx.pid"))?;
    fetch_while(
        world.peer_namespace(),
        world.at(PORT),
        "/4k",
        &body,
        (8, 100),
        || {
            for _ in 0..4 {
                let before = workers(master)?;
                kill_process(master, Signal::HUP)?;
                wait_until("new workers have replaced the old", seconds(15), || {
                    let now = workers(master)?;
                    Ok(now.len() == 2 && now.iter().all(|pid| !before.contains(pid)))
                })?;
            }
            Ok(())
        },
    )?;
    stop(world, server)
}

fn p3_binary_upgrade_under_load_loses_no_request(world: &World) -> Result<()> {
    // nginx takes the signal only as a daemon.
    let server = start_as(world, "daemon on;", "")?;
    write_file(&world.directory().join("www/4k"), 1, 4096)?;
    let body = fs::read(world.directory().join("www/4k"))?;
    let (new_pid, old_pid) = (
        world.directory().join("nginx.pid"),
        world.directory().join("nginx.pid.oldbin"),
    );
    let upgrade = || -> Result<()> {
        let old = master(&new_pid)?;
        // nginx takes no order to upgrade as long as the process that has started it is there.
        wait_until("its parent has gone", seconds(15), || {
            Ok(!is_child_of_nginx(old)?)
        })?;
        kill_process(old, Signal::USR2)?;
        wait_until("the new master has written its pid", seconds(15), || {
            Ok(old_pid.exists() && master(&new_pid).is_ok_and(|pid| pid != old))
        })?;
        let new = master(&new_pid)?;
        wait_until("the new master has workers", seconds(15), || {
            Ok(workers(new)?.len() == 2)
        })?;
        kill_process(old, Signal::QUIT)?;
        wait_until("the old master has gone", seconds(15), || {
            Ok(!old_pid.exists() && !is_child_of_nginx(new)?)
        })
    };
    fetch_while(
        world.peer_namespace(),
        world.at(PORT),
        "/4k",
        &body,
        (8, 100),
        || (0..3).try_for_each(|_| upgrade()),
    )
    .with_context(|| format!("nginx says:\n{}", server.stderr()))?;
    let got = world
        .peer_namespace()
        .enter(|| http::get(world.at(PORT), "/4k"))?;
    ensure!(got == body);
    kill_process(master(&new_pid)?, Signal::QUIT)?;
    wait_until("the last master has gone", seconds(15), || {
        Ok(!new_pid.exists())
    })?;
    server.wait(seconds(15))?.success().map(|_| ())
}

fn p4_reload_crashes_nothing(world: &World) -> Result<()> {
    let server = start(world, "")?;
    fs::write(world.directory().join("www/1"), "x")?;
    let master = master(&world.directory().join("nginx.pid"))?;
    for round in 0..20 {
        kill_process(master, Signal::HUP)?;
        let body = world
            .peer_namespace()
            .enter(|| http::get(world.at(PORT), "/1"))
            .with_context(|| format!("after reload {round}"))?;
        ensure!(body == b"x");
    }
    stop(world, server)
}

/// Whether a process's parent is nginx too.
fn is_child_of_nginx(pid: Pid) -> Result<bool> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    let parent = status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:"))
        .context("a process has a parent")?;
    let name = fs::read_to_string(format!("/proc/{}/comm", parent.trim())).unwrap_or_default();
    Ok(name.trim() == "nginx")
}

/// Worker processes of a master.
fn workers(master: Pid) -> Result<Vec<i32>> {
    let children = fs::read_to_string(format!(
        "/proc/{0}/task/{0}/children",
        master.as_raw_nonzero()
    ))?;
    let children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    // Those that end still stand among the children.
    let is_worker = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.contains("worker process") && !line.contains("shutting down"))
    };
    Ok(children.filter(is_worker).collect())
}
