//! `make bench`: millrace beside other stacks, in turns, in one run, and a report of it. Protocol
//! only, in memory; one epoll server on millrace over TAP and on the kernel over veth under the
//! same client on the kernel's side; both on a wire under a light user-level client, for all they
//! can do and at fixed rates; applications there; bulk over a path with loss; memory of
//! connections; and what an engine costs that has nothing to do. With `--link xdp` or `macvtap`
//! millrace is on the veth pair under the kernel's client, too.

mod applications;
mod arguments;
mod command;
mod driven;
mod go;
mod idle;
mod jobs;
mod kernel;
mod lossy;
mod memory;
mod offered;
mod originals;
mod protocol;
mod reasons;
mod scaling;
mod served;
mod servers;
mod subjects;
mod wire;
mod work;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use millrace_bench::report::Report;
use millrace_bench::{machine, supervise};
use millrace_e2e::Link;
use millrace_e2e::scenario::prepare;

use crate::arguments::{Arguments, PORT};
use crate::servers::Server;

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    supervise::supervised(|| bench(&arguments))
}

fn bench(arguments: &Arguments) -> Result<()> {
    if let Some(file) = &arguments.draw {
        return write(&Report::read(file)?, arguments);
    }
    prepare()?;
    let (rounds, length) = match arguments.quick {
        true => (2, 0.5),
        false => (arguments.rounds, arguments.seconds),
    };
    let mut report = Report::begin(rounds, length)?;
    println!("{}", report.machine);
    if let Some(warning) = &report.warning {
        println!("{warning}");
    }
    let everyone = !arguments.kernel_only && !arguments.millrace_only;
    let is_tap = arguments.link == Link::Tap;
    println!("building the adapters of the other stacks");
    let is_measured = everyone && protocol::is_wanted(arguments);
    let is_weighed = !arguments.kernel_only && memory::is_wanted(arguments);
    let peers = match is_tap && (is_measured || is_weighed) {
        true => protocol::all_peers(arguments),
        false => Vec::new(),
    };
    let servers = match everyone && is_tap {
        true => servers(arguments),
        false => Vec::new(),
    };
    let mut all = Vec::new();
    if is_tap && is_measured {
        all.extend(protocol::jobs(rounds, length / 6.0, arguments, &peers));
    }
    report.setup = setup(arguments, length);
    println!("\n{}", report.setup.join("\n"));
    println!(
        "\n{rounds} rounds of {length} s after 0.5 s of warm-up, in turns; median (least .. greatest); cores as user/system/interrupt in %"
    );
    all.extend(served::jobs(rounds, length, arguments, &servers));
    if is_tap {
        all.extend(driven::jobs(rounds, length, arguments, &servers));
        if is_weighed {
            all.extend(memory::jobs(arguments, &peers));
        }
        all.extend(idle::jobs(arguments, &servers));
        all.extend(applications::jobs(rounds, length, arguments));
        all.extend(lossy::jobs(rounds, length, arguments));
    }
    ensure!(
        !all.is_empty(),
        "--only {}: no scenario of this run has such a name",
        arguments.only
    );
    let limit = arguments
        .minutes
        .map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    jobs::run_all(all, limit, &mut report, &arguments.out)?;
    match scaling::curves() {
        Ok(curves) => report.curves = curves,
        Err(error) => report.left_out.push(format!("scaling: {error:#}")),
    }
    report.originals = originals::originals(&report.scenarios);
    println!("\nload average {}", machine::load());
    write(&report, arguments)?;
    let missed: Vec<&str> = report
        .scenarios
        .iter()
        .filter(|scenario| scenario.is_met() == Some(false))
        .map(|scenario| scenario.name.as_str())
        .collect();
    if !missed.is_empty() {
        println!("goals missed: {}", missed.join(", "));
    }
    Ok(())
}

/// Writes a report where it is wanted.
fn write(report: &Report, arguments: &Arguments) -> Result<()> {
    let [json, html, markdown] = report.write(&arguments.out)?;
    println!(
        "report: {}\n        {}\n        {}",
        html.display(),
        markdown.display(),
        json.display()
    );
    if arguments.publish {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/results.md");
        report.write_markdown(&page, "results")?;
        println!("        {}", page.display());
    }
    Ok(())
}

/// Other stacks as servers: those with an adapter, built, and what `--server` names.
fn servers(arguments: &Arguments) -> Vec<Server> {
    let mut servers = Server::adapters();
    let given = arguments.server.iter();
    servers.extend(given.map(|(stack, command)| Server::given(stack, command)));
    servers
}

/// How the servers are started and the links set up, so that anyone can do it by hand.
fn setup(arguments: &Arguments, length: f64) -> Vec<String> {
    let (options, offloads) = match arguments.link {
        Link::Tap => ("--link tap:mr0 --host-addr 10.9.0.1/24", "with its"),
        Link::Xdp => ("--link xdp:veth0", "without"),
        Link::Macvtap => ("--link macvtap:veth0", "without"),
    };
    let mut lines = vec![
        "server: one thread, epoll, level-triggered, unmodified (tests/programs/server.c); client: one thread, on the kernel".to_owned(),
        format!("millrace: `millrace run {options} --addr 10.9.0.2/24 -- server MODE 10.9.0.2 {PORT}`"),
        format!(
            "kernel: `server MODE 10.9.0.2 {PORT}` in a namespace, veth {offloads} offloads; client: `load KIND 10.9.0.2:{PORT} CONNECTIONS {length}`"
        ),
    ];
    if arguments.link != Link::Tap {
        lines.push("both: `ethtool -K veth0 tso off gso off gro off tx off rx off` at both ends, `taskset -c 0` for the server and its engine, `taskset -c 1` for the client".to_owned());
    }
    lines.extend(wire::EXPLAINED.map(String::from));
    lines.push("other stacks, and ours embedded: as bench/peers/README.md says; over TAP their own device, on the wire packet sockets, of ours AF_XDP".to_owned());
    lines
}
