//! How it scales with cores: what `make bench-scaling` wrote last here, or on the reference
//! machine.

use std::path::Path;

use anyhow::{Result, bail};
use millrace_bench::report::{Curves, SCALING, SCALING_PUBLISHED};

/// The curves; docs/scaling.md explains them.
pub fn curves() -> Result<Vec<Curves>> {
    let mut files = [SCALING, SCALING_PUBLISHED].into_iter();
    match files.find(|file| Path::new(file).exists()) {
        Some(file) => Curves::read(file),
        None => bail!("`make bench-scaling` has not been run"),
    }
}
