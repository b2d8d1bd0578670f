//! From a configuration to a running engine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, mpsc};

use millrace_context::layout::SHARDS_MAX;
use millrace_context::{control_socket, protocol};
use millrace_port::open::{self, Opened};
use millrace_port::spec::{self, Spec};
use millrace_port::xdp::Held;
use millrace_port::{Counters, Port};
use millrace_sandbox::Role;
use millrace_shard::{Claim, Groups, Hash, Ipv6, Network, Shard, Steer, Via};
use millrace_steer::{Policy, PolicyError, Side, virtual_queues};
use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;
use rustix::net::SocketType;

use crate::audit::{self, Audit};
use crate::config::{self, Config, MtuProbing, Shared};
use crate::control::{Access, Control};
use crate::io::{Io, IoHandle, IoThread, no_load};
use crate::kernels::Kernels;
use crate::memory::Arenas;
use crate::ports::{Permits, PrivilegedPorts};
use crate::queues::{Both, Queues, Sleeper};
use crate::reach::Reach;
use crate::scale::Scale;
use crate::serving::{Serving, device_index};
use crate::worker::{self, Wire, Worker};
use crate::workers::{Handle, Workers};
use crate::{doorbell, peers, pin, topology};

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The name is in use.
    #[error(
        "an engine named {0:?} is running already; choose another --name, or end it with `millrace down --name {0}`"
    )]
    NameTaken(String),
    /// The link does not open.
    #[error(transparent)]
    Link(#[from] open::Error),
    /// The link is none for an engine.
    #[error("an engine does not take {0}; give tap, packet:NAME, macvtap:NAME or xdp:NAME")]
    NoFrames(Spec),
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
        0 => (link.ports.into_iter().map(Wire::Port).collect(), Vec::new()),
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
        if own > 0 && shard_config.claim != Claim::Kernel {
            shard_config.claim = Claim::Nothing;
        }
        let memory = Arenas::new(own.into());
        let (commands, receiver) = mpsc::channel();
        let parts = worker::Parts {
            shard: Shard::new(shard_config, memory, Instant::from_micros(0)),
            own: own.into(),
            peers: peers.next().filter(|_| shards > 1),
            wire: wires.pop(),
            doorbell: doorbell.clone(),
            commands: receiver,
            start,
            held: link.held.clone(),
            follow: config.follow && shards == 1 && plan.shards[0].is_none(),
            join: config.join,
            reach: match own {
                0 => Reach::kept_in(default_router.clone()),
                _ => Reach::default(),
            },
            permits: Permits::new(access.ports.shared()),
            audit: outbox.clone(),
        };
        let mut worker = Worker::new(parts).map_err(system("cannot set up the shard's waiting"))?;
        worker.tell_when_settled(settled.clone());
        let core = plan.shards[usize::from(own)];
        let thread = std::thread::Builder::new()
            .name(format!("millrace-shard{own}"))
            .spawn(move || {
                if let Some(core) = core {
                    pin::to(core);
                }
                enter(Role::Shard);
                worker.run();
            })
            .map_err(system("cannot start the shard's thread"))?;
        workers.push(Handle {
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
    let serving = Serving::new(config, link.mtu, index, default_router);
    let scale = Scale::new(config.shards, groups, config.balance);
    let follow = |held| {
        let (name, shared) = shared(config)?;
        let link = config.link.as_ref()?;
        Some(Kernels::follow(name, shared, link, held))
    };
    let kernels = link.held.and_then(follow).transpose();
    let kernels = kernels.map_err(system("cannot follow the kernel's addresses and routes"))?;
    let mut control = Control::new(config, serving, access, workers, scale, kernels)
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
        Some(device) if device.shares_addresses() => millrace_sandbox::Link::SharedXdp,
        Some(device) if device.is_xdp() => millrace_sandbox::Link::Xdp,
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
) -> Result<(Vec<Wire>, Vec<Io>), StartError> {
    let count = doorbells.len();
    let (port_sides, group_sides) =
        virtual_queues(ports.len(), count, QUEUE_BYTES, &policies.0, &policies.1);
    let sleepers = |doorbells: &[Arc<OwnedFd>]| -> Vec<Sleeper> {
        doorbells.iter().cloned().map(Sleeper::new).collect()
    };
    let shards = sleepers(doorbells);
    let doorbells: io::Result<Vec<_>> = ports.iter().map(|_| doorbell::doorbell()).collect();
    let threads = sleepers(&doorbells.map_err(system("cannot make a doorbell"))?);
    let capabilities = ports[0].capabilities();
    let gives_segments = ports[0].gives_segments();
    let wire = |(side, own): (Side, &Sleeper)| {
        Wire::Queues(Box::new(Queues {
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
        orders: Arc::default(),
    });
    Ok((wires, io.collect()))
}

/// The first wires with ports of their own, as many as there are.
fn with_own(wires: Vec<Wire>, ports: Vec<Box<dyn Port + Send>>) -> Vec<Wire> {
    let mut ports = ports.into_iter();
    let with_own = |wire| match wire {
        Wire::Queues(queues) => match ports.next() {
            Some(port) => Wire::Both(Box::new(Both::new(port, *queues))),
            None => Wire::Queues(queues),
        },
        other => other,
    };
    wires.into_iter().map(with_own).collect()
}

/// Starts the I/O threads, each on its core.
fn start_io(io: Vec<Io>, cores: &[Option<usize>]) -> Result<Vec<IoHandle>, StartError> {
    let start = |(number, (io, core)): (usize, (Io, &Option<usize>))| {
        let (doorbell, counters) = (io.own.doorbell.clone(), io.counters.clone());
        let (orders, load) = (io.orders.clone(), io.load.clone());
        let gauges = io.port.gauges();
        let (switches, receiver) = mpsc::channel();
        let mut io =
            IoThread::new(io, receiver).map_err(system("cannot set up an I/O thread's waiting"))?;
        let core = *core;
        let thread = std::thread::Builder::new()
            .name(format!("millrace-io{number}"))
            .spawn(move || {
                if let Some(core) = core {
                    pin::to(core);
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
            orders,
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
        if !link.device.has_frames() {
            return Err(StartError::NoFrames(link.device.clone()));
        }
        let mut options = open::Options::new().queues(ports).mtu(link.mtu);
        options.hosts = link.hosts.clone();
        options.vlan = link.vlan;
        if link.shared.is_some() {
            options.shared = link.addresses.iter().map(|&(ip, _)| ip).collect();
        }
        let opened = open::open(&link.device, &options)?;
        for note in &opened.notes {
            eprintln!("millrace: {note}");
        }
        Ok(Link::new(opened, link.mtu))
    }

    /// The link with these ports, of which there is one at least.
    fn new(opened: Opened, mtu: u16) -> Link {
        let (device, first) = (opened.name, &opened.ports[0]);
        let capabilities = first.capabilities();
        if mtu > capabilities.mtu {
            let most = capabilities.mtu;
            eprintln!(
                "millrace: packets on {device} are of {most} bytes at most, its MTU, not of the {mtu} of --mtu; for these: `ip link set dev {device} mtu {mtu}`, and start the engine anew"
            );
        }
        Link {
            device: Some(device),
            mac: capabilities.mac,
            mtu: mtu.min(capabilities.mtu),
            ports: opened.ports,
            held: opened.held,
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
        shard_config.claim = if link.device.has_kernel_end() {
            Claim::Announce
        } else if link.device.shares_addresses() {
            // The kernel has done so.
            Claim::Kernel
        } else {
            Claim::Probe
        };
        let network = network_of(link);
        shard_config.addresses = network.addresses;
        shard_config.routes = network.routes;
        shard_config.mtu = opened.mtu;
        shard_config.ipv6 = (!network.addresses_v6.is_empty()).then(|| Ipv6 {
            addresses: network.addresses_v6,
            routes: network.routes_v6,
            probes: u8::from(shard_config.claim != Claim::Kernel),
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
    let link = config.link.as_ref()?;
    Some((link.device.name()?, link.shared?))
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
