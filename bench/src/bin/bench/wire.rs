//! A server and a light client at the two ends of a veth pair that is as a wire to both: no
//! offloads, the server and what serves it on core 0, the client on core 1. The client is
//! `millrace load`, or an unmodified program under `millrace run`, by AF_XDP; so is the server's
//! stack when it is ours.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use millrace_bench::cpu::{Interval, Sample};
use millrace_bench::load::Outcome;
use millrace_e2e::others::Service;
use millrace_e2e::scenario::{seconds, wait_until};
use millrace_e2e::world::NEIGHBOUR;
use millrace_e2e::{Link, Process, SUBJECT, Stack, World, command, engine};
use rustix::process::{Signal, kill_process};

use crate::servers::{SOURCES, Server, Whose};

/// What the client's stack is on, and where its addresses begin.
const CLIENT_LINK: &str = "--link xdp:veth0 --addr 10.9.0.10/24";
/// The server's core.
const SERVER: &str = "0";
/// The client's.
const CLIENT: &str = "1";

/// The kernel, as one would have it for a server that is to answer soon.
pub const POLLING: &str = "polling kernel";
/// How long its server asks the device before it sleeps, in microseconds.
pub const POLLED: &str = "50";

/// What reports say of it.
pub const POLLING_EXPLAINED: &str = " The kernel that polls has the segments joined at the server's device, so that there is one to ask, and its server asks for 50 us before it sleeps; where there is no such \
                                     row it makes no difference (docs/measurements.md).";

/// How a person would make it.
pub const EXPLAINED: [&str; 7] = [
    "on a wire, under `millrace load`, applications too; both ends: `ethtool -K veth0 tso off gso off gro off tx off rx off`; `taskset -c 0` for the server and its engine, `taskset -c 1` for the client",
    "millrace: `millrace run --link xdp:veth0,address=shared -- SERVER`; embedded: `embedded_server wire MODE veth0 ADDRESS PORT`; kernel: `SERVER`",
    "client: `millrace load KIND ADDRESS:PORT --link xdp:veth0 --addr 10.9.0.10/24 --sources 50`",
    "natural: what is received is worked on where veth does that, on the sender's core",
    "strict: what the server receives is worked on on its core; kernel: `echo 1 >/sys/class/net/veth0/queues/rx-0/rps_cpus` (RPS); millrace, embedded or not: `echo 1 >/sys/class/net/veth0/threaded`, and of the \
     thread napi/veth0-* `taskset -pc 0` and `chrt -f -p 1`, so that it interrupts the server as RPS does",
    "polling kernel: `ethtool -K veth0 tso off gso off` at the client and `ethtool -K veth0 gro on` at the server, so that its device is one that can be polled, on the wire its thread as above, and `SERVER 50`: \
     microseconds that its epoll asks the device before it sleeps (EPIOCSPARAMS)",
    "tried and left out where it changed nothing: busy polling over TAP and over veth as it comes, where no socket has a NAPI id to poll; in short transactions and ping-pong on the wire at all they can do, \
     where there is no time to sleep; the thread of the device in place of RPS for the kernel, which is slower (docs/measurements.md)",
];

/// Where what the server receives is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Where veth does that: on the core of the sender, which is the client's.
    Natural,
    /// On the server's core.
    Strict,
    /// There as well, by a kernel whose server asks the device for [`POLLED`] microseconds before
    /// it sleeps.
    Polling,
}

/// The two ends, with a server that listens.
pub struct Wire {
    pub world: World,
    server: Process,
    /// How many addresses the client has.
    sources: u8,
}

impl Wire {
    /// Starts a server on a stack, and waits until `is_ready`; its words are made when the address
    /// that it serves is known.
    pub fn start(
        stack: Stack,
        layout: Layout,
        words: impl FnOnce(&World, &str) -> Result<Vec<String>>,
        is_ready: impl Fn(&World, &Process) -> Result<bool>,
    ) -> Result<Wire> {
        let world = World::create_on(stack, Link::Xdp, 1)?;
        world.turn_offloads_off()?;
        let words = words(&world, &address(stack).to_string())?;
        let plain = match stack {
            Stack::Kernel => command(&words),
            Stack::Millrace => {
                let link = "xdp:veth0,address=shared";
                let mut run = world.millrace(&["run", "--link", link, "--"]);
                run.args(words);
                run
            }
        };
        let server = world.start_on_subject(pinned(SERVER, &plain))?;
        let mut wire = Wire {
            world,
            server,
            sources: SOURCES,
        };
        wait_until("the server listens", seconds(20), || {
            wire.server.ensure_not_failed()?;
            is_ready(&wire.world, &wire.server)
        })?;
        match layout {
            Layout::Natural => {}
            Layout::Strict => wire.make_strict(stack == Stack::Millrace)?,
            Layout::Polling => {
                make_pollable(&wire.world)?;
                wire.receive_by_thread()?;
            }
        }
        Ok(wire)
    }

    /// Starts a server of another stack, on a device where the kernel has the server's address,
    /// unless that stack has it alone.
    pub fn start_other(server: &Server, layout: Layout, service: Service<'_>) -> Result<Wire> {
        let (world, process) = server.other.on_wire(service, &["taskset", "-c", SERVER])?;
        let wire = Wire {
            world,
            server: process,
            sources: server.neighbours,
        };
        if layout == Layout::Strict {
            wire.make_strict(server.whose == Whose::Ours)?;
        }
        Ok(wire)
    }

