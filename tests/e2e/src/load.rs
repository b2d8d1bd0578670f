//! Connections from the peer's kernel, many of them. Call these inside the peer's namespace.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};

use crate::http;
use crate::namespace::Namespace;

/// Bytes of one message.
pub const MESSAGE: usize = 64;

/// `count` transactions in a row, each on its own connection: connect, 64 bytes, 64 bytes back, the
/// server closes.
pub fn short_transactions(address: SocketAddr, count: usize) -> Result<()> {
    for number in 0..count {
        let transaction = || -> std::io::Result<usize> {
            let mut stream = http::connect(address)?;
            stream.write_all(&[7; MESSAGE])?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)
        };
        let got = transaction().with_context(|| format!("transaction {number} of {count}"))?;
        ensure!(
            got == MESSAGE,
            "transaction {number}: {got} bytes came back"
        );
    }
    Ok(())
}

/// As [`short_transactions`] with an echo server, so that it is the client that closes first.
pub fn short_conversations(address: SocketAddr, count: usize) -> Result<()> {
    for number in 0..count {
        let mut stream =
            [http::connect(address)
                .with_context(|| format!("conversation {number} of {count}"))?];
        echo_on_all(&mut stream).with_context(|| format!("conversation {number} of {count}"))?;
    }
    Ok(())
}

/// `count` established connections.
pub fn hold(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    (0..count)
        .map(|number| {
            http::connect(address).with_context(|| format!("connection {number} of {count}"))
        })
        .collect()
}

/// One message to an echo server and back on each connection; all are sent before the first is
/// read.
pub fn echo_on_all(streams: &mut [TcpStream]) -> Result<()> {
    for (number, stream) in streams.iter_mut().enumerate() {
        stream
            .write_all(&message(number))
            .with_context(|| format!("writing on connection {number}"))?;
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut answer = [0; MESSAGE];
        stream
            .read_exact(&mut answer)
            .with_context(|| format!("reading on connection {number}"))?;
        ensure!(
            answer == message(number),
            "connection {number} got another's answer"
        );
    }
    Ok(())
}

/// A message that names its connection.
fn message(number: usize) -> [u8; MESSAGE] {
    std::array::from_fn(|index| (number >> (8 * (index % 4))) as u8)
}

/// Fetches `path` over and over on `threads` threads inside `namespace`, each time on a new
/// connection, while `body` runs. Every answer must be `expected`; none may be lost. How many were
/// fetched.
pub fn fetch_while<R>(
    namespace: &Namespace,
    address: SocketAddr,
    path: &str,
    expected: &[u8],
    threads: usize,
    body: impl FnOnce() -> Result<R>,
) -> Result<(R, usize)> {
    let stop = AtomicBool::new(false);
    let fetch = || -> Result<usize> {
        namespace.join_thread()?;
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let got = http::get(address, path)
                .with_context(|| format!("request {count} of this thread"))?;
            ensure!(
                got == expected,
                "request {count} of this thread: wrong content"
            );
            count += 1;
        }
        Ok(count)
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(fetch)).collect();
        let result = body();
        stop.store(true, Ordering::Relaxed);
        let mut total = 0;
        for thread in running {
            total += thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok((result?, total))
    })
}
