//! `millrace load`: a load generator on a stack of its own.

use std::io::{IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use millrace_load::{Closes, LinkSpec, Plan, Progress, Target, Workload};

use crate::addresses::{DEFAULT_ADDRESS, free_beside};
use crate::arguments::common::{DEFAULT_MTU, address};
use crate::output::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Workloads:
  short      connects, sends a message, receives as many bytes, and waits for the server to close (--closes)
  pingpong   sends a message and receives as many bytes, again and again
  in         sends as much as the server takes
  out        receives as much as the server sends
  http       GET by HTTP/1.1, on connections that stay or not (--no-keep-alive)

Examples:
  millrace load http http://10.9.0.1/ --connections 256      the kernel's web server, from 10.9.0.2 on a TAP device
  millrace load http http://10.9.0.1/ --connections 256 --rate 20000 --duration 30
  millrace load short 192.168.7.1:7000 --link packet:eth0 --addr 192.168.7.100/24 --sources 50 --connections 5000
  millrace load pingpong 10.9.0.1:7 --link pair              what the generator itself takes: a server of its own, in memory
  millrace load out 10.9.0.1:9 --json | jq .gigabits_in

With --rate operations begin at their times, whoever is late, and latency counts from those times: a server that stands still is
seen by all who would have asked it. Without, each connection begins the next when the one before it is over.")]
pub struct LoadArguments {
    /// What every connection does: short, pingpong, in, out or http
    workload: Workload,
    /// The server: IP:PORT, or http://IP[:PORT]/PATH; names are not looked up
    target: Target,
    /// What the generator is on: tap[:NAME], whose other end is the kernel's; packet:NAME,
    /// macvtap:NAME or xdp:NAME[,OPTION=VALUE], a device that is there already, beside the kernel;
    /// or pair, a server of its own in memory
    #[arg(
        long,
        value_name = "KIND[:NAME]",
        default_value = "tap",
        help_heading = "Link"
    )]
    link: LinkSpec,
    /// The generator's first address on the link [default: 10.9.0.2/24 on a TAP device or a pair]
    #[arg(long, value_name = "IP/BITS", value_parser = address, help_heading = "Link")]
    addr: Option<(IpAddr, u8)>,
    /// So many addresses, one after the other from --addr on, from which connections come in turn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Link")]
    sources: u32,
    /// The kernel's address at its end of a TAP device [default: the first other address of the
    /// prefix of --addr]
    #[arg(long, value_name = "IP/BITS", value_parser = address, help_heading = "Link")]
    host_addr: Option<(IpAddr, u8)>,
    /// Next hop, if the server is not on the link
    #[arg(long, value_name = "IP", help_heading = "Link")]
    gateway: Option<IpAddr>,
    /// Largest IP packet of a TAP device or a pair in bytes [default: 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..=65_521), help_heading = "Link")]
    mtu: Option<u16>,
    /// Threads, each with a queue of the device and its part of the connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    /// Connections at once
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Operations that begin per second, whether those before them are over or not
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    rate: Option<f64>,
    /// How long it counts, in seconds
    #[arg(long, short, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    duration: Duration,
    /// How long it runs before it counts, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    warm_up: Duration,
    /// Bytes of a message of short and pingpong [default: 64]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    size: Option<u32>,
    /// Who ends a connection of short: the server, or the client, which resets it once it has the
    /// answer [default: server]
    #[arg(long, value_name = "WHO", value_parser = closes)]
    closes: Option<Closes>,
    /// A connection for each request of http
    #[arg(long)]
    no_keep_alive: bool,
    /// The result as JSON
    #[arg(long)]
    json: bool,
}

/// A value of `--rate`.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    let rate = rate.filter(|rate: &f64| (0.001..=1e9).contains(rate));
    rate.ok_or_else(|| "a rate is from 0.001 to 1000000000 per second".to_owned())
}

/// A span of time.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds: &f64| (0.0..=86_400.0).contains(seconds));
    let span = seconds.map(Duration::from_secs_f64);
    span.ok_or_else(|| "a number of seconds is from 0 to 86400".to_owned())
}

/// A value of `--closes`.
fn closes(text: &str) -> Result<Closes, String> {
    match text {
        "server" => Ok(Closes::Server),
        "client" => Ok(Closes::Client),
        _ => Err("one of server, client".to_owned()),
    }
}

