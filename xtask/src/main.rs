//! The project's own chores.
//!
//! `cargo xtask tidy` checks the rules of the house that the compiler does not: see [`tidy`].
//! `cargo xtask compliance` says which requirements of the RFCs are shown by which tests: see
//! [`compliance`]. `cargo xtask fuzz` looks for bytes that do harm: see [`fuzz`]. `cargo xtask bpf`
//! compiles the XDP program: see [`bpf`]. `cargo xtask instructions` counts what the stack takes:
//! see [`instructions`]. `cargo xtask sim` measures and soaks whole networks in virtual time: see
//! [`sim`].

mod bpf;
mod checkout;
mod compliance;
mod fuzz;
mod instructions;
mod sim;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy | compliance [NAME] | fuzz TARGET [SECONDS] | \
                     bpf | instructions [--write] | sim --table | sim --plots | sim --scale | sim --seeds COUNT [FIRST]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => run_tidy(tidy::check(root())),
        ["fuzz", target] => fuzz::run(root(), target, "60"),
        ["fuzz", target, seconds] => fuzz::run(root(), target, seconds),
        ["bpf"] => bpf::run(root()),
        ["instructions"] => instructions::run(root(), false),
        ["instructions", "--write"] => instructions::run(root(), true),
        ["sim", "--table"] => sim::table(root()),
        ["sim", "--plots"] => sim::plots(root()),
        ["sim", "--scale"] => sim::scale(root()),
        ["sim", "--seeds", count] => sim::seeds(root(), count, "0"),
        ["sim", "--seeds", count, first] => sim::seeds(root(), count, first),
        ["compliance"] => run_compliance(None),
        ["compliance", name] => run_compliance(Some(name)),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The checkout.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

/// Checks the whole checkout and prints what it found, one line each.
fn run_tidy(report: anyhow::Result<tidy::Report>) -> ExitCode {
    match report {
        Ok(report) if report.problems.is_empty() => {
            println!("tidy: {} files, nothing to say", report.files);
            ExitCode::SUCCESS
        }
        Ok(report) => {
            for problem in &report.problems {
                eprintln!("{problem}");
            }
            eprintln!(
                "tidy: {} problem(s) in {} files",
                report.problems.len(),
                report.files
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints how far each list is covered, or one list requirement by requirement; fails as
/// [`compliance::check`] does.
fn run_compliance(only: Option<&str>) -> ExitCode {
    let files = match checkout::read_all(root()) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("compliance: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let mut problems = Vec::new();
    let lists = compliance::check(&files, &mut problems);
    match only {
        None => print!("{}", compliance::summary(&lists)),
        Some(name) => match lists.iter().find(|list| list.name == name) {
            Some(list) => print!("{}", compliance::details(list)),
            None => {
                eprintln!("compliance: docs/compliance/{name}.toml does not exist");
                return ExitCode::FAILURE;
            }
        },
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    if problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
