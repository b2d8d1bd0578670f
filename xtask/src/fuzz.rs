//! libFuzzer on a target, on the stable toolchain: the flags that instrument the code are stable,
//! the sanitizers are not and are left out.

use std::path::Path;
use std::process::{Command, ExitCode};

/// What makes the compiler count which edges run, and show what is compared with what.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1";

/// Runs libFuzzer on `target` for so many seconds; what it finds interesting goes into the corpus.
pub fn run(root: &Path, target: &str, seconds: &str) -> ExitCode {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let corpus = root.join("fuzz/corpus").join(target);
    if !corpus.is_dir() {
        eprintln!(
            "fuzz: {} is no directory: which target is {target}?",
            corpus.display()
        );
        return ExitCode::from(2);
    }
    let status = Command::new(cargo)
        .current_dir(root)
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", root.join("target/fuzz"))
        .env("MILLRACE_FUZZ", target)
        // Named, so that the flags are not for build scripts.
        .args([
            "run",
            "--release",
            "--quiet",
            "--target",
            "x86_64-unknown-linux-gnu",
        ])
        .args(["-p", "millrace-fuzz", "--features", "libfuzzer", "--"])
        .arg(corpus)
        .args([
            &format!("-max_total_time={seconds}"),
            "-max_len=2048",
            "-timeout=20",
        ])
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: running cargo: {error}");
            ExitCode::FAILURE
        }
    }
}
