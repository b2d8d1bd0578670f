//! `millrace fabric`: user-level messages between processes of this host, and between hosts.

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use millrace_fabric::ip::{self, Bridge};
use millrace_fabric::shm::{self, Directory, OpenError};
use millrace_fabric::{Channel, Limits, Payload, Port, PortName, Received, Sent};
use millrace_port::spec::{Spec, parse_prefix};
use millrace_port::{tap, tun};

use crate::addresses::Address;
use crate::output::print;

/// How long a peer may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long the node of a port on a link may take to answer, in milliseconds.
const NODE_PATIENCE_MS: u64 = 3_000;
/// How long an answer is polled for before the thread sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// What a bandwidth test sends into.
const BULK: Channel = Channel::Normal(0);
const BULK_MAX: usize = 1 << 20;
/// Buffers that are posted for it.
const BULK_BUFFERS: usize = 8;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace fabric serve 0.7 &
  millrace fabric list
  millrace fabric ping 0.7
  millrace fabric bandwidth 0.7 --size 65536
  millrace fabric serve 7.1 --link packet:eth0    # on one host
  millrace fabric ping 7.1 --link packet:eth0     # on another one
  millrace fabric ip fabric:1 --addr 10.66.0.1/24 # see millrace fabric ip --help

Ports are named NODE.PORT. Without --link they are processes of the same user on this host, and no
privilege is needed. With --link they are on hosts of one Ethernet, and each process is a node.")]
pub struct FabricArguments {
    #[command(subcommand)]
    command: FabricCommand,
}

const IP_HELP: &str = "\
Examples: two network namespaces of one host, then two hosts
  ip netns exec mr-a millrace fabric ip fabric:1 --addr 10.66.0.1/24 &
  ip netns exec mr-b millrace fabric ip fabric:2 --addr 10.66.0.2/24 &
  ip netns exec mr-a curl http://10.66.0.2/

  millrace fabric ip fabric:1,over=packet:eth0 --addr 10.66.0.1/24
  millrace fabric ip fabric:2,over=packet:eth0 --addr 10.66.0.2/24

Nodes tell each other their addresses. The device is gone when the process ends.";

#[derive(Debug, Subcommand)]
enum FabricCommand {
    /// Answer pings and take bandwidth tests at a port, until the process is ended
    Serve {
        /// The port
        port: PortName,
        /// The link that the port is on, as packet:eth0; memory of this host when there is none
        #[arg(long, value_name = "LINK")]
        link: Option<Spec>,
    },
    /// Measure the round trip of small messages
    Ping {
        /// The port that answers: see serve
        port: PortName,
        /// How many
        #[arg(long, short, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
        /// Bytes of each
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64))]
        size: u32,
        #[command(flatten)]
        from: From,
    },
    /// Measure how fast large messages go
    Bandwidth {
        /// The port that takes them: see serve
        port: PortName,
        /// How many
        #[arg(long, short, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
        /// Bytes of each
        #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=BULK_MAX as i64))]
        size: u32,
        #[command(flatten)]
        from: From,
    },
    /// Make a device of the kernel's whose packets are messages, until the process is ended
    #[command(after_help = IP_HELP)]
    Ip {
        /// The node, with options: fabric:NODE[,mtu=N][,inline=off][,elide=off][,batch=off]
        /// [,dir=PATH][,peer=ADDRESS@NODE]...[,over=LINK]
        #[arg(value_name = "FABRIC")]
        fabric: Spec,
        /// An address of the kernel's on the device; may be given again
        #[arg(long, value_name = "IP/BITS", required = true, value_parser = parse_prefix)]
        addr: Vec<Address>,
        /// Name of the device
        #[arg(long, default_value = "mrfab0")]
        device: String,
    },
    /// Show the ports that processes of this user have
    List,
}

/// Where a test is made from.
#[derive(Debug, Args)]
struct From {
    /// The link that the port is on, as packet:eth0; memory of this host when there is none
    #[arg(long, value_name = "LINK")]
    link: Option<Spec>,
    /// The node of this process: with --link, a number that no other node has
    #[arg(long, default_value_t = u16::MAX, requires = "link")]
    node: u16,
}

impl From {
    /// A port for the time of a test, which goes to `to`.
    fn open(&self, to: PortName) -> anyhow::Result<Port> {
        let Some(link) = &self.link else {
            return Ok(own_port(to.node)?.into());
        };
        if self.node == to.node {
            let node = self.node;
            bail!("port {to} is on node {node}, as this process: choose another one with --node");
        }
        let name = PortName::new(self.node, 1);
        let limits = Limits {
            wait: millrace_tcp::Duration::from_millis(NODE_PATIENCE_MS),
            ..Limits::default()
        };
        Ok(Port::open_on(link, name, limits)?)
    }
}

