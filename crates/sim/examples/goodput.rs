//! Prints `docs/goodput.md`.

use std::io::Write;

use millrace_sim::{goodput, plots};

fn main() -> std::io::Result<()> {
    let page = goodput::document() + &plots::section();
    std::io::stdout().write_all(page.as_bytes())
}
