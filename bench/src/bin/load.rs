//! A load from the kernel's side; prints one line of JSON.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use millrace_bench::load::{self, Kind};

/// Loads a server of `tests/programs/server.c` and says what came of it, as JSON.
#[derive(Debug, Parser)]
struct Arguments {
    /// What to do; the server's mode must fit.
    #[arg(value_enum)]
    kind: Kind,
    /// Where the server listens.
    address: SocketAddr,
    /// Connections at once.
    connections: usize,
    /// How long to measure, in seconds.
    seconds: f64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let duration = Duration::from_secs_f64(arguments.seconds);
    let outcome = load::run(
        arguments.kind,
        arguments.address,
        arguments.connections,
        duration,
    )?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}
