//! `millrace nic`: a software network card in front of the kernel's stack.

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use millrace_nic::{ActiveAck, Config, Flows};
use millrace_port::spec::Spec;
use serde_json::Value;

use crate::arguments::common::PrivilegeArguments;
use crate::output::print;
use crate::table;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace nic --wire packet:eth0 --host tap:nic0 &
  ip addr add 192.168.7.2/24 dev nic0 && ip link set nic0 up
  millrace nic --stats nic0
  millrace nic --flows

  millrace nic --wire xdp:eth1,mode=copy --host tap:nic1 --shards 2
  millrace nic --wire packet:eth0 --active-ack=:445,10.1.0.0/16

By `packet:` the kernel goes on using the device of the wire for itself. Before both are given addresses of one network, keep it from
answering there for those of the other: sysctl net.ipv4.conf.eth0.arp_ignore=1")]
pub struct NicArguments {
    /// Where frames come from: `packet:NAME`, a network device that is there already and up, and
    /// that the kernel goes on using; or `xdp:NAME`, likewise, of which all frames are the card's
    /// (options as for `run --link`: queues=N, mode=MODE, busy-poll=HOW)
    #[arg(long, value_name = "KIND:NAME", required_unless_present_any = ["stats", "flows"])]
    wire: Option<Spec>,
    /// The interface that the kernel gets: `tap:NAME`, or `tap` for a free name. It has an address
    /// of its own on the link, and lives as long as this command
    #[arg(long, value_name = "tap[:NAME]", default_value = "tap")]
    host: Spec,
    /// Threads, each with a queue of both and its part of the flows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,
    /// The largest packet that is handed to the kernel in one piece, in bytes, `K` for 1024; 0
    /// turns aggregation off
    #[arg(long, value_name = "BYTES", default_value = "64K", value_parser = aggregate)]
    aggregate: u16,
    /// Acknowledge what the card holds before the kernel has it, of all connections or of those
    /// that are named: by who sends, a port of either end, or both
    /// (10.0.0.0/8,192.168.7.9:445,:2049). If this command is killed then, what was acknowledged
    /// and not yet read by the kernel's TCP is lost
    #[arg(long, value_name = "FLOWS", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    active_ack: Option<Vec<Flows>>,
    /// Let the segments of a large unit of the kernel's leave one after the other, over half of the
    /// time in which its connection makes such a unit, and not in one burst. The card cuts units
    /// then, and not the device
    #[arg(long)]
    pace: bool,
    /// Show the counters of a card that runs [default: the only one]
    #[arg(long, value_name = "NAME", num_args = 0..=1, conflicts_with_all = ["wire", "flows"])]
    stats: Option<Option<String>>,
    /// Show the flows that it knows
    #[arg(long, value_name = "NAME", num_args = 0..=1, conflicts_with = "wire")]
    flows: Option<Option<String>>,
    /// Counters and flows as JSON
    #[arg(long, conflicts_with = "wire")]
    json: bool,
    #[command(flatten)]
    privileges: PrivilegeArguments,
}

