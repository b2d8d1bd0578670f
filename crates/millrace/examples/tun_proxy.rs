//! Carries all TCP and UDP of a network namespace to the kernel's sockets of another: a sandbox's
//! way out, without NAT and without a route.
//!
//! ```text
//! ip netns add sandbox
//! tun_proxy --netns sandbox &            # makes mr0 in it, with default routes of both families
//! ip netns exec sandbox curl http://...
//! ```
//!
//! A connection is answered once whoever was meant has answered; who refuses is refused. Without
//! `--netns` the device is made here; `--shards N` spreads the flows over N threads.

use std::convert::Infallible;
use std::error::Error;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Result, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream as KernelStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use millrace::{
    Builder, Descriptor, Incoming, Link, LinkOptions, Stack, TcpListener, TcpOptions, TcpStream,
    UdpSocket,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A flow of datagrams that is silent for so long is over.
const SILENCE: Duration = Duration::from_secs(60);

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let (mut netns, mut shards) = (None, 1);
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        match (&flag[..], arguments.next()) {
            ("--netns", Some(name)) => netns = Some(name),
            ("--shards", Some(number)) => shards = number.parse()?,
            _ => return Err("usage: tun_proxy [--netns NAME] [--shards N]".into()),
        }
    }
    let builder = Builder::new()
        .link(open(netns.as_deref(), shards)?)
        .address(Ipv4Addr::new(10, 255, 255, 2), 24)
        .address(Ipv6Addr::new(0xfd00, 0xff, 0, 0, 0, 0, 0, 2), 64)
        .any_address(true);
    let engine = builder.start(shards, |stack, _| {
        let listener = TcpListener::anywhere_asking(&stack, TcpOptions::new());
        let listener = listener.expect("the only one of its stack");
        let datagrams = UdpSocket::anywhere(&stack).expect("likewise");
        async move {
            let Err(error) = serve(stack, listener, datagrams).await;
            eprintln!("tun_proxy: {error}");
        }
    })?;
    println!("ready");
    engine.join();
    Ok(())
}

/// Carries what asks for a connection, and datagrams.
async fn serve(stack: Stack, listener: TcpListener, datagrams: UdpSocket) -> Result<Infallible> {
    stack.spawn(serve_datagrams(stack.clone(), datagrams));
    loop {
        let request = listener.request_async().await?;
        stack.spawn(carry(stack.clone(), request));
    }
}

/// Carries flows of datagrams, each from its first on.
async fn serve_datagrams(stack: Stack, datagrams: UdpSocket) -> Result<Infallible> {
    let mut buffer = vec![0; 65_536];
    loop {
        let received = datagrams.recv_with_info_async(&mut buffer).await?;
        // A flow that cannot be set up is silent.
        if let Ok(inside) = UdpSocket::answering(&stack, &received) {
            let first = buffer[..received.len].to_vec();
            stack.spawn(carry_flow(stack.clone(), inside, received.to, first));
        }
    }
}

/// Makes the device and its default routes, in the namespace of the calling thread.
fn open(netns: Option<&str>, queues: u16) -> std::result::Result<Link, Box<dyn Error>> {
    let enter =
        |there: &File| move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::Network));
    let here = File::open("/proc/thread-self/ns/net")?;
    if let Some(name) = netns {
        enter(&File::open(format!("/run/netns/{name}"))?)?;
    }
    let options = LinkOptions::new()
        .host(Ipv4Addr::new(10, 255, 255, 1), 24)
        .host(Ipv6Addr::new(0xfd00, 0xff, 0, 0, 0, 0, 0, 1), 64)
        .queues(queues);
    let link = Link::open(&"tun".parse()?, &options)?;
    let name = link.name().unwrap_or_default();
    for family in ["-4", "-6"] {
        let route = [family, "route", "replace", "default", "dev", name];
        if !Command::new("ip").args(route).status()?.success() {
            return Err(format!("no default route by {name}").into());
        }
    }
    if netns.is_some() {
        enter(&here)?;
    }
    Ok(link)
}

/// Carries one connection, if who was meant takes it.
async fn carry(stack: Stack, request: Incoming) -> Result<()> {
    let outside = Rc::new(Descriptor::connect(&stack, request.local_addr()).await?);
    let inside = Rc::new(request.accept_async().await?);
    let (from, to) = (inside.clone(), outside.clone());
    let out = stack.spawn(async move { carry_out(&from, &to).await });
    let back = carry_back(&outside, &inside).await;
    // One side's failure is the other's end.
    if back.is_err() {
        let _ = outside.get_ref().shutdown(Shutdown::Both);
    }
    out.await.and(back)
}

/// Bytes from inside go out from where they were received.
async fn carry_out(from: &TcpStream, to: &Descriptor<KernelStream>) -> Result<()> {
    loop {
        from.readable_async().await?;
        let mut outcome = Ok(());
        let taken = from.read_with(|pieces| {
            let written = to.get_ref().write_vectored(&pieces.map(IoSlice::new));
            written.unwrap_or_else(|error| {
                outcome = Err(error);
                0
            })
        })?;
        match outcome {
            Ok(()) if taken == 0 => return to.get_ref().shutdown(Shutdown::Write),
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => to.writable_again().await,
            Err(error) => {
                let _ = from.shutdown(Shutdown::Both);
                return Err(error);
            }
        }
    }
}

/// Bytes from outside are read to where they will be sent from.
async fn carry_back(from: &Descriptor<KernelStream>, to: &TcpStream) -> Result<()> {
    const PIECE: usize = 256 << 10;
    loop {
        to.writable_async().await?;
        let mut outcome = Ok(0);
        to.write_with(PIECE, |[first, _]| {
            outcome = from.get_ref().read(first);
            *outcome.as_ref().unwrap_or(&0)
        })?;
        match outcome {
            Ok(0) => return to.shutdown(Shutdown::Write),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => from.readable_again().await,
            Err(error) => return Err(error),
        }
    }
}

/// Carries one flow of datagrams between `inside` and a socket of the kernel.
async fn carry_flow(stack: Stack, inside: UdpSocket, to: SocketAddr, first: Vec<u8>) -> Result<()> {
    let any = ["[::]:0", "0.0.0.0:0"][usize::from(to.is_ipv4())];
    let outside = std::net::UdpSocket::bind(any)?;
    outside.set_nonblocking(true)?;
    outside.connect(to)?;
    let outside = Rc::new(Descriptor::new(&stack, outside)?);
    // What is lost was a datagram; an error tells of one that was sent before.
    let _ = outside.get_ref().send(&first);
    let inside = Rc::new(inside);
    let (here, asks, answers) = (stack.clone(), inside.clone(), outside.clone());
    let out = stack.spawn(async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let next = asks.recv_with_info_async(&mut buffer);
            let Some(received) = here.timeout(SILENCE, next).await else {
                return;
            };
            let Ok(received) = received else { continue };
            let _ = answers.get_ref().send(&buffer[..received.len]);
        }
    });
    let mut buffer = vec![0; 65_536];
    loop {
        let next = outside.read_with(|socket| socket.recv(&mut buffer));
        let Some(received) = stack.timeout(SILENCE, next).await else {
            break;
        };
        let Ok(len) = received else { continue };
        let _ = inside.send(&buffer[..len]);
    }
    out.await;
    Ok(())
}
