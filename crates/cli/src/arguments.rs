//! The command line.

pub mod common;

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand};
use millrace_engine::config::MtuProbing;
use millrace_engine::topology::Topology;
use millrace_port::spec::Spec;
use millrace_steer::Policy;
use millrace_tcp::Algorithm;

use common::{DEFAULT_MTU, PrivilegeArguments, address, engine_name, user};

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

impl Arguments {
    /// The command line of this process. Ends the process if there is an error in it.
    pub fn of_this_process() -> Arguments {
        Arguments::try_parse().unwrap_or_else(|error| {
            // Nothing is left to do when standard error is closed.
            let _ = error.print();
            if let Some(hint) = missing_dashes(&error, std::env::args().nth(1).as_deref()) {
                eprintln!("\n{hint}");
            }
            std::process::exit(error.exit_code())
        })
    }
}

/// What to write instead, if a program follows `millrace run` without `--`.
fn missing_dashes(error: &clap::Error, command: Option<&str>) -> Option<String> {
    let is_unknown = error.kind() == clap::error::ErrorKind::UnknownArgument;
    if !is_unknown || command != Some("run") {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    (!word.starts_with('-')).then(|| {
        format!("If {word} is the program, write `--` before it: millrace run [OPTIONS] -- {word}")
    })
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program on millrace
    Run(RunArguments),
    /// Start an engine that stays, for programs to attach to
    Up(UpArguments),
    /// Check, show or print a configuration file of `up`
    Config(ConfigArguments),
    /// End an engine
    Down(DownArguments),
    /// Show the warnings of an engine that `up` started
    Logs(crate::logs::LogsArguments),
    /// Change how many shards serve, while connections go on, or show what each of them has
    Scale(ScaleArguments),
    /// Show connections and listeners
    Ss(SsArguments),
    /// Say what this machine and its network devices can do for millrace, and what to change
    Doctor(crate::doctor::DoctorArguments),
    /// A software network card in front of the kernel's own stack, with receive offload
    Nic(crate::nic::NicArguments),
    /// Load a server with connections of a stack of its own, and say how it answers
    Load(crate::load::LoadArguments),
    /// User-level messages between processes of this host: list ports, measure round trips and
    /// bandwidth
    Fabric(crate::fabric::FabricArguments),
    /// The engine's own process; started by run and up
    #[command(hide = true)]
    Engine(EngineArguments),
}

/// What an engine serves.
#[derive(Debug, Args)]
#[command(next_help_heading = "Link")]
pub struct LinkArguments {
    /// Where frames come from: `tap` or `tap:NAME`, a TAP device that the kernel sees as NAME
    /// [default: tap, with a free name]; `packet:NAME`, a network device that is there already,
    /// which the kernel goes on using: it takes an --addr that nobody else has; `macvtap:NAME`,
    /// likewise, by a device on top of it; `xdp:NAME`, likewise, by AF_XDP sockets past the
    /// kernel's stack, with `,queues=N` how many of its queues, and with `,mode=MODE` how: auto,
    /// zerocopy, copy or generic; with `,busy-poll=on` (or off, or auto: where the driver has zero
    /// copy) millrace runs the driver's poller when it looks for packets; with `,address=shared` it
    /// has the addresses and routes that the kernel has there, and the ports that programs ask for:
    /// no --addr
    #[arg(long, value_name = "KIND[:NAME][,OPTION=VALUE]")]
    pub link: Option<Spec>,
    /// millrace's own addresses on the link, up to eight of IPv4 [default: 10.9.0.2/24] and eight
    /// of IPv6, each with the option again
    #[arg(long, value_name = "IP/BITS", value_parser = address)]
    pub addr: Vec<(IpAddr, u8)>,
    /// The kernel's addresses at its end of the link, likewise [default: the first other address of
    /// each prefix of --addr]
    #[arg(long, value_name = "IP/BITS", value_parser = address)]
    pub host_addr: Vec<(IpAddr, u8)>,
    /// Next hop for all destinations of its family off the link, unless a --route leads to them;
    /// those that nothing leads to go to the kernel's own stack
    #[arg(long, value_name = "IP")]
    pub gateway: Vec<IpAddr>,
    /// Next hop for the destinations of a prefix, as in `--route 10.0.0.0/8 via 10.9.0.1`; the
    /// longest prefix counts; up to 32, each with the option again
    #[arg(long, num_args = 1..=3, value_names = ["PREFIX", "via", "IP"])]
    pub route: Vec<String>,
    /// The virtual LAN (IEEE 802.1Q) whose tag the engine's frames have on the link; others are
    /// passed over. A TAP device is then for a bridge, or for the kernel's own device of that LAN:
    /// it gets no --host-addr
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Largest IP packet on the link in bytes; on a device that is there already, no larger than
    /// that device's
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MTU, value_parser = clap::value_parser!(u16).range(576..=65_521))]
    pub mtu: u16,
    /// Serve 127.0.0.0/8, ::1 and the own addresses too, between programs of this engine; alone,
    /// without any link
    #[arg(long)]
    pub loopback: bool,
    /// Threads that run the stack, each with a queue of the device and its part of the connections;
    /// with a core for each, that core is its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: u16,
    /// Threads to have ready for `millrace scale`, those of --shards among them; they sleep until
    /// it asks for them. For a pipeline, which it makes; programs' limits are shared out among all
    /// of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards_max: Option<u16>,
    /// Move flows from shards that have had too much to do for some seconds to those that have
    /// less. For a pipeline, which it makes
    #[arg(long)]
    pub balance: bool,
    /// Threads that own the device's queues and give the shards their frames, in place of shards
    /// that have queues of their own (a pipeline)
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub io_threads: Option<u16>,
    /// Cores of the I/O threads, then of the shards, a thread each, then of the program, as in
    /// `0-3,6` [default: any, each its own if there are enough]
    #[arg(long, value_name = "LIST", value_parser = Cores::parse)]
    pub cores: Option<Cores>,
    /// Who owns the device's queues: the shards (`rtc`, run to completion), I/O threads
    /// (`pipeline`), some shards and I/O threads for the others (`mixed`), or, as a rule, the
    /// shards, and I/O threads if the device has fewer queues than there are shards (`auto`)
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = topology)]
    pub topology: Topology,
    /// In what order a shard serves the I/O threads' queues: `round-robin`, `strict` (the first
    /// always first), `weighted:W,...`, or `least-loaded` (as many bytes of each)
    #[arg(long, value_name = "ORDER", default_value_t, value_parser = Policy::from_str)]
    pub schedule: Policy,
    /// Likewise, an I/O thread the shards'
    #[arg(long, value_name = "ORDER", default_value_t, value_parser = Policy::from_str)]
    pub io_schedule: Policy,
    /// Do not move the stack's thread to the core of the program it serves (with several shards it
    /// is not moved)
    #[arg(long)]
    pub no_follow: bool,
    /// Do not join the segments that an AF_XDP or packet socket gives one by one before the stack
    /// takes them in
    #[arg(long)]
    pub no_join: bool,
    /// Congestion control of sockets for which their program chooses none (TCP_CONGESTION):
    /// `cubic`, `reno`, `bbr` or `dctcp`
    #[arg(long, value_name = "NAME", default_value = "cubic", value_parser = congestion)]
    pub congestion: Algorithm,
    /// Ask for explicit congestion notification when connecting (it is accepted always)
    #[arg(long)]
    pub ecn: bool,
    /// Find out how large packets may be by sending larger ones: `off`, when full packets are lost
    /// again and again and nobody says why (`black-hole`), or for every connection from the start
    /// (`always`)
    #[arg(long, value_name = "WHEN", default_value = "black-hole", value_parser = mtu_probing)]
    pub mtu_probing: MtuProbing,
    /// Write who attaches, what is refused, who is cut off and who changes the engine to a file, a
    /// line for each, at its end; `-` is standard error
    #[arg(long, value_name = "FILE")]
    pub audit: Option<String>,
    #[command(flatten)]
    pub privileges: PrivilegeArguments,
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
    #[arg(long, value_name = "NAME", conflicts_with_all = ["link", "addr", "host_addr", "gateway", "route", "loopback", "shards", "shards_max", "balance", "io_threads", "cores", "topology", "schedule", "io_schedule", "vlan", "mtu", "no_follow", "no_join", "congestion", "ecn", "mtu_probing", "user", "no_seccomp", "dumpable", "audit"])]
    pub engine: Option<String>,
    /// Whose engine it is, by name or number: another user than root and oneself, whom one trusts
    /// with what is asked and sent
    #[arg(long, value_name = "USER", value_parser = user, requires = "engine")]
    pub engine_user: Option<u32>,
    /// Say nothing but errors
    #[arg(long, short)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace up --name lab --link tap:lab0 --addr 10.8.0.2/24 --host-addr 10.8.0.1/24
  millrace up --config /etc/millrace/lab.toml")]
