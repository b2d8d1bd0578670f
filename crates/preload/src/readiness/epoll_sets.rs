//! The epoll sets of this process.
//!
//! Every set is a kernel epoll descriptor. A set that holds millrace sockets also has memory for
//! their interest list, and a poller whose doorbells are in the kernel's set. Most sets of most
//! programs have neither.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLRDHUP, epoll_event,
};
use millrace_context::{KernelWaits, SlotRef};
use rustix::io::Errno;

use crate::engine::{self, Engine};
use crate::fd::internal::{self, Handle};
use crate::fd::table::{self, Entry};
use crate::readiness::interest_list::{Memory, Set};
use crate::readiness::poller::{self, Own};
use crate::sys::robust_lock::{self, Guard, Rank};
use crate::sys::{self, Result};

/// The most sets of one process that can hold millrace sockets.
const SETS: usize = if cfg!(millrace_loom) { 1 } else { 4096 };

/// In [`Place::users`]: one [`Peek`].
const PEEK: u64 = 1 << 32;
/// In [`Place::users`]: the last user clears the place.
const CLEARING: u64 = 1 << 63;

/// How many users have the set open.
fn openers(users: u64) -> u32 {
    users as u32
}

/// The value that the kernel's set reports for the poller's doorbells. No program uses it by
/// accident, nor [`CONTROL`].
pub const HINTS: u64 = u64::from_le_bytes(*b"millrac\xf1");
/// The value that the kernel's set reports for the control socket.
pub const CONTROL: u64 = u64::from_le_bytes(*b"millrac\xf2");
/// The value that the kernel's set reports for a nested set. Its low half has the item and version
/// of the registration.
const INNER: u64 = u64::from_le_bytes(*b"\0\0\0\0mil\xf3");

/// The mark of a nested set, made of the registration's item and version.
pub fn inner_mark(item: u32, version: u32) -> u64 {
    INNER | u64::from(version << 24 | item)
}

/// The item and version of a nested set's mark.
pub fn marked_item(mark: u64) -> Option<(u32, u32)> {
    let low = mark as u32;
    (mark & !u64::from(u32::MAX) == INNER).then_some((low & 0x00ff_ffff, low >> 24))
}

struct Place {
    /// The users that have the set open (descriptors of this process, and calls at work), plus
    /// [`PEEK`] for each user that only looks at it.
    users: AtomicU64,
    /// The set's own number, which is the same in every process that has the set.
    id: AtomicU64,
    /// Handle plus 1 of a descriptor of the kernel's set. It stays valid whatever happens to the
    /// program's numbers.
    kernel: AtomicU32,
    memory: AtomicPtr<c_void>,
    /// Handle plus 1 of the doorbell that the engine rings.
    bell: AtomicU32,
    /// Handle plus 1 of the doorbell that this program rings.
    own_bell: AtomicU32,
    /// The process that has put its control socket into the kernel's set.
    controlled: AtomicU32,
    /// 1 once the set has a descriptor of the kernel, or one whose stack is not chosen yet.
    mixed: AtomicU32,
    /// Threads that wait in the kernel's set since before the set had a poller.
    kernel_waits: KernelWaits,
}

/// A free place.
macro_rules! place {
    () => {
        Place {
            users: AtomicU64::new(0),
            id: AtomicU64::new(0),
            kernel: AtomicU32::new(0),
            memory: AtomicPtr::new(std::ptr::null_mut()),
            bell: AtomicU32::new(0),
            own_bell: AtomicU32::new(0),
            controlled: AtomicU32::new(0),
            mixed: AtomicU32::new(0),
            kernel_waits: KernelWaits::new(),
        }
    };
}

#[cfg(not(millrace_loom))]
static PLACES: [Place; SETS] = [const { place!() }; SETS];
// The checker's atomics are not made in a constant.
#[cfg(millrace_loom)]
loom::lazy_static! {
    static ref PLACES: [Place; SETS] = [place!()];
}

/// The number of places that were ever taken.
static USED: AtomicU32 = AtomicU32::new(0);

