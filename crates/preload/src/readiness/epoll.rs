//! `epoll_ctl` and `epoll_wait` on sets that hold millrace sockets.

use std::ffi::c_int;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use millrace_context::SlotRef;
use millrace_context::sync::{Ordering, fence};
use rustix::io::Errno;

use crate::engine::batch;
use crate::engine::{self, Engine};
use crate::fd::refcount;
use crate::readiness::epoll_sets::KernelWait;
use crate::readiness::interest_list::{Memory, Set};
use crate::readiness::ready_list::{has_ready, report, show_locked, take_hints};
use crate::readiness::sleep::Call;
use crate::readiness::{bits, epoll_sets, nested_epoll, poller};
use crate::socket::{Socket, flag};
use crate::sys::{self, Result};

/// How often the kernel's set is read again when it has returned marks only.
const ATTEMPTS: usize = 16;

/// The bits that may accompany EPOLLEXCLUSIVE.
const WITH_EXCLUSIVE: u32 =
    bits::IN | bits::OUT | bits::ERR | bits::HUP | bits::EXCLUSIVE | bits::EDGE | 1 << 29;

/// Does `epoll_ctl` for a millrace socket.
pub fn control(
    index: u32,
    operation: c_int,
    fd: c_int,
    slot: SlotRef,
    event: Option<epoll_event>,
) -> Result<()> {
    let socket = Socket::get(fd, slot)?;
    let slot = socket.reference;
    let memory = epoll_sets::memory_or_new(index, socket.engine)?;
    // `None`: this is a signal handler in the middle of another call on the set.
    let set = memory.lock().ok_or(Errno::NOMEM)?;
    let found = set.find(fd, Some(slot));
    match operation {
        EPOLL_CTL_ADD => {
            let event = event.ok_or(Errno::FAULT)?;
            let (events, data) = (event.events, event.u64);
            if events & bits::EXCLUSIVE != 0 && events & !WITH_EXCLUSIVE != 0 {
                return Err(Errno::INVAL);
            }
            if found.is_some() {
                return Err(Errno::EXIST);
            }
            forget_stale(&set, slot);
            add_locked(&set, memory, index, fd, &socket, events, data)
        }
        EPOLL_CTL_MOD => {
            let event = event.ok_or(Errno::FAULT)?;
            let (events, data) = (event.events, event.u64);
            let found = found.ok_or(Errno::NOENT)?;
            let item = set.item(found);
            let exclusive = (events | item.events.load(Ordering::Relaxed)) & bits::EXCLUSIVE;
            if exclusive != 0 {
                return Err(Errno::INVAL);
            }
            item.events.store(events, Ordering::Relaxed);
            item.data.store(data, Ordering::Relaxed);
            set.refresh(found);
            wake_sleepers(&set, memory, index, socket.engine);
            Ok(())
        }
        EPOLL_CTL_DEL => {
            set.remove(found.ok_or(Errno::NOENT)?);
            let watched = set
                .of_slot(slot.index)
                .any(|item| set.slot_of(item) == Some(slot));
            if let Some(own) = epoll_sets::poller(index).filter(|_| !watched) {
                poller::unwatch(socket.engine, own.index, slot);
            }
            Ok(())
        }
        _ => Err(Errno::INVAL),
    }
}

/// Adds a registration to a locked set. `index` is the set's place in the process's list.
pub fn add_locked(
    set: &Set<'_>,
    memory: Memory,
    index: u32,
    fd: c_int,
    socket: &Socket,
    events: u32,
    data: u64,
) -> Result<()> {
    let own = epoll_sets::poller_or_new(index, socket.engine, memory, set)?;
    let item = set.insert(fd, Some(socket.reference), events, data)?;
    refcount::note_in_sets(socket.reference.index);
    if set.is_shared() {
        socket.change_flags(flag::IN_SHARED_SET, 0);
    }
    let wanted = watched_for(set, socket.reference);
    if let Err(errno) = poller::watch(socket.engine, own.index, socket.reference, wanted) {
        set.remove(item);
        return Err(errno);
    }
    wake_sleepers(set, memory, index, socket.engine);
    Ok(())
}

/// The bits for which a set wants hints of a socket, over all its registrations. A registration can
/// change its bits without a request, so the set asks for all. The bits of an exclusive
/// registration cannot change, and events that it does not want must go to another set.
fn watched_for(set: &Set<'_>, slot: SlotRef) -> u32 {
    let same = set.of_slot(slot.index);
    let same = same.filter(|item| set.slot_of(*item) == Some(slot));
    let events = same.map(|item| set.item(item).events.load(Ordering::Relaxed));
    let (all, common) = events.fold((0, u32::MAX), |(all, common), events| {
        (all | events, common & events)
    });
    match common & bits::EXCLUSIVE {
        0 => poller::EVERYTHING,
        exclusive => all & poller::EVERYTHING | bits::ALWAYS | exclusive,
    }
}

