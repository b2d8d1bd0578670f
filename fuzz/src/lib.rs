//! Hostile bytes for everything that reads bytes it did not write.
//!
//! A target takes any bytes and returns, or panics when something that must always hold does not.
//! `make test` replays the corpus and mutants of it from fixed seeds; `cargo xtask fuzz TARGET`
//! lets libFuzzer look for more, guided by coverage.

mod bytes;
mod control;
mod engine;
mod fabric;
mod fabric_memory;
mod forks;
mod fragments;
mod host;
mod icmp;
mod mutate;
mod offload;
mod options;
mod parsers;
#[path = "../../crates/engine/tests/common/mod.rs"]
mod program;
mod shared;
mod stack;
mod states;
mod strangers;
mod worker;

pub use mutate::Mutator;

/// What takes hostile bytes.
pub type Target = fn(&[u8]);

/// Every target and its name.
pub const TARGETS: &[(&str, Target)] = &[
    ("parsers", parsers::run),
    ("stack", stack::run),
    ("shared", shared::run),
    ("offload", offload::run),
    ("options", options::run),
    ("fragments", fragments::run),
    ("icmp", icmp::run),
    ("states", states::run),
    ("fabric", fabric::run),
    ("fabric_memory", fabric_memory::run),
    ("worker", worker::run),
    ("control", control::run),
    ("forks", forks::run),
    ("strangers", strangers::run),
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.map(|(_, target)| *target)
}
