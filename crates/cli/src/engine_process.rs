//! The engine's process: how it is started, and what runs in it.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use millrace_engine::{Config, StartError, process};
use millrace_port::{open, tap};

use crate::arguments::EngineArguments;
use crate::client;

/// Starts an engine and waits until it can be used. Returns it and its device's name. `log` takes
/// the engine's messages in place of standard error.
pub fn spawn(config: &Config, log: Option<File>) -> anyhow::Result<(Child, Option<String>)> {
    let json = serde_json::to_string(config)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("millrace-engine")
        .arg("engine")
        .arg(json)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command.env_remove("LD_PRELOAD");
    if let Some(log) = log {
        command.stderr(log);
    }
    // A terminal's SIGINT is for the program; the engine ends after it.
    process::detach(&mut command);
    let mut child = command
        .spawn()
        .context("cannot start the engine's process")?;
    let stdout = child.stdout.take().context("the engine has no output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    match line.trim_end().split_once(' ') {
        Some(("ready", device)) => Ok((child, (device != "-").then(|| device.to_owned()))),
        Some(("failed", error)) => {
            let _ = child.wait();
            bail!("{error}")
        }
        _ => {
            let status = child.wait()?;
            bail!("the engine ended before it was ready ({status})")
        }
    }
}

/// Runs the engine in this process. Says `ready DEVICE` or `failed REASON` on standard output, and
/// no more.
pub fn serve(arguments: &EngineArguments) -> anyhow::Result<ExitCode> {
    let config: Config =
        serde_json::from_str(&arguments.config).context("the engine's configuration")?;
    let pipe = RefCell::new(Some(take_stdout().context("cannot take standard output")?));
    // The pipe is closed after the line, so that its reader sees the end. The reader may be gone
    // already: the engine ends when it sees that it has no program.
    let say = |line: String| {
        if let Some(mut pipe) = pipe.take() {
            let _ = pipe.write_all(line.as_bytes());
        }
    };
    let ready = |device: Option<&str>| say(format!("ready {}\n", device.unwrap_or("-")));
    match millrace_engine::start(&config, ready) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            say(format!("failed {error}{}\n", hint(&error)));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Takes the pipe from standard output, which leads to /dev/null from here on: once the engine is
/// in its sandbox, it may no longer open that.
fn take_stdout() -> std::io::Result<File> {
    let pipe = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 0)?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(null)?;
    Ok(pipe.into())
}

/// The engines that already have the link that was wanted, for whoever meant one of them.
fn hint(error: &StartError) -> String {
    let StartError::Link(open::Error::Tap(tap::Error::PrefixInUse { .. })) = error else {
        return String::new();
    };
    match client::names_here(None) {
        names if names.is_empty() => String::new(),
        names => format!(
            "; running here: {}; attach to an engine with `millrace run --engine NAME -- PROGRAM`, or give another --addr",
            names.join(", ")
        ),
    }
}
