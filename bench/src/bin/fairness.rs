//! `make fairness`: what many downloads at once get of one real link, from nginx on millrace and on
//! the kernel in turns. The client is on the kernel's stack always, and reads from whoever has
//! something, a little at a time.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use millrace_bench::{machine, supervise};
use millrace_e2e::programs::Nginx;
use millrace_e2e::scenario::prepare;
use millrace_e2e::{Stack, World};
use rustix::event::epoll;

/// Measures how evenly one TAP link is shared.
#[derive(Debug, Parser)]
struct Arguments {
    /// Downloads at once
    #[arg(long, default_value_t = 1000)]
    flows: usize,
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// What does not count at the start of each, in seconds
    #[arg(long, default_value_t = 3)]
    warm_up: u64,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    rounds: u64,
}

const PORT: u16 = 80;
/// A file that nobody gets to the end of.
const FILE: u64 = 1 << 40;
/// Read at a time from one connection.
const PIECE: usize = 64 << 10;

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    supervise::supervised(|| measure(&arguments))
}

fn measure(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.flows > 0, "--flows: one at least");
    prepare()?;
    println!("{}", machine::describe());
    println!(
        "{} downloads from nginx over one TAP link, {} s each\n",
        arguments.flows, arguments.seconds
    );
    println!("| stack | Gbit/s | Jain's index | least, of an equal share | most |");
    println!("|---|--:|--:|--:|--:|");
    for _ in 0..arguments.rounds {
        for (stack, name) in [(Stack::Millrace, "millrace"), (Stack::Kernel, "kernel")] {
            let shares = share(stack, arguments).context(name)?;
            let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
                (sum + share, squares + share * share)
            });
            let mean = sum / shares.len() as f64;
            let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
            let most = shares.iter().copied().fold(0.0, f64::max);
            println!(
                "| {name} | {:.2} | {:.4} | {:.2} | {:.2} |",
                sum * 8.0 / arguments.seconds as f64 / 1e9,
                sum * sum / (shares.len() as f64 * squares),
                least / mean,
                most / mean
            );
        }
    }
    Ok(())
}

/// What each download got, in bytes.
fn share(stack: Stack, arguments: &Arguments) -> Result<Vec<f64>> {
    let world = World::create(stack)?;
    let words = Nginx {
        port: PORT,
        main: "daemon off;",
        http: "keepalive_timeout 600;",
        server: "",
    }
    .configure(&world)?;
    let file = world.directory().join("www/endless");
    // A file of holes takes no room.
    std::fs::File::create(&file)
        .with_context(|| format!("creating {}", file.display()))?
        .set_len(FILE)?;
    let server = world.serve(&words, PORT)?;
    let address = world.at(PORT);
    let shares = world
        .peer_namespace()
        .enter(|| download(address, arguments))?;
    server.stop(rustix::process::Signal::QUIT, Duration::from_secs(20))?;
    world.finish()?;
    Ok(shares)
}

fn download(address: SocketAddr, arguments: &Arguments) -> Result<Vec<f64>> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut streams = Vec::new();
    for index in 0..arguments.flows {
        let mut stream = TcpStream::connect(address).context("connecting")?;
        stream.write_all(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")?;
        stream.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&epoll, &stream, data, epoll::EventFlags::IN)?;
        streams.push(stream);
    }
    let begin = Instant::now() + Duration::from_secs(arguments.warm_up);
    let end = begin + Duration::from_secs(arguments.seconds);
    let mut bytes = vec![0u64; streams.len()];
    let mut buffer = vec![0; PIECE];
    let mut events = [const { std::mem::MaybeUninit::uninit() }; 256];
    loop {
        let now = Instant::now();
        if now >= end {
            return Ok(bytes.into_iter().map(|bytes| bytes as f64).collect());
        }
        let patience = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        let (ready, _) = epoll::wait(&epoll, &mut events, Some(&patience))?;
        for event in ready {
            let index = event.data.u64() as usize;
            match streams[index].read(&mut buffer) {
                Ok(0) => anyhow::bail!("download {index} has ended"),
                Ok(len) if now >= begin => bytes[index] += len as u64,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("a download broke"),
            }
        }
    }
}
