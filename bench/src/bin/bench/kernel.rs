//! What connections take of the kernel's memory: both their ends, in two namespaces, held by as
//! many processes as their descriptors need.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{ChildStdin, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use millrace_bench::load::MESSAGE;
use millrace_e2e::scenario::{seconds, wait_until};
use millrace_e2e::{Process, SUBJECT, Stack, World, command, compile};
use rustix::process::{Resource, getrlimit};
use serde::Deserialize;

use crate::arguments::PORT;

/// Connections of a process at most, and descriptors that it needs beside them.
const SHARE: u64 = 15_000;
const SPARE: u64 = 100;
/// Connections that are there before it counts, with messages: what is free in slabs is theirs.
const BEFORE: u64 = 1_000;
/// The slabs are at rest when they change by less between two looks, this far apart; so often is
/// looked.
const AT_REST: f64 = 65_536.0;
const BETWEEN: Duration = Duration::from_millis(100);
const LOOKS: usize = 30;

/// Servers that take connections and read nothing, and the clients that hold them.
struct Held {
    servers: Vec<Process>,
    clients: Vec<Process>,
    /// The clients' input, which tells them what to do; they end with it.
    inputs: Vec<ChildStdin>,
}

/// What an adapter says: bytes of an idle end, and what a message adds at both.
#[derive(Deserialize)]
pub struct Said {
    pub idle: f64,
    pub active: f64,
}

/// What `count` connections take: an end that does nothing, and what a message adds that waits.
pub fn each(count: u64) -> Result<Said> {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    ensure!(
        most > SPARE,
        "a process may have {most} descriptors, which is too few"
    );
    let share = SHARE.min(most - SPARE);
    let world = World::create(Stack::Kernel)?;
    let mut first = Held::open(&world, PORT, BEFORE.min(share), share)?;
    first.send()?;
    let before = slabs_at_rest()?;
    let port = PORT + u16::try_from(first.servers.len())?;
    let mut more = Held::open(&world, port, count, share)?;
    let established = slabs_at_rest()?;
    more.send()?;
    let waiting = slabs_at_rest()?;
    // The servers first: a client that has sent what nobody reads is told so, and nothing waits for
    // anything.
    for held in [first, more] {
        drop(held.servers);
        drop(held.inputs);
        drop(held.clients);
    }
    world.finish()?;
    let count = count as f64;
    Ok(Said {
        idle: (established - before) / 2.0 / count,
        // The bytes themselves lie in pages that are no slab's.
        active: (waiting - established) / count + MESSAGE as f64,
    })
}

impl Held {
    /// So many connections, to ports from this one on, `share` to each; all of them are taken.
    fn open(world: &World, port: u16, count: u64, share: u64) -> Result<Held> {
        let mut held = Held {
            servers: Vec::new(),
            clients: Vec::new(),
            inputs: Vec::new(),
        };
        let server = compile::program("server")?;
        let client = std::env::current_exe()?.with_file_name("hold");
        let client = client.to_str().context("a path in UTF-8")?;
        let mut shares = Vec::new();
        for (port, from) in (port..).zip((0..count).step_by(usize::try_from(share)?)) {
            let each = share.min(count - from);
            let words = [&server, "hold", &SUBJECT.to_string(), &port.to_string()];
            held.servers.push(world.subject(&words)?);
            say(&mut held.servers, "ready")?;
            let address = SocketAddr::from((SUBJECT, port));
            let mut client = command(&[client, &address.to_string(), &each.to_string()]);
            client.stdin(Stdio::piped());
            let mut client = world.start_on_peer(client)?;
            held.inputs.extend(client.stdin());
            held.clients.push(client);
            shares.push(each);
        }
        say(&mut held.clients, "open")?;
        for (server, share) in held.servers.iter().zip(shares) {
            let folder = format!("/proc/{}/fd", server.pid().as_raw_nonzero());
            wait_until("the server takes all connections", seconds(30), || {
                Ok(fs::read_dir(&folder)?.count() as u64 > share)
            })?;
        }
        Ok(held)
    }

    /// Has every connection send a message.
    fn send(&mut self) -> Result<()> {
        for input in &mut self.inputs {
            input.write_all(b"\n")?;
        }
        say(&mut self.clients, "sent")
    }
}

/// Waits until all of them have said it.
fn say(all: &mut [Process], word: &str) -> Result<()> {
    for process in all {
        wait_until(
            &format!("{} says {word}", process.name()),
            seconds(60),
            || {
                process.ensure_not_failed()?;
                Ok(process.stdout().contains(word))
            },
        )?;
    }
    Ok(())
}

/// Bytes of the kernel's slabs.
pub fn slabs() -> Result<f64> {
    // Each core adds what it has counted about once a second, or now.
    fs::read("/proc/sys/vm/stat_refresh").context("having the kernel count")?;
    field(&fs::read_to_string("/proc/meminfo")?, "Slab:")
}

/// The same, when what was done before is over.
fn slabs_at_rest() -> Result<f64> {
    let mut last = slabs()?;
    for _ in 0..LOOKS {
        thread::sleep(BETWEEN);
        let now = slabs()?;
        if (now - last).abs() < AT_REST {
            return Ok(now);
        }
        last = now;
    }
    Ok(last)
}

/// A field that is in kilobytes, in bytes.
pub fn field(text: &str, name: &str) -> Result<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .with_context(|| format!("no {name}"))?;
    let kilobytes: f64 = line
        .split_whitespace()
        .next()
        .context("a number")?
        .parse()?;
    Ok(kilobytes * 1024.0)
}
