//! The workers, as the control thread commands them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_steer::Groups;

use crate::control::command::Command;
use crate::doorbell::ring;
use crate::links::io_thread::{IoHandle, Switch};

/// How long a worker may take to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The control thread's side of a worker.
pub(crate) struct WorkerHandle {
    pub(crate) commands: Sender<Command>,
    pub(crate) doorbell: Arc<OwnedFd>,
    pub(crate) thread: JoinHandle<()>,
}

/// All workers.
pub(crate) struct Workers {
    /// By shard.
    pub(crate) shards: Vec<WorkerHandle>,
    /// The I/O threads, if there are any.
    pub(crate) io: Vec<IoHandle>,
    /// How many shards own queues of the device beside the I/O threads.
    pub(crate) owners: u16,
}

impl Workers {
    /// The number of shards.
    pub(crate) fn len(&self) -> u32 {
        self.shards.len() as u32
    }

    /// The topology by its name on the command line.
    pub(crate) fn topology(&self) -> &'static str {
        match (self.io.len(), self.owners) {
            (0, _) => "rtc",
            (_, 0) => "pipeline",
            _ => "mixed",
        }
    }

    /// Whether I/O threads steer all flows, so that flows can move.
    pub(crate) fn can_move_flows(&self) -> bool {
        !self.io.is_empty() && self.owners == 0
    }

    /// Sends a command to each worker.
    pub(crate) fn send(&self, command: impl Fn(u32) -> Command) {
        for (shard, handle) in self.shards.iter().enumerate() {
            // If the worker has ended, the main loop notices that next.
            let _ = handle.commands.send(command(shard as u32));
            ring(handle.doorbell.as_fd());
        }
    }

    /// Sends a command to each worker, and waits for all answers.
    pub(crate) fn ask<T>(
        &self,
        command: impl Fn(u32, Sender<T>) -> Command,
    ) -> Result<Vec<T>, i32> {
        let (replies, receivers): (Vec<_>, Vec<_>) =
            self.shards.iter().map(|_| mpsc::channel()).unzip();
        self.send(|shard| command(shard, replies[shard as usize].clone()));
        drop(replies);
        let answers = receivers
            .into_iter()
            .map(|receiver| receiver.recv_timeout(PATIENCE).map_err(|_| libc::EIO));
        answers.collect()
    }

    /// Sends a command to one worker, and waits for its answer.
    pub(crate) fn ask_shard<T>(
        &self,
        shard: u16,
        command: impl FnOnce(Sender<T>) -> Command,
    ) -> Result<T, i32> {
        let (reply, receiver) = mpsc::channel();
        self.send_to(shard, command(reply));
        receiver.recv_timeout(PATIENCE).map_err(|_| libc::EIO)
    }

    /// Has the I/O threads steer by other groups. Each answers how far it had written the queue of
    /// each shard before.
    pub(crate) fn switch(&self, groups: &Groups) -> Vec<Receiver<Vec<usize>>> {
        let (sender, answers): (Vec<_>, Vec<_>) = self.io.iter().map(|_| mpsc::channel()).unzip();
        for (handle, positions) in self.io.iter().zip(sender) {
            let groups = groups.clone();
            // A thread that has ended does not answer.
            let _ = handle.switches.send(Switch { groups, positions });
            handle.flags.switch.store(true, Ordering::SeqCst);
            ring(handle.doorbell.as_fd());
        }
        answers
    }

    /// Sends a command to one worker.
    pub(crate) fn send_to(&self, shard: u16, command: Command) {
        if let Some(handle) = self.shards.get(usize::from(shard)) {
            // If the worker has ended, the main loop notices that next.
            let _ = handle.commands.send(command);
            ring(handle.doorbell.as_fd());
        }
    }

    /// The load of each bucket, summed over all I/O threads.
    pub(crate) fn load(&self) -> Vec<u64> {
        let mut load = Vec::new();
        for handle in &self.io {
            load.resize(handle.load.len(), 0);
            for (sum, count) in load.iter_mut().zip(handle.load.iter()) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
        load
    }

    /// Whether the workers have ended. `told`: they were told to end, so all must have; otherwise
    /// one is enough.
    pub(crate) fn have_ended(&self, told: bool) -> bool {
        let mut handles = self.shards.iter();
        let ended = |handle: &WorkerHandle| handle.thread.is_finished();
        if told {
            handles.all(ended)
        } else {
            handles.any(ended) || self.io.iter().any(|handle| handle.thread.is_finished())
        }
    }

    /// The counters of the I/O threads.
    pub(crate) fn io_json(&self) -> Vec<serde_json::Value> {
        let counters = self
            .io
            .iter()
            .map(|handle| handle.counters.json(&handle.gauges));
        counters.collect()
    }

    /// How the workers ended. Threads that still run are left alone.
    pub(crate) fn outcome(&mut self) -> io::Result<()> {
        for handle in self
            .shards
            .drain(..)
            .filter(|handle| handle.thread.is_finished())
        {
            if handle.thread.join().is_err() {
                return Err(io::Error::other("a shard's thread panicked"));
            }
        }
        // The I/O threads still have to send the last frames of the shards.
        for handle in self.io.drain(..) {
            handle.flags.stop.store(true, Ordering::Release);
            ring(handle.doorbell.as_fd());
            if handle.thread.join().is_err() {
                return Err(io::Error::other("an I/O thread panicked"));
            }
        }
        Ok(())
    }
}
