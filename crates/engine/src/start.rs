//! From a configuration to a running engine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, mpsc};

use millrace_context::layout::SHARDS_MAX;
use millrace_context::{control_socket, protocol};
use millrace_port::xdp::Held;
use millrace_port::{Counters, Port, macvtap, packet, spec, tap, xdp};
use millrace_sandbox::Role;
use millrace_shard::{ConflictDetection, Groups, Hash, Ipv6, Network, Shard, Steer, Via};
use millrace_steer::{Policy, PolicyError, Side, virtual_queues};
use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;
use millrace_wire::vlan::Tag;
use rustix::net::SocketType;

use crate::config::{self, Config, Device, MtuProbing, Shared};
use crate::control::audit::{self, Audit};
use crate::control::kernel_network::KernelNetwork;
use crate::control::privileged_ports::PrivilegedPorts;
use crate::control::region_header::{RegionHeader, device_index};
use crate::control::workers::{WorkerHandle, Workers};
use crate::control::{Access, Control};
use crate::links::io_thread::{Io, IoHandle, IoThread, no_load};
use crate::links::shard_link::{ShardLink, ShardPort};
use crate::links::virtual_queues::{MixedPort, VirtualQueues, Waker};
use crate::migration::bucket_moves::BucketMoves;
use crate::migration::scale::Scale;
use crate::migration::shared_sockets::SharedSockets;
use crate::programs::table::Programs;
use crate::requests::port_permits::PortPermits;
use crate::server::ShardServer;
use crate::shared::arenas::Arenas;
use crate::worker::counters::WorkerCounters;
use crate::worker::cpu_follow::CpuFollow;
use crate::worker::default_route::DefaultRoute;
use crate::worker::publisher::Publisher;
use crate::worker::reserved_ports::ReservedPorts;
use crate::worker::{self, Worker};
use crate::{doorbell, peers, topology};

