//! What a worker knows of one program.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use millrace_context::submission::Cursor;
use millrace_context::{Region, Slot, SlotRef, Status};
use millrace_shard::Owner;

use crate::programs::entry::Entry;
use crate::programs::owners::Process;

/// A context that a process uses.
#[derive(Debug)]
pub struct ContextEntry {
    /// Index in the region.
    pub index: u32,
    /// The process that uses it.
    pub process: Process,
    /// How far the engine has read the ring.
    pub cursor: Cursor,
}

/// A poller in use.
#[derive(Debug)]
pub struct PollerEntry {
    /// Its eventfd.
    pub doorbell: Arc<OwnedFd>,
    /// The engine's own copy of the ring's tail.
    pub tail: u32,
    /// Whether it got a hint since doorbells were last rung.
    pub touched: bool,
}

/// A process of the program.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEntry {
    /// Its process slot.
    pub process: Process,
    /// Its pid; 0 while it is only announced.
    pub pid: u32,
}

/// A shard's part of something that a region has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Part {
    /// Shard `own`'s part of `all`, in units of 4 KB if there is that much.
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

/// The shard that serves each slot of a program. A shard that gets a request for another shard's
/// slot passes it on accordingly. The shard that gives a slot away writes it, after it has sent the
/// slot to the other shard. It is in the engine's memory, and the program cannot read it.
#[derive(Debug)]
pub struct SlotShards(Box<[AtomicU16]>);

impl SlotShards {
    /// Each shard serves the slots of its own part.
    pub fn new(region: &Region) -> SlotShards {
        let slots = match region.geometry().shards {
            0 | 1 => 0,
            _ => region.geometry().slots,
        };
        SlotShards((0..slots).map(|_| AtomicU16::new(0)).collect())
    }

    /// The shard of a slot, if it was ever set.
    fn get(&self, slot: u32) -> Option<u32> {
        let word = self.0.get(slot as usize)?.load(Ordering::Acquire);
        word.checked_sub(1).map(u32::from)
    }

    /// The shard that serves a slot. `slot` may be any number, whether there is such a slot or not.
    pub(crate) fn shard_of(&self, slot: u32, region: &Region) -> u32 {
        let geometry = region.geometry();
        let share = Part::of(geometry.slots.into(), 0, region).len.max(1);
        let home = u64::from(slot) / share;
        let home = home.min(u64::from(geometry.shards.max(1)) - 1);
        self.get(slot).unwrap_or(home as u32)
    }

    /// Sets the shard that serves a slot.
    pub(crate) fn set(&self, slot: u32, shard: u16) {
        if let Some(word) = self.0.get(slot as usize) {
            word.store(shard + 1, Ordering::Release);
        }
    }
}

/// The slots that a shard serves, by their number in the region: used slots of its own part, unless
/// another shard serves them, and slots of other shards' parts.
#[derive(Debug)]
pub struct Entries {
    base: u32,
    limit: u32,
    list: Vec<Entry>,
    /// Slots of the list that other shards serve.
    away: u32,
    /// Slots of other shards' parts, by number.
    foreign: Vec<Option<Box<Entry>>>,
    foreign_count: u32,
}

impl Entries {
    fn new(base: u32, limit: u32) -> Entries {
        Entries {
            base,
            limit,
            list: Vec::new(),
            away: 0,
            foreign: Vec::new(),
            foreign_count: 0,
        }
    }

    /// Whether a slot is in this shard's part and has been used.
    pub(crate) fn is_own(&self, slot: u32) -> bool {
        (slot.wrapping_sub(self.base) as usize) < self.list.len()
    }

    /// Takes an entry out, so that another shard can serve it.
    pub(crate) fn leave(&mut self, slot: u32) -> Option<Entry> {
        if !self.is_own(slot) {
            let foreign = self.foreign.get_mut(slot as usize)?.take()?;
            self.foreign_count -= 1;
            return Some(*foreign);
        }
        let home = &mut self.list[(slot - self.base) as usize];
        if home.away {
            return None;
        }
        self.away += 1;
        let entry = std::mem::take(home);
        home.away = true;
        Some(entry)
    }

    /// Puts in an entry that another shard has served.
    pub(crate) fn seat(&mut self, slot: u32, entry: Entry) {
        if self.is_own(slot) {
            let home = &mut self.list[(slot - self.base) as usize];
            self.away -= u32::from(home.away);
            *home = entry;
            return;
        }
        let at = slot as usize;
        if self.foreign.len() <= at {
            self.foreign.resize_with(at + 1, || None);
        }
        self.foreign_count += u32::from(self.foreign[at].is_none());
        self.foreign[at] = Some(Box::new(entry));
    }

