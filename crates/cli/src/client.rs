//! Talking to an engine.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use millrace_context::control_socket::{self, Address, Directory, Found};
use millrace_context::protocol::{self, Kind, Request, Token};
use rustix::net::SocketType;

/// A connection to an engine that is believed.
pub struct Connection {
    pub socket: OwnedFd,
    path: PathBuf,
    /// The engine's user.
    owner: u32,
}

/// Connects to the engine named `name`, of this user or root, or of `user`.
pub fn connect(name: &str, user: Option<u32>) -> anyhow::Result<Connection> {
    for directory in directories(user) {
        let path = directory.path_of(name);
        match control_socket::connect(&path, SocketType::SEQPACKET) {
            Ok(socket) => return believe(socket, path, name, user),
            Err(error) if is_absent(&error) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot reach the engine {name:?}"));
            }
        }
    }
    let others: Vec<String> = engines(user).into_iter().map(|found| found.name).collect();
    let hint = if others.is_empty() {
        "none runs; start one with `millrace up`".to_owned()
    } else {
        format!(
            "running: {}; start another one with `millrace up`",
            others.join(", ")
        )
    };
    bail!("no engine is named {name:?} ({hint})")
}

/// Nobody else can make a socket where this one is. But who has its directory may have been root
/// and another user since.
fn believe(
    socket: OwnedFd,
    path: PathBuf,
    name: &str,
    user: Option<u32>,
) -> anyhow::Result<Connection> {
    let peer = control_socket::peer(&socket)?;
    let own = rustix::process::geteuid().as_raw();
    ensure!(
        [Some(0), Some(own), user].contains(&Some(peer.uid)),
        "the process that answers as the engine {name:?} ({}, pid {}) belongs to user {}, neither to root nor to you: it is not believed. If the engine is that user's, say --engine-user {}",
        path.display(),
        peer.pid,
        peer.uid,
        peer.uid
    );
    let owner = peer.uid;
    Ok(Connection {
        socket,
        path,
        owner,
    })
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::InvalidInput
    )
}

/// Where engines are looked for that are believed.
pub fn directories(user: Option<u32>) -> Vec<Directory> {
    let own = rustix::process::geteuid().as_raw();
    let mut all = Directory::all_of(user.unwrap_or(own));
    if user.is_none() && own != 0 {
        all.extend(Directory::all_of(0));
    }
    all
}

/// The engines of this user and of root, or of `user`.
fn engines(user: Option<u32>) -> Vec<Found> {
    let all = directories(user);
    let sockets = all
        .iter()
        .flat_map(|directory| directory.sockets(SocketType::SEQPACKET));
    sockets.collect()
}

/// Whether an engine of this name runs.
pub fn is_running(name: &str, user: Option<u32>) -> bool {
    engines(user).iter().any(|found| found.name == name)
}

/// A name for an engine that nobody has asked for by name.
pub fn new_name() -> anyhow::Result<String> {
    loop {
        let name = format!(
            "run-{}-{}",
            std::process::id(),
            control_socket::random_name()?
        );
        if !is_running(&name, None) {
            return Ok(name);
        }
    }
}

/// The engines in this network namespace, and those in others.
fn here_and_elsewhere(user: Option<u32>) -> (Vec<Found>, Vec<Found>) {
    let own = control_socket::network();
    engines(user)
        .into_iter()
        .partition(|found| found.network.is_none() || found.network == own)
}

/// The names of the engines in this network namespace.
pub fn names_here(user: Option<u32>) -> Vec<String> {
    let (here, _) = here_and_elsewhere(user);
    here.into_iter().map(|found| found.name).collect()
}

