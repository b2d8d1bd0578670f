//! The thread of a shard.
//!
//! One round: frames in, requests, timers, frames out, publish. When a round finds nothing to do
//! the worker says that it sleeps, checks once more, and waits for its port, a doorbell or its
//! next deadline.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use millrace_shard::Shard;
use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::Mac;

use crate::control::audit;
use crate::control::command::Command;
use crate::control::privileged_ports::PrivilegedPorts;
use crate::doorbell;
use crate::links::drop_warnings::CHECK_INTERVAL_US;
use crate::requests::port_permits::PortPermits;
use crate::requests::serve::RequestMark;
use crate::server::ShardServer;
use crate::shared::arenas::Arenas;
use crate::worker::default_route::DefaultRoute;
use crate::worker::limit_warnings::LimitWarnings;
use crate::worker::spin::Spin;
use crate::worker::wait_set::WaitSet;

mod commands;
pub(crate) mod counters;
pub(crate) mod cpu_follow;
pub(crate) mod default_route;
pub(crate) mod diagnostics;
mod idle_timer;
mod limit_warnings;
pub(crate) mod publisher;
pub(crate) mod reserved_ports;
mod sleep;
pub(crate) mod spin;
mod wait_set;

/// An address that another station has, and the link-layer address of that station if it is known.
pub(crate) type Conflict = (IpAddr, Option<Mac>);

/// A worker: the loop around one `ShardServer`. All of it belongs to its thread.
pub struct Worker {
    server: ShardServer,
    wait_set: WaitSet,
    spin: Spin,
    /// `counters.wakeups` when it slept last.
    wakeups_before: u64,
    commands: Receiver<Command>,
    /// The command that waits until requests before it have been served.
    waiting: Option<(Command, Vec<RequestMark>)>,
    /// The zero of the time of all shards.
    start: std::time::Instant,
    /// It is to end, at the latest at this time.
    draining: Option<Instant>,
    /// Told when the addresses of the shard can be used, or that one of them cannot.
    settled: Option<Sender<Option<Conflict>>>,
    default_route: DefaultRoute,
    limit_warnings: LimitWarnings,
    /// When limits and drops are checked next.
    next_check: Instant,
}

/// What a worker is made of.
pub struct Parts {
    pub(crate) server: ShardServer,
    /// Rung by the control thread and the other workers.
    pub(crate) doorbell: Arc<OwnedFd>,
    /// From the control thread.
    pub(crate) commands: Receiver<Command>,
    /// The zero of the time of all shards.
    pub(crate) start: std::time::Instant,
    /// Told when the addresses of the shard can be used, or that one of them cannot.
    pub(crate) settled: Option<Sender<Option<Conflict>>>,
    pub(crate) default_route: DefaultRoute,
}

impl Parts {
    /// The parts of the worker of an engine that has one shard and no link.
    ///
    /// # Errors
    /// The kernel has no descriptor for a doorbell.
    pub fn alone(shard: Shard<Arenas>, commands: Receiver<Command>) -> io::Result<Parts> {
        let (audit, _) = audit::channel(false)?;
        let permits = PortPermits::new(PrivilegedPorts::new().shared());
        Ok(Parts {
            server: ShardServer::alone(shard, audit, permits),
            doorbell: doorbell::doorbell()?,
            commands,
            start: std::time::Instant::now(),
            settled: None,
            default_route: DefaultRoute::default(),
        })
    }
}

impl Worker {
    /// A worker of these parts.
    ///
    /// # Errors
    /// The kernel has no descriptor for the epoll set or the timer.
    pub fn new(parts: Parts) -> io::Result<Worker> {
        let wait_set = WaitSet::new(&parts.doorbell, parts.server.link.descriptor())?;
        Ok(Worker {
            server: parts.server,
            wait_set,
            spin: Spin::default(),
            wakeups_before: 0,
            commands: parts.commands,
            waiting: None,
            start: parts.start,
            draining: None,
            settled: parts.settled,
            default_route: parts.default_route,
            limit_warnings: LimitWarnings::default(),
            next_check: Instant::from_micros(CHECK_INTERVAL_US),
        })
    }

    fn read_clock(&mut self) {
        self.server.now = Instant::from_micros(self.start.elapsed().as_micros() as u64);
    }

    /// Runs until it is told to drain and is drained.
    pub(crate) fn run(&mut self) {
        loop {
            self.read_clock();
            if self.round(self.server.now) {
                continue;
            }
            if self.is_drained() {
                return;
            }
            self.sleep();
        }
    }

    /// Does what there is to do at `now`, without waiting. Returns whether there was anything.
    pub fn round(&mut self, now: Instant) -> bool {
        self.server.now = now;
        let moved = self.move_frames();
        let gave = self.server.bucket_moves.is_leaving() && self.server.give_buckets();
        self.server.counters.rounds += 1;
        let commanded = self.execute_next();
        commanded || gave || moved > 0
    }

    /// Receives, serves, transmits and publishes. Returns how many frames and requests there were.
    fn move_frames(&mut self) -> usize {
        let server = &mut self.server;
        let received = server.receive() + server.take_handed();
        let served = server.serve();
        server.run_timers();
        if self.settled.is_some() && !server.shard.is_tentative() {
            // The control thread may not wait any more.
            let _ = self
                .settled
                .take()
                .map(|to| to.send(server.shard.conflict()));
        }
        self.default_route
            .update(|| server.shard.has_default_router(), &server.programs);
        if self.next_check <= server.now {
            self.next_check = server.now + Duration::from_micros(CHECK_INTERVAL_US);
            self.limit_warnings
                .check(server.shard.counters(), &server.counters);
            server.check_for_drops();
        }
        let sent = server.transmit();
        server.publish();
        server.send_handed();
        server.reserved_ports.release_unused(&mut server.shard);
        received + served + sent
    }

    /// Executes a command when the requests before it have been served. Until then the command
    /// waits, and those behind it.
    fn execute_in_order(&mut self, command: Command, mut marks: Vec<RequestMark>) {
        marks.retain(|mark| !self.server.is_served(mark));
        if marks.is_empty() {
            self.execute(command);
        } else {
            self.waiting = Some((command, marks));
        }
    }

    /// Executes the next command. Returns whether there was one.
    fn execute_next(&mut self) -> bool {
        if let Some((command, marks)) = self.waiting.take() {
            self.execute_in_order(command, marks);
            return true;
        }
        match self.commands.try_recv() {
            Ok(Command::Drain { patience_ms }) => {
                let patience = Duration::from_micros(patience_ms * 1000);
                self.draining = Some(self.server.now + patience);
                true
            }
            Ok(command) => {
                // Other workers gave before the control thread sent this: take that first.
                self.server.drain_requests();
                let marks = self.server.marks_before(&command);
                self.execute_in_order(command, marks);
                true
            }
            Err(TryRecvError::Empty) => false,
            // The control thread has ended: no command will come.
            Err(TryRecvError::Disconnected) => {
                self.draining.get_or_insert(self.server.now);
                false
            }
        }
    }

    /// Whether it was told to end and no connection has anything left to send.
    fn is_drained(&mut self) -> bool {
        let Some(until) = self.draining else {
            return false;
        };
        let now = self.server.now;
        if now >= until {
            return true;
        }
        let mut talking = false;
        self.server.shard.for_each_socket(now, |socket| {
            use millrace_shard::SocketState::Tcp;
            use millrace_tcp::State::{Closed, FinWait2, TimeWait};
            talking |= matches!(socket.state, Tcp(state) if !matches!(state, TimeWait | Closed | FinWait2));
        });
        !talking
    }
}
