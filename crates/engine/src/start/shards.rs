//! Starts the shards, each with its worker on a thread.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::Sender;
use std::sync::{Arc, mpsc};

use millrace_port::xdp::Held;
use millrace_sandbox::Role;
use millrace_shard::{ConflictDetection, Groups, Hash, Ipv6, Shard, Steer};
use millrace_tcp::Instant;

use crate::config::{Config, MtuProbing};
use crate::control::audit::Outbox;
use crate::control::privileged_ports::FirstUnprivileged;
use crate::control::workers::WorkerHandle;
use crate::links::shard_link::{ShardLink, ShardPort};
use crate::peers;
use crate::requests::port_permits::PortPermits;
use crate::server::ShardServer;
use crate::shared::arenas::Arenas;
use crate::start::affinity;
use crate::start::error::{StartError, system};
use crate::start::link::Link;
use crate::start::network::network_of;
use crate::start::random::random;
use crate::start::role::enter;
use crate::worker::cpu_follow::CpuFollow;
use crate::worker::default_route::DefaultRoute;
use crate::worker::reserved_ports::ReservedPorts;
use crate::worker::{self, Conflict, Worker};

/// What all shards of an engine have in common.
pub(super) struct Shards<'a> {
    pub(super) config: &'a Config,
    pub(super) shard_config: millrace_shard::Config,
    pub(super) hash: Hash,
    pub(super) groups: Groups,
    pub(super) doorbells: Vec<Arc<OwnedFd>>,
    /// The core of each shard. None: the shard may run on any core.
    pub(super) cores: &'a [Option<usize>],
    /// The ports that the engine has reserved, where it shares addresses with the kernel.
    pub(super) reserved_ports: Option<Arc<Held>>,
    pub(super) first_unprivileged: FirstUnprivileged,
    pub(super) audit: Outbox,
    pub(super) default_router: Arc<AtomicU32>,
    /// Told by each shard when its addresses can be used, or that one of them cannot.
    pub(super) settled: Sender<Option<Conflict>>,
}

impl Shards<'_> {
    /// Starts a worker for each shard, on one of `ports` each if there are any.
    pub(super) fn start(&self, ports: Vec<ShardPort>) -> Result<Vec<WorkerHandle>, StartError> {
        let start = std::time::Instant::now();
        let mut ports = ports.into_iter();
        let mut workers = Vec::new();
        for (own, peers) in (0..).zip(peers::mesh(&self.doorbells)) {
            let server = self.server(own, peers, ports.next());
            let (commands, receiver) = mpsc::channel();
            let doorbell = self.doorbells[usize::from(own)].clone();
            let parts = worker::Parts {
                server,
                doorbell: doorbell.clone(),
                commands: receiver,
                start,
                settled: Some(self.settled.clone()),
                default_route: match own {
                    0 => DefaultRoute::stored_in(self.default_router.clone()),
                    _ => DefaultRoute::default(),
                },
            };
            let worker = Worker::new(parts);
            let worker = worker.map_err(system("cannot set up the shard's waiting"))?;
            let thread = self.spawn(own, worker);
            workers.push(WorkerHandle {
                commands,
                doorbell,
                thread: thread.map_err(system("cannot start the shard's thread"))?,
            });
        }
        Ok(workers)
    }

    fn server(&self, own: u16, peers: peers::Peers, port: Option<ShardPort>) -> ShardServer {
        let several = self.doorbells.len() > 1;
        let mut config = self.shard_config.clone();
        config.steer = several.then(|| Steer {
            own,
            hash: self.hash.clone(),
            groups: self.groups.clone(),
        });
        // The first shard claims the addresses for all.
        if own > 0 && config.conflict_detection != ConflictDetection::Kernel {
            config.conflict_detection = ConflictDetection::Nothing;
        }
        let shard = Shard::new(config, Arenas::new(own.into()), Instant::from_micros(0));
        let permits = PortPermits::new(self.first_unprivileged.clone());
        ShardServer {
            own: own.into(),
            link: ShardLink::new(port, own.into(), self.config.join),
            peers: several.then(|| Box::new(peers)),
            reserved_ports: ReservedPorts::new(self.reserved_ports.clone(), own.into()),
            cpu_follow: CpuFollow::new(self.config.follow && !several && self.cores[0].is_none()),
            ..ShardServer::alone(shard, self.audit.clone(), permits)
        }
    }

    fn spawn(&self, own: u16, mut worker: Worker) -> io::Result<std::thread::JoinHandle<()>> {
        let core = self.cores[usize::from(own)];
        std::thread::Builder::new()
            .name(format!("millrace-shard{own}"))
            .spawn(move || {
                if let Some(core) = core {
                    affinity::pin_to(core);
                }
                enter(Role::Shard);
                worker.run();
            })
    }
}

/// The configuration of each shard.
pub(super) fn shard_config(
    config: &Config,
    opened: &Link,
    shards: u16,
) -> Result<millrace_shard::Config, StartError> {
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
    shard_config.ephemeral = opened
        .reserved_ports
        .as_ref()
        .map(|held| held.outgoing().to_vec());
    if let Some(link) = &config.link {
        // Only the kernel is at the other end of a TAP device, unless the device is bridged.
        // Stations beyond the bridge may remember another engine.
        shard_config.conflict_detection = if link.device.has_kernel_end() {
            ConflictDetection::Announce
        } else if link.device.shares_addresses() {
            // The kernel has checked that the addresses are unique.
            ConflictDetection::Kernel
        } else {
            ConflictDetection::Probe
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
    shard_config.limits = shard_config.limits.shared_by(shards);
    shard_config.limits.shared = true;
    Ok(shard_config)
}
