//! What a worker knows of one program.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use millrace_context::submission::Cursor;
use millrace_context::{Region, Slot, SlotRef};
use millrace_shard::Owner;

use crate::socket::{Entry, Process};

/// A context that a process uses.
#[derive(Debug)]
pub struct ContextEntry {
    /// Index in the region.
    pub index: u32,
    /// Whose it is.
    pub process: Process,
    /// How far the engine has come.
    pub cursor: Cursor,
}

/// A poller in use.
#[derive(Debug)]
pub struct PollerEntry {
    /// Its eventfd.
    pub doorbell: OwnedFd,
    /// The engine's own copy of the ring's tail.
    pub tail: u32,
    /// Set when it has had hints since the last ringing.
    pub touched: bool,
}

/// A process of the program.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEntry {
    /// Its slot.
    pub process: Process,
    /// Its pid, 0 while it is announced only.
    pub pid: u32,
}

/// One program, as its worker sees it.
#[derive(Debug)]
pub struct Program {
    /// Its number.
    pub owner: Owner,
    /// The memory shared with it.
    pub region: Arc<Region>,
    /// Slots that have been used, by index.
    pub entries: Vec<Entry>,
    /// Slots to use again, the last freed first.
    pub vacant: Vec<u32>,
    /// Contexts in use.
    pub contexts: Vec<ContextEntry>,
    /// Pollers by index.
    pub pollers: Vec<Option<PollerEntry>>,
    /// Processes alive or announced.
    pub processes: Vec<ProcessEntry>,
}

impl Program {
    /// A program without processes.
    pub fn new(owner: Owner, region: Arc<Region>) -> Program {
        Program {
            owner,
            region,
            entries: Vec::new(),
            vacant: Vec::new(),
            contexts: Vec::new(),
            pollers: Vec::new(),
            processes: Vec::new(),
        }
    }

    /// A slot for a new socket, cleared; none when the region has no more.
    pub fn open_slot(&mut self) -> Option<u32> {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None if self.entries.len() < self.region.geometry().slots as usize => {
                self.entries.push(Entry::default());
                self.entries.len() as u32 - 1
            }
            None => return None,
        };
        let entry = &mut self.entries[index as usize];
        entry.open();
        self.region.slot(index)?.reset(entry.generation, 0);
        Some(index)
    }

    /// The slot that a program's reference means, if it is the present one.
    pub fn find(&self, slot: SlotRef) -> Option<u32> {
        let entry = self.entries.get(slot.index as usize)?;
        (entry.open && entry.generation == slot.generation).then_some(slot.index)
    }

    /// The shared side of a slot.
    pub fn slot(&self, index: u32) -> &Slot {
        self.region
            .slot(index)
            .expect("entries are made only for slots that exist")
    }

    /// A reference to hand out.
    pub fn reference(&self, index: u32) -> SlotRef {
        SlotRef {
            index,
            generation: self.entries[index as usize].generation,
        }
    }

    /// The pid of a process slot, 0 if unknown.
    pub fn pid(&self, process: Process) -> u32 {
        self.processes
            .iter()
            .find(|entry| entry.process == process)
            .map_or(0, |entry| entry.pid)
    }

    /// Slots in use.
    pub fn open_slots(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }
}
