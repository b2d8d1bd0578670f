//! What a command prints.

use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;

/// Prints all of it. Who reads only the beginning, as in `millrace ss | head`, is no failure.
pub fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write"),
    }
}