/// The number of sets that this process and its parents have made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Held while the table and the kernel change what a number means, if the number is a set's before
/// or after.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// Until this is dropped, no number becomes a set's or stops being one. `None`: this is a signal
/// handler in the middle of such a change.
pub fn numbers() -> Option<Guard<'static>> {
    robust_lock::take(&NUMBERS, Rank::Numbers)
}

/// A number that the table gives to the kernel may still be a set's in the kernel. Waits until the
/// thread that closes the set is done.
pub fn settle() {
    if NUMBERS.load(Ordering::Acquire) != 0 {
        drop(numbers());
    }
}

/// Registers a new kernel epoll descriptor as a set. If the list is full, the descriptor stays the
/// kernel's.
pub fn register(fd: c_int) {
    if !table::holds(fd) {
        return;
    }
    let free = PLACES.iter().position(|place| {
        place
            .users
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    });
    if let Some(index) = free {
        PLACES[index].mixed.store(0, Ordering::Relaxed);
        let made = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        let id = u64::from(sys::getpid()) << 32 | u64::from(made);
        PLACES[index].id.store(id, Ordering::Relaxed);
        USED.fetch_max(index as u32 + 1, Ordering::AcqRel);
        table::set(fd, Entry::Epoll(index as u32));
    }
}

/// Notes that the set has a descriptor of the kernel.
pub fn note_mixed(index: u32) {
    PLACES[index as usize].mixed.store(1, Ordering::Relaxed);
}

/// Whether the kernel may have events of its own for the set.
pub fn is_mixed(index: u32) -> bool {
    PLACES[index as usize].mixed.load(Ordering::Relaxed) != 0
}

/// Called before this process closes a set that callers wait for and another process has too.
static BEFORE_CLOSE: OnceLock<fn(u32, &'static Engine)> = OnceLock::new();

/// Sets the function that shows whether such a set is ready.
pub fn before_close(show: fn(u32, &'static Engine)) {
    let _ = BEFORE_CLOSE.set(show);
}

/// Drops a user that has the set open. The last one closes the set.
pub fn release(index: u32) {
    let place = &PLACES[index as usize];
    let users = &place.users;
    let before = users.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
        Some(match openers(count) {
            // Nobody can open the set again while this user still looks at it.
            1 => count - 1 + PEEK,
            _ => count - 1,
        })
    });
    if before.is_ok_and(|before| openers(before) == 1) {
        // Another process may keep the set and leave its rings as they are. This process cannot
        // look into the set from here on.
        if let (Some(engine), Some(memory), Some(before)) =
            (engine::mapped(), memory(index), BEFORE_CLOSE.get())
            && memory.is_waited_for()
            && memory.is_shared()
        {
            before(index, engine);
        }
        // From here on the kernel does not report the set in other sets.
        close_kernel(place);
        release_peek(place);
    }
}

/// Drops a user that looks at the set. The last user frees the set's memory.
fn release_peek(place: &Place) {
    let before = place
        .users
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
            Some(if count == PEEK {
                CLEARING
            } else {
                count - PEEK
            })
        });
    if before == Ok(PEEK) {
        clear(place);
        place.users.store(0, Ordering::Release);
    }
}

/// A set that a call works on. It stays open even if another thread closes its last descriptor.
pub struct Hold(u32);

impl Hold {
    /// The set's place in the process's list.
    pub fn index(&self) -> u32 {
        self.0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        release(self.0);
    }
}

/// A set that is only looked at. Its memory stays, but others may close it.
pub struct Peek(u32);

impl Peek {
    /// The set's place in the process's list.
    pub fn index(&self) -> u32 {
        self.0
    }
}

impl Drop for Peek {
    fn drop(&mut self) {
        release_peek(&PLACES[self.0 as usize]);
    }
}

/// Counts one more user, if the set is open.
fn join(index: u32, one: u64) -> bool {
    PLACES.get(index as usize).is_some_and(|place| {
        place
            .users
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
                (openers(count) != 0).then_some(count + one)
            })
            .is_ok()
    })
}

/// Takes a [`Hold`] of a set, if the set is open.
pub fn hold(index: u32) -> Option<Hold> {
    // `then_some` would make the hold first, and drop it when the set is closed.
    join(index, 1).then(|| Hold(index))
}

fn peek(index: u32) -> Option<Peek> {
    join(index, PEEK).then(|| Peek(index))
}

