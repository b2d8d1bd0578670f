//! What a worker knows of one program.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    pub doorbell: Arc<OwnedFd>,
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

/// A shard's part of what a region has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Part {
    /// Shard `own`'s part of `all`; in units of 4 KB if there is that much of it.
    pub(crate) fn of(all: u64, own: u32, region: &Region) -> Part {
        match u64::from(region.geometry().shards) {
            0 | 1 => Part { start: 0, len: all },
            shards => {
                let share = all / shards;
                let len = share - if share >= 4096 { share % 4096 } else { 0 };
                Part {
                    start: len * u64::from(own),
                    len,
                }
            }
        }
    }
}

/// The slots of one shard that have been used, by their number in the region.
#[derive(Debug)]
pub struct Entries {
    base: u32,
    limit: u32,
    list: Vec<Entry>,
}

impl Entries {
    fn new(base: u32, limit: u32) -> Entries {
        Entries {
            base,
            limit,
            list: Vec::new(),
        }
    }

    /// One more; none when the shard has no more.
    fn push(&mut self) -> Option<u32> {
        let next = self.list.len() as u32;
        (next < self.limit).then(|| {
            self.list.push(Entry::default());
            self.base + next
        })
    }

    /// The entry of a slot, if it is one of these.
    pub fn get(&self, slot: u32) -> Option<&Entry> {
        self.list.get(slot.wrapping_sub(self.base) as usize)
    }

    /// The numbers of all.
    pub fn numbers(&self) -> std::ops::Range<u32> {
        self.base..self.base + self.list.len() as u32
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.list.iter_mut()
    }
}

impl std::ops::Index<u32> for Entries {
    type Output = Entry;

    fn index(&self, slot: u32) -> &Entry {
        &self.list[(slot - self.base) as usize]
    }
}

impl std::ops::IndexMut<u32> for Entries {
    fn index_mut(&mut self, slot: u32) -> &mut Entry {
        &mut self.list[(slot - self.base) as usize]
    }
}

/// One program, as its worker sees it.
#[derive(Debug)]
pub struct Program {
    /// Its number.
    pub owner: Owner,
    /// The memory shared with it.
    pub region: Arc<Region>,
    /// Slots that have been used, of those that are this shard's.
    pub entries: Entries,
    /// Slots to use again, the last freed first.
    pub vacant: Vec<u32>,
    /// Contexts in use.
    pub contexts: Vec<ContextEntry>,
    /// Pollers by index.
    pub pollers: Vec<Option<PollerEntry>>,
    /// Processes alive or announced.
    pub processes: Vec<ProcessEntry>,
    own: u32,
}

impl Program {
    /// A program without processes, as shard `own` of its region's shards serves it.
    pub fn new(owner: Owner, region: Arc<Region>, own: u32) -> Program {
        let slots = Part::of(u64::from(region.geometry().slots), own, &region);
        Program {
            owner,
            region,
            entries: Entries::new(slots.start as u32, slots.len as u32),
            vacant: Vec::new(),
            contexts: Vec::new(),
            pollers: Vec::new(),
            processes: Vec::new(),
            own,
        }
    }

    /// A slot for a new socket, cleared; none when the region has no more.
    pub fn open_slot(&mut self) -> Option<u32> {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => self.entries.push()?,
        };
        let entry = &mut self.entries[index];
        entry.open();
        self.region.slot(index)?.reset(entry.generation, self.own);
        Some(index)
    }

    /// Takes back a slot that was opened for nothing.
    pub fn give_back_slot(&mut self, slot: u32) {
        self.entries[slot].open = false;
        self.vacant.push(slot);
    }

    /// Whether a listener's ring takes one connection more.
    pub fn has_room(&self, listener: u32) -> bool {
        self.entries[listener]
            .accepts
            .as_deref()
            .is_some_and(|queue| {
                let consumed = self.slot(listener).app.consumed.load(Ordering::Acquire);
                let waiting = queue.pushed - consumed.min(queue.pushed);
                waiting < queue.capacity()
            })
    }

    /// Puts a connection into a listener's queue, which has room for it.
    pub fn append_accepted(&mut self, listener: u32, accepted: SlotRef) {
        if let Some(queue) = &mut self.entries[listener].accepts {
            let at = queue.at + ((queue.pushed * 8) & ((1 << queue.log2) - 1));
            self.region
                .write_arena(at, &accepted.to_bits().to_ne_bytes());
            queue.pushed += 1;
        }
    }

    /// The slot that a program's reference means, if it is the present one.
    pub fn find(&self, slot: SlotRef) -> Option<u32> {
        let entry = self.entries.get(slot.index)?;
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
            generation: self.entries[index].generation,
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
        self.entries.numbers().len() - self.vacant.len()
    }

    /// The shard that a slot is served by.
    pub fn shard_of(&self, slot: u32) -> u32 {
        slot / self.entries.limit.max(1)
    }
}
