//! What `make bench` is asked for.

use std::path::PathBuf;

use clap::Parser;
use millrace_e2e::{Link, Stack};

/// Measures millrace beside other stacks: A B A B, at least five times; prints ratios and writes a
/// report.
#[derive(Debug, Parser)]
pub struct Arguments {
    /// Two short rounds
    #[arg(long)]
    pub quick: bool,
    /// How often each stack is measured
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Only scenarios whose name contains one of these, with commas between; or whose name is
    /// `=NAME`
    #[arg(long, default_value = "")]
    pub only: String,
    /// What millrace is on: `tap`; or `xdp` or `macvtap`, on the same kind of veth pair as the
    /// kernel, which then has no offloads for either; the server and what serves it on core 0, the
    /// client on core 1
    #[arg(long, default_value = "tap", value_parser = link)]
    pub link: Link,
    /// Only the kernel, to see that the measuring works
    #[arg(long)]
    pub kernel_only: bool,
    /// Only millrace, to take samples of it
    #[arg(long, conflicts_with = "kernel_only")]
    pub millrace_only: bool,
    /// One more stack for what is done in memory: a program that keeps the contract of
    /// bench/peers/README.md; as often as wanted
    #[arg(long, value_name = "NAME=PROGRAM", value_parser = peer)]
    pub peer: Vec<(String, PathBuf)>,
    /// One more stack as a server, over TAP and on a wire: a command that starts it at an address;
    /// as often as wanted. bench/peers/README.md says what it is told by {mode}, {link}, {device},
    /// {address}, {host}, {port} and {sockets}
    #[arg(long, value_name = "NAME=COMMAND", value_parser = server)]
    pub server: Vec<(String, String)>,
    /// Has it end in so many minutes, building not counted: with fewer rounds, though not fewer
    /// than 3, and then without what would not end in time
    #[arg(long)]
    pub minutes: Option<f64>,
    /// Where the report is written: DATE.json, DATE.html, and DATE.md with its plots
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results"))]
    pub out: PathBuf,
    /// Writes the report as docs/results.md, too, for a reference machine
    #[arg(long)]
    pub publish: bool,
    /// Measures nothing, but writes the report of an earlier run again, from its DATE.json
    #[arg(long, value_name = "FILE")]
    pub draw: Option<PathBuf>,
}

/// Where every server listens.
pub const PORT: u16 = 7000;

impl Arguments {
    /// What is compared, ours first.
    pub fn stacks(&self) -> &'static [Stack] {
        match (self.kernel_only, self.millrace_only) {
            (true, _) => &[Stack::Kernel],
            (_, true) => &[Stack::Millrace],
            _ => &[Stack::Millrace, Stack::Kernel],
        }
    }

    /// Whether `--only` has a part of this name, or all of it.
    pub fn wants(&self, name: &str) -> bool {
        let mut parts = self.only.split(',');
        parts.any(|part| match part.strip_prefix('=') {
            Some(whole) => name == whole,
            None => name.contains(part),
        })
    }
}

fn link(text: &str) -> Result<Link, String> {
    match text {
        "tap" => Ok(Link::Tap),
        "xdp" => Ok(Link::Xdp),
        "macvtap" => Ok(Link::Macvtap),
        _ => Err("one of tap, xdp, macvtap".to_owned()),
    }
}

fn peer(text: &str) -> Result<(String, PathBuf), String> {
    let (name, program) = text
        .split_once('=')
        .filter(|(name, program)| !name.is_empty() && !program.is_empty())
        .ok_or("write it as NAME=PROGRAM")?;
    Ok((name.to_owned(), program.into()))
}

/// What `--server` was given.
fn server(text: &str) -> Result<(String, String), String> {
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
        assert!(server("other=serve {mode} {port}").is_ok());
        assert!(server("other=serve").is_err());
        assert!(server("=serve {mode} {port}").is_err());
    }
}
