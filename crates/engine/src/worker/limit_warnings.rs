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
        "a program has closed so many connections that still had something to send that the next were reset: let it shut down and wait before it closes, or run it on an engine of its own",
    ),
    (
        "half_open_limited",
        "listeners of a program have their share of half-open connections and answer with SYN cookies: somebody floods them with SYNs, or their peers answer slowly",
    ),
    (
        "ports_limited",
        "a program has its share of ports bound (32768 to 60999), and binding fails with EADDRINUSE: let it close sockets, use IP_BIND_ADDRESS_NO_PORT, or give it an address of its own",
    ),
    (
        "neighbours_limited",
        "a program sends to more hosts of the link than its share of the neighbour cache, and some wait anew for their hardware address: does it scan, or is a prefix too short?",
    ),
    (
        "out_of_order_refused",
        "bytes out of order were not kept since they take too much of their program's receive memory: does a peer leave gaps on purpose, or does the program read too slowly?",
    ),
    (
        "out_of_order_pruned",
        "receive memory of a program is short, so bytes out of order were dropped: let it read sooner, or set SO_RCVBUF",
    ),
    (
        "send_memory_pressure",
        "a program has half of the send memory that it may have, so that its sockets queue 4 KB each: its peers read slowly; set SO_SNDBUF or close what stands still",
    ),
];

impl LimitWarnings {
    /// Prints new warnings.
    #[cold]
    pub(crate) fn look(&mut self, shard: &Counters, worker: &WorkerCounters) {
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