pub fn fabric(arguments: &FabricArguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        FabricCommand::Serve { port, link } => serve(*port, link.as_ref())?,
        FabricCommand::Ping {
            port,
            count,
            size,
            from,
        } => ping(from.open(*port)?, *port, *count, *size as usize)?,
        FabricCommand::Bandwidth {
            port,
            count,
            size,
            from,
        } => bandwidth(from.open(*port)?, *port, *count, *size as usize)?,
        FabricCommand::Ip {
            fabric,
            addr,
            device,
        } => ip(fabric, addr, device)?,
        FabricCommand::List => {
            let names = Directory::of_user().list().context("listing ports")?;
            let lines = names.iter().map(|name| format!("{name}\n"));
            print(&lines.collect::<String>())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A port for the time of a test: the first that is free from the top.
fn own_port(node: u16) -> anyhow::Result<shm::Port> {
    for number in (u16::MAX - 256..u16::MAX).rev() {
        match shm::Port::open(PortName::new(node, number), Limits::default()) {
            Err(OpenError::NameTaken(_)) => {}
            port => return Ok(port?),
        }
    }
    bail!("no port of node {node} above {} is free", u16::MAX - 256)
}

fn serve(name: PortName, link: Option<&Spec>) -> anyhow::Result<()> {
    let mut port = match link {
        Some(link) => Port::open_on(link, name, Limits::default())?,
        None => Port::open(name, Limits::default())?,
    };
    for _ in 0..BULK_BUFFERS {
        let buffer = port.register(BULK_MAX)?;
        port.post(BULK, buffer)?;
    }
    println!("port {name} answers");
    let mut idle_since = Instant::now();
    loop {
        if port.poll() > 0 {
            idle_since = Instant::now();
        } else if idle_since.elapsed() > SPIN {
            port.wait(None)?;
            idle_since = Instant::now();
        }
        while let Some(message) = port.poll_received() {
            answer(&mut port, &message)?;
        }
        // A peer that is gone gets no answer; that is its own affair.
        while port.poll_sent().is_some() {}
    }
}

/// Moves packets between a TUN device and the fabric.
fn ip(fabric: &Spec, addresses: &[Address], device: &str) -> anyhow::Result<()> {
    let Spec::Fabric(fabric) = fabric else {
        bail!("{fabric} is no link of messages: give fabric:NODE, as in fabric:1");
    };
    let own: Vec<IpAddr> = addresses.iter().map(|(ip, _)| *ip).collect();
    let module = ip::open(fabric, &own)?;
    let mut devices = tun::open(&tap::Config {
        name: Some(device.to_owned()),
        hosts: addresses.to_vec(),
        mtu: module.config().mtu,
        ..tap::Config::default()
    })?;
    let mut bridge = Bridge::new(module, devices.swap_remove(0));
    println!("node {} is on {device}", fabric.node);
    loop {
        if bridge.step()? == 0 {
            bridge.wait()?;
        }
    }
}

fn answer(port: &mut Port, message: &Received) -> anyhow::Result<()> {
    if message.channel == BULK {
        return Ok(port.post(BULK, message.buffer)?);
    }
    let bytes = port.message(message)?;
    let len = bytes.len().min(64);
    let mut copy = [0; 64];
    copy[..len].copy_from_slice(&bytes[..len]);
    port.free(message.buffer)?;
    // When the queue is full the peer does not read what it asked for.
    let _ = port.send(
        message.from,
        Channel::System,
        0,
        Payload::Inline(&copy[..len]),
        0,
    );
    Ok(())
}

/// Waits for an entry of a completion queue: polls for a while, then sleeps.
fn next<T>(port: &mut Port, mut take: impl FnMut(&mut Port) -> Option<T>) -> anyhow::Result<T> {
    let begin = Instant::now();
    loop {
        port.poll();
        if let Some(entry) = take(port) {
            return Ok(entry);
        }
        if begin.elapsed() > SPIN {
            port.wait(Some(Duration::from_millis(100)))?;
        }
        if begin.elapsed() > PATIENCE {
            bail!("no answer within {} s", PATIENCE.as_secs());
        }
    }
}

fn succeed(sent: Sent) -> anyhow::Result<()> {
    sent.result.with_context(|| format!("port {}", sent.to))
}

fn ping(mut port: Port, to: PortName, count: u32, size: usize) -> anyhow::Result<()> {
    let bytes = [7; 64];
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let begin = Instant::now();
        port.send(to, Channel::System, 0, Payload::Inline(&bytes[..size]), 0)?;
        succeed(next(&mut port, Port::poll_sent)?)?;
        let message = next(&mut port, Port::poll_received)?;
        times.push(begin.elapsed());
        if port.message(&message)? != &bytes[..size] {
            bail!("port {to} answered with other bytes");
        }
        port.free(message.buffer)?;
    }
    times.sort();
    let micros = |time: &Duration| time.as_nanos() as f64 / 1e3;
    print(&format!(
        "{count} round trips of {size} B to {to}: least {:.2} us, median {:.2} us, most {:.2} us\n",
        micros(&times[0]),
        micros(&times[times.len() / 2]),
        micros(&times[times.len() - 1]),
    ))
}

fn bandwidth(mut port: Port, to: PortName, count: u32, size: usize) -> anyhow::Result<()> {
    let buffer = port.register(size)?;
    port.bytes_mut(buffer)?.fill(7);
    let begin = Instant::now();
    let (mut asked, mut done) = (0, 0);
    while done < count {
        while asked < count && asked - done < 64 {
            port.send(to, BULK, 0, Payload::Buffer(buffer, size), 0)?;
            asked += 1;
        }
        succeed(next(&mut port, Port::poll_sent)?)?;
        done += 1;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let bytes = f64::from(count) * size as f64;
    print(&format!(
        "{count} messages of {size} B to {to} in {seconds:.3} s: {:.0} MB/s\n",
        bytes / seconds / 1e6
    ))
}