pub(crate) mod affinity;

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
    /// Likewise.
    #[error(transparent)]
    Packet(#[from] packet::Error),
    /// Likewise.
    #[error(transparent)]
    Macvtap(#[from] macvtap::Error),
    /// Likewise.
    #[error(transparent)]
    Xdp(#[from] xdp::Error),
    /// AF_XDP sockets see no tags, and macvtap devices are on one LAN.
    #[error(
        "this link sees no tags of virtual LANs; give packet:{0} with --vlan, or a device of that LAN (`ip link add link {0} name {0}.7 type vlan id 7`)"
    )]
    NoTags(String),
    /// An address that no host can have.
    #[error(transparent)]
    Prefix(#[from] spec::Error),
    /// Another station on the link has an address.
    #[error("{address} is in use on the link: {station} answers for it; give another --addr")]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// Whose it is.
        station: String,
    },
    /// No number of a virtual LAN.
    #[error("there is no virtual LAN {0}; they are numbered 1 to 4094")]
    Vlan(u16),
    /// None, or more than a program can speak to.
    #[error("{0} shards were asked for; an engine has 1 to {SHARDS_MAX}")]
    Shards(u16),
    /// Something about the threads.
    #[error(transparent)]
    Topology(#[from] topology::Error),
    /// No order of virtual queues.
    #[error("the order of virtual queues is {0}")]
    Schedule(#[from] PolicyError),
    /// The process keeps rights that it is to drop.
    #[error(transparent)]
    Sandbox(#[from] millrace_sandbox::Error),
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
    let shards = config.room();
    if config.shards == 0 || usize::from(shards) > SHARDS_MAX {
        return Err(StartError::Shards(shards));
    }
    if config.link.is_none() && !config.loopback {
        return Err(StartError::NothingToServe);
    }
    // Before anything that takes the right to it away. The name is the engine's until this returns.
    let (access, outbox, _name) = access(config)?;
    raise_descriptor_limit();

    let policies = (config.io_schedule.parse()?, config.shard_schedule.parse()?);
    let plan = topology::of(config)?;
    let io_threads = plan.io.len() as u16;
    let ports = if io_threads > 0 {
        plan.owners + io_threads
    } else {
        shards
    };
    let mut link = Link::open(config, ports)?;
    // Whatever needs the rights of whoever started the engine is open, and no thread has been started.
    if let Some(sandbox) = &config.sandbox {
        millrace_sandbox::drop_privileges(sandbox, &config.name, kind_of_link(config))?;
    }
    for note in &plan.notes {
        eprintln!("millrace: {note}");
    }
    let mut shard_config = shard_config(config, &link)?;
    shard_config.limits = shard_config.limits.shared_by(shards);
    shard_config.limits.shared = true;
    let hash = hash()?;
    let groups = Groups::even(config.shards);

    let doorbells: Result<Vec<_>, _> = (0..shards).map(|_| doorbell::doorbell()).collect();
    let doorbells = doorbells.map_err(system("cannot make a doorbell"))?;
    let mut peers = peers::mesh(&doorbells).into_iter();
    let start = std::time::Instant::now();
    let default_router = Arc::<AtomicU32>::default();
    let (mut wires, io) = match io_threads {
        0 => (
            link.ports.into_iter().map(ShardPort::Device).collect(),
            Vec::new(),
        ),
        _ => {
            let rest = link.ports.split_off(plan.owners.into());
            let (wires, io) = pipeline(rest, &doorbells, &hash, &groups, &policies)?;
            (with_own(wires, link.ports), io)
        }
    };
    wires.reverse();
    let mut workers = Vec::new();
    // An address is of use once nobody on the link has claimed it.
    let (settled, wait) = mpsc::channel();
    for (own, doorbell) in (0..shards).zip(doorbells) {
        let mut shard_config = shard_config.clone();
        shard_config.steer = (shards > 1).then(|| Steer {
            own,
            hash: hash.clone(),
            groups: groups.clone(),
        });
        // One speaks for all.
        if own > 0 && shard_config.conflict_detection != ConflictDetection::Kernel {
            shard_config.conflict_detection = ConflictDetection::Nothing;
        }
        let memory = Arenas::new(own.into());
        let (commands, receiver) = mpsc::channel();
        let server = ShardServer {
            shard: Shard::new(shard_config, memory, Instant::from_micros(0)),
            own: own.into(),
            now: Instant::from_micros(0),
            counters: WorkerCounters::default(),
            audit: outbox.clone(),
            link: ShardLink::new(wires.pop(), own.into(), config.join),
            programs: Programs::default(),
            publisher: Publisher::default(),
            peers: peers.next().filter(|_| shards > 1).map(Box::new),
            bucket_moves: BucketMoves::default(),
            shared_sockets: SharedSockets::default(),
            reserved_ports: ReservedPorts::new(link.held.clone(), own.into()),
            port_permits: PortPermits::new(access.ports.shared()),
            cpu_follow: CpuFollow::new(config.follow && shards == 1 && plan.shards[0].is_none()),
            asking_for: Vec::new(),
        };
        let parts = worker::Parts {
            server,
            doorbell: doorbell.clone(),
            commands: receiver,
            start,
            settled: settled.clone(),
            default_route: match own {
                0 => DefaultRoute::stored_in(default_router.clone()),
                _ => DefaultRoute::default(),
            },
        };
        let mut worker = Worker::new(parts).map_err(system("cannot set up the shard's waiting"))?;
        let core = plan.shards[usize::from(own)];
        let thread = std::thread::Builder::new()
            .name(format!("millrace-shard{own}"))
            .spawn(move || {
                if let Some(core) = core {
                    affinity::pin_to(core);
                }
                enter(Role::Shard);
                worker.run();
            })
            .map_err(system("cannot start the shard's thread"))?;
        workers.push(WorkerHandle {
            commands,
            doorbell,
            thread,
        });
    }

    let io = start_io(io, &plan.io)?;
    let index = link.device.as_deref().map_or(0, device_index);
    let workers = Workers {
        shards: workers,
        io,
        owners: plan.owners,
    };
    let serving = RegionHeader::new(config, link.mtu, index, default_router);
    let scale = Scale::new(config.shards, groups, config.balance);
    let follow = |held| {
        let (name, shared) = shared(config)?;
        let link = config.link.as_ref()?;
        Some(KernelNetwork::follow(name, shared, link, held))
    };
    let kernel_network = link.held.and_then(follow).transpose();
    let kernel_network =
        kernel_network.map_err(system("cannot follow the kernel's addresses and routes"))?;
    let mut control = Control::new(config, serving, access, workers, scale, kernel_network)
        .map_err(system("cannot set up the control socket"))?;
    // A worker has ended if it says nothing, and the control thread will notice that.
    drop(settled);
    while let Ok(conflict) = wait.recv() {
        if let Some((address, station)) = conflict {
            let station =
                station.map_or_else(|| "another".to_owned(), |mac| format!("the station {mac}"));
            return Err(StartError::AddressTaken { address, station });
        }
    }
    ready(link.device.as_deref());
    millrace_sandbox::enter(Role::Control)?;
    control.run().map_err(system("the control socket failed"))
}

/// What roles depend on.
fn kind_of_link(config: &Config) -> millrace_sandbox::Link {
    match config.link.as_ref().map(|link| &link.device) {
        Some(Device::Xdp { shared: None, .. }) => millrace_sandbox::Link::Xdp,
        Some(Device::Xdp { .. }) => millrace_sandbox::Link::SharedXdp,
        _ => millrace_sandbox::Link::Frames,
    }
}

/// Enters the role of a thread. One that cannot ends, and the engine with it.
fn enter(role: Role) {
    if let Err(error) = millrace_sandbox::enter(role) {
        panic!("{role:?}: {error}");
    }
}

/// Opens the control sockets and the audit log, and takes the name.
fn access(config: &Config) -> Result<(Access, audit::Outbox, control_socket::Held), StartError> {
    let name = &config.name;
    let open = system("cannot open the control socket");
    let (directory, notes) = control_socket::Directory::own().map_err(&open)?;
    for note in notes {
        eprintln!("millrace: {note}");
    }
    let listener = control_socket::listen(&directory, name, SocketType::SEQPACKET);
    let control_socket::Listener { socket, held } =
        listener.map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => StartError::NameTaken(name.clone()),
            _ => open(error),
        })?;
    let (second, alias) = control_socket::listen_by_alias().map_err(&open)?;
    let audit = Audit::open(config.audit.as_deref(), name);
    let audit = audit.map_err(system("cannot open the audit log"))?;
    let channel = audit::channel(audit.is_on());
    let (outbox, inbox) = channel.map_err(system("cannot make a doorbell"))?;
    let access = Access {
        listeners: vec![socket, second],
        alias,
        owner: directory.owner(),
        ports: PrivilegedPorts::new(),
        audit,
        inbox,
    };
    Ok((access, outbox, held))
}

/// Bytes of a virtual queue each way: a burst of the largest frames, thousands of the usual ones. Memory is taken as it is first used, and kept.
const QUEUE_BYTES: usize = 1 << 22;

/// The parts of a pipeline: what each shard has of it, and what each I/O thread has. The policies are the I/O threads' and the shards'.
fn pipeline(
    ports: Vec<Box<dyn Port + Send>>,
    doorbells: &[Arc<OwnedFd>],
    hash: &Hash,
    groups: &Groups,
    policies: &(Policy, Policy),
) -> Result<(Vec<ShardPort>, Vec<Io>), StartError> {
    let count = doorbells.len();
    let (port_sides, group_sides) =
        virtual_queues(ports.len(), count, QUEUE_BYTES, &policies.0, &policies.1);
    let sleepers = |doorbells: &[Arc<OwnedFd>]| -> Vec<Waker> {
        doorbells.iter().cloned().map(Waker::new).collect()
    };
    let shards = sleepers(doorbells);
    let doorbells: io::Result<Vec<_>> = ports.iter().map(|_| doorbell::doorbell()).collect();
    let threads = sleepers(&doorbells.map_err(system("cannot make a doorbell"))?);
    let capabilities = ports[0].capabilities();
    let gives_segments = ports[0].gives_segments();
    let wire = |(side, own): (Side, &Waker)| {
        ShardPort::Queues(Box::new(VirtualQueues {
            side,
            io: threads.clone(),
            own: own.clone(),
            hash: hash.clone(),
            capabilities,
            gives_segments,
            counters: Counters::default(),
            awaited: None,
        }))
    };
    let wires = group_sides.into_iter().zip(&shards).map(wire).collect();
    let io = ports.into_iter().zip(port_sides).zip(&threads);
    let io = io.map(|((port, side), own)| Io {
        port,
        side,
        shards: shards.clone(),
        own: own.clone(),
        hash: hash.clone(),
        groups: groups.clone(),
        load: no_load(groups.buckets()),
        counters: Arc::default(),
        flags: Arc::default(),
    });
    Ok((wires, io.collect()))
}

/// The first wires with ports of their own, as many as there are.
fn with_own(wires: Vec<ShardPort>, ports: Vec<Box<dyn Port + Send>>) -> Vec<ShardPort> {
    let mut ports = ports.into_iter();
    let with_own = |wire| match wire {
        ShardPort::Queues(queues) => match ports.next() {
            Some(port) => ShardPort::Mixed(Box::new(MixedPort::new(port, *queues))),
            None => ShardPort::Queues(queues),
        },
        other => other,
    };
    wires.into_iter().map(with_own).collect()
}

/// Starts the I/O threads, each on its core.
fn start_io(io: Vec<Io>, cores: &[Option<usize>]) -> Result<Vec<IoHandle>, StartError> {
    let start = |(number, (io, core)): (usize, (Io, &Option<usize>))| {
        let (doorbell, counters) = (io.own.doorbell.clone(), io.counters.clone());
        let (flags, load) = (io.flags.clone(), io.load.clone());
        let gauges = io.port.gauges();
        let (switches, receiver) = mpsc::channel();
        let mut io =
            IoThread::new(io, receiver).map_err(system("cannot set up an I/O thread's waiting"))?;
        let core = *core;
        let thread = std::thread::Builder::new()
            .name(format!("millrace-io{number}"))
            .spawn(move || {
                if let Some(core) = core {
                    affinity::pin_to(core);
                }
                enter(Role::Io);
                io.run();
            })
            .map_err(system("cannot start an I/O thread"))?;
        Ok(IoHandle {
            thread,
            doorbell,
            counters,
            gauges,
            load,
            switches,
            flags,
        })
    };
    io.into_iter().zip(cores).enumerate().map(start).collect()
}

/// The link, with a port for each thread that owns one; nothing of it for an engine without one.
struct Link {
    device: Option<String>,
    ports: Vec<Box<dyn Port + Send>>,
    mac: Mac,
    mtu: u16,
    /// The ports that are the engine's, where it shares its addresses with the kernel.
    held: Option<Arc<Held>>,
}

/// The largest IP packet of an engine without a link.
const LOOPBACK_MTU: u16 = u16::MAX;

impl Link {
    /// Opens it with so many ports.
    fn open(config: &Config, ports: u16) -> Result<Link, StartError> {
        let Some(link) = &config.link else {
            return Ok(Link {
                device: None,
                ports: Vec::new(),
                mac: Mac([2, 0, 0, 0, 0, 1]),
                mtu: LOOPBACK_MTU,
                held: None,
            });
        };
        // What the kernel has it has, whatever the prefix.
        if shared(config).is_none() {
            for (address, len) in addresses::<Ipv4Addr>(link) {
                spec::Prefix::of_host(address, len)?;
            }
        }
        match &link.device {
            Device::Tap { name } => Link::tap(link, name.clone(), ports),
            Device::Packet { name } => Link::packet(link, name, ports),
            Device::Macvtap { name } => {
                untagged(link, name)?;
                let taps = macvtap::open(&macvtap::Config {
                    device: name.clone(),
                    queues: ports,
                    mac: None,
                })?;
                Ok(Link::of(name.clone(), link.mtu, taps))
            }
            Device::Xdp {
                name,
                queues,
                mode,
                busy_poll,
                shared,
            } => {
                untagged(link, name)?;
                Link::xdp(
                    link.mtu,
                    &xdp::Config {
                        device: name.clone(),
                        queues: *queues,
                        mode: word(mode, "there is no such mode of AF_XDP")?,
                        busy_poll: word(busy_poll, "there is no such way of busy polling")?,
                        ports,
                        mac: None,
                        shared: match shared {
                            Some(_) => link.addresses.iter().map(|&(ip, _)| ip).collect(),
                            None => Vec::new(),
                        },
                    },
                )
            }
        }
    }

    fn tap(link: &config::Link, name: Option<String>, ports: u16) -> Result<Link, StartError> {
        let taps = tap::open(&tap::Config {
            name,
            up: true,
            hosts: link.hosts.clone(),
            vlan: tag(link)?,
            mtu: link.mtu,
            queues: ports,
            ..tap::Config::default()
        })?;
        let first = taps.first().expect("at least one queue was asked for");
        Ok(Link::of(first.name().to_owned(), link.mtu, taps))
    }

    fn packet(link: &config::Link, name: &str, ports: u16) -> Result<Link, StartError> {
        let sockets = packet::open(&packet::Config {
            device: name.to_owned(),
            queues: ports,
            mac: None,
            vlan: tag(link)?,
        })?;
        Ok(Link::of(name.to_owned(), link.mtu, sockets))
    }

    fn xdp(mtu: u16, config: &xdp::Config) -> Result<Link, StartError> {
        let opened = xdp::open(config)?;
        for note in opened.notes {
            eprintln!("millrace: {note}");
        }
        let held = opened.held;
        let link = Link::of(config.device.clone(), mtu, opened.ports);
        Ok(Link { held, ..link })
    }

    /// The link of these ports, of which there is one at least.
    fn of<P: Port + Send + 'static>(device: String, mtu: u16, ports: Vec<P>) -> Link {
        let capabilities = ports
            .first()
            .expect("at least one queue was asked for")
            .capabilities();
        if mtu > capabilities.mtu {
            let most = capabilities.mtu;
            eprintln!(
                "millrace: packets on {device} are of {most} bytes at most, its MTU, not of the {mtu} of --mtu; for these: `ip link set dev {device} mtu {mtu}`, and start the engine anew"
            );
        }
        let mtu = mtu.min(capabilities.mtu);
        Link {
            device: Some(device),
            mac: capabilities.mac,
            mtu,
            ports: ports
                .into_iter()
                .map(|port| Box::new(port) as Box<dyn Port + Send>)
                .collect(),
            held: None,
        }
    }
}

