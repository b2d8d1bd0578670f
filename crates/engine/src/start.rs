//! From a configuration to a running engine.

use std::io;
use std::net::Ipv4Addr;
use std::sync::mpsc;

use millrace_context::protocol;
use millrace_port::{Port, spec, tap};
use millrace_shard::{Ipv6, Shard};
use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;

use crate::config::Config;
use crate::control::Control;
use crate::host;
use crate::memory::Arenas;
use crate::serving::Serving;
use crate::worker::{self, Worker};

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The name is in use.
    #[error(
        "an engine named {0:?} is running already; choose another --name, or end it with `millrace down --name {0}`"
    )]
    NameTaken(String),
    /// Something about the device.
    #[error(transparent)]
    Tap(#[from] tap::Error),
    /// An address that no host can have.
    #[error(transparent)]
    Prefix(#[from] spec::Error),
    /// Not yet.
    #[error(
        "{0} shards were asked for; this version runs 1 shard for each engine (leave --shards out)"
    )]
    Shards(u16),
    /// Neither a link nor loopback.
    #[error("an engine needs a --link, --loopback, or both")]
    NothingToServe,
    /// The machine refuses.
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

/// Starts the engine and runs it in the calling thread until it ends. `ready` is called once it can be used, with the device's name.
pub fn start(config: &Config, ready: impl FnOnce(Option<&str>)) -> Result<(), StartError> {
    if config.shards != 1 {
        return Err(StartError::Shards(config.shards));
    }
    if config.link.is_none() && !config.loopback {
        return Err(StartError::NothingToServe);
    }
    let listener = protocol::listen(&config.name).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => StartError::NameTaken(config.name.clone()),
        _ => StartError::System {
            what: "cannot open the control socket",
            error,
        },
    })?;
    raise_descriptor_limit();

    let mut device = None;
    let mut port: Option<Box<dyn Port + Send>> = None;
    let mut mac = Mac([2, 0, 0, 0, 0, 1]);
    let mut mss = 65_495;
    if let Some(link) = &config.link {
        let prefix = spec::Prefix::of_host(link.address, link.prefix_len)?;
        let host = link
            .host
            .map(|(address, len)| spec::Prefix::of_host(address, len))
            .transpose()?;
        let tap = tap::open(&tap::Config {
            name: link.device.clone(),
            host,
            mtu: link.mtu,
            ..tap::Config::default()
        })?
        .pop()
        .expect("at least one queue was asked for");
        host::add_addresses(tap.name(), &link.hosts_v6)
            .map_err(system("cannot give the device an IPv6 address"))?;
        debug_assert!(prefix.contains(link.address));
        mac = tap.capabilities().mac;
        mss = u32::from(link.mtu) - 40;
        device = Some(tap.name().to_owned());
        port = Some(Box::new(tap));
    }

    let mut secret = [0; 32];
    random(&mut secret).map_err(system("cannot get random bytes"))?;
    let (address, prefix_len) = config
        .link
        .as_ref()
        .map_or((Ipv4Addr::LOCALHOST, 8), |link| {
            (link.address, link.prefix_len)
        });
    let mut shard_config = millrace_shard::Config::new(address, prefix_len, mac, secret);
    shard_config.loopback = config.loopback;
    if config.ecn {
        shard_config.tcp.ecn = millrace_tcp::Ecn::Ask;
    }
    if let Some(link) = &config.link {
        shard_config.gateway = link.gateway;
        shard_config.mtu = link.mtu;
        shard_config.ipv6 = (!link.addresses_v6.is_empty()).then(|| Ipv6 {
            addresses: link.addresses_v6.clone(),
            gateway: link.gateway_v6,
            ..Ipv6::default()
        });
    }
    let shard = Shard::new(shard_config, Arenas::default(), Instant::from_micros(0));

    let doorbell = worker::doorbell().map_err(system("cannot make a doorbell"))?;
    let (commands, receiver) = mpsc::channel();
    let mut worker = Worker::new(
        shard,
        port,
        doorbell.clone(),
        receiver,
        std::time::Instant::now(),
        config.follow,
    )
    .map_err(system("cannot set up the shard's waiting"))?;
    // An IPv6 address is of use once nobody on the link has claimed it.
    let (settled, wait) = mpsc::channel();
    worker.tell_when_settled(settled);
    let thread = std::thread::Builder::new()
        .name("millrace-shard".to_owned())
        .spawn(move || worker.run())
        .map_err(system("cannot start the shard's thread"))?;

    let serving = Serving::new(config, mss);
    let mut control = Control::new(config, serving, listener, commands, doorbell, thread)
        .map_err(system("cannot set up the control socket"))?;
    // The worker has ended if it says nothing, and the control thread will notice that.
    let _ = wait.recv();
    ready(device.as_deref());
    control.run().map_err(system("the control socket failed"))
}

fn random(out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        done += rustix::rand::getrandom(&mut out[done..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

/// A token that nobody guesses.
pub(crate) fn token() -> io::Result<protocol::Token> {
    let mut token = [0; 16];
    random(&mut token)?;
    Ok(token)
}

/// Each poller and process costs the engine a descriptor: take as many as allowed.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without it the engine serves fewer processes, and says so when they are refused.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}