    /// From now on what the server receives is worked on on its own core. What comes by AF_XDP
    /// (`is_xdp`) never reaches what RPS steers.
    fn make_strict(&self, is_xdp: bool) -> Result<()> {
        let done = match is_xdp {
            true => self.receive_by_thread(),
            false => self.set("queues/rx-0/rps_cpus", "1"),
        };
        done.context("the strict layout")
    }

    /// Has a thread of the kernel's, on the server's core, work on what comes.
    fn receive_by_thread(&self) -> Result<()> {
        let before = receivers()?;
        self.set("threaded", "1")?;
        let new = || -> Result<BTreeSet<String>> {
            Ok(receivers()?.difference(&before).cloned().collect())
        };
        wait_until("the device has a thread", seconds(5), || {
            Ok(!new()?.is_empty())
        })?;
        for thread in new()? {
            run(&["taskset", "-pc", SERVER, &thread])?;
            run(&["chrt", "-f", "-p", "1", &thread])?;
        }
        Ok(())
    }

    /// Sets an attribute of the server's device.
    fn set(&self, attribute: &str, value: &str) -> Result<()> {
        let name = self.world.subject_namespace().name();
        let line = format!("echo {value} >/sys/class/net/veth0/{attribute}");
        run(&["ip", "netns", "exec", name, "sh", "-c", &line])
    }

    /// What the generator comes to: `words` are the workload, the target and what else is said of
    /// it.
    pub fn load(&self, words: &str, length: f64) -> Result<Outcome> {
        let line = format!(
            "load {words} {CLIENT_LINK} --sources {} --duration {length} --json",
            self.sources
        );
        let words: Vec<&str> = line.split(' ').collect();
        let client = pinned(CLIENT, &self.world.millrace(&words));
        let limit = Duration::from_secs_f64(length) + seconds(30);
        let ended = self.world.start_on_peer(client)?.wait(limit)?.success()?;
        let report = serde_json::from_slice(&ended.stdout).context("reading the report")?;
        Outcome::of_report(&report)
    }

    /// The server's address with a port.
    pub fn target(&self, port: u16) -> String {
        format!("{}:{port}", address(self.world.stack))
    }

    /// Ends the server, which leaves nothing behind.
    pub fn stop(self) -> Result<()> {
        self.server.signal(Signal::TERM)?;
        self.wait()
    }

    /// Waits for the server, which was told to end, and leaves nothing behind. An engine would go
    /// on for ten seconds to say farewell to connections whose client is gone; when the program has
    /// ended it is killed.
    pub fn wait(self) -> Result<()> {
        if self.world.stack == Stack::Millrace {
            let namespace = self.world.subject_namespace();
            // The engine, and the command that started both.
            wait_until("the program ends", seconds(10), || {
                Ok(namespace.processes()?.len() <= 2)
            })?;
            if let Ok(engine) = engine::pid(&self.world) {
                // It may have ended by itself.
                let _ = kill_process(engine, Signal::KILL);
            }
        }
        self.server.wait(seconds(15))?;
        self.world.finish()
    }
}

/// An engine at the client's end, for unmodified programs as clients.
pub struct Client<'a> {
    wire: &'a Wire,
    name: String,
}

impl Client<'_> {
    /// Starts it, with the address of the kernel there.
    pub fn start(wire: &Wire) -> Result<Client<'_>> {
        let name = format!("bench-{}", std::process::id());
        let link = "xdp:veth0,address=shared";
        let up = wire
            .world
            .millrace(&["up", "--name", &name, "--link", link]);
        let world = &wire.world;
        world
            .start_on_peer(pinned(CLIENT, &up))?
            .wait(seconds(20))?
            .success()?;
        Ok(Client { wire, name })
    }

    /// Runs a program to a good end, which takes about `length` seconds; what it said, and what the
    /// machine did meanwhile. The engine ends, too.
    pub fn run(self, line: &str, length: f64) -> Result<(String, Interval)> {
        let world = &self.wire.world;
        let mut run = world.millrace(&["run", "--engine", &self.name, "--"]);
        run.args(line.split(' '));
        let limit = Duration::from_secs_f64(length * 5.0) + seconds(30);
        let before = Sample::take()?;
        let ended = world.start_on_peer(pinned(CLIENT, &run))?.wait(limit)?;
        let machine = before.until_now()?;
        let down = world.millrace(&["down", "--name", &self.name]);
        world.start_on_peer(down)?.wait(seconds(15))?.success()?;
        Ok((ended.success()?.text(), machine))
    }
}

/// The address that the kernel has at the server's end, which is our engine's as well.
pub fn address(stack: Stack) -> Ipv4Addr {
    match stack {
        Stack::Kernel => SUBJECT,
        Stack::Millrace => NEIGHBOUR,
    }
}

/// Has the kernel's server receive from a device that can be polled: veth is one if it joins
/// segments and its other end does not leave them joined.
pub fn make_pollable(world: &World) -> Result<()> {
    let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    world.run_on_peer(&words("ethtool -K veth0 tso off gso off"), seconds(10))?;
    let joining = command(&words("ethtool -K veth0 gro on"));
    world
        .start_on_subject(joining)?
        .wait(seconds(10))?
        .success()?;
    Ok(())
}

/// The same command on one core.
fn pinned(core: &str, plain: &Command) -> Command {
    let mut all = command(&["taskset", "-c", core]);
    all.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => all.env(name, value),
            None => all.env_remove(name),
        };
    }
    all
}

/// The kernel's threads that receive for devices of this name.
fn receivers() -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with("napi/veth0-") {
            all.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(all)
}

fn run(words: &[&str]) -> Result<()> {
    let output = command(words)
        .output()
        .with_context(|| format!("running {}", words[0]))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}: {}",
        words.join(" "),
        said.trim()
    );
    Ok(())
}
