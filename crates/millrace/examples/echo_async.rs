//! Says back what it hears, to as many as there are, by a task for each; over TCP and UDP.
//!
//! ```text
//! echo_async &              # as root: a TAP device; the kernel is 10.77.0.1, the server 10.77.0.2
//! nc 10.77.0.2 7; nc -u 10.77.0.2 7
//! ```

use std::error::Error;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use millrace::{Builder, Link, LinkOptions, Stack, TcpListener, TcpStream, UdpSocket};

/// Who says nothing for so long is sent away.
const SILENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let options = LinkOptions::new().host(Ipv4Addr::new(10, 77, 0, 1), 24);
    let link = Link::open(&"tap".parse()?, &options)?;
    let stack = Builder::new()
        .link(link)
        .address(Ipv4Addr::new(10, 77, 0, 2), 24)
        .build()?;
    let listener = TcpListener::bind(&stack, "0.0.0.0:7")?;
    let datagrams = UdpSocket::bind(&stack, "0.0.0.0:7")?;
    stack.spawn(async move {
        let mut buffer = vec![0; 65_536];
        loop {
            // An error tells of an answer that did not arrive.
            if let Ok((len, from)) = datagrams.recv_from_async(&mut buffer).await {
                let _ = datagrams.send_to_async(&buffer[..len], from).await;
            }
        }
    });
    println!("ready");
    stack.block_on(async {
        loop {
            let (stream, _) = listener.accept_async().await?;
            stack.spawn(echo(stack.clone(), stream));
        }
    })
}

async fn echo(stack: Stack, stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 16_384];
    while let Some(len) = stack.timeout(SILENCE, stream.read_async(&mut buffer)).await {
        match len? {
            0 => break,
            len => stream.write_all_async(&buffer[..len]).await?,
        }
    }
    Ok(())
}
