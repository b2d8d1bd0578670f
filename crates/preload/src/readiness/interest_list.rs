//! The interest list of an epoll set for millrace sockets, and its list of items that may be ready.
//!
//! It is in memory that a forked child shares, as parent and child share the kernel's set.
//! Everything is accessed under its lock. Items are linked by index, with 0 for none, and are found
//! by descriptor and by slot.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use millrace_context::SlotRef;
use rustix::io::Errno;

use crate::fd::table::DESCRIPTORS_MAX;
use crate::sys::robust_lock::{self, Guard, Rank};
use crate::sys::{self, Result};

/// Bits of an item's state.
pub mod state {
    /// The item is in the list of those that may be ready.
    pub const LISTED: u32 = 1;
    /// The item was added or changed since it was last looked at: it is reported even if it was
    /// reported before.
    pub const FRESH: u32 = 2;
    /// The socket was not writable when last looked at: becoming writable is an event.
    pub const OUT_OWED: u32 = 4;
    /// A one-shot registration that has been reported.
    pub const SPENT: u32 = 8;
    /// The registration of a nested set, which is in the kernel's list.
    pub const INNER: u32 = 16;
    /// The lowest bit of a nested set's version, which counts changes of the registration. An event
    /// with an older version is ignored.
    pub const VERSION: u32 = 1 << 24;
    /// All bits of the version.
    pub const VERSIONS: u32 = 0xff << 24;
}

/// The state that an edge-triggered report depends on: a report is due when it has changed since
/// the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// Bytes received, or connections waiting.
    pub received: u64,
    /// Status bits, and the directions that this side has shut.
    pub status: u32,
    /// The error word.
    pub error: u32,
    /// How often room to send was missed.
    pub wanted: u32,
}

/// One registration.
#[repr(C, align(64))]
pub struct Item {
    fd: AtomicI32,
    /// The events that the program asked for.
    pub events: AtomicU32,
    /// The data that the program gave.
    pub data: AtomicU64,
    /// The [`SlotRef`] of a millrace socket, 0 for a socket whose stack is not chosen yet, or the
    /// own number of a nested set.
    slot: AtomicU64,
    next_of_fd: AtomicU32,
    next_of_slot: AtomicU32,
    listed_before: AtomicU32,
    listed_after: AtomicU32,
    seen_received: AtomicU64,
    seen_status: AtomicU32,
    seen_error: AtomicU32,
    seen_wanted: AtomicU32,
    /// See [`state`].
    pub state: AtomicU32,
}

const _: () = assert!(size_of::<Item>() == 64);

#[repr(C, align(4096))]
struct Head {
    lock: AtomicU32,
    /// The processes that have the set.
    processes: AtomicU32,
    /// The index of its poller, plus 1.
    poller: AtomicU32,
    /// A caller waits for the set itself (`poll`, or another set).
    outside: AtomicU32,
    /// Waits that found events. Every fourth also looks at the kernel's events.
    turns: AtomicU32,
    /// How often the doorbells were silenced.
    silenced: AtomicU32,
    /// Registrations of nested sets.
    inner: AtomicU32,
    free: AtomicU32,
    used: AtomicU32,
    first: AtomicU32,
    last: AtomicU32,
    listed: AtomicU32,
}

/// The address of a set's memory.
#[derive(Clone, Copy)]
pub struct Memory {
    head: &'static Head,
    by_fd: &'static [AtomicU32],
    by_slot: &'static [AtomicU32],
    items: &'static [Item],
}

fn size(slots: u32) -> usize {
    size_of::<Head>()
        + DESCRIPTORS_MAX * 4
        + (slots as usize * 4).next_multiple_of(64)
        + items(slots) * size_of::<Item>()
}

/// The most registrations: one for each socket, and some for sockets with several descriptors.
fn items(slots: u32) -> usize {
    slots as usize + 1024
}

fn get(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}
fn put(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Relaxed);
}