pub struct UpArguments {
    /// Name of the engine [default: with --config, the file's name without `.toml`]
    #[arg(long, value_name = "NAME", value_parser = engine_name, required_unless_present = "config")]
    pub name: Option<String>,
    /// Read the flags from a file in TOML; those of the command line count where both have one.
    /// `millrace config example` prints such a file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub link: LinkArguments,
    /// Stay in the foreground, and end on SIGINT or SIGTERM
    #[arg(long)]
    pub foreground: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A key is the name of a flag of `millrace up`, without the dashes: `addr = [\"10.8.0.2/24\"]`.

Examples:
  millrace config example > /etc/millrace/lab.toml
  millrace config check /etc/millrace/lab.toml
  millrace up --config /etc/millrace/lab.toml")]
pub struct ConfigArguments {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Find the errors in a configuration file; start nothing
    Check {
        /// The configuration file
        file: PathBuf,
    },
    /// Show every key that has a value: those of the file, and the defaults
    Show {
        /// The configuration file
        file: PathBuf,
    },
    /// Print a configuration file with every key and what it means
    Example,
}

#[derive(Debug, Args)]
pub struct DownArguments {
    /// Name of the engine
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Whose engine it is, by name or number: another user than root and oneself, whom one trusts
    /// with what is asked and sent
    #[arg(long, value_name = "USER", value_parser = user)]
    pub engine_user: Option<u32>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
New connections and sockets go to the shards that serve, and so do the connections that there are;
they go on meanwhile. What cannot go, such as listeners and datagram sockets, stays. A shard that
serves no more is idle once its last socket is closed.

Examples:
  millrace up --name lab --link tap:lab0 --shards 1 --shards-max 4
  millrace scale --engine lab --shards 3
  millrace scale --engine lab")]
pub struct ScaleArguments {
    /// Name of the engine [default: the only one in this network namespace]
    #[arg(long, value_name = "NAME")]
    pub engine: Option<String>,
    /// Whose engine it is, by name or number: another user than root and oneself, whom one trusts
    /// with what is asked and sent
    #[arg(long, value_name = "USER", value_parser = user)]
    pub engine_user: Option<u32>,
    /// How many are to serve; up to the engine's --shards-max
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: Option<u16>,
    /// Show it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace ss
  millrace ss --engine lab --json | jq '.[] | select(.state == \"ESTAB\")'")]
pub struct SsArguments {
    /// Name of the engine [default: the only one in this network namespace]
    #[arg(long, value_name = "NAME")]
    pub engine: Option<String>,
    /// Whose engine it is, by name or number: another user than root and oneself, whom one trusts
    /// with what is asked and sent
    #[arg(long, value_name = "USER", value_parser = user)]
    pub engine_user: Option<u32>,
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

/// A value of `--congestion`.
fn congestion(name: &str) -> Result<Algorithm, String> {
    let known = || Algorithm::ALL.map(Algorithm::name).join(", ");
    name.parse().map_err(|()| format!("one of {}", known()))
}

/// A value of `--mtu-probing`.
fn mtu_probing(text: &str) -> Result<MtuProbing, String> {
    match text {
        "off" => Ok(MtuProbing::Off),
        "black-hole" => Ok(MtuProbing::BlackHole),
        "always" => Ok(MtuProbing::Always),
        _ => Err("one of off, black-hole, always".into()),
    }
}

/// A value of `--topology`.
fn topology(text: &str) -> Result<Topology, String> {
    match text {
        "auto" => Ok(Topology::Auto),
        "rtc" => Ok(Topology::RunToCompletion),
        "pipeline" => Ok(Topology::Pipeline),
        "mixed" => Ok(Topology::Mixed),
        _ => Err("one of auto, rtc, pipeline, mixed".into()),
    }
}

/// A value of `--cores`, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores(pub Vec<usize>);

impl Cores {
    fn parse(text: &str) -> Result<Cores, String> {
        let number = |text: &str| match text.parse::<u16>() {
            Ok(core) => Ok(usize::from(core)),
            Err(_) => Err("numbers and ranges of cores, as in 0-3,6".to_owned()),
        };
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("{part} ends before it begins"));
            }
            cores.extend(first..=last);
        }
        Ok(Cores(cores))
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

    #[test]
    fn cores_are_numbers_and_ranges() {
        let cores = |text| Cores::parse(text).map(|cores| cores.0);
        assert_eq!(cores("0-2,6,5-5"), Ok(vec![0, 1, 2, 6, 5]));
        for text in ["", "a", "1,", "3-1", "-2", "1-", "70000"] {
            assert!(cores(text).is_err(), "{text}");
        }
    }
}