/// What every shard is told.
fn shard_config(config: &Config, opened: &Link) -> Result<millrace_shard::Config, StartError> {
    let mut secret = [0; 32];
    random(&mut secret).map_err(system("cannot get random bytes"))?;
    let mut shard_config = millrace_shard::Config::new(Ipv4Addr::LOCALHOST, 8, opened.mac, secret);
    shard_config.loopback = config.loopback;
    if config.ecn {
        shard_config.tcp.ecn = millrace_tcp::Ecn::Ask;
    }
    shard_config.tcp.congestion = config.congestion.parse().map_err(|()| {
        system("there is no such congestion control")(io::ErrorKind::InvalidInput.into())
    })?;
    shard_config.tcp.mtu_probing = match config.mtu_probing {
        MtuProbing::Off => millrace_tcp::MtuProbing::Off,
        MtuProbing::BlackHole => millrace_tcp::MtuProbing::BlackHole,
        MtuProbing::Always => millrace_tcp::MtuProbing::Always,
    };
    shard_config.ephemeral = opened.held.as_ref().map(|held| held.outgoing().to_vec());
    if let Some(link) = &config.link {
        // Nobody but the kernel is at the other end of a TAP device, unless that is bridged: who is beyond may remember another engine.
        shard_config.conflict_detection = match link.device {
            Device::Tap { .. } => ConflictDetection::Announce,
            // The kernel has done so.
            Device::Xdp {
                shared: Some(_), ..
            } => ConflictDetection::Kernel,
            Device::Packet { .. } | Device::Macvtap { .. } | Device::Xdp { .. } => {
                ConflictDetection::Probe
            }
        };
        let network = network_of(link);
        shard_config.addresses = network.addresses;
        shard_config.routes = network.routes;
        shard_config.mtu = opened.mtu;
        shard_config.ipv6 = (!network.addresses_v6.is_empty()).then(|| Ipv6 {
            addresses: network.addresses_v6,
            routes: network.routes_v6,
            probes: u8::from(shard_config.conflict_detection != ConflictDetection::Kernel),
        });
    }
    Ok(shard_config)
}

