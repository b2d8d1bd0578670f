//! Simulations: the table of goodput, plots of windows over time, and transfers with many seeds.
//! They run in a process of their own, built when wanted, so that this one stays quick to build.

use std::path::Path;
use std::process::{Command, ExitCode};

/// Writes `docs/goodput.md`.
pub fn table(root: &Path) -> ExitCode {
    let output = match example(root, "goodput").output() {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) => {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("sim: running cargo: {error}");
            return ExitCode::FAILURE;
        }
    };
    let page = root.join("docs/goodput.md");
    match std::fs::write(&page, output) {
        Ok(()) => {
            println!("sim: {} is written", page.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sim: {}: {error}", page.display());
            ExitCode::FAILURE
        }
    }
}

/// Writes `docs/plots`.
pub fn plots(root: &Path) -> ExitCode {
    run(example(root, "plots").arg("docs/plots"))
}

/// A flood of a million requests, and thousands of downloads that share a link.
pub fn scale(root: &Path) -> ExitCode {
    run(&mut example(root, "scale"))
}

/// Runs so many seeds, from `first` on.
pub fn seeds(root: &Path, count: &str, first: &str) -> ExitCode {
    run(example(root, "soak").args([count, first]))
}

fn run(command: &mut Command) -> ExitCode {
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: running cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn example(root: &Path, name: &str) -> Command {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(["run", "--release", "--quiet", "--locked"])
        .args(["-p", "millrace-sim", "--example", name, "--"]);
    command
}
