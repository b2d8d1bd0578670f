//! Programs in a namespace, with time limits and captured output.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use crate::namespace::Namespace;

/// A running program: leader of its own process group, which is killed with its owner.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    ended: Option<ExitStatus>,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its command line.
    pub name: String,
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote on standard output.
    pub stdout: Vec<u8>,
    /// What it wrote on standard error.
    pub stderr: Vec<u8>,
}

impl Process {
    /// Starts `command` in `namespace`. Its output goes to files in `directory`; its input is empty
    /// unless the command says otherwise.
    pub fn spawn(namespace: &Namespace, directory: &Path, mut command: Command) -> Result<Process> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = describe(&command);
        let stdout = directory.join(format!("stdout-{number}"));
        let stderr = directory.join(format!("stderr-{number}"));
        command
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?);
        let namespace = namespace.raw_handle();
        // SAFETY: the hook makes system calls only; it allocates nothing and takes no lock.
        unsafe { command.pre_exec(move || prepare_child(namespace)) };
        let child = command
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Process {
            name,
            child,
            stdout,
            stderr,
            ended: None,
        })
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Its command line.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stdout).unwrap_or_default()).into_owned()
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// Its standard input, if the command was given a pipe.
    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid(), signal).with_context(|| format!("signalling {}", self.name))
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> Result<bool> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended.is_none())
    }

    /// Fails with what it said if it has failed. Ending well is no failure: that is how a daemon
    /// starts.
    pub fn ensure_not_failed(&mut self) -> Result<()> {
        if !self.is_running()? && !self.ended.is_some_and(|status| status.success()) {
            bail!(
                "{} ended too early: {:?}\n{}",
                self.name,
                self.ended,
                self.said()
            );
        }
        Ok(())
    }

    /// Waits until it ends; after `limit` its group is killed and this fails.
    pub fn wait(mut self, limit: Duration) -> Result<Ended> {
        if self.is_running()? {
            let pidfd = pidfd_open(self.pid(), PidfdFlags::empty())?;
            let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
            if poll(&mut watched, Some(&Timespec::try_from(limit)?))? == 0 {
                let said = self.said();
                bail!("{} did not end within {limit:?}\n{said}", self.name);
            }
            self.ended = Some(self.child.wait()?);
        }
        let status = self.ended.context("it has ended")?;
        Ok(Ended {
            name: self.name.clone(),
            status,
            stdout: fs::read(&self.stdout)?,
            stderr: fs::read(&self.stderr)?,
        })
    }

    /// Asks it to end with `signal` and waits.
    pub fn stop(self, signal: Signal, limit: Duration) -> Result<Ended> {
        self.signal(signal)?;
        self.wait(limit)
    }

    /// Both outputs so far, for messages.
    fn said(&self) -> String {
        format!(
            "--- stdout\n{}\n--- stderr\n{}",
            tail(&self.stdout()),
            tail(&self.stderr())
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The group may live on without its leader.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.stdout);
        let _ = fs::remove_file(&self.stderr);
    }
}

impl Ended {
    /// Fails with what it said unless it ended with status 0.
    pub fn success(self) -> Result<Ended> {
        ensure!(
            self.status.success(),
            "{} failed: {}\n--- stdout\n{}\n--- stderr\n{}",
            self.name,
            self.status,
            tail(&self.text()),
            tail(&self.error_text())
        );
        Ok(self)
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn error_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The status as a shell gives it: the exit code, or 128 and the number of the signal.
    pub fn shell_status(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

/// A command from words.
pub fn command<S: AsRef<OsStr>>(words: &[S]) -> Command {
    let (program, arguments) = words.split_first().expect("a command has a name");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// In the child, before exec: its namespace, its group, and its end with ours.
fn prepare_child(namespace: i32) -> io::Result<()> {
    // SAFETY: plain system calls with valid arguments; the namespace's descriptor is open in the
    // parent, which waits for the exec.
    unsafe {
        if libc::setns(namespace, libc::CLONE_NEWNET) != 0
            || libc::setpgid(0, 0) != 0
            || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
            || libc::signal(libc::SIGPIPE, libc::SIG_DFL) == libc::SIG_ERR
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A command line for messages.
fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The end of a long text.
fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(20000);
    let start = (start..text.len())
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(text.len());
    text[start..].trim_end()
}
