//! `millrace logs`: the warnings of an engine that runs in the background.
//!
//! `millrace up` gives its engine a file for standard error, beside the control socket. The file
//! outlives the engine, so that it tells why the engine ended. The next engine of that name begins
//! a new one.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use millrace_context::control_socket::Directory;

use crate::arguments::common::{engine_name, user};
use crate::client;
use crate::output::print;

/// The end of a log file's name. No engine's name has an `@`.
const LOG: &str = "@log";
/// How often `--follow` looks for new lines.
const FOLLOW_PERIOD: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
#[command(after_help = "\
The log has one line for each warning. An engine says each kind of warning once, and counts it from
then on (`millrace ss --counters`).

Examples:
  millrace logs --engine lab
  millrace logs --engine lab --follow")]
pub struct LogsArguments {
    /// Name of the engine [default: the only one in this network namespace]
    #[arg(long, value_name = "NAME", value_parser = engine_name)]
    engine: Option<String>,
    /// Whose engine it is, by name or number [default: oneself, then root]
    #[arg(long, value_name = "USER", value_parser = user)]
    engine_user: Option<u32>,
    /// Show new lines as they come, until the engine ends
    #[arg(long, short)]
    follow: bool,
}

/// The log file of a new engine, open and empty, and its path.
pub fn create(engine: &str) -> anyhow::Result<(File, PathBuf)> {
    let (directory, _) = Directory::own().context("cannot make the directory of engines")?;
    let path = directory.path_of(&format!("{engine}{LOG}"));
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .with_context(|| format!("cannot open the log {}", path.display()))?;
    // A living engine of this name keeps its lines; the new one will be refused.
    if !client::is_running(engine, None) {
        file.set_len(0)
            .with_context(|| format!("cannot empty the log {}", path.display()))?;
    }
    Ok((file, path))
}

/// Removes the log of an engine that has ended and had nothing to say.
pub fn remove_if_empty(engine: &str, user: Option<u32>) {
    for directory in client::directories(user) {
        let path = directory.path_of(&format!("{engine}{LOG}"));
        if std::fs::metadata(&path).is_ok_and(|file| file.len() == 0) {
            // A file that stays is harmless.
            let _ = std::fs::remove_file(&path);
        }
    }
}

pub fn logs(arguments: &LogsArguments) -> anyhow::Result<ExitCode> {
    let user = arguments.engine_user;
    let name = match &arguments.engine {
        Some(name) => name.clone(),
        None => client::only_engine(user)?,
    };
    let mut file = open(&name, user)?;
    loop {
        // The order matters: what an engine writes before it ends is read after it has ended.
        let runs = arguments.follow && client::is_running(&name, user);
        let mut lines = Vec::new();
        file.read_to_end(&mut lines)
            .with_context(|| format!("cannot read the log of the engine {name:?}"))?;
        print(&String::from_utf8_lossy(&lines))?;
        if !runs {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(FOLLOW_PERIOD);
    }
}

/// Opens the log of an engine, which may have ended.
fn open(name: &str, user: Option<u32>) -> anyhow::Result<File> {
    for directory in client::directories(user) {
        let path = directory.path_of(&format!("{name}{LOG}"));
        match File::open(&path) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot open {}", path.display()));
            }
        }
    }
    if client::is_running(name, user) {
        bail!(
            "the engine {name:?} has no log: `run` and `up --foreground` write warnings to their own standard error"
        );
    }
    bail!("no engine named {name:?} has left a log; start one with `millrace up --name {name}`")
}
