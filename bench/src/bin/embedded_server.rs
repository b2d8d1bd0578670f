//! The library as an embedded server, one thread, run to completion: on a TAP device that it
//! creates, or by AF_XDP on one that is there, under a link-layer address of its own. What it does
//! is what `tests/programs/server.c` does in the mode of that name.
//!
//! ```text
//! embedded_server tap|wire short|echo|sink|source DEVICE ADDRESS PORT
//! # prints "ready"; ends on SIGTERM
//! ```
//! A task for each connection; bytes are copied out of the stack and into it, as every other server
//! does. Nagle off for messages, as there; everything else is as it comes.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;

use anyhow::{Result, bail};
use millrace::{Builder, Link, LinkOptions, TcpListener, TcpOptions, TcpStream};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;
/// Bytes of a message.
const MESSAGE: usize = 64;
/// Bytes that are read or written at once: messages, and bulk.
const MESSAGES: usize = 4096;
const BULK: usize = 256 << 10;

/// What it does with a connection.
#[derive(Clone, Copy)]
enum Mode {
    /// Answers a message, and closes.
    Short,
    /// Answers what it reads.
    Echo,
    /// Reads and forgets.
    Sink,
    /// Writes until the client closes.
    Source,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: embedded_server tap|wire short|echo|sink|source DEVICE ADDRESS PORT";
    let [link, mode, device, address, port] = &arguments[..] else {
        bail!(usage);
    };
    let mode = match mode.as_str() {
        "short" => Mode::Short,
        "echo" => Mode::Echo,
        "sink" => Mode::Sink,
        "source" => Mode::Source,
        _ => bail!(usage),
    };
    let kind = match link.as_str() {
        "tap" => "tap",
        "wire" => "xdp",
        _ => bail!(usage),
    };
    let spec = format!("{kind}:{device}").parse()?;
    let link = Link::open(&spec, &LinkOptions::new())?;
    let address: Ipv4Addr = address.parse()?;
    let stack = Builder::new().link(link).address(address, 24).build()?;
    let options = TcpOptions::new()
        .backlog(BACKLOG)
        .nodelay(matches!(mode, Mode::Echo));
    let listener = TcpListener::bind_with(&stack, (address, port.parse::<u16>()?), options)?;
    // Where all connections read to and write from, none of them across a wait.
    let size = match mode {
        Mode::Short | Mode::Echo => MESSAGES,
        Mode::Sink | Mode::Source => BULK,
    };
    let block = Rc::new(RefCell::new(vec![7; size]));
    println!("ready");
    stack.block_on(async {
        loop {
            let (stream, _) = listener.accept_async().await?;
            stack.spawn(serve(mode, stream, block.clone()));
        }
    })
}

/// What is done with a connection, which closes when it returns. What goes wrong with it is its
/// client's to notice.
async fn serve(mode: Mode, stream: TcpStream, block: Rc<RefCell<Vec<u8>>>) -> io::Result<()> {
    if let Mode::Short = mode {
        let mut message = [0; MESSAGE];
        stream.read_exact_async(&mut message).await?;
        return stream.write_all_async(&message).await;
    }
    loop {
        if let Mode::Source = mode {
            poll_fn(|cx| stream.poll_write(cx, &block.borrow())).await?;
            continue;
        }
        let taken = poll_fn(|cx| stream.poll_read(cx, &mut block.borrow_mut())).await?;
        if taken == 0 {
            return Ok(());
        }
        if let Mode::Echo = mode
            && stream.try_write(&block.borrow()[..taken])? != taken
        {
            return Ok(());
        }
    }
}
