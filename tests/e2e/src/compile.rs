//! C programs of `tests/programs`, compiled when first needed. They are what an application is:
//! they know of sockets, not of us.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};

use crate::world::{checkout, millrace};

/// The path of a script among the sources.
pub fn script(name: &str) -> String {
    sources().join(name).to_string_lossy().into_owned()
}

/// The directory of the sources.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("programs")
}

/// One of the tests of this process compiles at a time: another that wants the same program finds
/// it done.
fn turn() -> MutexGuard<'static, ()> {
    static COMPILING: Mutex<()> = Mutex::new(());
    // Whoever failed has left nothing under the name of a program.
    COMPILING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy of a program, to be run. Another process writes it: a child that another test forks
/// meanwhile would have the file open for writing for a moment, and what somebody writes cannot be
/// run.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let run = Command::new("cp").args([from, to]).output();
    let run = run.context("running cp")?;
    ensure!(
        run.status.success(),
        "copying {}: {}",
        from.display(),
        String::from_utf8_lossy(&run.stderr)
    );
    Ok(())
}

/// Compiles `NAME.c`, or every file of the directory `NAME`, unless that is done already. The path
/// of the program.
pub fn program(name: &str) -> Result<String> {
    build(name, &["-O2", "-D_FORTIFY_SOURCE=2"], name)
}

/// As [`program`], linked statically: for what an `LD_PRELOAD` library cannot reach.
pub fn static_program(name: &str) -> Result<String> {
    build(name, &["-O2", "-static"], &format!("{name}-static"))
}

/// As [`program`], for ThreadSanitizer and with what debuggers read.
pub fn thread_sanitized(name: &str) -> Result<String> {
    let flags = ["-O1", "-g", "-fsanitize=thread"];
    build(name, &flags, &format!("{name}-tsan"))
}

/// As [`program`], for AddressSanitizer.
pub fn address_sanitized(name: &str) -> Result<String> {
    let flags = ["-O1", "-g", "-fsanitize=address"];
    build(name, &flags, &format!("{name}-asan"))
}

/// As [`program`], with what debuggers read.
pub fn debuggable(name: &str) -> Result<String> {
    build(name, &["-O1", "-g"], &format!("{name}-debug"))
}

/// Compiles `bench/peers/lwip/NAME.c`, an adapter of lwIP, with Debian's library. The path of the
/// program.
pub fn lwip(name: &str) -> Result<PathBuf> {
    let _turn = turn();
    let home = checkout().join("bench/peers/lwip");
    let source = home.join(name).with_extension("c");
    let directory = std::env::current_exe()?.with_file_name("programs");
    fs::create_dir_all(&directory)?;
    let output = directory.join(format!("lwip-{name}"));
    if modified(&output) <= newest(&home, std::slice::from_ref(&source))? {
        let unfinished = directory.join(format!("lwip-{name}.{}", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-Wall", "-Werror", "-I/usr/include/lwip", "-o"])
            .args([&unfinished, &source])
            .args(["-Wl,--as-needed", "-ldl", "-llwip"]);
        finish(cc, name, &unfinished, &output)?;
    }
    Ok(output)
}

/// Compiles `crates/capi/examples/NAME.c` with the C library that lies beside the `millrace`
/// binary. The path of the program.
pub fn embedded(name: &str) -> Result<String> {
    with_library("examples", name)
}

/// Compiles `crates/capi/DIRECTORY/NAME.c` likewise.
pub fn with_library(directory: &str, name: &str) -> Result<String> {
    let _turn = turn();
    let home = checkout().join("crates/capi");
    let source = home.join(directory).join(name).with_extension("c");
    let library = millrace().with_file_name("libmillrace_capi.a");
    let directory = std::env::current_exe()?.with_file_name("programs");
    fs::create_dir_all(&directory)?;
    let output = directory.join(format!("{name}-embedded"));
    let newest = newest(&home.join("include"), &[source.clone(), library.clone()])?;
    if modified(&output) > newest {
        return Ok(output.to_string_lossy().into_owned());
    }
    let unfinished = directory.join(format!("{name}-embedded.{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args([
        "-O2",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-pedantic",
        "-Werror",
    ])
    .args(["-pthread", "-I"])
    .arg(home.join("include"))
    .arg("-o")
    .arg(&unfinished)
    .args([&source, &library])
    .args(["-lgcc_s", "-lm", "-ldl"]);
    finish(cc, name, &unfinished, &output)
}

fn build(name: &str, flags: &[&str], output_name: &str) -> Result<String> {
    let _turn = turn();
    let single = sources().join(name).with_extension("c");
    let inputs = if single.exists() {
        vec![single]
    } else {
        c_files(&sources().join(name))?
    };
    let directory = std::env::current_exe()?.with_file_name("programs");
    fs::create_dir_all(&directory)?;
    let output = directory.join(output_name);
    if modified(&output) > newest(&sources().join(name), &inputs)? {
        return Ok(output.to_string_lossy().into_owned());
    }
    // Under a name of its own first: another test process may be compiling the same.
    let unfinished = directory.join(format!("{output_name}.{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(flags)
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-o",
        ])
        .arg(&unfinished)
        .args(&inputs);
    for (program, library) in [("libevent", "-levent"), ("iscsi", "-liscsi")] {
        if name == program {
            cc.arg(library);
        }
    }
    finish(cc, name, &unfinished, &output)
}

/// Runs the compiler, and gives what it made its name.
fn finish(mut cc: Command, name: &str, unfinished: &Path, output: &Path) -> Result<String> {
    let run = cc
        .output()
        .context("running cc; scripts/install-deps installs it")?;
    ensure!(
        run.status.success(),
        "compiling {name}:\n{}",
        String::from_utf8_lossy(&run.stderr)
    );
    fs::rename(unfinished, output)?;
    Ok(output.to_string_lossy().into_owned())
}

/// The `.c` files of a directory.
fn c_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("no program {}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect();
    files.sort();
    Ok(files)
}

/// When the newest of the sources, headers included, was changed.
fn newest(directory: &Path, inputs: &[PathBuf]) -> Result<SystemTime> {
    let mut newest = inputs
        .iter()
        .map(|path| modified(path))
        .max()
        .context("a program has a source")?;
    if let Ok(entries) = fs::read_dir(directory) {
        for entry in entries.flatten() {
            newest = newest.max(modified(&entry.path()));
        }
    }
    Ok(newest)
}

/// When a file was changed; long ago if it is not there.
fn modified(path: &Path) -> SystemTime {
    fs::metadata(path)
        .and_then(|data| data.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}