/// What shards are told of a link.
pub(crate) fn network_of(link: &config::Link) -> Network {
    Network {
        addresses: addresses(link),
        routes: routes(link),
        addresses_v6: addresses(link),
        routes_v6: routes(link),
    }
}

/// The device whose addresses are the kernel's, too, and what of the kernel's is followed.
fn shared(config: &Config) -> Option<(&str, Shared)> {
    match &config.link.as_ref()?.device {
        Device::Xdp { name, shared, .. } => Some((name, (*shared)?)),
        _ => None,
    }
}

/// The tag of the link's virtual LAN.
fn tag(link: &config::Link) -> Result<Option<Tag>, StartError> {
    let tag = |id| Tag::new(id).ok_or(StartError::Vlan(id));
    link.vlan.map(tag).transpose()
}

/// A word that the command line has looked at; who makes a configuration by other means may not have.
fn word<T: FromStr>(text: &str, unknown: &'static str) -> Result<T, StartError> {
    let error = |_| system(unknown)(io::ErrorKind::InvalidInput.into());
    text.parse().map_err(error)
}

/// Refuses a virtual LAN.
fn untagged(link: &config::Link, name: &str) -> Result<(), StartError> {
    match link.vlan {
        Some(_) => Err(StartError::NoTags(name.to_owned())),
        None => Ok(()),
    }
}