/// The engine meant when none is named: the only one in this network namespace.
pub fn only_engine(user: Option<u32>) -> anyhow::Result<String> {
    let (here, elsewhere) = here_and_elsewhere(user);
    let list = |found: Vec<Found>| {
        let names: Vec<String> = found.into_iter().map(|found| found.name).collect();
        names.join(", ")
    };
    match here.len() {
        0 if elsewhere.is_empty() => {
            bail!("no engine runs here; start one with `millrace run -- PROGRAM` or `millrace up`")
        }
        0 => bail!(
            "no engine runs in this network namespace; start one with `millrace up`, or say with --engine which of another one is meant: {}",
            list(elsewhere)
        ),
        1 => Ok(here
            .into_iter()
            .next()
            .map(|found| found.name)
            .unwrap_or_default()),
        _ => bail!(
            "several engines run here; say which with --engine: {}",
            list(here)
        ),
    }
}

/// Asks without a token.
fn call(socket: &OwnedFd, kind: Kind) -> anyhow::Result<(protocol::Answer, protocol::Descriptors)> {
    ask(socket, &Request::new(kind, [0; 16], [0; 4]))
}

fn ask(
    socket: &OwnedFd,
    request: &Request,
) -> anyhow::Result<(protocol::Answer, protocol::Descriptors)> {
    request.call(socket, &[]).map_err(|error| match error.raw_os_error() {
        Some(libc::EPROTONOSUPPORT) => anyhow::anyhow!(
            "the engine is of another version than this millrace ({}); end it with its own `millrace down` and start it anew",
            env!("CARGO_PKG_VERSION")
        ),
        Some(libc::EACCES) => anyhow::anyhow!("the engine belongs to another user; ask as that user or as root"),
        _ => anyhow::Error::from(error).context("the engine did not answer"),
    })
}

/// A text that the engine hands over as a file.
pub fn document(socket: &OwnedFd, kind: Kind) -> anyhow::Result<String> {
    let (_, mut descriptors) = call(socket, kind)?;
    let file = descriptors.take(0).context("the engine sent no document")?;
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    Ok(text)
}

/// Registers a program: its token, and where it finds the engine. It lives while the connection is
/// open or any of its processes lives.
pub fn new_program(connection: &Connection, quiet: bool) -> anyhow::Result<(Token, String)> {
    let request = Request::new(Kind::Program, [0; 16], [quiet.into(), 0, 0, 0]);
    let (answer, _) = ask(&connection.socket, &request)?;
    let [token, alias] = [0, 2].map(|at| {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&answer.words[at].to_ne_bytes());
        token[8..].copy_from_slice(&answer.words[at + 1].to_ne_bytes());
        token
    });
    let address = Address {
        owner: connection.owner,
        alias: &protocol::format_token(&alias),
        path: connection
            .path
            .to_str()
            .context("the engine's path is not UTF-8")?,
    };
    Ok((token, address.to_string()))
}

/// Has so many shards serve; how many buckets of flows that moved.
pub fn scale(socket: &OwnedFd, shards: u16) -> anyhow::Result<u64> {
    let request = Request::new(Kind::Scale, [0; 16], [shards.into(), 0, 0, 0]);
    match ask(socket, &request) {
        Ok((answer, _)) => Ok(answer.words[0]),
        Err(error) => Err(
            match error
                .downcast_ref::<std::io::Error>()
                .and_then(std::io::Error::raw_os_error)
            {
                Some(libc::ENOTSUP) => anyhow::anyhow!(
                    "the engine's shards own the queues of its device, so their number is fixed; start it with --shards-max N"
                ),
                Some(libc::EINVAL) => anyhow::anyhow!(
                    "the engine has no {shards} shards; start it with --shards-max {shards}"
                ),
                Some(libc::EBUSY) => anyhow::anyhow!(
                    "flows are still moving, and wait for a shard that does not answer; ask again"
                ),
                Some(libc::EIO) => anyhow::anyhow!(
                    "a shard did not answer in time; what has begun to move ends when it does: ask again"
                ),
                _ => error,
            },
        ),
    }
}

/// Tells the engine to end; its pid.
pub fn down(socket: &OwnedFd) -> anyhow::Result<u32> {
    Ok(call(socket, Kind::Down)?.0.words[0] as u32)
}
