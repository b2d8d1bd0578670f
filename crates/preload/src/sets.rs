//! The epoll sets of this process.
//!
//! Every set is a kernel epoll descriptor. One that holds millrace sockets has, besides, memory for their interest list and a poller whose
//! doorbells are in the kernel's set; most sets of most programs never get there.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLRDHUP, epoll_event,
};
use millrace_context::KernelWaits;
use rustix::io::Errno;

use crate::engine::{self, Engine};
use crate::epoll_set::{Memory, Set};
use crate::internal::{self, Handle};
use crate::lock::{self, Guard, Rank};
use crate::poller::{self, Own};
use crate::socket::{Socket, flag};
use crate::sys::{self, Result};
use crate::table::{self, Entry};

/// Sets of one process that can hold millrace sockets.
const SETS: usize = 4096;

/// In [`Place::users`], one of those who only look at the set.
const LOOK: u64 = 1 << 32;
/// In [`Place::users`] while the last of them clears the place.
const CLEARING: u64 = 1 << 63;

/// How many have the set open, of a count of its users.
fn openers(users: u64) -> u32 {
    users as u32
}

/// What the kernel's set reports for the poller's doorbells and for the control socket: values that no program uses by accident.
pub const HINTS: u64 = u64::from_le_bytes(*b"millrac\xf1");
/// See [`HINTS`].
pub const CONTROL: u64 = u64::from_le_bytes(*b"millrac\xf2");
/// What it reports for another set that is in it: with the registration's item in the low half.
const INNER: u64 = u64::from_le_bytes(*b"\0\0\0\0mil\xf3");

/// The mark of another set that is in one, by the registration's item and version.
pub fn inner_mark(item: u32, version: u32) -> u64 {
    INNER | u64::from(version << 24 | item)
}

/// The item and version of such a mark.
pub fn marked_item(mark: u64) -> Option<(u32, u32)> {
    let low = mark as u32;
    (mark & !u64::from(u32::MAX) == INNER).then_some((low & 0x00ff_ffff, low >> 24))
}

struct Place {
    /// Descriptors of this process that mean the set, and calls that work on it, which have it open; and those who look at it ([`LOOK`]).
    users: AtomicU64,
    /// The set's own number, in every process that has it.
    id: AtomicU64,
    /// Handle of a descriptor of the kernel's set plus 1, which means it whatever becomes of the program's numbers.
    kernel: AtomicU32,
    memory: AtomicPtr<c_void>,
    /// Handle of what the engine rings plus 1.
    bell: AtomicU32,
    /// Handle of what this program rings plus 1.
    own_bell: AtomicU32,
    /// Process that has put its control socket into the kernel's set.
    controlled: AtomicU32,
    /// 1 once a descriptor of the kernel's has been put in, or one whose stack is not decided.
    mixed: AtomicU32,
    /// Threads in the kernel's own wait since before the set had a poller.
    kernel_waits: KernelWaits,
}

static PLACES: [Place; SETS] = [const {
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
}; SETS];

/// Places that have ever been taken.
static USED: AtomicU32 = AtomicU32::new(0);

/// Sets that this process has made, and its parents before it.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Held while the table and the kernel change what a number means that is a set's before or after.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// No number becomes a set's, or stops being one, until this is dropped. None in a signal handler above such a change.
pub fn numbers() -> Option<Guard<'static>> {
    lock::take(&NUMBERS, Rank::Numbers)
}

/// A number that is the kernel's in the table may still be a set's to the kernel: waits until the thread that closes it is done.
pub fn settle() {
    if NUMBERS.load(Ordering::Acquire) != 0 {
        drop(numbers());
    }
}

/// A new kernel epoll descriptor is a set. Without room for it in the list it stays the kernel's.
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

/// The set has a descriptor of the kernel's.
pub fn note_mixed(index: u32) {
    PLACES[index as usize].mixed.store(1, Ordering::Relaxed);
}

/// Whether the kernel may have events of its own for the set.
pub fn is_mixed(index: u32) -> bool {
    PLACES[index as usize].mixed.load(Ordering::Relaxed) != 0
}

