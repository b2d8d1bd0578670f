//! Connections from the kernel's side that do nothing until they are told to; as many as a process
//! may have descriptors.

use std::io::{self, BufRead as _};
use std::net::SocketAddr;

use anyhow::ensure;
use clap::Parser;
use millrace_bench::load::{MESSAGE, open};

/// Opens connections, says "open", and keeps them until its input ends; for a line of it each sends
/// 64 bytes, and it says "sent".
#[derive(Debug, Parser)]
struct Arguments {
    /// Where the server listens.
    address: SocketAddr,
    /// How many.
    connections: usize,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let sockets = open(arguments.address, arguments.connections)?;
    println!("open");
    for line in io::stdin().lock().lines() {
        line?;
        for socket in &sockets {
            let written = rustix::io::write(socket, &[7; MESSAGE])?;
            ensure!(written == MESSAGE, "a short write");
        }
        println!("sent");
    }
    Ok(())
}
