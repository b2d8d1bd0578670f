//! Carries all TCP and UDP of a network namespace to the kernel's sockets of another: a sandbox's way out, without NAT and without a route.
//!
//! ```text
//! ip netns add sandbox
//! tun_proxy --netns sandbox &            # makes the device mr0 in it, with the default routes of both families
//! ip netns exec sandbox curl http://...
//! ```
//!
//! A connection is answered once whoever was meant has answered; who refuses is refused. Without `--netns` the device is made here.

use std::error::Error;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpStream as KernelStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use millrace::{
    Builder, Descriptor, Incoming, Link, Received, Stack, Tap, TcpListener, TcpOptions, TcpStream,
    UdpSocket,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A flow of datagrams that is silent for so long is over.
const SILENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let link = match &arguments[..] {
        [] => open()?,
        [flag, name] if flag == "--netns" => open_in(name)?,
        _ => return Err("usage: tun_proxy [--netns NAME]".into()),
    };
    let stack = Builder::new()
        .link(link)
        .address(Ipv4Addr::new(10, 255, 255, 2), 24)
        .address(Ipv6Addr::new(0xfd00, 0xff, 0, 0, 0, 0, 0, 2), 64)
        .any_address(true)
        .build()?;
    let listener = TcpListener::anywhere_asking(&stack, TcpOptions::new())?;
    let datagrams = UdpSocket::anywhere(&stack)?;
    let here = stack.clone();
    stack.spawn(async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(received) = datagrams.recv_with_info_async(&mut buffer).await {
            let first = buffer[..received.len].to_vec();
            // A flow that cannot be set up is silent.
            if let Ok(flow) = flow(&here, &received) {
                here.spawn(carry_datagrams(here.clone(), flow, first));
            }
        }
    });
    println!("ready");
    stack.block_on(async {
        loop {
            let request = listener.request_async().await?;
            stack.spawn(carry(stack.clone(), request));
        }
    })
}

/// The device belongs to the namespace in which it is made; its descriptor to nobody's.
fn open_in(name: &str) -> Result<Link, Box<dyn Error>> {
    let here = File::open("/proc/self/ns/net")?;
    let there = File::open(format!("/run/netns/{name}"))?;
    move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::Network))?;
    let link = open();
    move_into_link_name_space(here.as_fd(), Some(LinkNameSpaceType::Network))?;
    link
}

/// The device, with default routes that lead to it.
fn open() -> Result<Link, Box<dyn Error>> {
    let link = Link::tun(&Tap {
        hosts: vec![
            (Ipv4Addr::new(10, 255, 255, 1).into(), 24),
            (Ipv6Addr::new(0xfd00, 0xff, 0, 0, 0, 0, 0, 1).into(), 64),
        ],
        ..Tap::default()
    })?;
    let name = link.name().unwrap_or_default();
    for family in ["-4", "-6"] {
        let route = [family, "route", "replace", "default", "dev", name];
        if !Command::new("ip").args(route).status()?.success() {
            return Err(format!("no default route by {name}").into());
        }
    }
    Ok(link)
}

/// Carries one connection, if who was meant takes it.
async fn carry(stack: Stack, request: Incoming) -> std::io::Result<()> {
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
async fn carry_out(from: &TcpStream, to: &Descriptor<KernelStream>) -> std::io::Result<()> {
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
async fn carry_back(from: &Descriptor<KernelStream>, to: &TcpStream) -> std::io::Result<()> {
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

/// Both ends of a flow of datagrams: one that speaks as who was meant, and one of the kernel's.
fn flow(
    stack: &Stack,
    received: &Received,
) -> std::io::Result<(UdpSocket, Descriptor<std::net::UdpSocket>)> {
    let inside = UdpSocket::answering(stack, received)?;
    let any = if received.to.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let outside = std::net::UdpSocket::bind(any)?;
    outside.set_nonblocking(true)?;
    outside.connect(received.to)?;
    Ok((inside, Descriptor::new(stack, outside)?))
}

async fn carry_datagrams(
    stack: Stack,
    (inside, outside): (UdpSocket, Descriptor<std::net::UdpSocket>),
    first: Vec<u8>,
) {
    // What is lost was a datagram.
    let _ = outside.get_ref().send(&first);
    let (inside, outside) = (Rc::new(inside), Rc::new(outside));
    let (asks, answers) = (inside.clone(), outside.clone());
    let here = stack.clone();
    let out = stack.spawn(async move {
        let mut buffer = vec![0; 65_536];
        while let Some(received) = here
            .timeout(SILENCE, asks.recv_with_info_async(&mut buffer))
            .await
        {
            // An error tells of one that was sent before.
            let Ok(received) = received else { continue };
            let _ = answers.get_ref().send(&buffer[..received.len]);
        }
    });
    let mut buffer = vec![0; 65_536];
    while let Some(received) = stack
        .timeout(
            SILENCE,
            outside.read_with(|socket| socket.recv(&mut buffer)),
        )
        .await
    {
        let Ok(len) = received else { continue };
        let _ = inside.send(&buffer[..len]);
    }
    out.await;
}