/// One fewer has the set open. With the last one it is closed.
pub fn release(index: u32) {
    let place = &PLACES[index as usize];
    let users = &place.users;
    let before = users.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
        Some(match openers(count) {
            // Nobody opens it again while this one still looks at it.
            1 => count - 1 + LOOK,
            _ => count - 1,
        })
    });
    if before.is_ok_and(|before| openers(before) == 1) {
        // A process that keeps it may leave rings as they are, and here nobody can look into it any more.
        if let (Some(engine), Some(memory)) = (engine::mapped(), memory(index))
            && memory.is_waited_for()
            && memory.is_shared()
        {
            crate::epoll::show(index, engine);
        }
        // From here on the kernel does not report it where it is in other sets.
        close_kernel(place);
        look_away(place);
    }
}

/// One fewer looks at the set. The last one takes its memory with it.
fn look_away(place: &Place) {
    let before = place
        .users
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
            Some(if count == LOOK {
                CLEARING
            } else {
                count - LOOK
            })
        });
    if before == Ok(LOOK) {
        clear(place);
        place.users.store(0, Ordering::Release);
    }
}

/// A set that a call works on: it stays open, also if another thread closes its last descriptor.
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

/// A set that somebody looks at: its memory stays, but whether it is open others decide.
pub struct Look(u32);

impl Look {
    /// The set's place in the process's list.
    pub fn index(&self) -> u32 {
        self.0
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        look_away(&PLACES[self.0 as usize]);
    }
}

/// Counts one user more, if anyone has the set open.
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

/// Holds a set, if anyone has it open.
pub fn hold(index: u32) -> Option<Hold> {
    // Not `then_some`: it would make the hold first, and drop it when there is none.
    join(index, 1).then(|| Hold(index))
}

fn look(index: u32) -> Option<Look> {
    join(index, LOOK).then(|| Look(index))
}

/// Holds the set that a descriptor means.
pub fn hold_descriptor(fd: c_int) -> Option<Hold> {
    let entry = table::get(fd);
    let Entry::Epoll(index) = entry else {
        return None;
    };
    // It may have been closed, and its place taken by another, between the look and the hold.
    hold(index).filter(|_| table::get(fd) == entry)
}

/// A set's own number.
pub fn id(index: u32) -> u64 {
    PLACES[index as usize].id.load(Ordering::Relaxed)
}

/// The set with this number of its own, if this process has it open.
pub fn find(own: u64) -> Option<Look> {
    let used = USED.load(Ordering::Acquire);
    let index = (0..used).find(|index| id(*index) == own)?;
    look(index).filter(|_| id(index) == own)
}

/// A descriptor of the kernel's set, which the caller holds; none before there is one.
pub fn kernel_fd(index: u32) -> Option<c_int> {
    let bits = &PLACES[index as usize].kernel;
    let bits = bits.load(Ordering::Acquire).checked_sub(1)?;
    Some(Handle::from_bits(bits).fd())
}

/// The same, made if need be. `BADF` if the last of the program's descriptors has just been closed.
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

/// A set's memory, if it has any. The caller holds the set, here and in what follows.
pub fn memory(index: u32) -> Option<Memory> {
    let at = PLACES.get(index as usize)?.memory.load(Ordering::Acquire);
    if at.is_null() {
        return None;
    }
    let slots = engine::mapped()?.region.geometry().slots;
    // SAFETY: made by `Memory::new` for this region; it stays while the set is held.
    Some(unsafe { Memory::at(at, slots) })
}

/// A set's memory, made if need be.
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

/// A set's poller, made and put into the kernel's set if need be. The set is locked.
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
            // Closed, they leave the kernel's set.
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

/// A thread is about to wait in the kernel for a set without a poller, counted until this is dropped.
pub struct KernelWait(u32);

impl KernelWait {
    /// None if the set, which the caller holds, has a poller by now.
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

/// Lets the kernel's set wake its waiters when the engine ends; once for each process.
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
    // Without it the loss of the engine is noticed by the next call that needs it.
    let _ = sys::epoll_ctl(epoll, EPOLL_CTL_ADD, engine.control_fd(), &mut event);
}

/// Whether this process has put its control socket into the kernel's set.
pub fn watches_engine(index: u32) -> bool {
    PLACES[index as usize].controlled.load(Ordering::Relaxed) != 0
}

