//! Cleaning up on any exit: a program that makes namespaces runs as the child of one that removes
//! them afterwards, whatever ended it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Context as _, Result};
use millrace_e2e::{directory, namespace};

/// Says to the child that it is the child.
const MARK: &str = "MILLRACE_SUPERVISED";

/// The child that signals are meant for.
static CHILD: AtomicI32 = AtomicI32::new(0);

/// Passes a signal on.
extern "C" fn forward(signal: i32) {
    let child = CHILD.load(Ordering::Relaxed);
    if child > 0 {
        // SAFETY: kill is async-signal-safe, and the child has not been waited for while it is set.
        unsafe { libc::kill(child, signal) };
    }
}

/// Runs `body` in a child of this process; when it has ended, by itself or by a signal, everything
/// that it made is removed.
pub fn supervised(body: impl FnOnce() -> Result<()>) -> ExitCode {
    if std::env::var_os(MARK).is_some() {
        // Who reads the output may have had enough: then this ends, and the parent cleans up.
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        return code(body());
    }
    code(supervise())
}

fn supervise() -> Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only loads an atomic and calls kill.
        unsafe { libc::signal(signal, forward as extern "C" fn(i32) as libc::sighandler_t) };
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(MARK, "1");
    let mut child = command.spawn().context("starting the child")?;
    let pid = child.id();
    CHILD.store(pid.try_into()?, Ordering::Relaxed);
    let status = child.wait();
    CHILD.store(0, Ordering::Relaxed);
    namespace::remove_all_of(pid)?;
    directory::sweep()?;
    let status = status?;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        // It has said why itself.
        (Some(code), _) => std::process::exit(code),
        (None, signal) => std::process::exit(128 + signal.unwrap_or(0)),
    }
}

fn code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
