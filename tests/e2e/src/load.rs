//! Connections from the peer's kernel, many of them. Call these inside the peer's namespace.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::http;
use crate::namespace::Namespace;
use crate::scenario::wait_until;

/// Bytes of one message.
pub const MESSAGE: usize = 64;
/// How long the first turns of a load may take, at most.
const LIMIT: Duration = Duration::from_secs(60);

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

fn fetch_one(address: SocketAddr, path: &str, expected: &[u8], number: usize) -> Result<()> {
    let got =
        http::get(address, path).with_context(|| format!("request {number} of this thread"))?;
    ensure!(
        got == expected,
        "request {number} of this thread: wrong content"
    );
    Ok(())
}

/// Fetches `path` over and over on `threads` threads inside `namespace`, each time on a new
/// connection, while `body` runs and until `least` were fetched. Every answer must be `expected`;
/// none may be lost. `body` begins when the first answer is there.
pub fn fetch_while<R>(
    namespace: &Namespace,
    address: SocketAddr,
    path: &str,
    expected: &[u8],
    (threads, least): (usize, usize),
    body: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let fetch = |number| fetch_one(address, path, expected, number);
    work_while(namespace, (threads, least), fetch, body)
}

/// Calls `work` over and over, with the number of the turn, on `threads` threads inside
/// `namespace`, while `body` runs and until `least` turns are done. `body` begins when the first
/// turn is done.
pub fn work_while<R>(
    namespace: &Namespace,
    (threads, least): (usize, usize),
    work: impl Fn(usize) -> Result<()> + Sync,
    body: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let turns = || -> Result<()> {
        namespace.join_thread()?;
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            // Nobody has to wait for the turns of a thread that has failed.
            work(number).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            number += 1;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let reached = |count| {
        wait_until(&format!("{count} turns of the load"), LIMIT, || {
            Ok(done.load(Ordering::Relaxed) >= count || stop.load(Ordering::Relaxed))
        })
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(turns)).collect();
        let result = reached(1).and_then(|()| {
            let result = body()?;
            reached(least)?;
            Ok(result)
        });
        stop.store(true, Ordering::Relaxed);
        for thread in running {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        result
    })
}
