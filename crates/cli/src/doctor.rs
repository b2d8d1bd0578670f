//! `millrace doctor`: what this machine and its network devices can do for millrace, and what to
//! change.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use millrace_port::spec::Spec;
use millrace_port::{device, netdev};
use serde::Serialize;

use crate::output::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace doctor
  millrace doctor --link xdp:eth0

Each line says `ok`, `note` (it works, and could be better) or `FAIL`; the exit status is 1 if one failed.")]
pub struct DoctorArguments {
    /// The link that is wanted, as for `millrace run` [default: every network device is looked at,
    /// for any link]
    #[arg(long, value_name = "KIND[:NAME][,OPTION=VALUE]")]
    link: Option<Spec>,
    /// As JSON, one object for each finding
    #[arg(long)]
    json: bool,
}

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    Ok,
    Note,
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    grade: Grade,
    /// What was looked at.
    subject: String,
    /// What it is like.
    found: String,
    /// Commands that change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
}

/// What was found so far.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, grade: Grade, subject: &str, found: impl Into<String>) -> &mut Finding {
        self.0.push(Finding {
            grade,
            subject: subject.to_owned(),
            found: found.into(),
            change: None,
        });
        self.0.last_mut().expect("one was added")
    }
}

impl Finding {
    fn change(&mut self, commands: impl Into<String>) {
        self.change = Some(commands.into());
    }
}

/// Capabilities by the number of their bit (`linux/capability.h`).
const NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const NET_RAW: (u32, &str) = (13, "CAP_NET_RAW");
const SYS_ADMIN: (u32, &str) = (21, "CAP_SYS_ADMIN");
const BPF: (u32, &str) = (39, "CAP_BPF");
/// The largest MTU at which AF_XDP has each packet in one piece.
const WHOLE_MTU_MAX: u32 = 3498;

pub fn doctor(arguments: &DoctorArguments) -> anyhow::Result<ExitCode> {
    let mut findings = Findings::default();
    machine(&mut findings);
    privileges(&mut findings, arguments.link.as_ref());
    let link = arguments.link.as_ref();
    if link.is_none_or(Spec::has_kernel_end) {
        tun(&mut findings);
    }
    let wanted = match link {
        None => device::names().context("listing the network devices")?,
        Some(spec) => spec.wire().map(str::to_owned).into_iter().collect(),
    };
    let for_xdp = link.is_none_or(Spec::is_xdp);
    for name in wanted.iter().filter(|name| *name != "lo") {
        look_at(&mut findings, name, for_xdp, arguments.link.is_some());
    }
    let shown = match arguments.json {
        true => serde_json::to_string_pretty(&findings.0)? + "\n",
        false => text(&findings.0),
    };
    print(&shown)?;
    let failed = findings.0.iter().any(|found| found.grade == Grade::Fail);
    Ok(ExitCode::from(u8::from(failed)))
}

/// Kernel, cores, memory.
fn machine(findings: &mut Findings) {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease").trim().to_owned();
    findings.add(Grade::Ok, "kernel", release);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let shards = match cores {
        1 => "one shard; it shares the core with its program".to_owned(),
        _ => format!("up to {cores} shards (--shards) have a core each; programs want some, too"),
    };
    findings.add(Grade::Ok, "cores", format!("{cores}: {shards}"));
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limits.maximum.unwrap_or(u64::MAX);
    let found = format!("{most} at most; an engine takes one for each process and each poller");
    match most < 65_536 {
        true => findings
            .add(Grade::Note, "descriptors", found)
            .change("ulimit -Hn 1048576"),
        false => drop(findings.add(Grade::Ok, "descriptors", found)),
    }
    let transparent = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let free = read("/proc/meminfo")
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"))
        .map_or_else(|| "0".to_owned(), |count| count.trim().to_owned());
    findings.add(
        Grade::Ok,
        "hugepages",
        format!(
            "{free} reserved ones free, transparent ones: {}; millrace reserves none and needs none",
            transparent.trim()
        ),
    );
}