pub fn load(arguments: &LoadArguments) -> anyhow::Result<ExitCode> {
    let plan = plan(arguments)?;
    let shows = !arguments.json && std::io::stderr().is_terminal();
    let report = millrace_load::run(&plan, |progress| {
        if shows {
            // Who does not see it misses nothing.
            let _ = writeln!(std::io::stderr(), "{}", line(&progress, plan.workload));
        }
    })?;
    let text = match arguments.json {
        true => format!("{:#}\n", report.json()),
        false => report.text(),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn plan(arguments: &LoadArguments) -> anyhow::Result<Plan> {
    let link = &arguments.link;
    let (tap, pair) = (link.has_kernel_end(), *link == LinkSpec::Pair);
    ensure!(
        pair || !link.is_in_memory(),
        "--link {link} is for programs that have the stack inside; give a device, or pair (a server of our own, in memory)"
    );
    let (first, bits) = match arguments.addr {
        Some(address) => address,
        None if !tap && !pair => anyhow::bail!(
            "--link {link} takes an --addr IP/BITS: an address of the network that it is on, and that nobody else there has"
        ),
        None => DEFAULT_ADDRESS,
    };
    ensure!(
        tap || arguments.host_addr.is_none(),
        "--host-addr is for a TAP device, whose other end is the kernel's: leave it out"
    );
    ensure!(
        !arguments.duration.is_zero(),
        "--duration 0 counts nothing; give the seconds that count, such as --duration 10"
    );
    // What would have no effect is refused: who gives it expects one.
    let of_messages = matches!(arguments.workload, Workload::Short | Workload::Pingpong);
    ensure!(
        of_messages || arguments.size.is_none(),
        "--size is that of a message of short and pingpong: leave it out"
    );
    ensure!(
        arguments.workload == Workload::Short || arguments.closes.is_none(),
        "--closes is about connections of short: leave it out"
    );
    ensure!(
        arguments.workload == Workload::Http || !arguments.no_keep_alive,
        "--no-keep-alive is about requests of http: leave it out"
    );
    ensure!(
        tap || pair || arguments.mtu.is_none(),
        "--mtu is for a TAP device or a pair; another link has its device's: leave it out"
    );
    let addresses = Plan::sources(first, bits, arguments.sources)?;
    let hosts = match (tap, arguments.host_addr) {
        (false, _) => Vec::new(),
        (true, Some(host)) => vec![host],
        (true, None) => vec![free_beside((first, bits), &addresses)?],
    };
    let mut plan = Plan::new(arguments.workload, arguments.target.clone());
    plan.link = arguments.link.clone();
    plan.addresses = addresses;
    plan.hosts = hosts;
    plan.gateway = arguments.gateway;
    plan.mtu = arguments.mtu.unwrap_or(DEFAULT_MTU);
    plan.shards = arguments.shards;
    plan.connections = arguments.connections;
    plan.rate = arguments.rate;
    plan.warm_up = arguments.warm_up;
    plan.duration = arguments.duration;
    if let Some(size) = arguments.size {
        plan.size = size as usize;
    }
    if let Some(closes) = arguments.closes {
        plan.closes = closes;
    }
    plan.keep_alive = !arguments.no_keep_alive;
    Ok(plan)
}

/// One second, in a line.
fn line(progress: &Progress, workload: Workload) -> String {
    let when = match progress.seconds {
        Some(seconds) => format!("{seconds:6.0} s"),
        None => "warm-up ".to_owned(),
    };
    let what = match workload.is_bulk() {
        true => format!("{:.2} Gbit/s", progress.bytes as f64 * 8e-9),
        false => format!(
            "{} operations, 50 % {:.1} us, 99 % {:.1} us",
            progress.operations, progress.latency_us[0], progress.latency_us[1]
        ),
    };
    match progress.failures {
        0 => format!("{when}  {what}"),
        failures => format!("{when}  {what}, {failures} failed"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn of(line: &str) -> anyhow::Result<Plan> {
        let words = ["millrace", "load"].into_iter().chain(line.split(' '));
        match Arguments::try_parse_from(words)?.command {
            Command::Load(arguments) => plan(&arguments),
            _ => unreachable!("it says load"),
        }
    }

    #[test]
    fn a_tap_device_has_both_ends() {
        let plan = of("http http://10.9.0.1/ -c 9").expect("a plan");
        assert_eq!(plan.addresses, [DEFAULT_ADDRESS]);
        assert_eq!(plan.hosts[0].0.to_string(), "10.9.0.1");
        assert_eq!((plan.connections, plan.keep_alive), (9, true));
        let plan = of("short 10.1.0.1:7 --addr 10.1.0.1/24 --sources 3").expect("a plan");
        assert_eq!(plan.addresses[2].0.to_string(), "10.1.0.3");
        assert_eq!(plan.hosts[0].0.to_string(), "10.1.0.4");
    }

    #[test]
    fn what_does_not_fit_is_said_with_its_value() {
        for (line, expected) in [
            ("short 10.1.0.1", "IP:PORT"),
            ("long 10.1.0.1:7", "short, pingpong, in, out, http"),
            ("short 10.1.0.1:7 --link ring", "pair (two ends in memory"),
            (
                "short 10.1.0.1:7 --link packet:eth0",
                "--link packet:eth0 takes an --addr",
            ),
            (
                "short 10.1.0.1:7 --sources 300",
                "300 addresses from 10.9.0.2",
            ),
            ("short 10.1.0.1:7 --rate 0", "from 0.001"),
            ("short 10.1.0.1:7 --duration -1", "'-1'"),
            ("short 10.1.0.1:7 --duration 0", "--duration 0"),
            ("short 10.1.0.1:7 --closes me", "server, client"),
            ("http 10.1.0.1:7 --size 9", "--size"),
            ("pingpong 10.1.0.1:7 --closes client", "--closes"),
            ("short 10.1.0.1:7 --no-keep-alive", "--no-keep-alive"),
            (
                "short 10.1.0.1:7 --link packet:eth0 --addr 10.1.0.2/24 --mtu 900",
                "--mtu",
            ),
            (
                "short 10.1.0.1:7 --link pair --host-addr 10.9.0.1/24",
                "--host-addr",
            ),
        ] {
            let said = format!("{:#}", of(line).expect_err(line));
            assert!(said.contains(expected), "{line}: {said}");
        }
    }
}
