//! The control socket: a stream socket `NAME@nic-NETWORK` in the directory of control sockets, with
//! the number of the card's network namespace. Who connects is told everything, as JSON.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use millrace_context::control_socket::{self, Directory, Held, network, peer};
use rustix::net::SocketType;
use serde_json::{Value, json};

use crate::report::document;
use crate::worker::Handle;

/// How long a reader may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Devices of two network namespaces may have one name.
fn suffix() -> String {
    format!("@nic-{}", network().unwrap_or_default())
}

/// Opens the socket, and holds its name; fails with `AddrInUse` when there is a card of this name.
pub(crate) fn listen(name: &str) -> io::Result<(UnixListener, Held)> {
    let (directory, _) = Directory::own()?;
    let name = format!("{name}{}", suffix());
    let listener = control_socket::listen(&directory, &name, SocketType::STREAM)?;
    let socket = UnixListener::from(listener.socket);
    socket.set_nonblocking(false)?;
    Ok((socket, listener.held))
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
/// [`io::ErrorKind::ConnectionRefused`] when there is none in this network namespace,
/// [`io::ErrorKind::TimedOut`] when one of its shards is silent.
pub fn query(name: &str) -> io::Result<String> {
    let name = format!("{name}{}", suffix());
    let paths = directories();
    let paths = paths.iter().map(|directory| directory.path_of(&name));
    let mut sockets =
        paths.filter_map(|path| control_socket::connect(&path, SocketType::STREAM).ok());
    let socket = sockets.next().ok_or(io::ErrorKind::ConnectionRefused)?;
    let uid = peer(&socket)?.uid;
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        let who = format!("user {uid} answers in its place, and is not believed");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, who));
    }
    let mut stream = UnixStream::from(socket);
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let said: Value = serde_json::from_str(&text).unwrap_or_default();
    match said["error"].as_str() {
        Some(error) => Err(io::Error::new(io::ErrorKind::TimedOut, error)),
        None => Ok(text),
    }
}

/// This user's, and root's.
fn directories() -> Vec<Directory> {
    let own = rustix::process::geteuid().as_raw();
    let mut all = Directory::all_of(own);
    if own != 0 {
        all.extend(Directory::all_of(0));
    }
    all
}

/// The names of all cards in this network namespace.
pub fn names() -> Vec<String> {
    let suffix = suffix();
    let all = directories();
    let sockets = all
        .iter()
        .flat_map(|directory| directory.sockets(SocketType::STREAM));
    sockets
        .filter_map(|found| Some(found.name.strip_suffix(&suffix)?.to_owned()))
        .collect()
}
