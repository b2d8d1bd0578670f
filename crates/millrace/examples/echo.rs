//! Says back what it hears, to one at a time: the shortest server there is.
//!
//! ```text
//! echo &                    # as root: a TAP device; the kernel is 10.77.0.1, the server 10.77.0.2
//! nc 10.77.0.2 7
//! ```

use std::error::Error;
use std::net::Ipv4Addr;

use millrace::{Builder, Link, LinkOptions, TcpListener};

fn main() -> Result<(), Box<dyn Error>> {
    let options = LinkOptions::new().host(Ipv4Addr::new(10, 77, 0, 1), 24);
    let link = Link::open(&"tap".parse()?, &options)?;
    let stack = Builder::new()
        .link(link)
        .address(Ipv4Addr::new(10, 77, 0, 2), 24)
        .build()?;
    let listener = TcpListener::bind(&stack, "0.0.0.0:7")?;
    println!("ready");
    for stream in listener.incoming() {
        let stream = stream?;
        // Whoever resets the connection has heard enough.
        if let Err(error) = std::io::copy(&mut &stream, &mut &stream) {
            eprintln!("{:?}: {error}", stream.peer_addr());
        }
    }
    Ok(())
}
