//! Talking to an engine.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;

use anyhow::{Context, bail};
use millrace_context::protocol::{self, Kind, Request, Token};

/// Connects to the engine named `name`.
pub fn connect(name: &str) -> anyhow::Result<OwnedFd> {
    match protocol::connect(name) {
        Ok(socket) => Ok(socket),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let others = engines();
            let hint = if others.is_empty() {
                "none runs; start one with `millrace up`".to_owned()
            } else {
                format!("running: {}", others.join(", "))
            };
            bail!("no engine is named {name:?} ({hint})")
        }
        Err(error) => Err(error).with_context(|| format!("cannot reach the engine {name:?}")),
    }
}

/// The names of the engines in this network namespace.
pub fn engines() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| {
            line.rsplit_once(" @millrace/")
                .map(|(_, name)| name.trim_end_matches('@').to_owned())
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The engine meant when none is named: the only one.
pub fn only_engine() -> anyhow::Result<String> {
    let mut names = engines();
    match names.len() {
        0 => {
            bail!("no engine runs here; start one with `millrace run -- PROGRAM` or `millrace up`")
        }
        1 => Ok(names.remove(0)),
        _ => bail!(
            "several engines run here; say which with --engine: {}",
            names.join(", ")
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

/// Registers a program: its token. It lives while `socket` is open or any of its processes lives.
pub fn new_program(socket: &OwnedFd, quiet: bool) -> anyhow::Result<Token> {
    let request = Request::new(Kind::Program, [0; 16], [quiet.into(), 0, 0, 0]);
    let (answer, _) = ask(socket, &request)?;
    let mut token = [0; 16];
    token[..8].copy_from_slice(&answer.words[0].to_ne_bytes());
    token[8..].copy_from_slice(&answer.words[1].to_ne_bytes());
    Ok(token)
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
