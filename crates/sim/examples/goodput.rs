//! Prints `docs/goodput.md`.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(millrace_sim::goodput::document().as_bytes())
}
