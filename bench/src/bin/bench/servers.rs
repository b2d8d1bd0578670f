//! Servers of other stacks: those with an adapter in `bench/peers`, and what `--server` names. A command starts one at an address; it does there what `tests/programs/server.c` does in
//! the mode of that name.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use millrace_e2e::scenario::{seconds, wait_until};
use millrace_e2e::world::DEVICE;
use millrace_e2e::{PEER, Process, SUBJECT, Stack, World};

use crate::PORT;
use crate::protocol::{cargo, gvisor, lwip};
use crate::wire::SOURCES;

/// What starts a server, with places for where and how: `{mode}`, `{link}`, `{device}`, `{address}`, `{host}`, `{port}`, `{sockets}`.
pub struct Server {
    /// As it is called in reports.
    pub stack: String,
    /// Words of the command, or why there is none.
    command: Result<String>,
    /// Whether on a wire it has the address alone, which the kernel there then loses.
    pub is_alone: bool,
    /// How many addresses its client has on a wire, as far as it looks up neighbours fast and keeps them.
    pub neighbours: u8,
    /// Whether the command line named it.
    pub is_given: bool,
    /// Whether it looks through all connections for each segment, so that thousands take long.
    pub is_slow: bool,
}

/// Where a server is to be.
pub struct Place<'a> {
    /// Mode of `tests/programs/server.c`.
    pub mode: &'a str,
    /// `tap`, where it creates the device, or `wire`, where that is there.
    pub link: &'a str,
    /// Its name.
    pub device: &'a str,
    /// How many connections come at once.
    pub connections: usize,
}

impl Server {
    /// What `--server NAME=COMMAND` says.
    pub fn given(stack: &str, command: &str) -> Server {
        Server {
            stack: stack.to_owned(),
            command: Ok(command.to_owned()),
            is_alone: false,
            neighbours: SOURCES,
            is_given: true,
            is_slow: false,
        }
    }

    /// Those with an adapter here, built.
    pub fn adapters() -> Vec<Server> {
        let command =
            |program: Result<PathBuf>, words: &str| Ok(format!("{} {words}", program?.display()));
        let places = "{link} {mode} {device} {address} {port}";
        vec![
            Server {
                stack: "smoltcp".to_owned(),
                command: command(
                    cargo(&["-p", "millrace-peer-smoltcp"], "smoltcp-server"),
                    &format!("{places} {{sockets}}"),
                ),
                is_alone: true,
                // It asks for one neighbour a second.
                neighbours: 1,
                is_given: false,
                is_slow: true,
            },
            Server {
                stack: "lwIP".to_owned(),
                command: command(
                    lwip("server.c", "-llwip", "millrace-peer-lwip-server"),
                    places,
                ),
                is_alone: true,
                // Its table has ten in Debian's build, one of them for the host.
                neighbours: 8,
                is_given: false,
                is_slow: true,
            },
            Server {
                stack: "gVisor".to_owned(),
                command: command(gvisor(), places),
                is_alone: true,
                neighbours: SOURCES,
                is_given: false,
                is_slow: false,
            },
        ]
    }

    /// Words of the command at a place.
    pub fn words(&self, place: &Place<'_>) -> Result<Vec<String>> {
        let command = match &self.command {
            Ok(command) => command,
            Err(error) => return Err(anyhow!("cannot be built: {error:#}")),
        };
        // Short transactions: as many again may come before those that end are over; and somebody asks whether it is there.
        let sockets = match place.mode {
            "short" => place.connections * 4,
            _ => place.connections + 4,
        };
        let filled = [
            ("{mode}", place.mode),
            ("{link}", place.link),
            ("{device}", place.device),
            ("{address}", &SUBJECT.to_string()),
            ("{host}", &PEER.to_string()),
            ("{port}", &PORT.to_string()),
            ("{sockets}", &sockets.to_string()),
        ]
        .into_iter()
        .fold(command.clone(), |text, (name, value)| {
            text.replace(name, value)
        });
        Ok(filled.split_whitespace().map(String::from).collect())
    }

    /// A server on a TAP device whose other end is the kernel's, ready.
    pub fn on_tap(&self, mode: &str, connections: usize) -> Result<(World, Process)> {
        let words = self.words(&Place {
            mode,
            link: "tap",
            device: DEVICE,
            connections,
        })?;
        let world = World::create(Stack::Millrace)?;
        let mut server = world.peer(&words)?;
        let peer = world.peer_namespace();
        wait_until("the server creates its device", seconds(10), || {
            server.ensure_not_failed()?;
            Ok(peer.devices()?.iter().any(|device| device == DEVICE))
        })?;
        peer.ip(&format!("address replace {PEER}/24 dev {DEVICE}"))?;
        peer.ip(&format!("link set {DEVICE} up"))?;
        wait_for(&world, &mut server)?;
        Ok((world, server))
    }
}

/// Waits until it takes a connection of the peer's kernel.
pub fn wait_for(world: &World, server: &mut Process) -> Result<()> {
    let address = SocketAddr::from((SUBJECT, PORT));
    wait_until("the server takes connections", seconds(15), || {
        server.ensure_not_failed()?;
        let connect = || TcpStream::connect_timeout(&address, seconds(1)).is_ok();
        Ok(world.peer_namespace().enter(connect))
    })
}

/// What `--server` was given.
pub fn parse(text: &str) -> Result<(String, String), String> {
    let (name, command) = text
        .split_once('=')
        .filter(|(name, command)| !name.is_empty() && !command.trim().is_empty())
        .ok_or("write it as NAME=COMMAND")?;
    match command.contains("{mode}") && command.contains("{port}") {
        true => Ok((name.to_owned(), command.to_owned())),
        false => {
            Err("the command says neither what to do nor where without {mode} and {port}".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_in() {
        let server = Server::given(
            "other",
            "serve {mode} --on {device} {address}:{port} {sockets}",
        );
        let words = server.words(&Place {
            mode: "short",
            link: "tap",
            device: "mr0",
            connections: 8,
        });
        let words = words.expect("it has a command").join(" ");
        assert_eq!(words, "serve short --on mr0 10.9.0.2:7000 32");
    }

    #[test]
    fn a_command_without_places_is_refused() {
        assert!(parse("other=serve {mode} {port}").is_ok());
        assert!(parse("other=serve").is_err());
        assert!(parse("=serve {mode} {port}").is_err());
    }
}