/// Removes registrations of earlier sockets in the slot, which are gone.
fn forget_stale(set: &Set<'_>, slot: SlotRef) {
    while let Some(stale) = set
        .of_slot(slot.index)
        .find(|item| set.slot_of(*item).is_some_and(|other| other != slot))
    {
        set.remove(stale);
    }
}

/// Another thread may sleep in the set: it has to look again. A caller that waits for the set
/// itself sees a ring only if the set is ready: in a process that has closed the set, the ring is
/// all that the caller knows.
fn wake_sleepers(set: &Set<'_>, memory: Memory, index: u32, engine: &'static Engine) {
    fence(Ordering::SeqCst);
    let Some(own) = epoll_sets::poller(index) else {
        return;
    };
    if memory.is_waited_for() {
        show_locked(set, own, engine, has_ready(set, own, engine));
    } else if poller::shared(engine, own.index).is_some_and(|(shared, _)| shared.has_sleepers()) {
        own.ring();
    }
}

/// Notes what `epoll_ctl` did with a socket whose stack is not chosen yet, in case the socket moves
/// to millrace.
pub fn note_undecided(index: u32, operation: c_int, fd: c_int, event: Option<epoll_event>) {
    // Without an engine no socket moves to millrace. Attaching here would make every program with
    // an epoll set pay for it.
    let Ok(engine) = engine::get() else {
        return;
    };
    let Ok(memory) = epoll_sets::memory_or_new(index, engine) else {
        return;
    };
    let Some(set) = memory.lock() else {
        return;
    };
    let (events, data) = event.map_or((0, 0), |event| (event.events, event.u64));
    match (operation, set.find(fd, None)) {
        (EPOLL_CTL_ADD, None) => drop(set.insert(fd, None, events, data)),
        (EPOLL_CTL_MOD, Some(found)) => {
            set.item(found).events.store(events, Ordering::Relaxed);
            set.item(found).data.store(data, Ordering::Relaxed);
        }
        (EPOLL_CTL_DEL, Some(found)) => set.remove(found),
        _ => {}
    }
}

/// A wait on a set.
pub struct Wait<'a> {
    /// The set's place in the process's list.
    pub index: u32,
    /// The room for events.
    pub events: &'a mut [epoll_event],
    /// The time-out in microseconds; `None` waits for ever.
    pub timeout_us: Option<u64>,
    /// The signals that are blocked during the wait, in the kernel's form.
    pub mask: *const libc::sigset_t,
    /// The program's call.
    pub call: Call,
}

/// Does `epoll_wait` on a set that has memory.
pub fn wait(mut wait: Wait<'_>, memory: Memory) -> Result<usize> {
    let engine = engine::get()?;
    if wait.events.is_empty() {
        return Err(Errno::INVAL);
    }
    batch::pause(engine);
    if !epoll_sets::watches_engine(wait.index) {
        epoll_sets::watch_engine(wait.index, engine);
    }
    let until = wait.timeout_us.map(|us| sys::now_us().saturating_add(us));
    loop {
        let mut count = collect(&mut wait, 0, memory, engine);
        if count > 0 {
            if count < wait.events.len()
                && (epoll_sets::is_mixed(wait.index) || memory.is_kernels_turn())
            {
                count = look_in_kernel(&mut wait, count, memory, engine).unwrap_or(count);
            }
            batch::begin(engine);
            return Ok(count);
        }
        batch::end(engine);
        let left = until.map(|until| until.saturating_sub(sys::now_us()));
        if left == Some(0) {
            return look_in_kernel(&mut wait, 0, memory, engine);
        }
        let marked;
        (count, marked) = match sleep(&mut wait, left, memory, engine) {
            // As in the kernel, a wait that a signal ends reports the events that came before. An
            // event may have been given to this thread alone.
            Err(Errno::INTR) => match collect(&mut wait, 0, memory, engine) {
                0 => return Err(Errno::INTR),
                count => (count, false),
            },
            slept => slept?,
        };
        if count > 0 {
            if count < wait.events.len() {
                count = collect(&mut wait, count, memory, engine);
            }
            if marked {
                pass_on(wait.index, memory, engine);
            }
            batch::begin(engine);
            return Ok(count);
        }
    }
}

/// Sleeps until an event comes. The poller counts this thread among its sleepers. Returns the
/// number of the kernel's events, and whether a doorbell's mark was among them.
fn sleep(
    wait: &mut Wait<'_>,
    left_us: Option<u64>,
    memory: Memory,
    engine: &'static Engine,
) -> Result<(usize, bool)> {
    let own = epoll_sets::poller(wait.index);
    let Some((shared, _)) = own.and_then(|own| poller::shared(engine, own.index)) else {
        // No hint can come until the set has a poller. The thread that makes it counts this one
        // among its sleepers.
        let Some(_counted) = KernelWait::begin(wait.index) else {
            return Ok((0, false));
        };
        return wait_in_kernel(wait, left_us);
    };
    let listed = || memory.lock().is_some_and(|set| set.listed() > 0);
    let slept = shared.sleep(listed, || wait_in_kernel(wait, left_us));
    slept.unwrap_or(Ok((0, false)))
}

