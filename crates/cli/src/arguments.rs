//! The command line.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use millrace_engine::config::{ADDRESSES_V6_MAX, Config, Device, Limits, Link};
use millrace_port::spec::{Prefix, Spec};

/// Default addresses: documented in `--help` and the README.
const DEFAULT_ADDRESS: &str = "10.9.0.2/24";
const DEFAULT_HOST_ADDRESS: &str = "10.9.0.1/24";
/// Ethernet's.
const DEFAULT_MTU: u16 = 1500;
/// What IPv6 needs (RFC 8200 5).
const MTU_MIN_V6: u16 = 1280;

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
    /// Where frames come from: `tap` or `tap:NAME`, a TAP device that the kernel sees as NAME [default: tap, with a free name];
    /// `packet:NAME`, a network device that is there already, which the kernel goes on using: it takes an --addr that nobody else has
    #[arg(long, value_name = "KIND[:NAME]")]
    pub link: Option<Spec>,
    /// millrace's own addresses on the link: one of IPv4 [default: 10.9.0.2/24], and up to eight of IPv6, each with the option again
    #[arg(long, value_name = "IP/BITS", value_parser = given)]
    pub addr: Vec<Given>,
    /// The kernel's addresses at its end of the link, likewise [default: the first other address of each prefix of --addr]
    #[arg(long, value_name = "IP/BITS", value_parser = given)]
    pub host_addr: Vec<Given>,
    /// Next hop for destinations off the link, one for each family; without one they go to the kernel's own stack
    #[arg(long, value_name = "IP")]
    pub gateway: Vec<IpAddr>,
    /// Largest IP packet on the link in bytes; on a device that is there already, no larger than that device's
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MTU, value_parser = clap::value_parser!(u16).range(576..=65_521))]
    pub mtu: u16,
    /// Serve 127.0.0.0/8, ::1 and the own addresses too, between programs of this engine; alone, without any link
    #[arg(long)]
    pub loopback: bool,
    /// Threads that run the stack, each with a queue of the device and its part of the connections; with a core for each, that core is its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: u16,
    /// Do not move the stack's thread to the core of the program it serves (with several shards it is not moved)
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

/// An address with the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    V4(Prefix),
    V6(Ipv6Addr, u8),
}

fn given(text: &str) -> Result<Given, String> {
    let Some((ip, bits)) = text
        .split_once('/')
        .and_then(|(ip, bits)| Some((ip.parse::<Ipv6Addr>().ok()?, bits.parse::<u8>().ok()?)))
    else {
        return prefix(text).map(Given::V4);
    };
    let special = ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || ip.is_unicast_link_local()
        || ip.to_ipv4_mapped().is_some();
    if special || !(1..=126).contains(&bits) {
        return Err(format!(
            "{text} is no address of a host in a prefix of 1 to 126 bits; write it as fd00:9::2/64"
        ));
    }
    Ok(Given::V6(ip, bits))
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
            || !self.addr.is_empty()
            || !self.host_addr.is_empty()
            || !self.gateway.is_empty();
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
        let own = only_v4("--addr", &self.addr)?;
        let (device, address, host) = match &self.link {
            Some(Spec::Packet { name }) => {
                anyhow::ensure!(
                    self.host_addr.is_empty(),
                    "--host-addr is for a TAP device, whose other end is the kernel's; {name} has the addresses that it has: leave it out"
                );
                let address = own.with_context(|| {
                    format!(
                        "--link packet:{name} takes an --addr IP/BITS: an address of the network that {name} is on, and that nobody else there has"
                    )
                })?;
                (Device::Packet { name: name.clone() }, address, None)
            }
            tap => {
                let name = match tap {
                    Some(Spec::Tap { name }) => name.clone(),
                    _ => None,
                };
                let given = (own, only_v4("--host-addr", &self.host_addr)?);
                let (address, host) = match given {
                    (Some(address), Some(host)) => (address, host),
                    (Some(address), None) => (address, neighbour(address)),
                    (None, Some(host)) => (neighbour(host), host),
                    (None, None) => (parse(DEFAULT_ADDRESS)?, parse(DEFAULT_HOST_ADDRESS)?),
                };
                anyhow::ensure!(
                    address.contains(host.address) && address.address != host.address,
                    "--host-addr {}/{} is not another address of --addr {}/{}: give both from one prefix, such as --addr 10.9.0.2/24 --host-addr 10.9.0.1/24",
                    host.address,
                    host.len,
                    address.address,
                    address.len
                );
                (
                    Device::Tap { name },
                    address,
                    Some((host.address, host.len)),
                )
            }
        };
        let addresses_v6 = all_v6(&self.addr);
        let mut hosts_v6 = all_v6(&self.host_addr);
        if hosts_v6.is_empty() && host.is_some() {
            hosts_v6 = addresses_v6.iter().copied().map(neighbour_v6).collect();
        }
        for &(host, bits) in &hosts_v6 {
            let on_link = |&(ip, len): &(Ipv6Addr, u8)| ip != host && within(host, ip, len);
            anyhow::ensure!(
                addresses_v6.iter().any(on_link) && !addresses_v6.iter().any(|own| own.0 == host),
                "--host-addr {host}/{bits} is not another address of a prefix of --addr: give both from one prefix, such as --addr fd00:9::2/64 --host-addr fd00:9::1/64"
            );
        }
        anyhow::ensure!(
            addresses_v6.len() <= ADDRESSES_V6_MAX && hosts_v6.len() <= ADDRESSES_V6_MAX,
            "more than {ADDRESSES_V6_MAX} IPv6 addresses were given; leave some out"
        );
        anyhow::ensure!(
            addresses_v6.is_empty() || self.mtu >= MTU_MIN_V6,
            "--mtu {} is less than the {MTU_MIN_V6} bytes that IPv6 needs",
            self.mtu
        );
        let (mut gateway, mut gateway_v6) = (None, None);
        for &hop in &self.gateway {
            let (on_link, taken) = match hop {
                IpAddr::V4(hop) => (address.contains(hop), gateway.replace(hop).is_some()),
                IpAddr::V6(hop) => (
                    addresses_v6.iter().any(|&(ip, len)| within(hop, ip, len)),
                    gateway_v6.replace(hop).is_some(),
                ),
            };
            anyhow::ensure!(
                on_link,
                "--gateway {hop} is not on the link, whose prefixes are those of --addr: {}/{}{}",
                address.address,
                address.len,
                addresses_v6
                    .iter()
                    .map(|(ip, len)| format!(", {ip}/{len}"))
                    .collect::<String>()
            );
            anyhow::ensure!(!taken, "--gateway {hop} is the second one of its family");
        }
        Ok(Link {
            device,
            address: address.address,
            prefix_len: address.len,
            host,
            gateway,
            addresses_v6,
            hosts_v6,
            gateway_v6,
            mtu: self.mtu,
        })
    }
}

