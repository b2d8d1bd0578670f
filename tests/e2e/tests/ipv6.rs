//! IPv6 on the link: nginx and curl with the kernel at the other end, and what `millrace` says of
//! it.

use std::fs;
use std::net::TcpStream;
use std::process::Command;

use millrace_e2e::content::{ensure_same, write_file};
use millrace_e2e::programs::Nginx;
use millrace_e2e::world::DEVICE;
use millrace_e2e::{
    Context as _, PEER, Process, Result, SUBJECT, Stack, World, compile, ensure,
    on_both_stacks_and_two_shards, on_millrace, seconds, wait_until,
};
use rustix::process::Signal;

on_both_stacks_and_two_shards!(
    nginx_serves_both_families,
    curl_fetches_over_ipv6,
    a_megabyte_goes_through_an_mtu_of_1280,
    ping_is_answered_in_one_piece_and_in_many,
);
on_millrace!(
    ss_and_run_say_addresses_of_both_families,
    what_is_behind_an_advertised_router_is_millraces,
);

/// The subject's address, and its peer's.
const SUBJECT_V6: &str = "fd00:9::2";
const PEER_V6: &str = "fd00:9::1";

/// The subject's program on the stack under test, with addresses of both families.
fn on_subject(world: &World, words: &[String], more: &[&str]) -> Result<Command> {
    match world.stack {
        Stack::Kernel => {
            for (namespace, address) in [
                (world.subject_namespace(), SUBJECT_V6),
                (world.peer_namespace(), PEER_V6),
            ] {
                namespace.ip(&format!("addr add {address}/64 dev veth0 nodad"))?;
            }
            Ok(millrace_e2e::command(words))
        }
        Stack::Millrace => {
            let mut command = world.millrace(&["run", "--link", &format!("tap:{DEVICE}")]);
            command
                .args(["--addr", &format!("{SUBJECT}/24")])
                .args(["--addr", &format!("{SUBJECT_V6}/64")])
                .args(["--host-addr", &format!("{PEER}/24")])
                .args(["--host-addr", &format!("{PEER_V6}/64")])
                .args(["--shards", &world.shards.to_string()])
                .args(more)
                .arg("--")
                .args(words);
            Ok(command)
        }
    }
}

/// nginx on the subject, for both families, with a file of `size` bytes.
fn serve(world: &World, size: usize, more: &[&str]) -> Result<Process> {
    fs::create_dir_all(world.directory().join("www"))?;
    write_file(&world.directory().join("www/file"), 6, size)?;
    let words = Nginx {
        port: 80,
        main: "daemon off;",
        http: "",
        server: "listen [::]:80;",
    }
    .configure(world)?;
    let mut server = world.start_on_subject(on_subject(world, &words, more)?)?;
    world.wait_for_port(&mut server, 80)?;
    Ok(server)
}

fn stop(server: Process) -> Result<()> {
    server.stop(Signal::TERM, seconds(15)).map(|_| ())
}

/// Fetches the file from the peer; the address that curl came from.
fn fetch(world: &World, family: &str, host: &str) -> Result<String> {
    let got = world.directory().join("got");
    let url = format!("http://{host}/file");
    let words = ["curl", family, "-sS", "--fail", "-w", "%{local_ip}", "-o"];
    let mut curl = millrace_e2e::command(&words);
    curl.arg(&got).arg(url);
    let said = world
        .start_on_peer(curl)?
        .wait(seconds(30))?
        .success()?
        .text();
    ensure_same(&world.directory().join("www/file"), &got)?;
    Ok(said)
}

fn nginx_serves_both_families(world: &World) -> Result<()> {
    let server = serve(world, 5_000_000, &[])?;
    let from = fetch(world, "-6", &format!("[{SUBJECT_V6}]"))?;
    ensure!(from == PEER_V6, "from {from}");
    let from = fetch(world, "-4", &SUBJECT.to_string())?;
    ensure!(from == PEER.to_string(), "from {from}");
    stop(server)
}

fn curl_fetches_over_ipv6(world: &World) -> Result<()> {
    fs::create_dir_all(world.directory().join("www"))?;
    let file = world.directory().join("www/file");
    write_file(&file, 7, 3_000_000)?;
    let words = Nginx {
        port: 80,
        main: "daemon off;",
        http: "",
        server: "listen [::]:80;",
    }
    .configure(world)?;
    let server = world.serve_on_peer(&words, 80)?;
    let got = world.directory().join("got");
    let url = format!("http://[{PEER_V6}]/file");
    let curl: Vec<String> = ["curl", "-6", "-sS", "--fail", "-w", "%{local_ip}", "-o"]
        .into_iter()
        .map(String::from)
        .chain([got.to_string_lossy().into_owned(), url])
        .collect();
    let said = world
        .start_on_subject(on_subject(world, &curl, &[])?)?
        .wait(seconds(30))?
        .success()?
        .text();
    ensure!(said == SUBJECT_V6, "from {said}");
    ensure_same(&file, &got)?;
    stop(server)
}

fn a_megabyte_goes_through_an_mtu_of_1280(world: &World) -> Result<()> {
    if world.stack == Stack::Kernel {
        for namespace in [world.subject_namespace(), world.peer_namespace()] {
            namespace.ip("link set veth0 mtu 1280")?;
        }
    }
    let server = serve(world, 1_000_000, &["--mtu", "1280"])?;
    fetch(world, "-6", &format!("[{SUBJECT_V6}]"))?;
    stop(server)
}

fn ping_is_answered_in_one_piece_and_in_many(world: &World) -> Result<()> {
    let server = serve(world, 10, &[])?;
    let ping = compile::script("ping.py");
    for address in [SUBJECT_V6, &SUBJECT.to_string()] {
        world.run_on_peer(&["/usr/bin/python3", &ping, address], seconds(20))?;
    }
    stop(server)
}

fn ss_and_run_say_addresses_of_both_families(world: &World) -> Result<()> {
    let server = serve(world, 10, &[])?;
    let said = server.stderr();
    ensure!(
        said.contains(&format!("{SUBJECT_V6}/64")) && said.contains(&format!("{PEER_V6}/64")),
        "{said}"
    );
    let connection = world
        .peer_namespace()
        .enter(|| TcpStream::connect((SUBJECT_V6, 80)))?;
    wait_until(
        "ss shows the listener and the connection",
        seconds(10),
        || {
            let said = world
                .start_on_subject(world.millrace(&["ss"]))?
                .wait(seconds(10))?
                .success()?
                .text();
            Ok(said.contains("[::]:80") && said.contains(&format!("[{SUBJECT_V6}]:80")))
        },
    )
    .context("ss")?;
    drop(connection);
    stop(server)
}

fn what_is_behind_an_advertised_router_is_millraces(world: &World) -> Result<()> {
    const FAR: &str = "2001:db8:99::1";
    let peer = world.peer_namespace();
    peer.ip(&format!("addr add {FAR}/128 dev lo"))?;
    // Who says in its answers that it is no router is none (RFC 4861 7.2.5).
    peer.set("ipv6.conf.all.forwarding", "1")?;
    let listener = peer.enter(|| std::net::TcpListener::bind((FAR, 0)))?;
    let script = compile::script("router_advertised.py");
    let port = listener.local_addr()?.port().to_string();
    let words = ["/usr/bin/python3", &script, DEVICE, SUBJECT_V6, FAR, &port].map(String::from);
    let said = world
        .start_on_subject(on_subject(world, &words, &[])?)?
        .wait(seconds(90))?
        .success()?
        .text();
    ensure!(said == "both ways\n", "{said:?}");
    Ok(())
}
