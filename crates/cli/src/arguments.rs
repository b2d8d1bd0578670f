//! The command line.

use std::net::Ipv4Addr;

use clap::{Args, Parser, Subcommand};
use millrace_engine::config::{Config, Limits, Link};
use millrace_port::spec::{Prefix, Spec};

/// Default addresses: documented in `--help` and the README.
const DEFAULT_ADDRESS: &str = "10.9.0.2/24";
const DEFAULT_HOST_ADDRESS: &str = "10.9.0.1/24";
/// Ethernet's.
const DEFAULT_MTU: u16 = 1500;

/// A user-level TCP/IP stack that runs the programs you have, unmodified.
#[derive(Debug, Parser)]
#[command(
    name = "millrace",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  millrace run -- nginx                        nginx at 10.9.0.2 on a TAP device of its own
  millrace run --link tap:web --addr 192.168.7.2/24 --host-addr 192.168.7.1/24 -- redis-server
  millrace run --loopback -- python3 test.py   127.0.0.1 served by millrace, no device
  millrace up --name lab && millrace run --engine lab -- nginx && millrace ss --engine lab

Exit status of `run`: the program's; 128 + N if signal N ended it; 125 if millrace failed; 126 if the program
cannot be run on millrace; 127 if it was not found."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program on millrace
    Run(RunArguments),
    /// Start an engine that stays, for programs to attach to
    Up(UpArguments),
    /// End an engine
    Down(DownArguments),
    /// Show connections and listeners
    Ss(SsArguments),
    /// The engine's own process; started by run and up
    #[command(hide = true)]
    Engine(EngineArguments),
}

/// What an engine serves.
#[derive(Debug, Args)]
#[command(next_help_heading = "Link")]
pub struct LinkArguments {
    /// Where frames come from: `tap` or `tap:NAME`, a TAP device that the kernel sees as NAME [default: tap, with a free name]
    #[arg(long, value_name = "KIND[:NAME]")]
    pub link: Option<Spec>,
    /// millrace's own address on the link [default: 10.9.0.2/24]
    #[arg(long, value_name = "IP/BITS", value_parser = prefix)]
    pub addr: Option<Prefix>,
    /// The kernel's address at its end of the link [default: the first other address of --addr's prefix]
    #[arg(long, value_name = "IP/BITS", value_parser = prefix)]
    pub host_addr: Option<Prefix>,
    /// Next hop for destinations off the link; without one they go to the kernel's own stack
    #[arg(long, value_name = "IP")]
    pub gateway: Option<Ipv4Addr>,
    /// Largest IP packet on the link in bytes
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MTU, value_parser = clap::value_parser!(u16).range(576..=65_521))]
    pub mtu: u16,
    /// Serve 127.0.0.0/8 and the own address too, between programs of this engine; alone, without any link
    #[arg(long)]
    pub loopback: bool,
    /// Threads that run the stack
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: u16,
    /// Do not move the stack's thread to the core of the program it serves
    #[arg(long)]
    pub no_follow: bool,
    /// Ask for explicit congestion notification when connecting (it is accepted always)
    #[arg(long)]
    pub ecn: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace run -- nginx -g 'daemon off;'
  millrace run --addr 10.1.0.5/16 -- iperf3 -s
  millrace run --engine lab -- curl http://10.9.0.1/
  millrace run --loopback -- make check")]
pub struct RunArguments {
    #[command(flatten)]
    pub link: LinkArguments,
    /// Attach to an engine that `millrace up` started, instead of starting one
    #[arg(long, value_name = "NAME", conflicts_with_all = ["link", "addr", "host_addr", "gateway", "loopback", "shards", "mtu", "no_follow", "ecn"])]
    pub engine: Option<String>,
    /// Say nothing but errors
    #[arg(long, short)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millrace up --name lab --link tap:lab0 --addr 10.8.0.2/24 --host-addr 10.8.0.1/24")]
pub struct UpArguments {
    /// Name of the engine
    #[arg(long, value_name = "NAME", value_parser = engine_name)]
    pub name: String,
    #[command(flatten)]
    pub link: LinkArguments,
    /// Stay in the foreground, and end on SIGINT or SIGTERM
    #[arg(long)]
    pub foreground: bool,
}

#[derive(Debug, Args)]
pub struct DownArguments {
    /// Name of the engine
    #[arg(long, value_name = "NAME")]
    pub name: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace ss
  millrace ss --engine lab --json | jq '.[] | select(.state == \"ESTAB\")'")]
pub struct SsArguments {
    /// Name of the engine [default: the only one that runs]
    #[arg(long, value_name = "NAME")]
    pub engine: Option<String>,
    /// As JSON, one object for each socket
    #[arg(long)]
    pub json: bool,
    /// Show the engine's counters instead, as JSON
    #[arg(long)]
    pub counters: bool,
}

#[derive(Debug, Args)]
pub struct EngineArguments {
    /// The configuration as JSON
    pub config: String,
}

fn prefix(text: &str) -> Result<Prefix, String> {
    let prefix: Prefix = text
        .parse()
        .map_err(|error: millrace_port::spec::Error| error.to_string())?;
    Prefix::of_host(prefix.address, prefix.len).map_err(|error| error.to_string())
}

fn engine_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > 64 || !text.chars().all(good) {
        return Err("a name is 1 to 64 letters, digits, '-', '_' or '.'".to_owned());
    }
    Ok(text.to_owned())
}

impl LinkArguments {
    /// The engine's configuration; where the command line says nothing the defaults stand.
    pub fn config(&self, name: String, ephemeral: bool) -> anyhow::Result<Config> {
        let wants_link = self.link.is_some()
            || self.addr.is_some()
            || self.host_addr.is_some()
            || self.gateway.is_some();
        let link = if wants_link || !self.loopback {
            Some(self.link()?)
        } else {
            None
        };
        Ok(Config {
            name,
            link,
            loopback: self.loopback,
            ephemeral,
            shards: self.shards,
            follow: !self.no_follow,
            ecn: self.ecn,
            limits: Limits::default(),
        })
    }