/// Takes a [`Hold`] of the set that a descriptor means.
pub fn hold_descriptor(fd: c_int) -> Option<Hold> {
    let entry = table::get(fd);
    let Entry::Epoll(index) = entry else {
        return None;
    };
    // Another thread may have closed the set and another set taken its place.
    hold(index).filter(|_| table::get(fd) == entry)
}

/// A set's own number.
pub fn id(index: u32) -> u64 {
    PLACES[index as usize].id.load(Ordering::Relaxed)
}

/// The set with this own number, if this process has it open.
pub fn find(own: u64) -> Option<Peek> {
    let used = USED.load(Ordering::Acquire);
    let index = (0..used).find(|index| id(*index) == own)?;
    peek(index).filter(|_| id(index) == own)
}

/// A descriptor of the kernel's set; `None` before it exists. The caller holds the set.
pub fn kernel_fd(index: u32) -> Option<c_int> {
    let bits = &PLACES[index as usize].kernel;
    let bits = bits.load(Ordering::Acquire).checked_sub(1)?;
    Some(Handle::from_bits(bits).fd())
}

/// A descriptor of the kernel's set, made if needed. `BADF`: the program's last descriptor of the
/// set has just been closed.
pub fn kernel_fd_or_new(index: u32) -> Result<c_int> {
    if let Some(fd) = kernel_fd(index) {
        return Ok(fd);
    }
    let _numbers = numbers();
    if let Some(fd) = kernel_fd(index) {
        return Ok(fd);
    }
    let _lock = internal::lock();
    let handle = internal::copy(descriptor(index).ok_or(Errno::BADF)?)?;
    let place = &PLACES[index as usize];
    place.kernel.store(handle.to_bits() + 1, Ordering::Release);
    Ok(handle.fd())
}

fn close_kernel(place: &Place) {
    let _lock = internal::lock();
    if let Some(bits) = place.kernel.swap(0, Ordering::AcqRel).checked_sub(1) {
        internal::release(Handle::from_bits(bits));
    }
}

fn clear(place: &Place) {
    place.id.store(0, Ordering::Relaxed);
    place.controlled.store(0, Ordering::Release);
    let Some(engine) = engine::mapped() else {
        return;
    };
    let slots = engine.region.geometry().slots;
    let lock = internal::lock();
    let at = place.memory.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if at.is_null() {
        return;
    }
    // SAFETY: made by `Memory::new` for this region, and still mapped.
    let memory = unsafe { Memory::at(at, slots) };
    let own = own_poller(place, memory);
    memory.count_processes(-1);
    if let Some(own) = own {
        own.close_bells();
    }
    place.bell.store(0, Ordering::Release);
    place.own_bell.store(0, Ordering::Release);
    drop(lock);
    if let Some(own) = own {
        poller::say_gone(engine, own.index);
    }
    // SAFETY: no descriptor and no call has the set any more.
    unsafe { Memory::unmap(at, slots) };
}

/// A set's memory, if it has any. The caller holds the set, here and in the functions below.
pub fn memory(index: u32) -> Option<Memory> {
    let at = PLACES.get(index as usize)?.memory.load(Ordering::Acquire);
    if at.is_null() {
        return None;
    }
    let slots = engine::mapped()?.region.geometry().slots;
    // SAFETY: made by `Memory::new` for this region; it stays while the set is held.
    Some(unsafe { Memory::at(at, slots) })
}

/// A set's memory, made if needed.
pub fn memory_or_new(index: u32, engine: &Engine) -> Result<Memory> {
    let slots = engine.region.geometry().slots;
    let place = &PLACES[index as usize];
    if place.memory.load(Ordering::Acquire).is_null() {
        kernel_fd_or_new(index)?;
        let _lock = internal::lock();
        let at = Memory::map(slots)?;
        let empty = std::ptr::null_mut();
        if place
            .memory
            .compare_exchange(empty, at, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            // SAFETY: another thread was first; nobody has seen ours.
            unsafe { Memory::unmap(at, slots) };
        }
    }
    memory(index).ok_or(Errno::NOMEM)
}