/// Sleeps in the kernel's set.
fn wait_in_kernel(wait: &mut Wait<'_>, left_us: Option<u64>) -> Result<(usize, bool)> {
    let epoll = epoll_sets::kernel_fd_or_new(wait.index)?;
    let room = &mut *wait.events;
    let got = wait.call.epoll(epoll, room, left_us, wait.mask)?;
    let (kept, marked) = without_marks(wait.index, &mut room[..got]);
    Ok((kept, marked))
}

/// Appends the events that the kernel's set has now after the first `count`.
fn look_in_kernel(
    wait: &mut Wait<'_>,
    count: usize,
    memory: Memory,
    engine: &'static Engine,
) -> Result<usize> {
    let epoll = epoll_sets::kernel_fd_or_new(wait.index)?;
    let room = &mut wait.events[count..];
    let mut marked = false;
    let mut kept = 0;
    for _ in 0..ATTEMPTS {
        let got = sys::epoll_now(epoll, room)?;
        let (left, any) = without_marks(wait.index, &mut room[..got]);
        kept = left;
        marked |= any;
        // The kernel may have more events than this read had room for.
        if kept > 0 || got < room.len() {
            break;
        }
    }
    if marked {
        pass_on(wait.index, memory, engine);
    }
    Ok(count + kept)
}

/// This thread has taken a doorbell's mark, which wakes one sleeper, and leaves. If other threads
/// have something to do, the doorbell rings again for them.
fn pass_on(index: u32, memory: Memory, engine: &'static Engine) {
    let Some(own) = epoll_sets::poller(index) else {
        return;
    };
    let listed = || memory.lock().is_some_and(|set| set.listed() > 0);
    if poller::shared(engine, own.index).is_some_and(|(shared, _)| shared.must_pass_on(listed)) {
        own.ring();
    }
}

/// Removes the shim's marks from the kernel's events and resolves the marks of nested sets. Returns
/// how many events are left, at the front, and whether a doorbell's mark was among them.
pub fn without_marks(index: u32, events: &mut [epoll_event]) -> (usize, bool) {
    let (mut kept, mut marked) = (0, false);
    for at in 0..events.len() {
        let event = events[at];
        let shown = match (event.u64, epoll_sets::marked_item(event.u64)) {
            (epoll_sets::HINTS, _) => {
                marked = true;
                None
            }
            (epoll_sets::CONTROL, _) => {
                if let Some(engine) = engine::mapped() {
                    engine.check();
                }
                None
            }
            (_, Some(item)) => nested_epoll::report(index, item, event),
            _ => Some(event),
        };
        if let Some(event) = shown {
            events[kept] = event;
            kept += 1;
        }
    }
    (kept, marked)
}

/// Appends the events of millrace sockets after the first `count`.
fn collect(
    wait: &mut Wait<'_>,
    mut count: usize,
    memory: Memory,
    engine: &'static Engine,
) -> usize {
    // `None`: this is a signal handler in the middle of another call on the set. It finds nothing.
    let Some(set) = memory.lock() else {
        return count;
    };
    let Some(own) = epoll_sets::poller(wait.index) else {
        return count;
    };
    take_hints(&set, own.index, engine);
    for _ in 0..set.listed() {
        if count == wait.events.len() {
            break;
        }
        let Some(index) = set.next_listed() else {
            break;
        };
        if let Some((events, data)) = report(&set, index, true) {
            wait.events[count] = epoll_event { events, u64: data };
            count += 1;
        }
    }
    let Some((shared, _)) = poller::shared(engine, own.index) else {
        return count;
    };
    if memory.is_waited_for() {
        show_locked(&set, own, engine, set.listed() > 0);
    } else if set.listed() > 0 && shared.has_sleepers() {
        // As in the kernel, the next thread gets what is left.
        own.ring();
    }
    count
}

/// Moves the registrations of a kernel socket to the millrace socket that replaces it in the same
/// descriptor.
pub struct Migration(c_int);

impl Migration {
    /// Called before the kernel socket is replaced.
    pub fn begin(fd: c_int) -> Migration {
        epoll_sets::leave_kernel(fd);
        Migration(fd)
    }

    /// Called after the kernel socket was replaced: registers the millrace socket.
    pub fn finish(self, socket: &Socket) {
        for (held, memory) in epoll_sets::all() {
            let Some(set) = memory.lock() else {
                continue;
            };
            while let Some(item) = set.find(self.0, None) {
                let (events, data) = {
                    let item = set.item(item);
                    (
                        item.events.load(Ordering::Relaxed),
                        item.data.load(Ordering::Relaxed),
                    )
                };
                set.remove(item);
                // A set without room or poller loses the socket; its calls fail from now on.
                let _ = add_locked(&set, memory, held.index(), self.0, socket, events, data);
            }
        }
    }
}
