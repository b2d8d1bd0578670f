//! The adapters that build without a download keep the contract of `bench/peers/README.md`. They
//! are all tested here, since cargo gives a test no programs but those of its own package.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const SMOLTCP: &str = env!("CARGO_BIN_EXE_millrace-peer-smoltcp");

fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// Runs it, and looks at what it prints; so many operations are expected, and of a last round that
/// it completes some more.
fn measures(program: &Path, stack: &str, arguments: &[&str], at_least: u64) {
    let output = run(program, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(
        said.ends_with('\n') && said.lines().count() == 1,
        "one line, not {said:?}"
    );
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["stack"], stack);
    let operations = said["operations"].as_u64().expect("a whole number");
    assert!(
        (at_least..at_least + 100).contains(&operations),
        "{arguments:?}: {said}"
    );
    assert!(said["seconds"].as_f64().expect("a number") > 0.0, "{said}");
}

/// What connections take, and what is said of more than go.
fn weighs(program: &Path, stack: &str) {
    let output = run(program, &["idle", "100"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["stack"], stack);
    assert_eq!(said["connections"], 100);
    assert!(said["idle"].as_f64().expect("a number") > 0.0, "{said}");
    assert!(said["active"].as_f64().expect("a number") >= 0.0, "{said}");
    let output = run(program, &["idle", "100000"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("are the most"), "{errors}");
}

fn keeps_the_contract(program: &Path, stack: &str) {
    weighs(program, stack);
    measures(program, stack, &["short", "100", "1"], 100);
    measures(program, stack, &["short", "100", "8"], 100);
    measures(program, stack, &["ping", "100", "1"], 100);
    measures(program, stack, &["ping", "100", "8"], 100);
    measures(program, stack, &["bulk", "1", "1"], 1 << 20);
    measures(program, stack, &["bulk", "2", "8"], 2 << 20);
    for wrong in [
        &["short"][..],
        &["short", "1", "0"],
        &["ping", "x", "1"],
        &["idle", "1", "1"],
    ] {
        let output = run(program, wrong);
        assert_eq!(output.status.code(), Some(1), "{wrong:?}");
        assert!(output.stdout.is_empty(), "{wrong:?}");
        assert!(!output.stderr.is_empty(), "{wrong:?}");
    }
}

#[test]
fn smoltcp_keeps_the_contract() {
    keeps_the_contract(Path::new(SMOLTCP), "smoltcp 0.14");
}

#[test]
fn lwip_keeps_the_contract() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lwip/pair.c");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("millrace-peer-lwip");
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-I/usr/include/lwip", "-o"])
        .args([&program, &source])
        .status()
        .expect("cc");
    assert!(status.success(), "cc: {status}");
    keeps_the_contract(&program, "lwIP 2.1.3");
}
