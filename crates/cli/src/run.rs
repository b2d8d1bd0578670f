//! `millrace run`: an engine, a program in it, and the program's end.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use millrace_context::protocol::{self, Kind};
use millrace_engine::process::{self, Signals};
use millrace_engine::seccomp;
use millrace_engine::topology;
use rustix::process::{Pid, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::arguments::RunArguments;
use crate::{client, engine_process, program};

/// Name of the shim's file.
const SHIM: &str = "libmillrace_preload.so";
/// Environment: where the shim is, if not beside this program.
const ENV_SHIM: &str = "MILLRACE_PRELOAD";
/// How long the engine's last connections may take to finish after the program.
const PATIENCE: Duration = Duration::from_secs(12);

/// Where the program finds the connection that keeps its engine.
const GUARD: i32 = 1000;

/// Signals that are the program's, and the one that tells of its end.
const SIGNALS: [i32; 9] = [
    libc::SIGCHLD,
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];

pub fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let (name, rest) = arguments.program.split_first().context("no program")?;
    let path = program::check(name)?;
    let shim = find_shim()?;
    let signals = Signals::take(&SIGNALS)?;

    let user = arguments.engine_user;
    let (engine_name, mut engine) = match &arguments.engine {
        Some(name) => (name.clone(), None),
        None => {
            let engine_name = client::new_name()?;
            let config = arguments.link.config(engine_name.clone(), true)?;
            let (engine, device) = engine_process::spawn(&config, None)?;
            keep_to(&topology::cores_of_programs(&config)?)?;
            if !arguments.quiet {
                announce(&config, device.as_deref());
            }
            (engine_name, Some(engine))
        }
    };
    let connection = client::connect(&engine_name, user)?;
    let (token, address) = client::new_program(&connection, arguments.quiet)?;
    let socket = connection.socket;

    let mut command = Command::new(&path);
    command.arg0(name).args(rest);
    command.env("LD_PRELOAD", preload(&shim)?);
    command
        .env(protocol::ENV_ENGINE, address)
        .env(protocol::ENV_TOKEN, protocol::format_token(&token));
    signals.release_in(&mut command);
    seccomp::refuse_io_uring(&mut command);
    // Its children inherit it too: the engine stays for those that outlive the program and have
    // made no socket yet.
    process::inherit(&mut command, socket.as_fd(), GUARD);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            drop(socket);
            if let Some(engine) = &mut engine {
                wait_for(engine, PATIENCE)?;
            }
            return Err(program::Refused::NotExecutable(
                path.display().to_string(),
                error.to_string(),
            )
            .into());
        }
    };
    let status = until_exit(&signals, &mut child, engine.as_mut())?;
    finish(socket, &engine_name, engine)?;
    Ok(exit_code(status))
}

/// Keeps the program, and this thread, to these cores; to any if there are none.
fn keep_to(cores: &[usize]) -> anyhow::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    sched_setaffinity(None, &set).context("cannot keep the program to its --cores")
}

fn announce(config: &millrace_engine::Config, device: Option<&str>) {
    if let (Some(link), Some(device)) = (&config.link, device) {
        let hosts = link.hosts();
        let host = if hosts.is_empty() {
            String::new()
        } else {
            format!(", the kernel is {hosts}")
        };
        eprintln!("millrace: {} on {device}{host}", link.addresses());
    }
}

/// The shim beside this program, or in the library directory that belongs to it.
fn find_shim() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(ENV_SHIM) {
        let path = PathBuf::from(path);
        anyhow::ensure!(
            path.exists(),
            "{ENV_SHIM} names {}, which is not there",
            path.display()
        );
        return Ok(path);
    }
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let directory = own
        .parent()
        .context("this program's file has no directory")?;
    let candidates = [
        directory.join(SHIM),
        directory.join("../lib/millrace").join(SHIM),
        directory.join("deps").join(SHIM),
    ];
    match candidates.iter().find(|candidate| candidate.exists()) {
        Some(path) => Ok(path.canonicalize()?),
        None => bail!(
            "the shim {SHIM} is neither beside {} nor in ../lib/millrace; build it (make build) or set {ENV_SHIM}",
            own.display()
        ),
    }
}

/// LD_PRELOAD with the shim first.
fn preload(shim: &std::path::Path) -> anyhow::Result<OsString> {
    let text = shim.to_string_lossy();
    anyhow::ensure!(
        !text.contains([' ', ':']),
        "the shim's path {text:?} has a space or colon in it, which LD_PRELOAD cannot name"
    );
    let mut value = shim.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    Ok(value)
}

/// Lets go of the engine: it ends once the program's last process has. A program that went into the
/// background keeps it.
fn finish(socket: OwnedFd, name: &str, engine: Option<Child>) -> anyhow::Result<()> {
    let Some(mut engine) = engine else {
        return Ok(());
    };
    drop(socket);
    if in_use(name) {
        return Ok(());
    }
    wait_for(&mut engine, PATIENCE)?;
    Ok(())
}

/// Whether processes of the program live on.
fn in_use(name: &str) -> bool {
    let Ok(text) = client::connect(name, None)
        .and_then(|engine| client::document(&engine.socket, Kind::Describe))
    else {
        return false;
    };
    let description: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    description["shards"][0]["programs"]
        .as_array()
        .is_some_and(|programs| !programs.is_empty())
}

fn wait_for(engine: &mut Child, patience: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + patience;
    while engine.try_wait()?.is_none() {
        if Instant::now() >= end {
            engine.kill()?;
            engine.wait()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(code as u8)
}

/// Forwards signals until the program has ended.
fn until_exit(
    signals: &Signals,
    child: &mut Child,
    mut engine: Option<&mut Child>,
) -> anyhow::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Some(status) = engine
            .as_mut()
            .and_then(|engine| engine.try_wait().ok().flatten())
        {
            eprintln!(
                "millrace: the engine ended before the program ({status}); the program's connections are lost"
            );
            engine = None;
        }
        let signal = signals.next()?;
        // What a terminal sends reached the program too: it is in the same group.
        if signal.number != libc::SIGCHLD
            && !signal.from_terminal
            && let (Some(pid), Some(number)) = (
                Pid::from_raw(child.id() as i32),
                rustix::process::Signal::from_named_raw(signal.number),
            )
        {
            // The child has not been waited for, so the pid is still its own; it may be ending
            // already.
            let _ = kill_process(pid, number);
        }
    }
}
