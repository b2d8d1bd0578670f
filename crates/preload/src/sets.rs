//! The epoll sets of this process.
//!
//! Every set is a kernel epoll descriptor. One that holds millrace sockets has, besides, memory for their interest list and a poller whose
//! doorbells are in the kernel's set; most sets of most programs never get there.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLRDHUP, epoll_event,
};
use millrace_context::KernelWaits;
use rustix::io::Errno;

use crate::engine::{self, Engine};
use crate::epoll_set::{Memory, Set};
use crate::internal::Handle;
use crate::poller::{self, Own};
use crate::socket::{Socket, flag};
use crate::sys::{self, Result};
use crate::table::{self, Entry};

/// Sets of one process that can hold millrace sockets.
const SETS: usize = 4096;

/// In [`Place::users`] while the last of them clears the place.
const CLEARING: u32 = 1 << 31;

/// What the kernel's set reports for the poller's doorbells and for the control socket: values that no program uses by accident.
pub const HINTS: u64 = u64::from_le_bytes(*b"millrac\xf1");
/// See [`HINTS`].
pub const CONTROL: u64 = u64::from_le_bytes(*b"millrac\xf2");

struct Place {
    /// Descriptors of this process that mean the set, and calls that work on it.
    users: AtomicU32,
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
        users: AtomicU32::new(0),
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

/// One fewer. The last one takes the set's memory with it.
pub fn release(index: u32) {
    let users = &PLACES[index as usize].users;
    let last = users
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
            Some(if count == 1 { CLEARING } else { count - 1 })
        })
        .is_ok_and(|before| before == 1);
    if last {
        clear(&PLACES[index as usize]);
        users.store(0, Ordering::Release);
    }
}

/// A set that a call works on: its memory stays while this does, also if another thread closes its last descriptor.
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

/// Holds a set, if anyone has it.
pub fn hold(index: u32) -> Option<Hold> {
    PLACES
        .get(index as usize)?
        .users
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
            (count != 0 && count != CLEARING).then_some(count + 1)
        })
        .is_ok()
        // Not `then_some`: it would make the hold first, and drop it when there is none.
        .then(|| Hold(index))
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

fn clear(place: &Place) {
    let at = place.memory.swap(std::ptr::null_mut(), Ordering::AcqRel);
    let Some(engine) = engine::mapped().filter(|_| !at.is_null()) else {
        return;
    };
    let slots = engine.region.geometry().slots;
    // SAFETY: made by `Memory::new` for this region, and still mapped.
    let memory = unsafe { Memory::at(at, slots) };
    let own = own_poller(place, memory);
    memory.count_processes(-1);
    if let Some(own) = own {
        poller::give_back(engine, own);
    }
    place.bell.store(0, Ordering::Release);
    place.own_bell.store(0, Ordering::Release);
    place.controlled.store(0, Ordering::Release);
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
    epoll: c_int,
    engine: &'static Engine,
    memory: Memory,
    set: &Set<'_>,
) -> Result<Own> {
    let place = &PLACES[index as usize];
    if let Some(own) = own_poller(place, memory) {
        return Ok(own);
    }
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
pub fn watch_engine(index: u32, epoll: c_int, engine: &Engine) {
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

/// Set once any set of this process is waited for itself.
static WAITED_FOR: AtomicBool = AtomicBool::new(false);

/// Whether any is.
pub fn any_is_waited_for() -> bool {
    WAITED_FOR.load(Ordering::Acquire)
}

/// Somebody waits for the set itself: from now on the kernel's set is readable while hints or ready sockets may be there.
pub fn wait_for_set(index: u32, engine: &'static Engine) {
    let Ok(memory) = memory_or_new(index, engine) else {
        return;
    };
    let Some(set) = memory.lock() else {
        return;
    };
    WAITED_FOR.store(true, Ordering::Release);
    if !set.note_waited_for() {
        return;
    }
    let place = &PLACES[index as usize];
    let (Some(own), Some(epoll)) = (own_poller(place, memory), descriptor(index)) else {
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

/// A descriptor that means the set.
pub fn descriptor(index: u32) -> Option<c_int> {
    table::all()
        .find(|(_, entry)| *entry == Entry::Epoll(index))
        .map(|(fd, _)| fd)
}

/// Every set of this process that has memory, held.
pub fn all() -> impl Iterator<Item = (Hold, Memory)> {
    (0..USED.load(Ordering::Acquire)).filter_map(|index| {
        let held = hold(index)?;
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
    for index in 0..USED.load(Ordering::Acquire) {
        let descriptors = table::all()
            .filter(|(_, entry)| *entry == Entry::Epoll(index))
            .count() as u32;
        let place = &PLACES[index as usize];
        place.kernel_waits.forget();
        // One more while it is looked at, so that a set without descriptors is cleared.
        PLACES[index as usize]
            .users
            .store(descriptors + 1, Ordering::Release);
        release(index);
    }
}

/// The last descriptor of a socket in this process has been closed: the sets forget it, unless another process may hold both the set and the socket. Such a set
/// reports it until the engine says that nobody holds it any more.
pub fn forget(socket: &Socket) {
    for (held, memory) in all() {
        let Some(set) = memory.lock() else {
            continue;
        };
        if set.is_shared() && socket.has(flag::SHARED) {
            continue;
        }
        let mut found = false;
        while let Some(item) = set
            .of_slot(socket.reference.index)
            .find(|item| set.slot_of(*item) == Some(socket.reference))
        {
            set.remove(item);
            found = true;
        }
        // The engine forgets who watches when a socket is closed; it is not if another process holds it.
        if found
            && socket.has(flag::SHARED)
            && let Some(own) = poller(held.index())
        {
            poller::unwatch(socket.engine, own.index, socket.reference);
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
        if let Some(epoll) = descriptor(held.index()).filter(|_| noted) {
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
            let Some(epoll) = descriptor(held.index()) else {
                continue;
            };
            // A set that has no room or no poller any more has lost the socket; its calls fail from now on.
            let place = (held.index(), epoll);
            let _ = crate::epoll::add_locked(&set, memory, place, fd, socket, events, data);
        }
    }
}

/// Before a fork: what two processes share of a set is made, so that each of them sees what the other one puts in.
pub fn share(engine: &'static Engine) {
    for (epoll, entry) in table::all() {
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
            let _ = poller_or_new(index, epoll, engine, memory, &set);
        }
    }
}

/// Before a fork: the child has every set too. After one that failed: it has not.
pub fn count_processes(by: i32) {
    for (_held, memory) in all() {
        memory.count_processes(by);
    }
}
