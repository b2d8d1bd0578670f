//! The library as an embedded server on a TAP device, one thread, run to completion: it reads 64 bytes, answers 64 bytes, closes.
//!
//! ```text
//! embedded_server DEVICE ADDRESS HOST PORT     # HOST is the kernel's address at the other end; prints "ready"; ends on SIGTERM
//! ```

use std::net::Ipv4Addr;

use anyhow::{Result, bail};
use millrace::{Builder, Link, Tap, TcpListener, TcpOptions, TcpStream};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, address, host, port] = &arguments[..] else {
        bail!("usage: embedded_server DEVICE ADDRESS HOST PORT");
    };
    let link = Link::tap(&Tap {
        name: Some(device.clone()),
        hosts: vec![(host.parse()?, 24)],
        ..Tap::default()
    })?;
    let address: Ipv4Addr = address.parse()?;
    let stack = Builder::new().link(link).address(address, 24).build()?;
    let options = TcpOptions::new().backlog(BACKLOG);
    let listener = TcpListener::bind_with(&stack, (address, port.parse::<u16>()?), options)?;
    println!("ready");
    stack.block_on(async {
        loop {
            let (stream, _) = listener.accept_async().await?;
            stack.spawn(serve(stream));
        }
    })
}

/// One transaction. What goes wrong with it is its client's to notice.
async fn serve(stream: TcpStream) -> std::io::Result<()> {
    let mut message = [0; 64];
    stream.read_exact_async(&mut message).await?;
    stream.write_all_async(&message).await
}
