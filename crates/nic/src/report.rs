//! What a card says of itself.

use millrace_offload::{Counters, FlowInfo, Instant, PaceCounters};
use millrace_port::Relay;
use millrace_port::xdp::missed;
use serde_json::{Map, Value, json};

use crate::shard::Shard;

/// What one shard says.
#[derive(Debug)]
pub(crate) struct Report {
    offload: Counters,
    wire: millrace_port::Counters,
    host: millrace_port::Counters,
    unsound: u64,
    pacing: PaceCounters,
    flows: Vec<FlowInfo>,
}

impl Report {
    pub(crate) fn of<W: Relay, H: Relay>(shard: &Shard<W, H>, now: Instant) -> Report {
        Report {
            offload: *shard.counters(),
            wire: with_missed(shard.wire()),
            host: shard.host().counters(),
            unsound: shard.unsound(),
            pacing: shard.pacing(),
            flows: shard.flows(now).collect(),
        }
    }
}

/// What a port has counted, with what the kernel has dropped before it.
fn with_missed(port: &impl Relay) -> millrace_port::Counters {
    let counters = port.counters();
    millrace_port::Counters {
        rx_dropped: counters.rx_dropped + missed(&port.gauges()),
        ..counters
    }
}

/// All shards' reports as one document.
pub(crate) fn document(name: &str, wire: &str, reports: &[Report]) -> Value {
    let mut offload = Counters::default();
    let mut pacing = PaceCounters::default();
    for report in reports {
        offload.add(&report.offload);
        pacing.add(&report.pacing);
    }
    let fields = offload.fields();
    let offload: Map<String, Value> = fields
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    let port = |of: fn(&Report) -> &millrace_port::Counters| {
        let sum = |field: fn(&millrace_port::Counters) -> u64| {
            reports.iter().map(|report| field(of(report))).sum::<u64>()
        };
        json!({
            "rx_frames": sum(|port| port.rx_frames),
            "rx_bytes": sum(|port| port.rx_bytes),
            "tx_frames": sum(|port| port.tx_frames),
            "tx_bytes": sum(|port| port.tx_bytes),
            "rx_dropped": sum(|port| port.rx_dropped),
            "tx_dropped": sum(|port| port.tx_refused + port.tx_dropped),
        })
    };
    let flows: Vec<Value> = reports
        .iter()
        .enumerate()
        .flat_map(|(shard, report)| report.flows.iter().map(move |flow| (shard, flow)))
        .map(|(shard, flow)| {
            json!({
                "shard": shard,
                "from": flow.key.source().to_string(),
                "to": flow.key.destination().to_string(),
                "vlan": flow.key.vlan & 0xfff,
                "segments": flow.segments,
                "units": flow.units,
                "bytes": flow.bytes,
                "reordered": flow.reordered,
                "held": flow.held,
                "ahead": flow.ahead,
                "interval_us": flow.interval / 1000,
                "idle_ms": flow.idle / 1_000_000,
            })
        })
        .collect();
    json!({
        "name": name,
        "wire": wire,
        "shards": reports.len(),
        "from_wire": port(|report| &report.wire),
        "to_host": port(|report| &report.host),
        "unsound_units": reports.iter().map(|report| report.unsound).sum::<u64>(),
        "offload": offload,
        "pacing": {
            "paced": pacing.paced,
            "hurried": pacing.hurried,
            "at_once": pacing.at_once,
        },
        "flows": flows,
    })
}
