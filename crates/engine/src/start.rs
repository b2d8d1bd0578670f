//! From a configuration to a running engine.

use std::sync::atomic::AtomicU32;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, mpsc};

use millrace_context::control_socket;
use millrace_context::layout::SHARDS_MAX;
use millrace_sandbox::Role;
use millrace_shard::Groups;
use rustix::net::SocketType;

use crate::config::Config;
use crate::control::audit::{self, Audit};
use crate::control::kernel_network::KernelNetwork;
use crate::control::privileged_ports::PrivilegedPorts;
use crate::control::region_header::{RegionHeader, device_index};
use crate::control::workers::Workers;
use crate::control::{Access, Control};
use crate::links::shard_link::ShardPort;
use crate::migration::scale::Scale;
use crate::start::error::system;
use crate::start::io_threads::{pipeline, start_io, with_own};
use crate::start::link::{Link, shared};
use crate::start::random::hash;
use crate::start::shards::{Shards, shard_config};
use crate::worker::Conflict;
use crate::{doorbell, topology};

pub(crate) mod affinity;
mod error;
mod io_threads;
mod link;
pub(crate) mod network;
pub(crate) mod random;
mod role;
mod shards;

pub use error::StartError;

/// Starts the engine and runs it in the calling thread until it ends. `ready` is called with the
/// name of the device when the engine can be used. It has the system calls of the control thread
/// alone: it may write and close, and opens nothing to write.
///
/// # Errors
/// Something in the configuration, or something that the kernel refuses.
pub fn start(config: &Config, ready: impl FnOnce(Option<&str>)) -> Result<(), StartError> {
    let shards = config.room();
    if config.shards == 0 || usize::from(shards) > SHARDS_MAX {
        return Err(StartError::Shards(shards));
    }
    if config.link.is_none() && !config.loopback {
        return Err(StartError::NothingToServe);
    }
    // This needs rights that are dropped below. The name is taken until this function returns.
    let (access, outbox, _name) = access(config)?;
    raise_descriptor_limit();

    let policies = (config.io_schedule.parse()?, config.shard_schedule.parse()?);
    let plan = topology::of(config)?;
    let io_threads = plan.io.len() as u16;
    let mut link = Link::open(config, plan.ports(shards))?;
    // All that needs the rights of the user who started the engine is open, and no thread has
    // been started.
    if let Some(sandbox) = &config.sandbox {
        millrace_sandbox::drop_privileges(sandbox, &config.name, kind_of_link(config))?;
    }
    for note in &plan.notes {
        eprintln!("millrace: {note}");
    }
    let shard_config = shard_config(config, &link, shards)?;
    let hash = hash().map_err(system("cannot get random bytes"))?;
    let groups = Groups::even(config.shards);

    let doorbells: Result<Vec<_>, _> = (0..shards).map(|_| doorbell::doorbell()).collect();
    let doorbells = doorbells.map_err(system("cannot make a doorbell"))?;
    let default_router = Arc::<AtomicU32>::default();
    let ports = std::mem::take(&mut link.ports);
    let (ports, io) = match io_threads {
        0 => (
            ports.into_iter().map(ShardPort::Device).collect(),
            Vec::new(),
        ),
        _ => {
            let mut own = ports;
            let rest = own.split_off(plan.owners.into());
            let (queues, io) = pipeline(rest, &doorbells, &hash, &groups, &policies)?;
            (with_own(queues, own), io)
        }
    };
    // An address can be used once no other station on the link has claimed it.
    let (settled, wait) = mpsc::channel();
    let shards = Shards {
        config,
        shard_config,
        hash,
        groups: groups.clone(),
        doorbells,
        cores: &plan.shards,
        reserved_ports: link.reserved_ports.clone(),
        first_unprivileged: access.ports.shared(),
        audit: outbox,
        default_router: default_router.clone(),
        settled,
    };
    let workers = shards.start(ports)?;
    // The workers keep their own copies of these.
    drop(shards);
    let workers = Workers {
        shards: workers,
        io: start_io(io, &plan.io)?,
        owners: plan.owners,
    };
    let kernel_network = follow_kernel(config, &link)?;
    let index = link.device.as_deref().map_or(0, device_index);
    let header = RegionHeader::new(config, link.mtu, index, default_router);
    let scale = Scale::new(config.shards, groups, config.balance);
    let control = Control::new(config, header, access, workers, scale, kernel_network);
    let mut control = control.map_err(system("cannot set up the control socket"))?;
    // While the shards start, so that the first program does not wait for it.
    millrace_sandbox::enter(Role::Control)?;
    wait_for_addresses(&wait)?;
    ready(link.device.as_deref());
    control.run().map_err(system("the control socket failed"))
}

/// Follows the kernel's addresses and routes, where the engine shares them.
fn follow_kernel(config: &Config, link: &Link) -> Result<Option<KernelNetwork>, StartError> {
    let follow = |held| {
        let (name, shared) = shared(config)?;
        let link = config.link.as_ref()?;
        Some(KernelNetwork::follow(name, shared, link, held))
    };
    let network = link.reserved_ports.clone().and_then(follow).transpose();
    network.map_err(system("cannot follow the kernel's addresses and routes"))
}

/// Waits until the addresses of all shards can be used. A worker that says nothing has ended, and
/// the control thread will notice that.
fn wait_for_addresses(settled: &Receiver<Option<Conflict>>) -> Result<(), StartError> {
    while let Ok(conflict) = settled.recv() {
        if let Some((address, station)) = conflict {
            let station =
                station.map_or_else(|| "another".to_owned(), |mac| format!("the station {mac}"));
            return Err(StartError::AddressTaken { address, station });
        }
    }
    Ok(())
}

/// The kind of link, which decides the system calls that roles may make.
fn kind_of_link(config: &Config) -> millrace_sandbox::Link {
    match config.link.as_ref().map(|link| &link.device) {
        Some(device) if device.shares_addresses() => millrace_sandbox::Link::SharedXdp,
        Some(device) if device.is_xdp() => millrace_sandbox::Link::Xdp,
        _ => millrace_sandbox::Link::Frames,
    }
}

/// Opens the control sockets and the audit log, and takes the name of the engine.
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

/// Raises the limit of descriptors as far as allowed. Each poller and process takes one.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Otherwise the engine serves fewer processes, and says so when it refuses them.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}