/// An address of one family.
trait Family: Sized {
    fn of(ip: IpAddr) -> Option<Self>;
}

impl Family for Ipv4Addr {
    fn of(ip: IpAddr) -> Option<Ipv4Addr> {
        match ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        }
    }
}

impl Family for Ipv6Addr {
    fn of(ip: IpAddr) -> Option<Ipv6Addr> {
        match ip {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        }
    }
}

/// Those of a link's addresses that are of one family.
fn addresses<A: Family>(link: &config::Link) -> Vec<(A, u8)> {
    let all = link.addresses.iter();
    all.filter_map(|&(ip, len)| Some((A::of(ip)?, len)))
        .collect()
}

/// Those of a link's routes that are of one family.
fn routes<A: Family>(link: &config::Link) -> Vec<Via<A>> {
    let via = |route: &config::Route| {
        Some(Via {
            prefix: A::of(route.prefix)?,
            prefix_len: route.prefix_len,
            gateway: A::of(route.gateway)?,
        })
    };
    link.routes.iter().filter_map(via).collect()
}

/// The tags that tell the shards' flows apart: others for each engine.
fn hash() -> Result<Hash, StartError> {
    let mut keys = [0; 24];
    random(&mut keys).map_err(system("cannot get random bytes"))?;
    let key = |at: usize| u64::from_ne_bytes(keys[at..at + 8].try_into().unwrap_or_default());
    Ok(Hash::Keyed([key(0), key(8), key(16) | 1]))
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