fn own_poller(place: &Place, memory: Memory) -> Option<Own> {
    let handle = |bits: &AtomicU32| {
        let bits = bits.load(Ordering::Acquire).checked_sub(1)?;
        Some(Handle::from_bits(bits))
    };
    Some(Own {
        index: memory.poller()?,
        bell: handle(&place.bell)?,
        own_bell: handle(&place.own_bell),
    })
}

/// A set's poller, if it has one.
pub fn poller(index: u32) -> Option<Own> {
    own_poller(&PLACES[index as usize], memory(index)?)
}

/// A set's poller, made and put into the kernel's set if needed. The set is locked.
pub fn poller_or_new(
    index: u32,
    engine: &'static Engine,
    memory: Memory,
    set: &Set<'_>,
) -> Result<Own> {
    let place = &PLACES[index as usize];
    if let Some(own) = own_poller(place, memory) {
        return Ok(own);
    }
    let epoll = kernel_fd_or_new(index)?;
    let own = poller::make(engine, true)?;
    let edge = if memory.is_waited_for() { 0 } else { EPOLLET };
    for bell in own.bells() {
        let mut event = epoll_event {
            events: (EPOLLIN | edge) as u32,
            u64: HINTS,
        };
        if let Err(errno) = sys::epoll_ctl(epoll, EPOLL_CTL_ADD, bell, &mut event) {
            // Closing the doorbells removes them from the kernel's set.
            poller::give_back(engine, own);
            return Err(errno);
        }
    }
    let own_bits = own.own_bell.map_or(0, |bell| bell.to_bits() + 1);
    place.own_bell.store(own_bits, Ordering::Release);
    place.bell.store(own.bell.to_bits() + 1, Ordering::Release);
    set.set_poller(own.index);
    if let Some((shared, _)) = poller::shared(engine, own.index) {
        if memory.is_waited_for() {
            shared.sleeps_always();
        }
        if place.kernel_waits.count_in(shared) {
            own.ring();
        }
    }
    Ok(own)
}

/// Counts a thread that is about to wait in the kernel for a set without a poller, until dropped.
pub struct KernelWait(u32);

impl KernelWait {
    /// `None`: the set has a poller by now. The caller holds the set.
    pub fn begin(index: u32) -> Option<KernelWait> {
        let wait = KernelWait(index);
        PLACES[index as usize].kernel_waits.begin();
        match poller(index) {
            None => Some(wait),
            Some(_) => None,
        }
    }
}

impl Drop for KernelWait {
    fn drop(&mut self) {
        PLACES[self.0 as usize].kernel_waits.end(|| {
            let own = poller(self.0)?;
            poller::shared(engine::mapped()?, own.index).map(|(shared, _)| shared)
        });
    }
}

/// Makes the kernel's set wake its waiters when the engine ends, once for each process.
pub fn watch_engine(index: u32, engine: &Engine) {
    let Some(epoll) = kernel_fd(index) else {
        return;
    };
    let controlled = &PLACES[index as usize].controlled;
    let pid = sys::getpid();
    if controlled.swap(pid, Ordering::AcqRel) == pid {
        return;
    }
    let mut event = epoll_event {
        events: (EPOLLRDHUP | EPOLLET) as u32,
        u64: CONTROL,
    };
    // Without it, the next call that needs the engine notices that the engine is gone.
    let _ = sys::epoll_ctl(epoll, EPOLL_CTL_ADD, engine.control_fd(), &mut event);
}

/// Whether this process has put its control socket into the kernel's set.
pub fn watches_engine(index: u32) -> bool {
    PLACES[index as usize].controlled.load(Ordering::Relaxed) != 0
}

/// Makes the doorbells of a set level-triggered in the kernel's set, for callers that wait for the
/// set itself. Returns false if they are already, or if the set has no doorbells yet.
pub fn show_rings(index: u32, engine: &'static Engine, memory: Memory, set: &Set<'_>) -> bool {
    if !set.note_waited_for() {
        return false;
    }
    let place = &PLACES[index as usize];
    let (Some(own), Some(epoll)) = (own_poller(place, memory), kernel_fd(index)) else {
        return false;
    };
    for bell in own.bells() {
        let mut event = epoll_event {
            events: EPOLLIN as u32,
            u64: HINTS,
        };
        let _ = sys::epoll_ctl(epoll, EPOLL_CTL_MOD, bell, &mut event);
    }
    if let Some((shared, _)) = poller::shared(engine, own.index) {
        shared.sleeps_always();
    }
    true
}

