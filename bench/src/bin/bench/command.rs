//! Commands that build what is measured.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Runs a command to its end; what it says is in the error.
pub fn run(command: &mut Command) -> Result<Vec<u8>> {
    // A report is for others, on whose machines the folders have other names.
    let name = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .to_owned();
    let output = command
        .output()
        .with_context(|| format!("running {}", name.display()))?;
    ensure!(
        output.status.success(),
        "{}: {}: {}",
        name.display(),
        output.status,
        said_last(&output.stderr)
    );
    Ok(output.stdout)
}

/// The last words of a program that ended badly.
pub fn said_last(errors: &[u8]) -> String {
    let said = String::from_utf8_lossy(errors);
    let last: Vec<&str> = said.lines().rev().take(3).collect();
    last.into_iter().rev().collect::<Vec<_>>().join(" / ")
}