/// The IPv4 address among those given with an option, if there is one.
fn only_v4(option: &str, given: &[Given]) -> anyhow::Result<Option<Prefix>> {
    let mut found = None;
    for one in given {
        if let Given::V4(prefix) = one {
            anyhow::ensure!(
                found.replace(*prefix).is_none(),
                "{option} {}/{} is the second IPv4 address; the link has one, and any number of IPv6",
                prefix.address,
                prefix.len
            );
        }
    }
    Ok(found)
}

fn all_v6(given: &[Given]) -> Vec<(Ipv6Addr, u8)> {
    given
        .iter()
        .filter_map(|one| match one {
            Given::V6(ip, len) => Some((*ip, *len)),
            Given::V4(_) => None,
        })
        .collect()
}

/// Whether `ip` is in the prefix of `of`.
fn within(ip: Ipv6Addr, of: Ipv6Addr, len: u8) -> bool {
    (ip.to_bits() ^ of.to_bits()).leading_zeros() >= u32::from(len)
}

/// The first other host address of a prefix.
fn neighbour_v6((ip, len): (Ipv6Addr, u8)) -> (Ipv6Addr, u8) {
    let network = ip.to_bits() & !(u128::MAX >> len);
    let first = network + 1;
    let other = if first == ip.to_bits() {
        first + 1
    } else {
        first
    };
    (Ipv6Addr::from_bits(other), len)
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
    fn addresses_of_ipv6_may_be_given_too() {
        let ip = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let link = link(&["--addr", "fd00:9::2/64", "--addr", "2001:db8::1/48"]).unwrap();
        assert_eq!(link.address, Ipv4Addr::new(10, 9, 0, 2));
        assert_eq!(
            link.addresses_v6,
            [(ip("fd00:9::2"), 64), (ip("2001:db8::1"), 48)]
        );
        assert_eq!(
            link.hosts_v6,
            [(ip("fd00:9::1"), 64), (ip("2001:db8::2"), 48)]
        );
        let with_gateway = ["--addr", "fd00:9::2/64", "--gateway", "fd00:9::1"];
        let link = self::link(&with_gateway).unwrap();
        assert_eq!(
            (link.gateway, link.gateway_v6),
            (None, Some(ip("fd00:9::1")))
        );
        for bad in [
            ["--addr", "fe80::2/64", "", ""],
            ["--addr", "fd00:9::2/127", "", ""],
            ["--addr", "fd00:9::2/64", "--host-addr", "fd00:8::1/64"],
            ["--addr", "fd00:9::2/64", "--host-addr", "fd00:9::2/64"],
            ["--addr", "fd00:9::2/64", "--gateway", "fd00:8::1"],
            ["--addr", "fd00:9::2/64", "--mtu", "1000"],
            ["--addr", "10.9.0.2/24", "--addr", "10.9.0.3/24"],
        ] {
            let line: Vec<&str> = bad.into_iter().filter(|word| !word.is_empty()).collect();
            let last = line[line.len() - 1];
            let error = format!("{:#}", self::link(&line).unwrap_err());
            assert!(error.contains(last), "{error}");
        }
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