/// Somebody waits for the set itself: from now on the kernel's set is readable while hints or ready sockets may be there.
pub fn wait_for_set(index: u32, engine: &'static Engine) {
    let Ok(memory) = memory_or_new(index, engine) else {
        return;
    };
    let Some(set) = memory.lock() else {
        return;
    };
    if !set.note_waited_for() {
        return;
    }
    let place = &PLACES[index as usize];
    let (Some(own), Some(epoll)) = (own_poller(place, memory), kernel_fd(index)) else {
        return;
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
    // What is there already shows at once.
    drop(set);
    crate::epoll::show(index, engine);
}

/// A number of the program's that means the set.
fn descriptor(index: u32) -> Option<c_int> {
    table::all()
        .find(|(_, entry)| *entry == Entry::Epoll(index))
        .map(|(fd, _)| fd)
}

/// Every set of this process that has memory.
pub fn all() -> impl Iterator<Item = (Look, Memory)> {
    (0..USED.load(Ordering::Acquire)).filter_map(|index| {
        let held = look(index)?;
        let memory = memory(index)?;
        Some((held, memory))
    })
}

/// Whether another process has one of them too.
pub fn any_is_shared() -> bool {
    all().any(|(_held, memory)| memory.is_shared())
}

/// In the child of a fork: calls of the parent's other threads do not go on here.
pub fn forked() {
    NUMBERS.store(0, Ordering::Relaxed);
    for index in 0..USED.load(Ordering::Acquire) {
        let descriptors = table::all()
            .filter(|(_, entry)| *entry == Entry::Epoll(index))
            .count() as u64;
        let place = &PLACES[index as usize];
        place.kernel_waits.forget();
        // One more while it is looked at, so that a set without descriptors is cleared.
        PLACES[index as usize]
            .users
            .store(descriptors + 1, Ordering::Release);
        release(index);
    }
}

/// The last descriptor of a socket in this process has been closed: the sets forget it, unless another process may hold the socket. Then they report it until the
/// engine says that nobody holds it any more.
pub fn forget(socket: &Socket) {
    if socket.has(flag::SHARED) {
        return;
    }
    // The engine forgets who watches when a socket is closed.
    for (_held, memory) in all() {
        let Some(set) = memory.lock() else {
            continue;
        };
        while let Some(item) = set
            .of_slot(socket.reference.index)
            .find(|item| set.slot_of(*item) == Some(socket.reference))
        {
            set.remove(item);
        }
    }
}

/// A descriptor's kernel socket turns out to be the kernel's, or is closed: the sets forget what they noted of it.
pub fn forget_undecided(fd: c_int) {
    for (_held, memory) in all() {
        if let Some(set) = memory.lock() {
            while let Some(item) = set.find(fd, None) {
                set.remove(item);
            }
        }
    }
}

/// A descriptor's kernel socket is about to become a millrace socket: the kernel's sets let go of it.
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

/// It has become one: what was registered for the kernel socket is registered for it.
pub fn enter(fd: c_int, socket: &Socket) {
    for (held, memory) in all() {
        let Some(set) = memory.lock() else {
            continue;
        };
        while let Some(item) = set.find(fd, None) {
            let (events, data) = {
                let item = set.item(item);
                (
                    item.events.load(Ordering::Relaxed),
                    item.data.load(Ordering::Relaxed),
                )
            };
            set.remove(item);
            // A set that has no room or no poller any more has lost the socket; its calls fail from now on.
            let _ = crate::epoll::add_locked(&set, memory, held.index(), fd, socket, events, data);
        }
    }
}

/// Before a fork: what two processes share of a set is made, so that each of them sees what the other one puts in.
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
            // Without one the set stays what it is to each of them.
            let _ = poller_or_new(index, engine, memory, &set);
        }
    }
}

/// Before a fork: the child has the memory of every set too, also of one that is about to be closed. After one that failed: it has not. [`internal::lock`] is held.
pub fn count_processes(by: i32) {
    let Some(engine) = engine::mapped() else {
        return;
    };
    let slots = engine.region.geometry().slots;
    let used = USED.load(Ordering::Acquire) as usize;
    for place in &PLACES[..used] {
        let at = place.memory.load(Ordering::Acquire);
        if !at.is_null() {
            // SAFETY: made by `Memory::new` for this region; it is unmapped after the lock has been held.
            unsafe { Memory::at(at, slots) }.count_processes(by);
        }
    }
}
