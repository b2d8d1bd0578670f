//! Servers of other stacks and our own inside a program, as the benchmark starts them: those that
//! build without a download, in every mode, over TAP and on a wire. What is compared has to work.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;

use millrace_e2e::others::{Other, Service};
use millrace_e2e::scenario::prepare;
use millrace_e2e::{Context as _, Process, Result, World, compile, ensure, seconds, world};
use rustix::process::Signal;

const PORT: u16 = 7000;
/// What looks at what a server does.
type Client = fn(SocketAddr) -> io::Result<()>;

/// Connections at once.
const CONNECTIONS: usize = 8;
/// Bytes of a message, and of bulk one way.
const MESSAGE: usize = 64;
const BULK: usize = 1 << 20;

#[test]
fn ours_serves_over_tap() -> Result<()> {
    serves(&embedded()?, |other, service| other.on_tap(service))
}

#[test]
fn ours_serves_on_a_wire() -> Result<()> {
    serves(&embedded()?, |other, service| other.on_wire(service, &[]))
}

#[test]
fn smoltcp_serves_over_tap() -> Result<()> {
    serves(&smoltcp()?, |other, service| other.on_tap(service))
}

#[test]
fn smoltcp_serves_on_a_wire() -> Result<()> {
    serves(&smoltcp()?, |other, service| other.on_wire(service, &[]))
}

#[test]
fn lwip_serves_over_tap() -> Result<()> {
    serves(&lwip(), |other, service| other.on_tap(service))
}

#[test]
fn lwip_serves_on_a_wire() -> Result<()> {
    serves(&lwip(), |other, service| other.on_wire(service, &[]))
}

fn embedded() -> Result<Other> {
    Ok(Other::embedded(Ok(built("embedded_server")?)))
}

fn smoltcp() -> Result<Other> {
    Ok(Other::smoltcp(Ok(built("smoltcp-server")?)))
}

/// A program beside the command.
fn built(name: &str) -> Result<PathBuf> {
    let program = world::millrace().with_file_name(name);
    ensure!(
        program.exists(),
        "{} is missing: run `make e2e`, which builds it",
        program.display()
    );
    Ok(program)
}

fn lwip() -> Other {
    Other::lwip(compile::lwip("server"))
}

/// Starts it in every mode, has a client of the kernel's look at what it does, and ends it.
fn serves(
    other: &Other,
    start: impl Fn(&Other, Service<'_>) -> Result<(World, Process)>,
) -> Result<()> {
    prepare()?;
    let clients: [(&str, Client); 4] = [
        ("short", transactions),
        ("echo", echoes),
        ("sink", gives),
        ("source", takes),
    ];
    for (mode, client) in clients {
        let what = || format!("{} in mode {mode}", other.stack);
        let service = Service {
            mode,
            port: PORT,
            connections: CONNECTIONS,
        };
        let (world, mut server) = start(other, service).with_context(what)?;
        let address = world.at(PORT);
        let outcome = world.peer_namespace().enter(|| client(address));
        server.ensure_not_failed().with_context(what)?;
        outcome.with_context(what)?;
        server.stop(Signal::TERM, seconds(15)).with_context(what)?;
        world.finish().with_context(what)?;
    }
    Ok(())
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, seconds(20))?;
    stream.set_read_timeout(Some(seconds(20)))?;
    stream.set_write_timeout(Some(seconds(20)))?;
    Ok(stream)
}

fn all(address: SocketAddr) -> io::Result<Vec<TcpStream>> {
    (0..CONNECTIONS).map(|_| connect(address)).collect()
}

/// A message that no other is like.
fn message(number: usize) -> [u8; MESSAGE] {
    std::array::from_fn(|at| (number * 31 + at) as u8)
}

fn same(expected: &[u8], got: &[u8]) -> io::Result<()> {
    match expected == got {
        true => Ok(()),
        false => Err(io::Error::other(format!("{got:?} came for {expected:?}"))),
    }
}

/// On each connection a message comes back, and the end; twice.
fn transactions(address: SocketAddr) -> io::Result<()> {
    for _ in 0..2 {
        let mut streams = all(address)?;
        for (number, stream) in streams.iter_mut().enumerate() {
            stream.write_all(&message(number))?;
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            same(&message(number), &answer)?;
        }
    }
    Ok(())
}

/// On each connection messages come back, and when it is closed the end.
fn echoes(address: SocketAddr) -> io::Result<()> {
    let mut streams = all(address)?;
    for round in 0..3 {
        for (number, stream) in streams.iter_mut().enumerate() {
            stream.write_all(&message(number + round))?;
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let mut answer = [0; MESSAGE];
            stream.read_exact(&mut answer)?;
            same(&message(number + round), &answer)?;
        }
    }
    streams.iter_mut().try_for_each(ends)
}

/// What is written is taken, and when it is closed the end comes.
fn gives(address: SocketAddr) -> io::Result<()> {
    let mut stream = connect(address)?;
    stream.write_all(&vec![7; BULK])?;
    ends(&mut stream)
}

/// The server closes when the client has.
fn ends(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest)?;
    same(&[], &rest)
}

/// As much comes as is wanted.
fn takes(address: SocketAddr) -> io::Result<()> {
    connect(address)?.read_exact(&mut vec![0; BULK])
}
