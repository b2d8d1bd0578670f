//! The control socket: an abstract stream socket `millrace-nic/NAME`. Who connects is told everything, as JSON.

use std::io::{self, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::report::document;
use crate::worker::Handle;

/// How long a reader may take.
const PATIENCE: Duration = Duration::from_secs(2);

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("millrace-nic/{name}"))
}

/// Opens the socket; fails with `AddrInUse` when there is a card of this name.
pub(crate) fn listen(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&address(name)?)
}

/// Answers for ever.
pub(crate) fn serve(
    listener: &UnixListener,
    name: &str,
    wire: &str,
    workers: &[Handle],
) -> io::Error {
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                if !is_ours(&stream) || stream.set_write_timeout(Some(PATIENCE)).is_err() {
                    continue;
                }
                let reports: Result<Vec<_>, String> = workers
                    .iter()
                    .enumerate()
                    .map(|(shard, worker)| worker.report().ok_or_else(|| silent(shard)))
                    .collect();
                let answer = match reports {
                    Ok(reports) => document(name, wire, &reports),
                    Err(error) => json!({ "error": error }),
                };
                // Who has gone in the meantime wants no answer.
                let _ = stream.write_all(answer.to_string().as_bytes());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error,
        }
    }
}

fn silent(shard: usize) -> String {
    let seconds = crate::worker::PATIENCE.as_secs();
    format!("shard {shard} did not answer within {seconds} s; has it a core to run on?")
}

/// Whether the other end belongs to the user who started this process, or to root.
fn is_ours(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid.as_raw() == millrace_sandbox::starter())
}

/// What the card of this name says of itself, as JSON.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`] when there is none in this network namespace, [`io::ErrorKind::TimedOut`] when one of its shards is silent.
pub fn query(name: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect_addr(&address(name)?)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let said: Value = serde_json::from_str(&text).unwrap_or_default();
    match said["error"].as_str() {
        Some(error) => Err(io::Error::new(io::ErrorKind::TimedOut, error)),
        None => Ok(text),
    }
}

/// The names of all cards in this network namespace.
pub fn names() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| line.rsplit_once(" @millrace-nic/"))
        .map(|(_, name)| name.to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}
