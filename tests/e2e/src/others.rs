//! Servers of other stacks and our own inside a program, as `bench/peers/README.md` has them: a
//! command starts one at an address, over TAP or on a wire, and it does there what
//! `tests/programs/server.c` does in the mode of that name.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use anyhow::{Result, anyhow};

use crate::scenario::{seconds, wait_until};
use crate::world::DEVICE;
use crate::{Link, PEER, Process, SUBJECT, Stack, World, command};

/// How ours inside a program is called in reports.
pub const EMBEDDED: &str = "millrace, embedded";
/// The device of a wire at the server's end.
const WIRE: &str = "veth0";
/// What all adapters are told.
const PLACES: &str = "{link} {mode} {device} {address} {port}";

/// What starts a server.
pub struct Other {
    /// As the stack is called in reports.
    pub stack: String,
    /// Words of the command, with places for where and how: `{mode}`, `{link}`, `{device}`,
    /// `{address}`, `{host}`, `{port}`, `{sockets}`; or why there is none.
    command: Result<String>,
    /// Whether on a wire it has the address alone, which the kernel there then loses.
    is_alone: bool,
}

/// What a server is to do.
#[derive(Clone, Copy)]
pub struct Service<'a> {
    /// Mode of `tests/programs/server.c`.
    pub mode: &'a str,
    /// Where it listens.
    pub port: u16,
    /// How many connections come at once.
    pub connections: usize,
}

impl Other {
    /// One that a command starts, on a wire beside the kernel.
    pub fn given(stack: &str, command: &str) -> Other {
        Other {
            stack: stack.to_owned(),
            command: Ok(command.to_owned()),
            is_alone: false,
        }
    }

    /// Ours inside a program, by `bench/src/bin/embedded_server.rs`, built; or why it is not.
    pub fn embedded(program: Result<PathBuf>) -> Other {
        Other::adapter(EMBEDDED, program, PLACES)
    }

    /// smoltcp's, by `bench/peers/smoltcp`, likewise.
    pub fn smoltcp(program: Result<PathBuf>) -> Other {
        Other::adapter("smoltcp", program, &format!("{PLACES} {{sockets}}"))
    }

    /// lwIP's, by `bench/peers/lwip`, likewise.
    pub fn lwip(program: Result<PathBuf>) -> Other {
        Other::adapter("lwIP", program, PLACES)
    }

    /// gVisor's, by `bench/peers/gvisor`, likewise.
    pub fn gvisor(program: Result<PathBuf>) -> Other {
        Other::adapter("gVisor", program, PLACES)
    }

    fn adapter(stack: &str, program: Result<PathBuf>, places: &str) -> Other {
        Other {
            stack: stack.to_owned(),
            command: program.map(|program| format!("{} {places}", program.display())),
            is_alone: true,
        }
    }

    /// Words of the command, on a link of this kind, `tap` or `wire`.
    fn words(&self, service: Service<'_>, link: &str, device: &str) -> Result<Vec<String>> {
        let command = match &self.command {
            Ok(command) => command,
            Err(error) => return Err(anyhow!("cannot be built: {error:#}")),
        };
        // Short transactions: as many again may come before those that end are over; and somebody
        // asks whether it is there.
        let sockets = match service.mode {
            "short" => service.connections * 4,
            _ => service.connections + 4,
        };
        let filled = [
            ("{mode}", service.mode),
            ("{link}", link),
            ("{device}", device),
            ("{address}", &SUBJECT.to_string()),
            ("{host}", &PEER.to_string()),
            ("{port}", &service.port.to_string()),
            ("{sockets}", &sockets.to_string()),
        ]
        .into_iter()
        .fold(command.clone(), |text, (name, value)| {
            text.replace(name, value)
        });
        Ok(filled.split_whitespace().map(String::from).collect())
    }

    /// On a TAP device that it creates, whose other end is the kernel's: ready.
    pub fn on_tap(&self, service: Service<'_>) -> Result<(World, Process)> {
        let words = self.words(service, "tap", DEVICE)?;
        let world = World::create(Stack::Millrace)?;
        let mut server = world.peer(&words)?;
        let peer = world.peer_namespace();
        wait_until("the server creates its device", seconds(10), || {
            server.ensure_not_failed()?;
            Ok(peer.devices()?.iter().any(|device| device == DEVICE))
        })?;
        peer.ip(&format!("address replace {PEER}/24 dev {DEVICE}"))?;
        peer.ip(&format!("link set {DEVICE} up"))?;
        wait_for(&world, &mut server, service.port)?;
        Ok((world, server))
    }

    /// On one end of a veth pair without offloads, likewise; `before` are words that come before
    /// the command.
    pub fn on_wire(&self, service: Service<'_>, before: &[&str]) -> Result<(World, Process)> {
        let words = self.words(service, "wire", WIRE)?;
        let world = World::create_on(Stack::Kernel, Link::Xdp, 1)?;
        world.turn_offloads_off()?;
        if self.is_alone {
            let subject = world.subject_namespace();
            subject.ip(&format!("address flush dev {WIRE}"))?;
        }
        let before = before.iter().map(|word| (*word).to_owned());
        let words: Vec<String> = before.chain(words).collect();
        let mut server = world.start_on_subject(command(&words))?;
        wait_for(&world, &mut server, service.port)?;
        Ok((world, server))
    }
}

/// Waits until it takes a connection of the peer's kernel.
fn wait_for(world: &World, server: &mut Process, port: u16) -> Result<()> {
    let address = SocketAddr::from((SUBJECT, port));
    wait_until("the server takes connections", seconds(15), || {
        server.ensure_not_failed()?;
        let connect = || TcpStream::connect_timeout(&address, seconds(1)).is_ok();
        Ok(world.peer_namespace().enter(connect))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_in() {
        let other = Other::given(
            "other",
            "serve {mode} --on {device} {address}:{port} {sockets}",
        );
        let service = Service {
            mode: "short",
            port: 7000,
            connections: 8,
        };
        let words = other.words(service, "tap", "mr0");
        let words = words.expect("it has a command").join(" ");
        assert_eq!(words, "serve short --on mr0 10.9.0.2:7000 32");
    }
}