pub fn nic(arguments: &NicArguments) -> anyhow::Result<ExitCode> {
    if let Some(name) = &arguments.stats {
        return show(name.as_deref(), arguments.json, counters);
    }
    if let Some(name) = &arguments.flows {
        return show(name.as_deref(), arguments.json, flows);
    }
    let wire = match &arguments.wire {
        Some(wire) if wire.can_relay() => wire.clone(),
        Some(other) => {
            bail!("--wire {other} is no wire; give packet:NAME or xdp:NAME, a network device")
        }
        None => bail!("--wire is missing: packet:NAME or xdp:NAME, a network device"),
    };
    let Spec::Tap { name: host } = &arguments.host else {
        bail!(
            "--host {} is not the kernel's to use; give tap:NAME",
            arguments.host
        );
    };
    let config = Config {
        wire,
        host: host.clone(),
        shards: arguments.shards,
        aggregate: arguments.aggregate,
        active_ack: match &arguments.active_ack {
            None => ActiveAck::Off,
            Some(flows) if flows.is_empty() => ActiveAck::All,
            Some(flows) => ActiveAck::Only(flows.clone()),
        },
        pace: arguments.pace,
        sandbox: Some(arguments.privileges.sandbox()),
    };
    millrace_nic::start(&config, |name, notes| {
        for note in notes {
            eprintln!("millrace: {note}");
        }
        if let Spec::Packet { name: device } = &config.wire
            && answers_for_others(device)
        {
            eprintln!(
                "millrace: the kernel answers on {device} for the addresses of every interface; if {name} is to have one of the network of {device}, \
                 `sysctl net.ipv4.conf.{device}.arp_ignore=1` keeps frames from going past {name}"
            );
        }
        println!("ready {name}");
        // Who reads this may be gone already.
        let _ = std::io::stdout().flush();
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A size in bytes: `64K` is the most that an IP packet can be.
fn aggregate(text: &str) -> Result<u16, String> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let bytes = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
    match bytes {
        Some(0) => Ok(0),
        // A packet's length has 16 bits.
        Some(bytes @ 576..=0x1_0000) => Ok(bytes.min(0xffff) as u16),
        _ => Err("a size is 0, or from 576 to 65536 (64K) bytes".to_owned()),
    }
}

/// Whether the kernel answers ARP on a device for addresses of others (`arp_ignore`, where the
/// greater of two counts).
fn answers_for_others(device: &str) -> bool {
    ["all", device].iter().all(|name| {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/arp_ignore");
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "0")
    })
}

fn show(name: Option<&str>, json: bool, form: fn(&Value) -> String) -> anyhow::Result<ExitCode> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => {
            let mut names = millrace_nic::names();
            match names.len() {
                0 => bail!("no `millrace nic` runs here"),
                1 => names.remove(0),
                _ => bail!("several cards run here; say which: {}", names.join(", ")),
            }
        }
    };
    let text = millrace_nic::query(&name).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => anyhow!("no card {name:?} runs here"),
        _ => anyhow!(error).context(format!("cannot ask the card {name:?}")),
    })?;
    if text.is_empty() {
        bail!("the card {name:?} belongs to another user; ask as that user or as root");
    }
    let shown = if json {
        text + "\n"
    } else {
        form(&serde_json::from_str(&text).context("the card's answer")?)
    };
    print(&shown)?;
    Ok(ExitCode::SUCCESS)
}

/// A line for each counter, and how many segments a unit had on average.
fn counters(card: &Value) -> String {
    let mut rows = Vec::new();
    for part in ["from_wire", "to_host", "offload", "pacing"] {
        for (name, value) in card[part].as_object().into_iter().flatten() {
            rows.push([part.to_owned(), name.clone(), value.to_string()]);
        }
    }
    let count = |name: &str| card["offload"][name].as_f64().unwrap_or(0.0);
    let ratio = count("segments") / count("units").max(1.0);
    let ratio = ["offload", "segments_per_unit", &format!("{ratio:.1}")].map(str::to_owned);
    rows.push(ratio);
    table::format(&rows)
}

/// A line for each flow.
fn flows(card: &Value) -> String {
    const COLUMNS: [&str; 11] = [
        "shard",
        "from",
        "to",
        "vlan",
        "segments",
        "units",
        "bytes",
        "reordered",
        "held",
        "ahead",
        "idle_ms",
    ];
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    for flow in card["flows"].as_array().into_iter().flatten() {
        rows.push(COLUMNS.map(|column| match &flow[column] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }));
    }
    table::format(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_a_packet_can_be() {
        for (text, bytes) in [
            ("64K", 65_535),
            ("65535", 65_535),
            ("0", 0),
            ("9000", 9000),
            ("1k", 1024),
        ] {
            assert_eq!(aggregate(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "65K", "100", "-1", "x", "65537", "99999999999K"] {
            assert!(aggregate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counters_and_flows_have_a_line_each() {
        let card: Value = serde_json::from_str(
            r#"{"offload":{"segments":10,"units":4},"from_wire":{"rx_frames":3},
                "flows":[{"shard":0,"from":"10.0.0.1:5","to":"10.0.0.2:80","vlan":0,"segments":10,"units":4,
                          "bytes":5,"reordered":0,"held":0,"ahead":0,"idle_ms":1}]}"#,
        )
        .unwrap();
        let text = counters(&card);
        assert!(
            text.contains("segments_per_unit")
                && text.contains("2.5")
                && text.contains("rx_frames")
        );
        let text = flows(&card);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("10.0.0.2:80"));
    }
}