/// What this process may do, against what the link takes.
fn privileges(findings: &mut Findings, link: Option<&Spec>) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0);
    let needs: &[(&str, &[(u32, &str)])] = &[
        ("tap", &[NET_ADMIN]),
        ("tun", &[NET_ADMIN]),
        ("packet", &[NET_ADMIN, NET_RAW]),
        ("macvtap", &[NET_ADMIN, SYS_ADMIN]),
        ("xdp", &[NET_ADMIN, NET_RAW, BPF]),
    ];
    let of_link = |kind: &str| link.map_or(kind != "tun", |link| link.kind() == kind);
    let needs = needs.iter().filter(|(kind, _)| of_link(kind));
    for (kind, capabilities) in needs {
        let missing: Vec<&str> = capabilities
            .iter()
            .filter(|(bit, _)| effective >> bit & 1 == 0)
            .map(|(_, name)| *name)
            .collect();
        let subject = format!("privileges for {kind}");
        if missing.is_empty() {
            findings.add(Grade::Ok, &subject, "there");
            continue;
        }
        let grade = if link.is_some() {
            Grade::Fail
        } else {
            Grade::Note
        };
        let list = missing.join(",").to_lowercase();
        findings
            .add(grade, &subject, format!("{} missing", missing.join(", ")))
            .change(format!(
                "run as root, or: setcap {list}+ep $(command -v millrace)"
            ));
    }
}

/// The TAP driver.
fn tun(findings: &mut Findings) {
    match Path::new("/dev/net/tun").exists() {
        true => drop(findings.add(Grade::Ok, "TAP driver", "/dev/net/tun is there")),
        false => findings
            .add(Grade::Fail, "TAP driver", "/dev/net/tun is not there")
            .change("modprobe tun; for a container: --device /dev/net/tun"),
    }
}

/// One network device.
fn look_at(findings: &mut Findings, name: &str, for_xdp: bool, is_wanted: bool) {
    let (is_up, mtu) = match device::state(name) {
        Ok(state) => state,
        Err(error) => {
            let found = format!("there is no such device: {error}");
            return findings.add(Grade::Fail, name, found).change("ip link");
        }
    };
    let driver = device::driver(name).unwrap_or_else(|_| "unknown".to_owned());
    let queues = device::queues(name);
    let found = format!("driver {driver}, {queues} queue(s) to receive, MTU {mtu}");
    match is_up {
        true => drop(findings.add(Grade::Ok, name, found)),
        false => {
            let grade = if is_wanted { Grade::Fail } else { Grade::Note };
            let down = findings.add(grade, name, found + ", down");
            down.change(format!("ip link set {name} up"));
        }
    }
    if for_xdp {
        xdp(findings, name, mtu, queues);
    }
    if driver == "veth" && for_xdp {
        veth(findings, name, mtu);
    }
}

/// What AF_XDP is like on it.
fn xdp(findings: &mut Findings, name: &str, mtu: u32, queues: u16) {
    let subject = format!("{name}: XDP");
    let features = match netdev::xdp_features(name) {
        Ok(features) => features,
        Err(error) => {
            let found = format!("the kernel does not tell what the driver can do ({error})");
            findings.add(Grade::Note, &subject, found);
            return;
        }
    };
    match (features.native, features.zero_copy) {
        (true, true) => drop(findings.add(Grade::Ok, &subject, "by the driver, with zero copy")),
        (true, false) => drop(findings.add(
            Grade::Note,
            &subject,
            "by the driver, which has no zero copy: frames are copied once more (mode=copy)",
        )),
        (false, _) => findings
            .add(
                Grade::Note,
                &subject,
                "not by the driver: generic mode, where frames pass through the kernel's buffers first",
            )
            .change(format!("--link macvtap:{name} is likely to be the better one")),
    }
    if mtu > WHOLE_MTU_MAX && features.native && !features.pieces {
        findings
            .add(
                Grade::Fail,
                &format!("{name}: XDP and MTU"),
                format!("the driver does not take packets of {mtu} bytes apart"),
            )
            .change(format!("ip link set dev {name} mtu {WHOLE_MTU_MAX}"));
    }
    if queues == 1 {
        findings
            .add(
                Grade::Note,
                &format!("{name}: queues"),
                "one, so there can be one shard by AF_XDP",
            )
            .change(format!(
                "ethtool -l {name} tells how many it can have; ethtool -L {name} combined 2"
            ));
    }
    let deferred = fs::read_to_string(format!("/sys/class/net/{name}/napi_defer_hard_irqs"));
    let deferred = deferred.is_ok_and(|count| count.trim() != "0");
    let (found, change) = busy_polling(features, netdev::polled_queues(name).ok(), deferred, name);
    let finding = findings.add(Grade::Ok, &format!("{name}: busy polling"), found);
    if let Some(change) = change {
        finding.change(change);
    }
}

