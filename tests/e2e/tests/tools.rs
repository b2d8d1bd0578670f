//! Tools that watch a program: valgrind, ThreadSanitizer, strace, gdb. They find in a program on
//! millrace what they find on the kernel.

use millrace_e2e::world::checkout;
use millrace_e2e::{
    Ended, Result, Stack, World, command, compile, ensure, on_both_stacks, on_millrace, seconds,
};

on_both_stacks!(
    memcheck_finds_nothing,
    helgrind_finds_nothing,
    memcheck_finds_nothing_in_random_programs,
    helgrind_finds_nothing_in_random_programs,
    thread_sanitizer_finds_nothing,
    address_sanitizer_finds_nothing,
    strace_follows_threads_and_signals,
    gdb_stops_and_goes_on,
);

// The kernel's read is none of the calls in which ThreadSanitizer runs a handler at once.
on_millrace!(thread_sanitizer_lets_signals_through);

const SIGNALS: &str = "read restarted\nepoll_wait interrupted\naccept interrupted\n";

/// Runs words with loopback on the stack under test, to a good end.
fn run(world: &World, words: &[&str]) -> Result<Ended> {
    let command = match world.stack {
        Stack::Kernel => command(words),
        Stack::Millrace => world.millrace(&[&["run", "--loopback", "--"], words].concat()),
    };
    world
        .start_on_subject(command)?
        .wait(seconds(60))?
        .success()
}

/// Runs both programs by a tool that fails when it finds something.
fn run_both(world: &World, tool: &[&str]) -> Result<()> {
    let (echo, interrupted) = (
        compile::debuggable("echo_threads")?,
        compile::debuggable("interrupted")?,
    );
    for (program, expected) in [(echo, "done\n"), (interrupted, SIGNALS)] {
        let said = run(world, &[tool, &[&program[..]]].concat())?.text();
        ensure!(said == expected, "{said}");
    }
    Ok(())
}

fn memcheck_finds_nothing(world: &World) -> Result<()> {
    run_both(
        world,
        &["valgrind", "-q", "--leak-check=full", "--error-exitcode=9"],
    )
}

fn helgrind_finds_nothing(world: &World) -> Result<()> {
    let shim = checkout().join("crates/preload/valgrind.supp");
    let shim = format!("--suppressions={}", shim.display());
    let program = compile::debuggable("echo_threads")?;
    let words = [
        "valgrind",
        "-q",
        "--tool=helgrind",
        &shim,
        "--error-exitcode=9",
        &program,
    ];
    ensure!(run(world, &words)?.text() == "done\n");
    Ok(())
}

/// Runs some of the random programs (see `interleavings.rs`) by a tool of valgrind's. Their threads
/// and children go on although it finds something, so it is what it says that counts.
fn run_random_programs(world: &World, tool: &[&str]) -> Result<()> {
    let program = compile::debuggable("interleave")?;
    let patient = ["-p", "20000"];
    let words = [
        &["valgrind", "-q"][..],
        tool,
        &[&program[..]],
        &patient,
        &["0", "2"],
    ];
    let said = run(world, &words.concat())?.error_text();
    ensure!(!said.contains("=="), "{said}");
    Ok(())
}

/// Threads that live when a process ends are no leak.
fn memcheck_finds_nothing_in_random_programs(world: &World) -> Result<()> {
    run_random_programs(world, &["--leak-check=no"])
}

fn helgrind_finds_nothing_in_random_programs(world: &World) -> Result<()> {
    let suppressed = [
        "crates/preload/valgrind.supp",
        "tests/programs/interleave/helgrind.supp",
    ];
    let suppressed =
        suppressed.map(|path| format!("--suppressions={}", checkout().join(path).display()));
    let tool = ["--tool=helgrind", &suppressed[0], &suppressed[1]];
    run_random_programs(world, &tool)
}

/// GCC 12's runtime knows fewer layouts of an address space than the kernel chooses from, so it
/// chooses none.
const FIXED: [&str; 2] = ["setarch", "-R"];

fn thread_sanitizer_finds_nothing(world: &World) -> Result<()> {
    let program = compile::thread_sanitized("echo_threads")?;
    let ended = run(world, &[&FIXED[..], &[&program]].concat())?;
    ensure!(ended.text() == "done\n", "{}", ended.error_text());
    ensure!(!ended.error_text().contains("ThreadSanitizer"));
    Ok(())
}

fn address_sanitizer_finds_nothing(world: &World) -> Result<()> {
    let program = compile::address_sanitized("echo_threads")?;
    ensure!(run(world, &[&program])?.text() == "done\n");
    Ok(())
}

fn thread_sanitizer_lets_signals_through(world: &World) -> Result<()> {
    let program = compile::thread_sanitized("interrupted")?;
    let ended = run(world, &[&FIXED[..], &[&program]].concat())?;
    ensure!(ended.text() == SIGNALS, "{}", ended.error_text());
    ensure!(!ended.error_text().contains("data race"));
    Ok(())
}

fn strace_follows_threads_and_signals(world: &World) -> Result<()> {
    let path = world.directory().join("strace");
    let output = path.display().to_string();
    run_both(world, &["strace", "-f", "-o", &output])?;
    let trace = std::fs::read_to_string(&path)?;
    ensure!(trace.contains("SIGUSR1") && trace.contains("exited with 0"));
    Ok(())
}

fn gdb_stops_and_goes_on(world: &World) -> Result<()> {
    let program = compile::debuggable("echo_threads")?;
    let common = [
        "gdb",
        "-q",
        "-batch",
        "-nx",
        "-ex",
        "set debuginfod enabled off",
    ];
    let stop = [
        "-ex",
        "break answer",
        "-ex",
        "run",
        "-ex",
        "backtrace",
        "-ex",
        "delete",
        "-ex",
        "continue",
        &program,
    ];
    let said = run(world, &[&common[..], &stop].concat())?.text();
    for line in [
        " hit Breakpoint 1, answer",
        "serve (argument",
        "exited normally",
    ] {
        ensure!(said.contains(line), "no {line:?}:\n{said}");
    }
    let program = compile::debuggable("interrupted")?;
    let pass = [
        "-ex",
        "handle SIGUSR1 nostop noprint pass",
        "-ex",
        "run",
        &program,
    ];
    let said = run(world, &[&common[..], &pass].concat())?.text();
    for line in SIGNALS.lines().chain(["exited normally"]) {
        ensure!(said.contains(line), "no {line:?}:\n{said}");
    }
    Ok(())
}
