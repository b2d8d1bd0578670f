//! Starts the I/O threads of a pipeline, with virtual queues between them and the shards.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use millrace_port::{Counters, Port};
use millrace_sandbox::Role;
use millrace_shard::{Groups, Hash};
use millrace_steer::{Policy, Side, virtual_queues};

use crate::doorbell;
use crate::links::io_thread::{Io, IoHandle, IoThread, no_load};
use crate::links::shard_link::ShardPort;
use crate::links::virtual_queues::{MixedPort, VirtualQueues, Waker};
use crate::start::affinity;
use crate::start::error::{StartError, system};
use crate::start::role::enter;

/// Bytes of a virtual queue each way: a burst of the largest frames, or thousands of the usual
/// ones. Memory is taken at first use, and kept.
const QUEUE_BYTES: usize = 1 << 22;

/// The virtual queues of a pipeline: the part of each shard, and the part of each I/O thread.
/// `policies` are those of the I/O threads and of the shards.
pub(super) fn pipeline(
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

/// Gives the first shards ports of their own, as many as there are.
pub(super) fn with_own(wires: Vec<ShardPort>, ports: Vec<Box<dyn Port + Send>>) -> Vec<ShardPort> {
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
pub(super) fn start_io(io: Vec<Io>, cores: &[Option<usize>]) -> Result<Vec<IoHandle>, StartError> {
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
