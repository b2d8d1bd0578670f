//! Network namespaces, removed with their owner together with every process in them.

use std::fs::{self, File};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::directory::{PREFIX, is_dead, owner_of};

/// Where `ip netns` keeps names.
const NAMES: &str = "/run/netns";

/// A network namespace with its loopback up.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    handle: File,
}

impl Namespace {
    /// A new one.
    pub fn create() -> Result<Namespace> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "{PREFIX}-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        run("ip", &["netns", "add", &name])?;
        let handle = File::open(Path::new(NAMES).join(&name))?;
        let namespace = Namespace { name, handle };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name for `ip -n`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The descriptor for `setns`, valid as long as `self`.
    pub fn raw_handle(&self) -> RawFd {
        self.handle.as_raw_fd()
    }

    /// `ip` with these arguments (separated by spaces) inside it.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments.split_whitespace());
        run("ip", &all)
    }

    /// Sets `/proc/sys/net/NAME` inside it; `name` with dots.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/net/{}", name.replace('.', "/"));
        self.enter(|| fs::write(&path, value))
            .with_context(|| format!("setting {path}"))
    }

    /// Runs `body` on a thread inside it: sockets that it opens belong there.
    pub fn enter<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.join_thread().expect("entering a namespace as root");
                body()
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into it, for good.
    pub fn join_thread(&self) -> Result<()> {
        move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network))
            .context("setns: is this root?")
    }

    /// Network devices in it but for loopback.
    pub fn devices(&self) -> Result<Vec<String>> {
        let listed = self.ip("-o link show")?;
        let names = listed
            .lines()
            .filter_map(|line| line.split(": ").nth(1))
            .map(|name| name.split('@').next().unwrap_or(name).to_string());
        Ok(names.filter(|name| name != "lo").collect())
    }

    /// Processes in it.
    pub fn processes(&self) -> Result<Vec<Pid>> {
        processes_in(&self.name)
    }

    /// Links `self` and `other` by a veth pair `veth0`-`veth0` with these addresses (with prefix
    /// length).
    pub fn link(&self, address: &str, other: &Namespace, other_address: &str) -> Result<()> {
        self.link_with(address, other, other_address, "")
    }

    /// Likewise; `options` of `ip link` are for both ends.
    pub fn link_with(
        &self,
        address: &str,
        other: &Namespace,
        other_address: &str,
        options: &str,
    ) -> Result<()> {
        self.ip(&format!(
            "link add veth0 {options} type veth peer name veth0 netns {} {options}",
            other.name
        ))?;
        for (namespace, address) in [(self, address), (other, other_address)] {
            namespace.ip(&format!("addr add {address} dev veth0"))?;
            namespace.ip("link set veth0 up")?;
        }
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.name) {
            eprintln!("removing namespace {}: {error:#}", self.name);
        }
    }
}

/// Removes namespaces whose owner is dead, with what runs in them.
pub fn sweep() -> Result<()> {
    let Ok(names) = fs::read_dir(NAMES) else {
        return Ok(());
    };
    for name in names
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
    {
        if owner_of(&name).is_some_and(is_dead) {
            remove(&name)?;
        }
    }
    Ok(())
}

/// Removes everything that process `owner` has created.
pub fn remove_all_of(owner: u32) -> Result<()> {
    let Ok(names) = fs::read_dir(NAMES) else {
        return Ok(());
    };
    for name in names
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
    {
        if owner_of(&name) == Some(owner) {
            remove(&name)?;
        }
    }
    Ok(())
}

/// Kills what runs in a namespace, then removes it.
fn remove(name: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let left = processes_in(name)?;
        if left.is_empty() || Instant::now() > deadline {
            break;
        }
        for pid in left {
            // It may have ended by itself meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(5));
    }
    run("ip", &["netns", "del", name]).map(|_| ())
}

/// Processes whose network namespace has this name.
fn processes_in(name: &str) -> Result<Vec<Pid>> {
    let listed = run("ip", &["netns", "pids", name])?;
    Ok(listed
        .split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect())
}

/// Runs a command that ends soon; its output, or an error with what it said.
fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("running {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`{program} {}`: {} (root is needed)",
        arguments.join(" "),
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
