//! How it scales with cores: what `make bench-scaling` wrote last.

use std::path::Path;

use anyhow::{Context as _, Result};
use millrace_bench::report::Curves;

/// Where it is written: docs/scaling.md explains the figures.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scaling.json");

/// The curves of the latest run of it.
pub fn curves() -> Result<Vec<Curves>> {
    let text = std::fs::read_to_string(Path::new(FILE))
        .with_context(|| format!("{FILE}: `make bench-scaling` writes it"))?;
    serde_json::from_str(&text).with_context(|| format!("reading {FILE}"))
}
