//! What can be known of an engine from outside: its process, what `millrace ss --json` says,
//! engines that outlive a program.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::process::command;
use crate::scenario::{seconds, wait_until};
use crate::world::{World, millrace};

/// An engine of its own, started by `millrace up`; programs attach to it.
#[derive(Debug)]
pub struct Engine {
    name: String,
}

impl Engine {
    /// Starts one on the world's link.
    pub fn up(world: &World) -> Result<Engine> {
        Engine::up_with(world, &[])
    }

    /// Likewise, with these flags more.
    pub fn up_with(world: &World, more: &[&str]) -> Result<Engine> {
        // Engines of all network namespaces have their names in one directory.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("e2e-{}-{number}", std::process::id());
        let mut up = world.millrace(&["up", "--name", &name]);
        up.args(world.link_arguments()).args(more);
        world.start_on_subject(up)?.wait(seconds(20))?.success()?;
        Ok(Engine { name })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The command that runs `words` on it.
    pub fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut run = command(&[millrace()]);
        run.args(["run", "--engine", &self.name, "--"]).args(words);
        run
    }

    /// Ends it with `millrace down`.
    pub fn down(self, world: &World) -> Result<()> {
        world
            .start_on_subject(world.millrace(&["down", "--name", &self.name]))?
            .wait(seconds(15))?
            .success()
            .map(|_| ())
    }
}

/// The engine's process: the one in the subject's namespace that has the threads of shards.
pub fn pid(world: &World) -> Result<Pid> {
    let has_shards = |pid: &Pid| {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else {
            return false;
        };
        threads.flatten().any(|thread| {
            fs::read_to_string(thread.path().join("comm"))
                .is_ok_and(|name| name.starts_with("millrace-shard"))
        })
    };
    world
        .subject_namespace()
        .processes()?
        .into_iter()
        .find(has_shards)
        .context("no process has the threads of shards")
}

/// What `millrace scale` shows of each shard, after it was asked for so many.
pub fn scale(world: &World, shards: Option<u16>) -> Result<Vec<Value>> {
    let mut scale = world.millrace(&["scale", "--json"]);
    if let Some(shards) = shards {
        scale.args(["--shards", &shards.to_string()]);
    }
    let ended = world.start_on_subject(scale)?.wait(seconds(60))?;
    Ok(serde_json::from_slice(&ended.success()?.stdout)?)
}

/// Kills the engine as a crash would.
pub fn kill(world: &World) -> Result<()> {
    rustix::process::kill_process(pid(world)?, Signal::KILL).context("killing the engine")
}

/// What `millrace ss --counters` says.
pub fn counters(world: &World) -> Result<Value> {
    let ended = world
        .start_on_subject(world.millrace(&["ss", "--counters"]))?
        .wait(seconds(15))?
        .success()?;
    serde_json::from_slice(&ended.stdout).context("reading the counters")
}

/// Sockets as `millrace ss --json` lists them.
pub fn sockets(world: &World) -> Result<Vec<Value>> {
    let ended = world
        .start_on_subject(world.millrace(&["ss", "--json"]))?
        .wait(seconds(10))?
        .success()?;
    serde_json::from_slice(&ended.stdout)
        .with_context(|| format!("`millrace ss --json` wrote {:?}", ended.text()))
}

/// How many sockets are neither listeners nor in TIME-WAIT.
pub fn connections(world: &World) -> Result<usize> {
    let is_connection =
        |socket: &&Value| !matches!(socket["state"].as_str(), Some("LISTEN" | "TIME-WAIT"));
    Ok(sockets(world)?.iter().filter(is_connection).count())
}

/// Waits until there are `count` connections.
pub fn wait_for_connections(world: &World, count: usize) -> Result<()> {
    let waited = wait_until(
        &format!("{count} connections in `millrace ss`"),
        seconds(10),
        || Ok(connections(world)? == count),
    );
    waited.with_context(|| {
        format!(
            "there are {:?}",
            sockets(world).map(|sockets| sockets.len())
        )
    })
}