/// What busy polling is like on a device of which so many queues have a poller that the kernel
/// knows, if it tells, and where interrupts are `deferred` or not; and what would make more of it.
fn busy_polling(
    features: netdev::Features,
    polled: Option<usize>,
    deferred: bool,
    name: &str,
) -> (String, Option<String>) {
    match polled {
        None => {
            let found =
                "the kernel does not tell; `busy-poll=on` tries, and says whether it is real";
            (found.to_owned(), None)
        }
        Some(0) => {
            let found = "not real: the driver does not tell the kernel which poller serves which queue, so that packets come by interrupts";
            (found.to_owned(), None)
        }
        Some(polled) if !features.zero_copy => {
            let found = format!(
                "real on {polled} queue(s), if `busy-poll=on` asks for it: without zero copy that is a poll of the driver's own copies"
            );
            (found, None)
        }
        Some(polled) => {
            let found = format!(
                "real: millrace runs the pollers of {polled} queue(s) when it looks for packets (busy-poll=auto)"
            );
            let change = format!(
                "until they are deferred interrupts come all the same: echo 2 > /sys/class/net/{name}/napi_defer_hard_irqs; echo 200000 > /sys/class/net/{name}/gro_flush_timeout"
            );
            (found, (!deferred).then_some(change))
        }
    }
}

/// What is peculiar to a veth pair.
fn veth(findings: &mut Findings, name: &str, mtu: u32) {
    findings.add(
        Grade::Ok,
        &format!("{name}: checksums"),
        "the peer of a veth device may leave them undone; millrace sees that (other stacks want `ethtool -K PEER tx off`)",
    );
    if mtu > WHOLE_MTU_MAX {
        findings
            .add(
                Grade::Note,
                &format!("{name}: UDP in large pieces"),
                "with this MTU the peer joins datagrams of UDP_SEGMENT, and XDP does not tell where one ended",
            )
            .change("at the other end: ethtool -K PEER tx-udp-segmentation off");
    }
}

fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|found| found.subject.len()).max();
    let width = width.unwrap_or(0);
    let mut out = String::new();
    for found in findings {
        let grade = match found.grade {
            Grade::Ok => "ok  ",
            Grade::Note => "note",
            Grade::Fail => "FAIL",
        };
        out += &format!("{grade}  {:width$}  {}\n", found.subject, found.found);
        if let Some(change) = &found.change {
            out += &format!("      {:width$}  -> {change}\n", "");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_polling_is_real_where_the_kernel_knows_the_pollers() {
        let told = |zero_copy, polled, deferred| {
            let features = netdev::Features {
                native: true,
                zero_copy,
                pieces: false,
            };
            busy_polling(features, polled, deferred, "eth7")
        };
        assert!(told(true, None, false).0.contains("does not tell;"));
        assert!(told(true, Some(0), false).0.starts_with("not real"));
        assert!(
            told(false, Some(2), false)
                .0
                .contains("real on 2 queue(s), if")
        );
        let (found, change) = told(true, Some(4), false);
        assert!(found.contains("the pollers of 4 queue(s)"), "{found}");
        let change = change.expect("interrupts are in the way");
        assert!(change.contains("/sys/class/net/eth7/napi_defer_hard_irqs"));
        assert_eq!(told(true, Some(4), true).1, None);
    }

    #[test]
    fn what_fails_is_told_with_the_command_that_mends_it() {
        let mut findings = Findings::default();
        look_at(&mut findings, "none-such0", true, true);
        machine(&mut findings);
        let shown = text(&findings.0);
        assert!(shown.starts_with("FAIL  none-such0"), "{shown}");
        assert!(
            shown.contains("-> ip link\n") && shown.contains("\nok    kernel"),
            "{shown}"
        );
    }
}
