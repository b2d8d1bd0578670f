//! The engine's process: how it is started, and what runs in it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use millrace_engine::{Config, process};

use crate::arguments::EngineArguments;

/// Starts an engine and waits until it can be used. Returns it and its device's name.
pub fn spawn(config: &Config, detached: bool) -> anyhow::Result<(Child, Option<String>)> {
    let json = serde_json::to_string(config)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("millrace-engine")
        .arg("engine")
        .arg(json)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command.env_remove("LD_PRELOAD");
    if detached {
        command.stderr(Stdio::null());
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
    let ready = |device: Option<&str>| {
        let mut stdout = std::io::stdout();
        // Whoever started us may be gone already; the engine ends when it sees that it has no
        // program.
        let _ = writeln!(stdout, "ready {}", device.unwrap_or("-"));
        let _ = stdout.flush();
        close_stdout();
    };
    match millrace_engine::start(&config, ready) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            println!("failed {error}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Lets go of the pipe, so that who reads it sees its end.
fn close_stdout() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}