    /// Takes back a slot that another shard has freed, with its generation. Returns whether it was
    /// away.
    pub(crate) fn come_home(&mut self, slot: u32, generation: u32) -> bool {
        let at = slot.wrapping_sub(self.base) as usize;
        let Some(home) = self.list.get_mut(at).filter(|entry| entry.away) else {
            return false;
        };
        home.away = false;
        home.generation = generation;
        self.away -= 1;
        true
    }

    /// Whether other shards serve slots of this shard's part.
    pub(crate) fn some_away(&self) -> bool {
        self.away > 0
    }

    /// Slots that it serves, free ones included.
    fn len(&self) -> usize {
        self.list.len() - self.away as usize + self.foreign_count as usize
    }

    /// Takes a new slot. None: the part is used up.
    fn push(&mut self) -> Option<u32> {
        let next = self.list.len() as u32;
        (next < self.limit).then(|| {
            self.list.push(Entry::default());
            self.base + next
        })
    }

    /// The entry of a slot, if this shard serves it.
    pub fn get(&self, slot: u32) -> Option<&Entry> {
        match self.list.get(slot.wrapping_sub(self.base) as usize) {
            Some(entry) => Some(entry).filter(|entry| !entry.away),
            None => self.foreign.get(slot as usize)?.as_deref(),
        }
    }

    /// The entry of a slot, if this shard serves it, to change it.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        match self.list.get_mut(slot.wrapping_sub(self.base) as usize) {
            Some(entry) => Some(entry).filter(|entry| !entry.away),
            None => self.foreign.get_mut(slot as usize)?.as_deref_mut(),
        }
    }

    /// The numbers of all slots that it serves.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        let own = (self.base..).zip(&self.list);
        let own = own.filter_map(|(slot, entry)| (!entry.away).then_some(slot));
        let foreign = (0..).zip(&self.foreign);
        own.chain(foreign.filter_map(|(slot, foreign)| foreign.as_ref().map(|_| slot)))
    }

    /// The entries of all slots that it serves.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let own = self.list.iter_mut().filter(|entry| !entry.away);
        own.chain(self.foreign.iter_mut().flatten().map(Box::as_mut))
    }
}

impl std::ops::Index<u32> for Entries {
    type Output = Entry;

    fn index(&self, slot: u32) -> &Entry {
        match self.list.get(slot.wrapping_sub(self.base) as usize) {
            Some(entry) => entry,
            None => self.foreign[slot as usize]
                .as_deref()
                .expect("it was found here"),
        }
    }
}

impl std::ops::IndexMut<u32> for Entries {
    fn index_mut(&mut self, slot: u32) -> &mut Entry {
        match self.list.get_mut(slot.wrapping_sub(self.base) as usize) {
            Some(entry) => entry,
            None => self.foreign[slot as usize]
                .as_deref_mut()
                .expect("it was found here"),
        }
    }
}

/// One program, as a worker sees it.
#[derive(Debug)]
pub struct Program {
    /// Its number.
    pub owner: Owner,
    /// The memory shared with it.
    pub region: Arc<Region>,
    /// Slots that this shard serves.
    pub entries: Entries,
    /// The shard that serves each slot.
    pub slot_shards: Arc<SlotShards>,
    /// The doorbell of this shard, which the program rings.
    pub doorbell: Arc<OwnedFd>,
    /// Free slots, the last freed at the end.
    pub vacant: Vec<u32>,
    /// The context that is served first in the next round.
    pub next_context: usize,
    /// Contexts in use.
    pub contexts: Vec<ContextEntry>,
    /// Pollers by index.
    pub pollers: Vec<Option<PollerEntry>>,
    /// Processes alive or announced.
    pub processes: Vec<ProcessEntry>,
    /// One of its processes was cut off, and that was printed.
    pub cut_off: bool,
    own: u32,
}