impl Memory {
    /// Maps the memory of a set, for a region of `slots` slots. `NOMEM`: there is no memory.
    pub fn map(slots: u32) -> Result<*mut c_void> {
        let at = sys::map(size(slots), true)?;
        // SAFETY: just mapped, zeros are a Head.
        unsafe { &*at.cast::<Head>() }
            .processes
            .store(1, Ordering::Relaxed);
        Ok(at)
    }

    /// # Safety
    /// `at` is from [`Memory::map`] with the same `slots`, and stays mapped while this or anything
    /// got from it is used.
    pub unsafe fn at(at: *mut c_void, slots: u32) -> Memory {
        let at = at.cast::<u8>();
        let by_fd = size_of::<Head>();
        let by_slot = by_fd + DESCRIPTORS_MAX * 4;
        let items_at = by_slot + (slots as usize * 4).next_multiple_of(64);
        // SAFETY: the parts lie in the mapping one after the other, aligned; atomics of any bits.
        unsafe {
            Memory {
                head: &*at.cast::<Head>(),
                by_fd: std::slice::from_raw_parts(at.add(by_fd).cast(), DESCRIPTORS_MAX),
                by_slot: std::slice::from_raw_parts(at.add(by_slot).cast(), slots as usize),
                items: std::slice::from_raw_parts(at.add(items_at).cast(), items(slots)),
            }
        }
    }

    /// # Safety
    /// Nothing got from `at` is used any more.
    pub unsafe fn unmap(at: *mut c_void, slots: u32) {
        // SAFETY: mapped by `new` with this length.
        unsafe { sys::unmap(at, size(slots)) };
    }

    /// Takes the lock. `None`: the calling thread has it already, since this is a signal handler.
    pub fn lock(self) -> Option<Set<'static>> {
        Some(Set {
            _guard: robust_lock::take(&self.head.lock, Rank::Set)?,
            memory: self,
        })
    }

    /// Counts one process more or fewer; returns how many have the set now.
    pub fn count_processes(&self, by: i32) -> u32 {
        self.head
            .processes
            .fetch_add(by as u32, Ordering::AcqRel)
            .wrapping_add(by as u32)
    }

    /// Whether other processes have the set too.
    pub fn is_shared(&self) -> bool {
        self.head.processes.load(Ordering::Relaxed) > 1
    }

    /// The index of the set's poller.
    pub fn poller(&self) -> Option<u32> {
        self.head.poller.load(Ordering::Acquire).checked_sub(1)
    }

    /// Whether a caller waits for the set itself.
    pub fn is_waited_for(&self) -> bool {
        self.head.outside.load(Ordering::Acquire) != 0
    }

    /// How often the doorbells have been silenced.
    pub fn silenced(&self) -> u32 {
        self.head.silenced.load(Ordering::Acquire)
    }

    /// Whether the set has nested sets.
    pub fn has_inner(&self) -> bool {
        self.head.inner.load(Ordering::Acquire) != 0
    }

    /// Every fourth wait that found events also looks at the kernel's events.
    pub fn is_kernels_turn(&self) -> bool {
        self.head.turns.fetch_add(1, Ordering::Relaxed) % 4 == 3
    }
}

/// A locked set.
pub struct Set<'a> {
    _guard: Guard<'a>,
    memory: Memory,
}

