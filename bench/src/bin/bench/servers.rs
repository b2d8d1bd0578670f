//! Servers of other stacks: those with an adapter in `bench/peers`, and what `--server` names.

use millrace_e2e::compile;
use millrace_e2e::others::Other;

use crate::protocol::{cargo, gvisor};
use crate::wire::SOURCES;

/// One of them, and what has to be known of it to measure it.
pub struct Server {
    /// What starts it.
    pub other: Other,
    /// How many addresses its client has on a wire, as far as it looks up neighbours fast and keeps them.
    pub neighbours: u8,
    /// Whether the command line named it.
    pub is_given: bool,
    /// Whether it looks through all connections for each segment, so that thousands take long.
    pub is_slow: bool,
}

impl Server {
    /// What `--server NAME=COMMAND` says.
    pub fn given(stack: &str, command: &str) -> Server {
        Server {
            other: Other::given(stack, command),
            neighbours: SOURCES,
            is_given: true,
            is_slow: false,
        }
    }

    /// Those with an adapter here, built.
    pub fn adapters() -> Vec<Server> {
        vec![
            Server {
                other: Other::smoltcp(cargo(&["-p", "millrace-peer-smoltcp"], "smoltcp-server")),
                // It asks for one neighbour a second.
                neighbours: 1,
                is_given: false,
                is_slow: true,
            },
            Server {
                other: Other::lwip(compile::lwip("server")),
                // Its table has ten in Debian's build, one of them for the host.
                neighbours: 8,
                is_given: false,
                is_slow: true,
            },
            Server {
                other: Other::gvisor(gvisor()),
                neighbours: SOURCES,
                is_given: false,
                is_slow: false,
            },
        ]
    }

    /// As it is called in reports.
    pub fn stack(&self) -> &str {
        &self.other.stack
    }
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
    fn a_command_without_places_is_refused() {
        assert!(parse("other=serve {mode} {port}").is_ok());
        assert!(parse("other=serve").is_err());
        assert!(parse("=serve {mode} {port}").is_err());
    }
}
