//! From a configuration to a running card.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::io;
use std::sync::Arc;

use millrace_offload::Config as Offload;
use millrace_port::Port as _;
use millrace_port::open::{self, OpenedRelay};
use millrace_port::packet::Station;
use millrace_port::tap::{self, Tap};
use millrace_sandbox::Role;
use millrace_wire::ethernet::{self, Mac};

use crate::clock::Clock;
use crate::config::Config;
use crate::control;
use crate::follow::Followed;
use crate::shard::Shard;
use crate::worker::Worker;

/// Memory for frames of all shards together, in bytes.
const FRAME_MEMORY: usize = 16 << 20;
/// Room in a buffer beside the packet: link-layer header, a tag, and as much again that a tag may
/// be put before.
const BESIDE: usize = ethernet::HEADER_LEN + 4 + 4;
/// Flows that all shards together know.
const FLOWS: usize = 16 << 10;
/// Threads that a card can have.
const SHARDS_MAX: u16 = 64;

/// Why a card does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something about the kernel's interface.
    #[error(transparent)]
    Tap(#[from] tap::Error),
    /// Something about the wire.
    #[error(transparent)]
    Wire(#[from] open::Error),
    /// The process keeps rights that it is to drop.
    #[error(transparent)]
    Sandbox(#[from] millrace_sandbox::Error),
    /// None, or too many.
    #[error("{0} shards were asked for; a card has 1 to {SHARDS_MAX}")]
    Shards(u16),
    /// The machine refuses, or a device is gone.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System { what, error }
}

/// Starts a card and runs it until one of its devices is gone. `ready` is called with the name of
/// the kernel's interface once that is there, and with what a person should know of the wire.
///
/// # Errors
/// Each says what it met. The interface is gone then.
pub fn start(config: &Config, ready: impl FnOnce(&str, &[String])) -> Result<(), StartError> {
    if !(1..=SHARDS_MAX).contains(&config.shards) {
        return Err(StartError::Shards(config.shards));
    }
    let hosts = tap::open(&tap::Config {
        name: config.host.clone(),
        queues: config.shards,
        ..tap::Config::default()
    })?;
    let mac = hosts[0].kernel_mac()?;
    let options = open::Options::new().queues(config.shards).mac(mac);
    let wire = open::open_relay(&config.wire, &options)?;
    run(config, wire, hosts, mac, ready)
}

/// Runs a card between its wire and the kernel, whose interface has the address `mac`: the wire's
/// stations have it, too.
fn run(
    config: &Config,
    wire: OpenedRelay,
    hosts: Vec<Tap>,
    mac: Mac,
    ready: impl FnOnce(&str, &[String]),
) -> Result<(), StartError> {
    let (wires, stations): (_, Arc<[Station]>) = (wire.ports, wire.stations.into());
    let name = hosts[0].name().to_owned();
    let mtu = wires[0].capabilities().mtu;
    hosts[0].set_kernel_mtu(mtu)?;
    let (listener, _name) =
        control::listen(&name).map_err(system("cannot open the control socket"))?;

    // Whatever needs the rights of whoever started the card is open, and no thread has been
    // started.
    if let Some(sandbox) = &config.sandbox {
        let link = match config.wire.is_xdp() {
            false => millrace_sandbox::Link::Frames,
            true => millrace_sandbox::Link::Xdp,
        };
        millrace_sandbox::drop_privileges(sandbox, &name, link)?;
    }

    let clock = Clock::new();
    let mut handles = Vec::new();
    let (ended, wait) = std::sync::mpsc::channel();
    for (index, (wire, host)) in wires.into_iter().zip(hosts).enumerate() {
        let host = Followed::new(host, mac, stations.clone());
        let shard = Shard::new(wire, host, offload(config, mtu));
        let shard = if config.pace { shard.paced() } else { shard };
        let (worker, handle) =
            Worker::new(shard, clock).map_err(system("cannot set up a shard's waiting"))?;
        handles.push(handle);
        let ended = ended.clone();
        std::thread::Builder::new()
            .name(format!("millrace-nic{index}"))
            .spawn(move || {
                let _ = ended.send(in_role(Role::Card, || worker.run()));
            })
            .map_err(system("cannot start a shard's thread"))?;
    }
    let device = config.wire.name().unwrap_or_default().to_owned();
    let own_name = name.clone();
    std::thread::Builder::new()
        .name("millrace-nic-control".to_owned())
        .spawn(move || {
            let serve = || control::serve(&listener, &own_name, &device, &handles);
            let _ = ended.send(in_role(Role::CardControl, serve));
        })
        .map_err(system("cannot start the control thread"))?;
    ready(&name, &wire.notes);
    // This one waits for the others.
    millrace_sandbox::enter(Role::Closer)?;
    match wait.recv() {
        Ok(error) => Err(system("a device is gone")(error)),
        Err(_) => Ok(()),
    }
}

/// Does what a thread does in its role; why it ended.
fn in_role(role: Role, work: impl FnOnce() -> io::Error) -> io::Error {
    match millrace_sandbox::enter(role) {
        Ok(()) => work(),
        Err(error) => io::Error::other(error),
    }
}

/// What each shard's offload has.
fn offload(config: &Config, mtu: u16) -> Offload {
    let shards = usize::from(config.shards);
    // Apart by an odd number of cache lines, so that headers do not all fall into the same sets of
    // a cache.
    let buffer_len = (usize::from(mtu) + BESIDE).next_multiple_of(128) + 64;
    let random = RandomState::new();
    Offload {
        aggregate: config.aggregate,
        active_ack: config.active_ack.clone(),
        flows: (FLOWS / shards).max(256),
        buffers: (FRAME_MEMORY / shards / buffer_len).max(256),
        buffer_len,
        hash_key: [random.hash_one(1), random.hash_one(2)],
        ..Offload::default()
    }
}