impl Set<'_> {
    /// An item.
    pub fn item(&self, index: u32) -> &Item {
        &self.memory.items[index as usize]
    }

    /// Sets the poller's index.
    pub fn set_poller(&self, index: u32) {
        self.memory.head.poller.store(index + 1, Ordering::Release);
    }

    /// Notes that a caller waits for the set itself. Returns true the first time.
    pub fn note_waited_for(&self) -> bool {
        self.memory.head.outside.swap(1, Ordering::AcqRel) == 0
    }

    /// Whether other processes have the set too.
    pub fn is_shared(&self) -> bool {
        self.memory.is_shared()
    }

    /// Notes that the doorbells are silenced.
    pub fn note_silenced(&self) {
        self.memory.head.silenced.fetch_add(1, Ordering::AcqRel);
    }

    /// The registration of a descriptor for a slot, or, without a slot, for a socket whose stack is
    /// not chosen yet.
    pub fn find(&self, fd: c_int, slot: Option<SlotRef>) -> Option<u32> {
        let bits = slot.map_or(0, SlotRef::to_bits);
        self.of_fd(fd).find(|index| {
            self.item(*index).slot.load(Ordering::Relaxed) == bits
                && self.inner_id(*index).is_none()
        })
    }

    /// The registration of a descriptor for a nested set, by the nested set's own number.
    pub fn find_inner(&self, fd: c_int, id: u64) -> Option<u32> {
        self.of_fd(fd)
            .find(|index| self.inner_id(*index) == Some(id))
    }

    /// Adds the registration of a nested set. `NOSPC`: there is no room.
    pub fn insert_inner(&self, fd: c_int, id: u64, events: u32, data: u64) -> Result<u32> {
        let index = self.insert(fd, None, events, data)?;
        let item = self.item(index);
        if index > (1 << 24) - 1 {
            self.remove(index);
            return Err(Errno::NOSPC);
        }
        item.slot.store(id, Ordering::Relaxed);
        put(&item.state, get(&item.state) | state::INNER);
        self.next_version(index);
        self.memory.head.inner.fetch_add(1, Ordering::AcqRel);
        Ok(index)
    }

    /// The version of a nested set's registration.
    pub fn version(&self, index: u32) -> u32 {
        get(&self.item(index).state) >> 24
    }

    /// Advances the version: events of the old registration are ignored.
    pub fn next_version(&self, index: u32) {
        let state = &self.item(index).state;
        put(state, get(state).wrapping_add(state::VERSION));
    }

    /// The own number of the nested set that an item registers.
    pub fn inner_id(&self, index: u32) -> Option<u64> {
        let item = self.memory.items.get(index as usize)?;
        let is_inner = get(&item.state) & state::INNER != 0;
        is_inner.then(|| item.slot.load(Ordering::Relaxed))
    }

    /// The items of all nested sets, and their own numbers.
    pub fn all_inner(&self) -> impl Iterator<Item = (u32, u64)> {
        let used = match self.memory.has_inner() {
            true => get(&self.memory.head.used),
            false => 0,
        };
        (1..=used).filter_map(|index| Some((index, self.inner_id(index)?)))
    }

    /// The registrations of a descriptor number.
    fn of_fd(&self, fd: c_int) -> impl Iterator<Item = u32> {
        let first = self.memory.by_fd.get(fd as usize).map_or(0, get);
        self.chain(first, |item| &item.next_of_fd)
    }

    /// The registrations of a slot, whatever its generation.
    pub fn of_slot(&self, slot: u32) -> impl Iterator<Item = u32> {
        let first = self.memory.by_slot.get(slot as usize).map_or(0, get);
        self.chain(first, |item| &item.next_of_slot)
    }

    fn chain(&self, first: u32, next: fn(&Item) -> &AtomicU32) -> impl Iterator<Item = u32> {
        let items = self.memory.items;
        std::iter::successors(Some(first), move |index| {
            Some(get(next(&items[*index as usize])))
        })
        .take_while(|index| *index != 0)
    }

    /// Adds a registration. One of a millrace socket is listed as possibly ready. `NOSPC`: there is
    /// no room.
    pub fn insert(&self, fd: c_int, slot: Option<SlotRef>, events: u32, data: u64) -> Result<u32> {
        let head = self.memory.head;
        let by_fd = self.memory.by_fd.get(fd as usize).ok_or(Errno::NOSPC)?;
        let index = match get(&head.free) {
            0 => {
                let index = get(&head.used) + 1;
                if index as usize >= self.memory.items.len() {
                    return Err(Errno::NOSPC);
                }
                put(&head.used, index);
                index
            }
            free => {
                put(&head.free, get(&self.item(free).next_of_fd));
                free
            }
        };
        let item = self.item(index);
        item.fd.store(fd, Ordering::Relaxed);
        put(&item.events, events);
        item.data.store(data, Ordering::Relaxed);
        put(&item.state, get(&item.state) & state::VERSIONS);
        put(&item.next_of_fd, get(by_fd));
        put(by_fd, index);
        item.slot.store(0, Ordering::Relaxed);
        if let Some(slot) = slot {
            self.tie(index, slot);
        }
        Ok(index)
    }

    /// Links the item to the slot of its socket.
    pub fn tie(&self, index: u32, slot: SlotRef) {
        let item = self.item(index);
        if let Some(by_slot) = self.memory.by_slot.get(slot.index as usize) {
            item.slot.store(slot.to_bits(), Ordering::Relaxed);
            put(&item.next_of_slot, get(by_slot));
            put(by_slot, index);
            self.refresh(index);
        }
    }

    /// Removes a registration.
    pub fn remove(&self, index: u32) {
        let item = self.item(index);
        self.unlist(index);
        let fd = item.fd.load(Ordering::Relaxed);
        if let Some(first) = self.memory.by_fd.get(fd as usize) {
            self.unlink(first, index, |item| &item.next_of_fd);
        }
        if let Some(slot) = self.slot_of(index)
            && let Some(first) = self.memory.by_slot.get(slot.index as usize)
        {
            self.unlink(first, index, |item| &item.next_of_slot);
        }
        if get(&item.state) & state::INNER != 0 {
            self.memory.head.inner.fetch_sub(1, Ordering::AcqRel);
        }
        put(&item.state, get(&item.state) & state::VERSIONS);
        let free = &self.memory.head.free;
        put(&item.next_of_fd, get(free));
        put(free, index);
    }

    fn unlink(&self, first: &AtomicU32, index: u32, next: fn(&Item) -> &AtomicU32) {
        let after = get(next(self.item(index)));
        if get(first) == index {
            return put(first, after);
        }
        let before = self
            .chain(get(first), next)
            .find(|before| get(next(self.item(*before))) == index);
        if let Some(before) = before {
            put(next(self.item(before)), after);
        }
    }

    /// The slot of an item; `None` for a nested set or a socket whose stack is not chosen yet.
    pub fn slot_of(&self, index: u32) -> Option<SlotRef> {
        let bits = self.item(index).slot.load(Ordering::Relaxed);
        (bits != 0 && self.inner_id(index).is_none()).then(|| SlotRef::from_bits(bits))
    }

    /// Marks an item as new or changed: the next wait looks at it and reports it if it is ready.
    pub fn refresh(&self, index: u32) {
        let item = self.item(index);
        put(
            &item.state,
            get(&item.state) & !(state::OUT_OWED | state::SPENT) | state::FRESH,
        );
        self.list(index);
    }

    /// Appends an item to the list of those that may be ready, unless it is there already.
    pub fn list(&self, index: u32) {
        let (head, item) = (self.memory.head, self.item(index));
        if get(&item.state) & state::LISTED != 0 {
            return;
        }
        put(&item.state, get(&item.state) | state::LISTED);
        let last = get(&head.last);
        put(&item.listed_before, last);
        put(&item.listed_after, 0);
        if last == 0 {
            put(&head.first, index);
        } else {
            put(&self.item(last).listed_after, index);
        }
        put(&head.last, index);
        put(&head.listed, get(&head.listed) + 1);
    }

    /// Lists the items of all millrace sockets, because hints were lost or the engine has ended.
    pub fn list_all(&self) {
        for index in 1..=get(&self.memory.head.used) {
            let fd = self.item(index).fd.load(Ordering::Relaxed);
            // A free item is in no chain.
            if self.slot_of(index).is_some() && self.of_fd(fd).any(|other| other == index) {
                self.list(index);
            }
        }
    }

    /// Removes an item from the list of those that may be ready.
    pub fn unlist(&self, index: u32) {
        let (head, item) = (self.memory.head, self.item(index));
        if get(&item.state) & state::LISTED == 0 {
            return;
        }
        put(&item.state, get(&item.state) & !state::LISTED);
        let (before, after) = (get(&item.listed_before), get(&item.listed_after));
        match before {
            0 => put(&head.first, after),
            _ => put(&self.item(before).listed_after, after),
        }
        match after {
            0 => put(&head.last, before),
            _ => put(&self.item(after).listed_before, before),
        }
        put(&head.listed, get(&head.listed) - 1);
    }

    /// The number of items that may be ready.
    pub fn listed(&self) -> u32 {
        get(&self.memory.head.listed)
    }

    /// Removes and returns the first item that may be ready.
    pub fn next_listed(&self) -> Option<u32> {
        match get(&self.memory.head.first) {
            0 => None,
            first => {
                self.unlist(first);
                Some(first)
            }
        }
    }
}

