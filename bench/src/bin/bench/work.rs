//! The operations that the epoll server is measured by, and one run of each.

use anyhow::Result;
use millrace_bench::load::Outcome;
use millrace_e2e::others::Service;
use millrace_e2e::{Stack, compile};

use crate::arguments::PORT;
use crate::servers::Server;
use crate::wire::{self, Layout, Wire};

/// What is done.
pub struct Work {
    pub name: &'static str,
    pub what: &'static str,
    /// Mode of `tests/programs/server.c`.
    pub server: &'static str,
    /// Of `millrace load`.
    pub load: &'static str,
    pub connections: u32,
    /// Of the kernel's rate, natural and strict.
    pub goals: [f64; 2],
    /// Whether it is measured at offered loads, too.
    pub offered: bool,
    /// Whether a kernel that polls is, which helps where the server would sleep often and not for
    /// long.
    pub polling_helps: bool,
    /// Whether a quick run has time for one of those.
    pub is_quick: bool,
    /// Whether other stacks with an adapter are measured.
    pub has_peers: bool,
    /// Of their rates, in either layout.
    pub goal_beside_peers: Option<f64>,
}

/// All of them.
pub const WORKS: [Work; 3] = [
    Work {
        name: "wire-short",
        what: "Connect, 64 bytes, 64 bytes back, the server closes",
        server: "short",
        load: "short",
        connections: 256,
        goals: [2.0, 3.0],
        offered: true,
        polling_helps: false,
        is_quick: false,
        has_peers: true,
        goal_beside_peers: Some(2.0),
    },
    Work {
        name: "wire-short-8k",
        what: "Connect, 64 bytes, 64 bytes back, the server closes",
        server: "short",
        load: "short",
        connections: 8192,
        goals: [2.0, 3.0],
        offered: false,
        polling_helps: false,
        is_quick: false,
        has_peers: false,
        goal_beside_peers: None,
    },
    Work {
        name: "wire-ping",
        what: "64 bytes there and back",
        server: "echo",
        load: "pingpong",
        connections: 256,
        goals: [1.5, 1.5],
        offered: true,
        polling_helps: true,
        is_quick: true,
        has_peers: true,
        goal_beside_peers: None,
    },
];
impl Work {
    pub fn in_layout(&self, layout: Layout) -> String {
        format!("{}-{layout:?}", self.name).to_lowercase()
    }

    /// At this part of the kernel's rate, in percent.
    pub fn at(&self, percent: u32) -> String {
        format!("{}-at-{percent}", self.name)
    }

    /// Seconds before it counts: who comes to a server with so many others at once may have to ask
    /// again, after a second.
    pub fn warm_up(&self) -> f64 {
        if self.connections > 1000 { 3.0 } else { 0.5 }
    }

    /// One run, of a server of its own; operations that have failed are in what it came to.
    pub fn run(
        &self,
        stack: Stack,
        layout: Layout,
        rate: Option<f64>,
        length: f64,
    ) -> Result<Outcome> {
        let program = compile::program("server")?;
        let wire = Wire::start(
            stack,
            layout,
            |_, address| {
                let mut words = [&program, self.server, address, &PORT.to_string()]
                    .map(String::from)
                    .to_vec();
                if layout == Layout::Polling {
                    words.push(wire::POLLED.to_owned());
                }
                Ok(words)
            },
            |_, server| Ok(server.stdout().contains("ready")),
        )?;
        self.load(wire, rate, length)
    }

    /// The same of another stack's server.
    pub fn run_other(
        &self,
        server: &Server,
        layout: Layout,
        rate: Option<f64>,
        length: f64,
    ) -> Result<Outcome> {
        let connections = usize::try_from(self.connections)?;
        let service = Service {
            mode: self.server,
            port: PORT,
            connections,
        };
        let wire = Wire::start_other(server, layout, service)?;
        self.load(wire, rate, length)
    }

    /// What the generator comes to on a wire.
    fn load(&self, wire: Wire, rate: Option<f64>, length: f64) -> Result<Outcome> {
        let rate = rate.map_or_else(String::new, |rate| format!(" --rate {rate:.0}"));
        let target = wire.target(PORT);
        let words = format!(
            "{} {target} --connections {} --warm-up {}{rate}",
            self.load,
            self.connections,
            self.warm_up()
        );
        let outcome = wire.load(&words, length)?;
        wire.stop()?;
        Ok(outcome)
    }
}
