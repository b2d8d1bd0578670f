//! Programs: what runs on the hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use millrace_shard::{Error, Options, Owner, Reuse, SocketId};
use millrace_tcp::Duration;

use crate::context::Context;
use crate::talk::{Plan, Role, Talk, role_of};

/// Something that uses the stack of its host. It learns of a socket only what it is told, and must
/// ask to be woken.
pub trait Program {
    /// The view of a socket that it has adopted has changed.
    fn changed(&mut self, context: &mut Context<'_>, id: SocketId);

    /// It starts, or a time has come for which it asked.
    fn woken(&mut self, context: &mut Context<'_>);

    /// A number that grows when something is achieved.
    fn progress(&self) -> u64;

    /// Whether it has nothing left to do.
    fn is_done(&self) -> bool;
}

/// The conversations of a program.
#[derive(Default)]
struct Talks {
    open: BTreeMap<SocketId, Talk>,
    done: usize,
    /// What those that are done had achieved.
    progress: u64,
}

impl Talks {
    fn add(&mut self, context: &mut Context<'_>, id: SocketId, role: Role, plan: Plan) {
        context.adopt(id);
        self.open.insert(id, Talk::new(id, role, plan));
        self.step(context, id);
    }

    fn step(&mut self, context: &mut Context<'_>, id: SocketId) {
        let Some(talk) = self.open.get_mut(&id) else {
            return;
        };
        talk.step(context);
        if talk.is_done() {
            self.progress += talk.progress();
            self.done += 1;
            self.open.remove(&id);
        }
    }

    fn step_all(&mut self, context: &mut Context<'_>) {
        for id in self.open.keys().copied().collect::<Vec<_>>() {
            self.step(context, id);
        }
    }

    fn progress(&self) -> u64 {
        self.progress + self.open.values().map(Talk::progress).sum::<u64>()
    }
}

/// Accepts connections and converses over each.
pub struct Server {
    local: SocketAddr,
    plan: Plan,
    total: usize,
    backlog: u32,
    options: Options,
    listener: Option<SocketId>,
    accepted: usize,
    talks: Talks,
    closed: bool,
}

impl Server {
    /// A server for `total` connections, after which it closes its listener.
    pub fn new(local: SocketAddr, plan: Plan, total: usize) -> Server {
        Server {
            local,
            plan,
            total,
            backlog: 128,
            options: Options::default(),
            listener: None,
            accepted: 0,
            talks: Talks::default(),
            closed: false,
        }
    }

    /// With another backlog than 128.
    #[must_use]
    pub fn backlog(self, backlog: u32) -> Server {
        Server { backlog, ..self }
    }

    /// With these socket options, which its connections inherit.
    #[must_use]
    pub fn options(self, options: Options) -> Server {
        Server { options, ..self }
    }
}

impl Program for Server {
    fn changed(&mut self, context: &mut Context<'_>, id: SocketId) {
        if Some(id) != self.listener {
            self.talks.step(context, id);
        } else {
            loop {
                match context.stack.accept(id) {
                    Ok(accepted) => {
                        self.accepted += 1;
                        assert!(
                            self.accepted <= self.total,
                            "a connection that no client made"
                        );
                        self.talks.add(context, accepted, Role::Server, self.plan);
                    }
                    Err(Error::WouldBlock) => break,
                    Err(error) => panic!("accept: {error}"),
                }
            }
        }
        if self.talks.done == self.total
            && let Some(listener) = self.listener.take()
        {
            context
                .stack
                .close(listener, context.now)
                .expect("the listener is open");
            self.closed = true;
        }
    }

    fn woken(&mut self, context: &mut Context<'_>) {
        if self.listener.is_none() && !self.closed {
            let owner = Owner(context.program() as u32);
            let reuse = Reuse {
                address: true,
                ..self.options.reuse
            };
            let id = context
                .stack
                .listen(owner, self.local, self.backlog, reuse)
                .expect("the port is free");
            context.adopt(id);
            self.listener = Some(id);
        }
        self.talks.step_all(context);
        if let Some(listener) = self.listener {
            self.changed(context, listener);
        }
    }

    fn progress(&self) -> u64 {
        self.talks.progress() + self.accepted as u64
    }

    fn is_done(&self) -> bool {
        self.closed
    }
}

/// Connects, some at a time, and converses over each connection.
pub struct Client {
    remote: SocketAddr,
    plan: Plan,
    total: usize,
    parallel: usize,
    options: Options,
    started: usize,
    talks: Talks,
}

impl Client {
    /// A client that makes `total` connections, at most `parallel` at a time.
    pub fn new(remote: SocketAddr, plan: Plan, total: usize, parallel: usize) -> Client {
        Client {
            remote,
            plan,
            total,
            parallel,
            options: Options::default(),
            started: 0,
            talks: Talks::default(),
        }
    }

    /// With these socket options.
    #[must_use]
    pub fn options(self, options: Options) -> Client {
        Client { options, ..self }
    }

    fn connect_more(&mut self, context: &mut Context<'_>) {
        while self.started < self.total && self.started - self.talks.done < self.parallel {
            let owner = Owner(context.program() as u32);
            let id = context
                .stack
                .connect(owner, None, self.remote, &self.options, context.now)
                .unwrap_or_else(|error| panic!("connect: {error}"));
            self.started += 1;
            self.talks.add(context, id, Role::Client, self.plan);
        }
    }
}

impl Program for Client {
    fn changed(&mut self, context: &mut Context<'_>, id: SocketId) {
        self.talks.step(context, id);
        self.connect_more(context);
    }

    fn woken(&mut self, context: &mut Context<'_>) {
        self.talks.step_all(context);
        self.connect_more(context);
    }

    fn progress(&self) -> u64 {
        self.talks.progress() + self.started as u64
    }

    fn is_done(&self) -> bool {
        self.talks.done == self.total
    }
}

/// Connects from a port of its own to a peer that does the same: a simultaneous open, if both do it
/// soon enough one after the other.
pub struct Peer {
    local: SocketAddr,
    remote: SocketAddr,
    plan: Plan,
    wait: Duration,
    started: bool,
    talks: Talks,
}

impl Peer {
    /// A peer that connects after `wait`. Of two, the one with the lower address says what the
    /// plan's client says.
    pub fn new(local: SocketAddr, remote: SocketAddr, plan: Plan, wait: Duration) -> Peer {
        Peer {
            local,
            remote,
            plan,
            wait,
            started: false,
            talks: Talks::default(),
        }
    }
}

impl Program for Peer {
    fn changed(&mut self, context: &mut Context<'_>, id: SocketId) {
        self.talks.step(context, id);
    }

    fn woken(&mut self, context: &mut Context<'_>) {
        if self.wait != Duration::ZERO {
            context.wake_at(context.now + self.wait);
            self.wait = Duration::ZERO;
            return;
        }
        if !self.started {
            self.started = true;
            let owner = Owner(context.program() as u32);
            let id = context
                .stack
                .bind(owner, self.local, Reuse::default())
                .expect("the port is free");
            context
                .stack
                .connect_bound(id, self.remote, context.now)
                .expect("a peer on the link");
            self.talks
                .add(context, id, role_of(self.local, self.remote), self.plan);
        }
        self.talks.step_all(context);
    }

    fn progress(&self) -> u64 {
        self.talks.progress() + u64::from(self.started)
    }

    fn is_done(&self) -> bool {
        self.talks.done == 1
    }
}
