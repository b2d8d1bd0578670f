//! Servers with a stack inside them: our own, those of other stacks with an adapter in
//! `bench/peers`, and what `--server` names.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use millrace_bench::report::Goal;
use millrace_e2e::compile;
use millrace_e2e::others::Other;

use crate::protocol::{cargo, gvisor};

/// How many addresses it has.
pub const SOURCES: u8 = 50;

/// Whose a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Ours: one more row beside that of unmodified programs, and nobody to be ahead of.
    Ours,
    /// A stack's with an adapter here.
    Peers,
    /// Of whom the command line named.
    Given,
}

/// One of them, and what has to be known of it to measure it.
pub struct Server {
    /// What starts it.
    pub other: Other,
    /// How many addresses its client has on a wire, as far as it looks up neighbours fast and keeps
    /// them.
    pub neighbours: u8,
    /// Whose it is.
    pub whose: Whose,
    /// Whether it looks through all connections for each segment, so that thousands take long.
    pub is_slow: bool,
}

impl Server {
    /// What `--server NAME=COMMAND` says.
    pub fn given(stack: &str, command: &str) -> Server {
        Server {
            other: Other::given(stack, command),
            neighbours: SOURCES,
            whose: Whose::Given,
            is_slow: false,
        }
    }

    /// Ours, and those with an adapter here, built.
    pub fn adapters() -> Vec<Server> {
        vec![
            Server {
                other: Other::embedded(beside("embedded_server")),
                neighbours: SOURCES,
                whose: Whose::Ours,
                is_slow: false,
            },
            Server {
                other: Other::smoltcp(cargo(&["-p", "millrace-peer-smoltcp"], "smoltcp-server")),
                // It asks for one neighbour a second.
                neighbours: 1,
                whose: Whose::Peers,
                is_slow: true,
            },
            Server {
                other: Other::lwip(compile::lwip("server")),
                // Its table has ten in Debian's build, one of them for the host.
                neighbours: 8,
                whose: Whose::Peers,
                is_slow: true,
            },
            Server {
                other: Other::gvisor(gvisor()),
                neighbours: SOURCES,
                whose: Whose::Peers,
                is_slow: false,
            },
        ]
    }

    /// As it is called in reports.
    pub fn stack(&self) -> &str {
        &self.other.stack
    }

    /// What ours should reach beside it, as a ratio; nothing beside ourselves.
    pub fn goal(&self, bound: f64) -> Option<Goal> {
        (self.whose != Whose::Ours).then(|| Goal {
            against: Some(self.stack().to_owned()),
            bound,
        })
    }
}

/// A program that was built with this one.
fn beside(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(
        path.exists(),
        "{} is missing: `cargo build --release -p millrace-bench` builds it",
        path.display()
    );
    Ok(path)
}