impl Program {
    /// A program without processes, for shard `own` of those that serve its region.
    pub fn new(
        owner: Owner,
        region: Arc<Region>,
        slot_shards: Arc<SlotShards>,
        doorbell: Arc<OwnedFd>,
        own: u32,
    ) -> Program {
        let slots = Part::of(u64::from(region.geometry().slots), own, &region);
        Program {
            owner,
            region,
            slot_shards,
            doorbell,
            entries: Entries::new(slots.start as u32, slots.len as u32),
            vacant: Vec::new(),
            next_context: 0,
            contexts: Vec::new(),
            pollers: Vec::new(),
            processes: Vec::new(),
            cut_off: false,
            own,
        }
    }

    /// A process uses these contexts. A process that has executed another image gets its contexts
    /// anew.
    pub(crate) fn add_process(&mut self, process: Process, pid: u32, contexts: &[u32]) {
        self.forget_process(process);
        self.processes.push(ProcessEntry { process, pid });
        for &index in contexts {
            if let Some((shared, _)) = self.region.context(index) {
                shared.reset();
                self.contexts.push(ContextEntry {
                    index,
                    process,
                    cursor: Cursor::default(),
                });
            }
        }
    }

    /// A process uses its contexts no more.
    pub(crate) fn forget_process(&mut self, process: Process) {
        self.contexts.retain(|context| context.process != process);
        self.processes.retain(|entry| entry.process != process);
    }

    /// A child holds what its parent holds.
    pub(crate) fn fork(&mut self, parent: Process, child: Process) {
        let open = self.entries.iter_mut().filter(|entry| entry.open);
        for entry in open.filter(|entry| entry.owners.holders().contains(&parent)) {
            entry.owners.hold(child);
        }
        self.processes.push(ProcessEntry {
            process: child,
            pid: 0,
        });
    }

    /// A process takes hold of sockets that it has without having been announced: the child of a
    /// fork that the shim did not see.
    pub(crate) fn take_hold(&mut self, process: Process, sockets: &[SlotRef]) {
        for socket in sockets {
            if self.find(*socket).is_none() {
                continue;
            }
            let owners = &mut self.entries[socket.index].owners;
            if owners.waiting().is_none() && !owners.holders().contains(&process) {
                owners.hold(process);
            }
        }
    }

    /// The slots that a process holds.
    pub(crate) fn held_by(&self, process: Process) -> impl Iterator<Item = u32> {
        let slots = self.entries.numbers();
        slots.filter(move |slot| self.entries[*slot].owners.holders().contains(&process))
    }

    /// The connections that a process has claimed from a queue and has not accepted.
    pub(crate) fn claimed_by(&self, process: Process) -> Vec<u32> {
        let is_claimed = |slot: &u32| {
            let entry = &self.entries[*slot];
            let claim = self.slot(*slot).app.claimed_by();
            let mut contexts = self.contexts.iter();
            entry.open
                && entry.owners.waiting().is_some()
                && contexts.any(|context| context.process == process && context.index + 1 == claim)
        };
        self.entries.numbers().filter(is_claimed).collect()
    }

    /// The engine reads the contexts of a process no more.
    pub(crate) fn abandon_contexts(&self, process: Process) {
        for context in self.contexts.iter().filter(|it| it.process == process) {
            if let Some((shared, _)) = self.region.context(context.index) {
                shared.abandon();
            }
        }
    }

    /// Adds a poller with its doorbell.
    pub(crate) fn add_poller(&mut self, poller: u32, doorbell: Arc<OwnedFd>) {
        let index = poller as usize;
        if self.pollers.len() <= index {
            self.pollers.resize_with(index + 1, || None);
        }
        self.pollers[index] = Some(PollerEntry {
            doorbell,
            tail: 0,
            touched: false,
        });
    }

    /// A poller is gone.
    pub(crate) fn remove_poller(&mut self, poller: u32) {
        if let Some(entry) = self.pollers.get_mut(poller as usize) {
            *entry = None;
        }
        for entry in self.entries.iter_mut() {
            entry.watches.forget_poller(poller);
        }
    }

    /// Shows an error in an open slot that has no socket.
    pub(crate) fn show_error(&mut self, slot: u32, errno: i32) {
        let entry = &mut self.entries[slot];
        entry.error = (entry.error >> 16).wrapping_add(1) << 16 | errno as u32;
        let error = entry.error;
        let shared = &self.slot(slot).engine;
        shared.error.store(error, Ordering::Release);
        shared.status.store(Status::OPEN.bits(), Ordering::Release);
    }

    /// Opens a cleared slot for a new socket. None: the shard's part of the region is used up.
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

