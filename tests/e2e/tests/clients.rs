//! Clients on the stack under test, with servers on the peer's kernel.

use std::fs;
use std::os::unix::fs::chown;

use millrace_e2e::content::{ensure_same, write_file};
use millrace_e2e::programs::Nginx;
use millrace_e2e::{PEER, Process, Result, World, ensure, on_both_stacks, seconds};
use rustix::process::Signal;

on_both_stacks!(
    curl_downloads,
    curl_uploads,
    curl_downloads_many_at_once,
    ab_with_and_without_keep_alive,
    a_closed_port_refuses,
    an_address_that_nobody_has_is_unreachable
);

const PORT: u16 = 8080;
/// The user of Debian's web servers.
const WWW_DATA: u32 = 33;

/// nginx on the peer, with a directory that takes uploads.
fn serve(world: &World) -> Result<Process> {
    fs::create_dir_all(world.directory().join("www/up"))?;
    let uploads = "location /up/ { dav_methods PUT; }";
    let nginx = Nginx {
        port: PORT,
        main: "daemon off;",
        http: "client_max_body_size 1g;",
        server: uploads,
    };
    let words = nginx.configure(world)?;
    chown(
        world.directory().join("www/up"),
        Some(WWW_DATA),
        Some(WWW_DATA),
    )?;
    world.serve_on_peer(&words, PORT)
}

fn url(path: &str) -> String {
    format!("http://{PEER}:{PORT}/{path}")
}

fn stop(server: Process) -> Result<()> {
    server
        .stop(Signal::TERM, seconds(15))?
        .success()
        .map(|_| ())
}

fn curl_downloads(world: &World) -> Result<()> {
    let server = serve(world)?;
    for size in [0, 1, 4 << 10, 1 << 20, 100_000_000] {
        let (file, got) = (
            world.directory().join("www/file"),
            world.directory().join("got"),
        );
        write_file(&file, 3 + size as u64, size)?;
        world.run_on_subject(
            &[
                "curl",
                "-sS",
                "--fail",
                "-o",
                &got.to_string_lossy(),
                &url("file"),
            ],
            seconds(30),
        )?;
        ensure_same(&file, &got)?;
        fs::remove_file(&got)?;
    }
    stop(server)
}

fn curl_uploads(world: &World) -> Result<()> {
    let server = serve(world)?;
    let file = world.directory().join("file");
    write_file(&file, 4, 50_000_000)?;
    world.run_on_subject(
        &[
            "curl",
            "-sS",
            "--fail",
            "-T",
            &file.to_string_lossy(),
            &url("up/file"),
        ],
        seconds(30),
    )?;
    ensure_same(&file, &world.directory().join("www/up/file"))?;
    stop(server)
}

fn curl_downloads_many_at_once(world: &World) -> Result<()> {
    let server = serve(world)?;
    let mut words = vec![
        "curl".to_string(),
        "-sS".into(),
        "--fail".into(),
        "--parallel".into(),
        "--parallel-immediate".into(),
    ];
    for number in 0..20 {
        write_file(
            &world.directory().join(format!("www/{number}")),
            number,
            200_000 + number as usize,
        )?;
        words.extend([
            "-o".to_string(),
            world
                .directory()
                .join(format!("got{number}"))
                .to_string_lossy()
                .into_owned(),
            url(&number.to_string()),
        ]);
    }
    world.run_on_subject(&words, seconds(30))?;
    for number in 0..20 {
        ensure_same(
            &world.directory().join(format!("www/{number}")),
            &world.directory().join(format!("got{number}")),
        )?;
    }
    stop(server)
}

fn ab_with_and_without_keep_alive(world: &World) -> Result<()> {
    let server = serve(world)?;
    write_file(&world.directory().join("www/4k"), 1, 4096)?;
    for (mode, expected) in [
        ("-k", "Keep-Alive requests:    5000"),
        ("-d", "Failed requests:        0"),
    ] {
        let said = world
            .run_on_subject(
                &["ab", "-q", mode, "-c", "50", "-n", "5000", &url("4k")],
                seconds(60),
            )?
            .text();
        for line in [
            "Complete requests:      5000",
            "Failed requests:        0",
            "HTML transferred:       20480000 bytes",
            expected,
        ] {
            ensure!(
                said.contains(line),
                "ab {mode} does not say {line:?}:\n{said}"
            );
        }
    }
    stop(server)
}

/// A blocking connect on the stack under test; what it says when it fails.
fn failing_connect(world: &World, address: &str, port: u16) -> Result<String> {
    let script = format!("import socket; socket.create_connection(('{address}', {port}))");
    let ended = world
        .subject(&["/usr/bin/python3", "-c", &script])?
        .wait(seconds(30))?;
    ensure!(
        ended.status.code() == Some(1),
        "{}: {}",
        ended.status,
        ended.error_text()
    );
    Ok(ended.error_text())
}

fn a_closed_port_refuses(world: &World) -> Result<()> {
    let said = failing_connect(world, &PEER.to_string(), 81)?;
    ensure!(
        said.contains("ConnectionRefusedError: [Errno 111]"),
        "{said}"
    );
    Ok(())
}

fn an_address_that_nobody_has_is_unreachable(world: &World) -> Result<()> {
    // No host of the link answers for it: the neighbour search ends in an error within seconds, as
    // the kernel's does.
    let said = failing_connect(world, "10.9.0.77", 80)?;
    ensure!(said.contains("[Errno 113] No route to host"), "{said}");
    Ok(())
}