/// A number of the program that means the set.
fn descriptor(index: u32) -> Option<c_int> {
    table::all()
        .find(|(_, entry)| *entry == Entry::Epoll(index))
        .map(|(fd, _)| fd)
}

/// Every set of this process that has memory.
pub fn all() -> impl Iterator<Item = (Peek, Memory)> {
    (0..USED.load(Ordering::Acquire)).filter_map(|index| {
        let held = peek(index)?;
        let memory = memory(index)?;
        Some((held, memory))
    })
}

/// Whether another process has one of the sets too.
pub fn any_is_shared() -> bool {
    all().any(|(_held, memory)| memory.is_shared())
}

/// In the child of a fork: drops the references of calls by the parent's other threads.
pub fn forked() {
    NUMBERS.store(0, Ordering::Relaxed);
    for index in 0..USED.load(Ordering::Acquire) {
        let descriptors = table::all()
            .filter(|(_, entry)| *entry == Entry::Epoll(index))
            .count() as u64;
        let place = &PLACES[index as usize];
        place.kernel_waits.forget();
        // One user more while the set is looked at, so that a set without descriptors is cleared.
        PLACES[index as usize]
            .users
            .store(descriptors + 1, Ordering::Release);
        release(index);
    }
}

/// The last descriptor of a socket in this process has been closed: the sets forget the socket,
/// unless another process may hold it. Then they report it until the engine has no holder of it.
pub fn forget(slot: SlotRef, is_shared: bool) {
    if is_shared {
        return;
    }
    // The engine forgets the watchers of a socket when the socket is closed.
    for (_held, memory) in all() {
        let Some(set) = memory.lock() else {
            continue;
        };
        while let Some(item) = set
            .of_slot(slot.index)
            .find(|item| set.slot_of(*item) == Some(slot))
        {
            set.remove(item);
        }
    }
}

/// The socket behind a descriptor stays the kernel's, or is closed: the sets forget what they noted
/// of it.
pub fn forget_undecided(fd: c_int) {
    for (_held, memory) in all() {
        if let Some(set) = memory.lock() {
            while let Some(item) = set.find(fd, None) {
                set.remove(item);
            }
        }
    }
}

/// A kernel socket is about to move to millrace: removes it from the kernel's sets.
pub fn leave_kernel(fd: c_int) {
    for (held, memory) in all() {
        let noted = memory
            .lock()
            .is_some_and(|set| set.find(fd, None).is_some());
        if let Some(epoll) = kernel_fd(held.index()).filter(|_| noted) {
            let mut event = epoll_event { events: 0, u64: 0 };
            let _ = sys::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, &mut event);
        }
    }
}

/// Before a fork: makes the memory and poller of each set, so that parent and child see each
/// other's changes.
pub fn share(engine: &'static Engine) {
    for (_, entry) in table::all() {
        let Entry::Epoll(index) = entry else {
            continue;
        };
        let Some(_held) = hold(index) else {
            continue;
        };
        if let Ok(memory) = memory_or_new(index, engine)
            && let Some(set) = memory.lock()
        {
            // Without a poller, parent and child each go on with a set of their own.
            let _ = poller_or_new(index, engine, memory, &set);
        }
    }
}

/// Counts one process more (before a fork), or one fewer (after a fork that failed), in every set
/// that has memory. The child gets the memory of a set that is about to be closed too. The caller
/// holds [`internal::lock`].
pub fn count_processes(by: i32) {
    let Some(engine) = engine::mapped() else {
        return;
    };
    let slots = engine.region.geometry().slots;
    let used = USED.load(Ordering::Acquire) as usize;
    for place in &PLACES[..used] {
        let at = place.memory.load(Ordering::Acquire);
        if !at.is_null() {
            // SAFETY: made by `Memory::new` for this region. Whoever unmaps it has taken the lock
            // before.
            unsafe { Memory::at(at, slots) }.count_processes(by);
        }
    }
}