impl Item {
    /// The descriptor's number at the time of registration.
    pub fn fd(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// Whether the socket has changed since the last report.
    pub fn has_changed(&self, edge: &Edge) -> bool {
        *edge
            != Edge {
                received: self.seen_received.load(Ordering::Relaxed),
                status: get(&self.seen_status),
                error: get(&self.seen_error),
                wanted: get(&self.seen_wanted),
            }
    }

    /// Records the state that was looked at.
    pub fn has_seen(&self, edge: &Edge) {
        self.seen_received.store(edge.received, Ordering::Relaxed);
        put(&self.seen_status, edge.status);
        put(&self.seen_error, edge.error);
        put(&self.seen_wanted, edge.wanted);
    }
}

#[cfg(all(test, not(millrace_loom)))]
mod tests {
    use super::*;

    fn memory() -> Memory {
        let at = Memory::map(64).unwrap();
        // SAFETY: never unmapped.
        unsafe { Memory::at(at, 64) }
    }

    fn slot(index: u32, generation: u32) -> SlotRef {
        SlotRef { index, generation }
    }

    #[test]
    fn registrations_are_by_descriptor_and_socket() {
        let set = memory().lock().unwrap();
        let one = set.insert(5, Some(slot(1, 1)), 1, 50).unwrap();
        // The same descriptor number, used again for another socket while a duplicate keeps the
        // first open.
        let other = set.insert(5, Some(slot(2, 7)), 1, 51).unwrap();
        let undecided = set.insert(5, None, 1, 52).unwrap();
        let duplicate = set.insert(6, Some(slot(1, 1)), 1, 60).unwrap();
        assert_eq!(set.find(5, Some(slot(1, 1))), Some(one));
        assert_eq!(set.find(5, Some(slot(2, 7))), Some(other));
        assert_eq!(set.find(5, Some(slot(2, 8))), None);
        assert_eq!(set.find(5, None), Some(undecided));
        let mut both: Vec<_> = set.of_slot(1).collect();
        both.sort_unstable();
        assert_eq!(both, [one, duplicate]);
        set.remove(one);
        assert_eq!(set.find(5, Some(slot(1, 1))), None);
        assert_eq!(set.of_slot(1).collect::<Vec<_>>(), [duplicate]);
        assert_eq!(set.find(5, Some(slot(2, 7))), Some(other));
        assert_eq!(
            set.insert(9, Some(slot(3, 1)), 0, 0).unwrap(),
            one,
            "used again"
        );
    }

    #[test]
    fn what_may_be_ready_is_taken_in_turn() {
        let set = memory().lock().unwrap();
        let items: Vec<_> = (0..4)
            .map(|i| set.insert(i, Some(slot(i as u32, 1)), 0, 0).unwrap())
            .collect();
        assert_eq!(set.listed(), 4);
        set.list(items[0]);
        assert_eq!(set.listed(), 4, "once each");
        set.unlist(items[2]);
        assert_eq!(set.next_listed(), Some(items[0]));
        set.list(items[0]);
        let rest: Vec<_> = std::iter::from_fn(|| set.next_listed()).collect();
        assert_eq!(rest, [items[1], items[3], items[0]]);
        set.remove(items[1]);
        set.list_all();
        assert_eq!(set.listed(), 3, "not the one that was removed");
    }

    #[test]
    fn p6_a_set_is_not_waited_for_by_its_own_thread() {
        let memory = memory();
        let set = memory.lock().unwrap();
        assert!(memory.lock().is_none());
        drop(set);
        assert!(memory.lock().is_some());
    }
}
