//! Warnings about limits that programs share. The first time that one is reached, it is printed
//! with a remedy.

use millrace_shard::Counters;

use crate::worker::counters::WorkerCounters;

/// The warnings that were printed, one bit each.
#[derive(Debug, Default)]
pub(crate) struct LimitWarnings(u32);

/// Counters of limits, with their warnings.
const SPOKEN_OF: [(&str, &str); 7] = [
    (
        "orphans_refused",
        "a program has closed too many connections with data still to send, so the next ones were reset: let it shut down and wait before it closes, or run it on an engine of its own",
    ),
    (
        "half_open_limited",
        "the listeners of a program have used up their share of half-open connections and answer with SYN cookies: there is a SYN flood, or peers answer slowly",
    ),
    (
        "ports_limited",
        "a program has bound its share of ports (32768 to 60999), so bind fails with EADDRINUSE: let it close sockets, use IP_BIND_ADDRESS_NO_PORT, or give it an address of its own",
    ),
    (
        "neighbours_limited",
        "a program sends to more hosts on the link than its share of the neighbour cache holds, so some are resolved again: does it scan, or is a prefix too short?",
    ),
    (
        "out_of_order_refused",
        "out-of-order bytes were dropped, since they would take too much of the receive memory of their program: does a peer leave gaps on purpose, or does the program read too slowly?",
    ),
    (
        "out_of_order_pruned",
        "a program is short of receive memory, so out-of-order bytes were dropped: let it read sooner, or set SO_RCVBUF",
    ),
    (
        "send_memory_pressure",
        "a program holds half of the send memory that it may have, so each of its sockets queues at most 4 KB: its peers read slowly; set SO_SNDBUF, or close connections that stand still",
    ),
];

impl LimitWarnings {
    /// Prints new warnings.
    #[cold]
    pub(crate) fn check(&mut self, shard: &Counters, worker: &WorkerCounters) {
        let all = shard
            .iter()
            .chain([("send_memory_pressure", worker.send_memory_pressure)]);
        for (name, _) in all.filter(|(_, count)| *count > 0) {
            let known = SPOKEN_OF.iter().enumerate();
            for (at, (_, text)) in known.filter(|(_, (known, _))| *known == name) {
                if self.0 & 1 << at == 0 {
                    self.0 |= 1 << at;
                    eprintln!("millrace: {text} ({name} of `millrace ss --counters`; said once)");
                }
            }
        }
    }
}