    /// Whether a living process has claimed a connection in an accept queue. The request that
    /// accepts it may be in a ring.
    pub(crate) fn is_claimed(&self, slot: u32) -> bool {
        let claim = self.slot(slot).app.claimed_by();
        let mut contexts = self.contexts.iter();
        contexts.any(|context| context.index + 1 == claim)
    }

    /// Frees a slot that was opened and not used.
    pub fn give_back_slot(&mut self, slot: u32) {
        self.entries[slot].open = false;
        self.vacant.push(slot);
    }

    /// Whether the accept queue of a listener has room.
    pub fn has_room(&self, listener: u32) -> bool {
        self.entries[listener].accepts().is_some_and(|queue| {
            let consumed = self.slot(listener).app.consumed.load(Ordering::Acquire);
            let waiting = queue.pushed - consumed.min(queue.pushed);
            waiting < queue.capacity()
        })
    }

    /// Puts a connection into the accept queue of a listener. It must have room.
    pub fn append_accepted(&mut self, listener: u32, accepted: SlotRef) {
        if let Some(queue) = self.entries[listener].accepts_mut() {
            let at = queue.at + ((queue.pushed * 8) & ((1 << queue.log2) - 1));
            self.region
                .write_arena(at, &accepted.to_bits().to_ne_bytes());
            queue.pushed += 1;
        }
    }

    /// The slot that a reference names, if it is of the present use.
    pub fn find(&self, slot: SlotRef) -> Option<u32> {
        let entry = self.entries.get(slot.index)?;
        (entry.open && entry.generation == slot.generation).then_some(slot.index)
    }

    /// The shared part of a slot.
    pub fn slot(&self, index: u32) -> &Slot {
        self.region
            .slot(index)
            .expect("entries are made only for slots that exist")
    }

    /// A reference to a slot.
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
        self.entries.len() - self.vacant.len()
    }

    /// The shard whose part a slot is in.
    pub fn home_of(&self, slot: u32) -> u32 {
        slot / self.entries.limit.max(1)
    }

    /// The other shard that serves a slot, if this one does not. For a slot on its way it is the
    /// shard that gets it.
    pub(crate) fn served_elsewhere(&self, slot: u32) -> Option<u32> {
        if self.entries.get(slot).is_some() || slot >= self.region.geometry().slots {
            return None;
        }
        let shard = self
            .slot_shards
            .get(slot)
            .unwrap_or_else(|| self.home_of(slot));
        (shard != self.own && shard < self.region.geometry().shards).then_some(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(generation: u32) -> Entry {
        let mut entry = Entry::default();
        (entry.generation, entry.open) = (generation, true);
        entry
    }

    #[test]
    fn a_slot_goes_to_another_shard_and_comes_home_when_it_is_free() {
        let (mut home, mut other) = (Entries::new(10, 10), Entries::new(20, 10));
        for slot in 10..13 {
            assert_eq!(home.push(), Some(slot));
            home[slot].open();
        }
        let entry = home.leave(11).unwrap();
        assert!(home.get(11).is_none() && home.leave(11).is_none() && home.some_away());
        assert_eq!(home.numbers().collect::<Vec<_>>(), [10, 12]);
        assert_eq!((home.iter_mut().count(), home.len()), (2, 2));
        other.seat(11, entry);
        assert_eq!(other.numbers().collect::<Vec<_>>(), [11]);
        assert!(other.get(11).is_some() && !other.is_own(11) && other.len() == 1);
        // It may go on to a third, and come back in use.
        let entry = other.leave(11).unwrap();
        assert!(other.get(11).is_none() && other.len() == 0);
        home.seat(11, entry);
        assert!(home.get(11).is_some_and(|entry| entry.open) && !home.some_away());
        // Or be freed elsewhere, after more than one use.
        assert!(home.leave(11).is_some());
        assert!(home.come_home(11, 7) && !home.come_home(11, 8));
        assert_eq!((home[11].generation, home[11].open), (7, false));
        assert_eq!(home.len(), 3);
    }

    #[test]
    fn what_is_nowhere_is_not_found() {
        let mut entries = Entries::new(10, 10);
        entries.push();
        entries.seat(25, entry(3));
        for slot in [0, 9, 11, 24, 26, u32::MAX] {
            assert!(entries.get(slot).is_none() && entries.get_mut(slot).is_none());
            assert!(entries.leave(slot).is_none() && !entries.come_home(slot, 1));
        }
        assert_eq!(entries.get(25).map(|entry| entry.generation), Some(3));
    }
}