    fn link(&self) -> anyhow::Result<Link> {
        let parse = |text: &str| prefix(text).map_err(anyhow::Error::msg);
        let address = match (self.addr, self.host_addr) {
            (Some(address), _) => address,
            (None, Some(host)) => neighbour(host),
            (None, None) => parse(DEFAULT_ADDRESS)?,
        };
        let host = match (self.host_addr, self.addr) {
            (Some(host), _) => host,
            (None, Some(address)) => neighbour(address),
            (None, None) => parse(DEFAULT_HOST_ADDRESS)?,
        };
        anyhow::ensure!(
            address.contains(host.address) && address.address != host.address,
            "--host-addr {}/{} is not another address of --addr {}/{}: give both from one prefix, such as --addr 10.9.0.2/24 --host-addr 10.9.0.1/24",
            host.address,
            host.len,
            address.address,
            address.len
        );
        if let Some(gateway) = self.gateway {
            anyhow::ensure!(
                address.contains(gateway),
                "--gateway {gateway} is not on the link {}/{}",
                address.address,
                address.len
            );
        }
        let device = match &self.link {
            Some(Spec::Tap { name }) => name.clone(),
            None => None,
        };
        Ok(Link {
            device,
            address: address.address,
            prefix_len: address.len,
            host: Some((host.address, host.len)),
            gateway: self.gateway,
            mtu: self.mtu,
        })
    }
}

/// The first other host address of a prefix.
fn neighbour(of: Prefix) -> Prefix {
    let ip = u32::from(of.address);
    let network = ip & u32::from(of.mask());
    let other = if network + 1 == ip {
        network + 2
    } else {
        network + 1
    };
    Prefix {
        address: Ipv4Addr::from(other),
        len: of.len,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    fn link(line: &[&str]) -> anyhow::Result<Link> {
        let line = ["millrace", "run"]
            .iter()
            .chain(line)
            .chain(&["--", "true"]);
        let Command::Run(run) = Arguments::try_parse_from(line)?.command else {
            unreachable!("it says run")
        };
        Ok(run.link.config("x".to_owned(), true)?.link.expect("a link"))
    }

    #[test]
    fn addresses_default_to_the_documented_prefix() {
        let link = link(&[]).unwrap();
        assert_eq!(
            (link.address, link.host),
            (
                "10.9.0.2".parse().unwrap(),
                Some(("10.9.0.1".parse().unwrap(), 24))
            )
        );
    }

    #[test]
    fn the_host_address_defaults_to_a_neighbour() {
        assert_eq!(
            link(&["--addr", "10.1.0.1/16"]).unwrap().host,
            Some(("10.1.0.2".parse().unwrap(), 16))
        );
        assert_eq!(
            link(&["--host-addr", "10.1.0.9/16"]).unwrap().address,
            "10.1.0.1".parse::<Ipv4Addr>().unwrap()
        );
    }

    #[test]
    fn nonsense_is_refused_with_its_value() {
        for bad in [
            ["--addr", "10.9.0.0/24"],
            ["--addr", "10.9.0.2"],
            ["--addr", "x"],
            ["--link", "wire:x"],
            ["--mtu", "10"],
            ["--shards", "0"],
        ] {
            let error = format!("{:#}", link(&bad).unwrap_err());
            assert!(error.contains(bad[1]), "{error}");
        }
        assert!(link(&["--addr", "10.9.0.2/24", "--host-addr", "10.8.0.1/24"]).is_err());
        assert!(
            link(&["--gateway", "1.2.3.4"])
                .unwrap_err()
                .to_string()
                .contains("1.2.3.4")
        );
    }
}
