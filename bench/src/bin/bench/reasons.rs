//! Why a goal is missed, or another stack is ahead, as far as profiles and counts have shown it. It
//! is said in the report when it is so.

use millrace_bench::report::Scenario;

/// The beginning of a scenario's name, and the reason. The first that fits counts.
const KNOWN: &[(&str, &str)] = &[
    (
        "memory-short-1-instructions",
        "One connection alone pays for what a round costs by itself, which a burst shares.",
    ),
    (
        "memory-short-1",
        "smoltcp's adapter has one socket and lets go what waits in TIME-WAIT; here 28,000 connections wait there, so that each new one touches memory that has left the caches; and one connection alone pays for \
         what a round costs by itself, which a burst shares.",
    ),
    (
        "memory-short",
        "docs/performance.md says where each instruction of a short connection goes: no single place stands out, a sixth of them are of one segment in and out. In time also by what waits in TIME-WAIT, which \
         leaves the caches; smoltcp's and lwIP's adapters let it go at once.",
    ),
    (
        "memory-ping",
        "docs/performance.md says where each instruction of a message goes: no single place stands out. One connection alone pays for what a round costs by itself, which a burst shares.",
    ),
    (
        "memory-bulk",
        "Three copies and two checksums of each byte are 0.94 instructions; the goal leaves little for all else, segment by segment.",
    ),
    (
        "bulk-in",
        "Two copies of each byte on the shard's core, from the device into the engine and into the program's ring, where the kernel's own path over veth hands over pages (docs/performance.md).",
    ),
    (
        "bulk-out",
        "Each byte is copied by the program into the staging ring, by the shard into the send ring, and into the kernel's device, the latter two on the shard's core (docs/performance.md); gVisor's stack uses both cores for it.",
    ),
    (
        "pingpong-1",
        "Four threads are woken one after the other for a message there and back, where the kernel wakes two, and a stack inside the server's own thread as well; a kernel that polls wakes the client alone, and its server's core is never idle.",
    ),
    (
        "pingpong",
        "Messages that come alone are handed from the shard's thread to the program's; where both are one thread there is nothing to hand over.",
    ),
    (
        "short",
        "Less than a tenth of the CPU of a short transaction over TAP is ours; the rest is the kernel's client and its device, which are the same whoever has the other end.",
    ),
    (
        "wire-short-8k",
        "With 8,192 connections at once, what a connection needs leaves the caches between its segments; the client, which has as many, is the other half.",
    ),
    (
        "wire-ping-at",
        "At low rates the thread of the device, the engine's and the program's are woken one after the other on one core, where the kernel has an interrupt and the program, and a stack inside its \
         program no thread beside it.",
    ),
    (
        "wire",
        "Seven tenths of the server's core are the kernel's: its copy in and out of an AF_XDP socket on a virtual device, and that device's own work (docs/performance.md).",
    ),
    ("nginx-keep-64k", LARGE),
    ("nginx-keep-1m", LARGE),
    ("nginx-1m", LARGE),
    ("nginx-64k", LARGE),
    (
        "nginx-tls",
        "Most of it is the cryptography of nginx and of the client, which is the same on both stacks.",
    ),
    (
        "nginx",
        "nginx's own work for a request is a large part of it, and the same on both stacks.",
    ),
    (
        "redis",
        "redis-server's own work is most of it when requests come in pipelines, and the same on both stacks.",
    ),
    ("iscsi-read", LARGE),
    (
        "loss",
        "What congestion control makes of the path, and chance: docs/goodput.md has both in simulation.",
    ),
    ("idle-connection", CONNECTION),
    ("memory-of-idle", CONNECTION),
    (
        "memory-of-active",
        "A message takes a block of 4 KB at each end, where it waits for its acknowledgement and where it waits to be read; lwIP has it in a buffer of one segment at one end and of its own size at the other.",
    ),
    (
        "engine-memory",
        "An engine is a process of its own with pools, rings and tables that are there from the start; the others are libraries in a server.",
    ),
    (
        "idle-cpu",
        "A stack inside its program has no engine whose threads could wake.",
    ),
];

/// Of large answers by AF_XDP.
const LARGE: &str = "Eight tenths of the server's core are the virtual pair's for frames of 1,514 bytes one by one: the AF_XDP socket's copy, and the client's receiving, which veth does on the sender's core. The kernel's own \
     segments come to the device in runs of up to 44, and the client joins those: it acknowledges 37 of the kernel's at once and 2.7 of ours (docs/performance.md).";
/// Of memory.
const CONNECTION: &str = "Six tenths of what a shard keeps of an idle connection are TCP's state, the rest its addresses, its rings, and its places in the tables; an engine keeps 80 \
     bytes more, for the slot that the program sees. lwIP has neither selective acknowledgements nor timestamps, as Debian builds it, and its connections one after the other in a list.";

/// The reason, if there is something to give one for.
pub fn of(scenario: &Scenario) -> Option<String> {
    let is_behind = scenario.is_met() == Some(false) || !scenario.ahead_of_ours().is_empty();
    let known = KNOWN
        .iter()
        .find(|(name, _)| scenario.name.starts_with(name));
    known
        .filter(|_| is_behind)
        .map(|(_, reason)| (*reason).to_owned())
}
