//! The harness of the end-to-end tests and of the benchmarks: network namespaces, processes with
//! time limits, and a [`World`] in which one and the same scenario runs with its program on
//! millrace or on the kernel's own stack.
//!
//! Everything is created inside namespaces named `mr-e2e-PID-N` and removed when its owner is
//! dropped; what a killed run left behind is removed by the next one. Root is needed.

pub mod compile;
pub mod content;
pub mod directory;
pub mod engine;
pub mod http;
pub mod load;
pub mod namespace;
pub mod others;
pub mod process;
pub mod programs;
pub mod relay;
pub mod scenario;
pub mod turn;
pub mod wire;
pub mod world;

pub use anyhow::{Context, Result, anyhow, bail, ensure};
pub use directory::Directory;
pub use process::{Ended, Process, command};
pub use scenario::{seconds, wait_until};
pub use world::{Link, PEER, SUBJECT, Stack, World, example};
