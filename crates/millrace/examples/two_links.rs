//! A host on two networks: it serves both, and carries connections from one to the other.
//!
//! ```text
//! two_links 10.78.0.1:8000 &
//! # as root: a TAP and a TUN device; the kernel is 10.77.0.1 and 10.78.0.1 at their other ends
//! curl http://10.77.0.2/ http://10.78.0.2/   # who asked, and where
//! curl http://10.77.0.2:8080/            # what 10.78.0.1:8000 serves, by the other network
//! ```

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::rc::Rc;

use millrace::{Builder, Link, LinkOptions, Stack, TcpListener, TcpStream, UdpSocket};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: two_links ADDRESS:PORT [SHARDS]";
    let beyond: SocketAddr = arguments.next().ok_or(usage)?.parse()?;
    let shards = arguments.next().map_or(Ok(1), |shards| shards.parse())?;
    let options = |net, mtu| {
        let host = Ipv4Addr::new(10, net, 0, 1);
        LinkOptions::new().host(host, 24).queues(shards).mtu(mtu)
    };
    let engine = Builder::new()
        .link(Link::open(&"tap".parse()?, &options(77, 1500))?)
        .address(Ipv4Addr::new(10, 77, 0, 2), 24)
        .link(Link::open(&"tun".parse()?, &options(78, 9000))?)
        .address(Ipv4Addr::new(10, 78, 0, 2), 24)
        .start(shards, move |stack, shard| async move {
            if let Err(error) = serve(&stack, beyond).await {
                eprintln!("shard {shard}: {error}");
            }
        })?;
    println!("ready");
    engine.join();
    Ok(())
}

async fn serve(stack: &Stack, beyond: SocketAddr) -> io::Result<()> {
    // All three hear both networks.
    let pages = TcpListener::bind(stack, "0.0.0.0:80")?;
    let passage = TcpListener::bind(stack, "0.0.0.0:8080")?;
    let echo = UdpSocket::bind(stack, "0.0.0.0:7")?;
    let here = stack.clone();
    stack.spawn(async move {
        while let Ok((stream, from)) = passage.accept_async().await {
            let stack = here.clone();
            here.spawn(async move {
                // The network that has the address is the one that it leaves by.
                match TcpStream::connect_async(&stack, beyond).await {
                    Ok(other) => carry_both(&stack, stream, other),
                    Err(error) => eprintln!("{from} to {beyond}: {error}"),
                }
            });
        }
    });
    stack.spawn(async move {
        let mut buffer = vec![0; 65_536];
        loop {
            // An error tells of an answer that did not arrive.
            if let Ok((len, from)) = echo.recv_from_async(&mut buffer).await {
                let _ = echo.send_to_async(&buffer[..len], from).await;
            }
        }
    });
    loop {
        let (stream, from) = pages.accept_async().await?;
        stack.spawn(answer(stream, from));
    }
}

async fn answer(stream: TcpStream, from: SocketAddr) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read_async(&mut buffer).await? {
            0 => return Ok(()),
            len if request.len() + len > 65_536 => return Ok(()),
            len => request.extend_from_slice(&buffer[..len]),
        }
    }
    let body = format!("{from} at {}\n", stream.local_addr()?);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all_async((head + &body).as_bytes()).await
}

fn carry_both(stack: &Stack, one: TcpStream, other: TcpStream) {
    let (one, other) = (Rc::new(one), Rc::new(other));
    stack.spawn(carry(one.clone(), other.clone()));
    stack.spawn(carry(other, one));
}

/// Until the end, which is carried on, too.
async fn carry(from: Rc<TcpStream>, to: Rc<TcpStream>) -> io::Result<()> {
    let mut buffer = vec![0; 65_536];
    loop {
        match from.read_async(&mut buffer).await? {
            0 => return to.shutdown(Shutdown::Write),
            len => to.write_all_async(&buffer[..len]).await?,
        }
    }
}
