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

/// One worker.
pub(crate) struct WorkerHandle {
    pub(crate) commands: Sender<Command>,
    pub(crate) doorbell: Arc<OwnedFd>,
    pub(crate) thread: JoinHandle<()>,
}

/// All of them.
pub(crate) struct Workers {
    /// By shard.
    pub(crate) shards: Vec<WorkerHandle>,
    /// The threads that own queues of the device, if the shards do not.
    pub(crate) io: Vec<IoHandle>,
    /// How many shards own queues beside these.
    pub(crate) owners: u16,
}

impl Workers {
    /// How many there are.
    pub(crate) fn len(&self) -> u32 {
        self.shards.len() as u32
    }

    /// Who owns the queues of the device, as `--topology` has it.
    pub(crate) fn topology(&self) -> &'static str {
        match (self.io.len(), self.owners) {
            (0, _) => "rtc",
            (_, 0) => "pipeline",
            _ => "mixed",
        }
    }

    /// Whether I/O threads say of every flow where it goes.
    pub(crate) fn can_move_flows(&self) -> bool {
        !self.io.is_empty() && self.owners == 0
    }

    /// Commands each worker, by its shard.
    pub(crate) fn send(&self, command: impl Fn(u32) -> Command) {
        for (shard, handle) in self.shards.iter().enumerate() {
            // If the worker is gone the main loop sees it next.
            let _ = handle.commands.send(command(shard as u32));
            ring(handle.doorbell.as_fd());
        }
    }

    /// Commands each worker, and waits for the answers of all, by shard.
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

    /// Commands one of them, and waits for its answer.
    pub(crate) fn ask_shard<T>(
        &self,
        shard: u16,
        command: impl FnOnce(Sender<T>) -> Command,
    ) -> Result<T, i32> {
        let (reply, receiver) = mpsc::channel();
        self.send_to(shard, command(reply));
        receiver.recv_timeout(PATIENCE).map_err(|_| libc::EIO)
    }

    /// Has the I/O threads go by other groups. Each answers how far the queue of each shard had been written until then.
    pub(crate) fn switch(&self, groups: &Groups) -> Vec<Receiver<Vec<usize>>> {
        let (sender, answers): (Vec<_>, Vec<_>) = self.io.iter().map(|_| mpsc::channel()).unzip();
        for (handle, positions) in self.io.iter().zip(sender) {
            let groups = groups.clone();
            // If the thread is gone it does not answer.
            let _ = handle.switches.send(Switch { groups, positions });
            handle.flags.switch.store(true, Ordering::SeqCst);
            ring(handle.doorbell.as_fd());
        }
        answers
    }

    /// Commands one of them.
    pub(crate) fn send_to(&self, shard: u16, command: Command) {
        if let Some(handle) = self.shards.get(usize::from(shard)) {
            // As for all.
            let _ = handle.commands.send(command);
            ring(handle.doorbell.as_fd());
        }
    }

    /// What each bucket has had, by all I/O threads.
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

    /// Whether they have ended: all of them, as they do when told to; or one, which it should not.
    pub(crate) fn have_ended(&self, told: bool) -> bool {
        let mut handles = self.shards.iter();
        let ended = |handle: &WorkerHandle| handle.thread.is_finished();
        if told {
            handles.all(ended)
        } else {
            handles.any(ended) || self.io.iter().any(|handle| handle.thread.is_finished())
        }
    }

    /// What the I/O threads have counted; none if there are none.
    pub(crate) fn io_json(&self) -> Vec<serde_json::Value> {
        let counters = self
            .io
            .iter()
            .map(|handle| handle.counters.json(&handle.gauges));
        counters.collect()
    }

    /// How they ended. One that goes on although it should not is left.
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
        // What the shards have said last is still to be sent.
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
