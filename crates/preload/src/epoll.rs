//! epoll: what a program asks of a set that holds millrace sockets.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::atomic::{Ordering, fence};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use millrace_context::SlotRef;
use rustix::io::Errno;

use crate::engine::{self, Engine};
use crate::epoll_set::{Memory, Set, state};
use crate::lock::Rank;
use crate::poller::Own;
use crate::readiness::{self, bits};
use crate::sets::KernelWait;
use crate::sleep::Call;
use crate::socket::{Socket, flag};
use crate::sys::{self, Result};
use crate::{inner, lane, poller, refs, sets};

/// Looks into the kernel's set that find marks only, at most.
const LOOKS: usize = 16;

/// Bits that go with EPOLLEXCLUSIVE.
const WITH_EXCLUSIVE: u32 =
    bits::IN | bits::OUT | bits::ERR | bits::HUP | bits::EXCLUSIVE | bits::EDGE | 1 << 29;

/// `epoll_ctl` for a millrace socket.
pub fn control(
    index: u32,
    operation: c_int,
    fd: c_int,
    slot: SlotRef,
    event: Option<epoll_event>,
) -> Result<()> {
    let socket = Socket::get(fd, slot)?;
    let slot = socket.reference;
    let memory = sets::memory_or_new(index, socket.engine)?;
    // A signal handler in the middle of another call on the set.
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
            if let Some(own) = sets::poller(index).filter(|_| !watched) {
                poller::unwatch(socket.engine, own.index, slot);
            }
            Ok(())
        }
        _ => Err(Errno::INVAL),
    }
}

/// Adds a registration to a locked set; `index` is the set's place in the process's list.
pub fn add_locked(
    set: &Set<'_>,
    memory: Memory,
    index: u32,
    fd: c_int,
    socket: &Socket,
    events: u32,
    data: u64,
) -> Result<()> {
    let own = sets::poller_or_new(index, socket.engine, memory, set)?;
    let item = set.insert(fd, Some(socket.reference), events, data)?;
    refs::note_in_sets(socket.reference.index);
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

/// The bits of a socket that a set wants hints of, for all its registrations together. Which of them a registration wants can change without a request; one that is
/// exclusive cannot, and what it does not want must go to another set.
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

/// Registrations of earlier uses of the slot, whose sockets are gone.
fn forget_stale(set: &Set<'_>, slot: SlotRef) {
    while let Some(stale) = set
        .of_slot(slot.index)
        .find(|item| set.slot_of(*item).is_some_and(|other| other != slot))
    {
        set.remove(stale);
    }
}

/// Another thread may sleep in the set: it has something to look at. Who waits for the set itself is shown it only if it is ready: where that one cannot look into the
/// set, in a process that has closed it, the ring is all that it knows.
fn wake_sleepers(set: &Set<'_>, memory: Memory, index: u32, engine: &'static Engine) {
    fence(Ordering::SeqCst);
    let Some(own) = sets::poller(index) else {
        return;
    };
    if memory.is_waited_for() {
        show_locked(set, own, engine, has_ready(set, own, engine));
    } else if poller::shared(engine, own.index).is_some_and(|(shared, _)| shared.has_sleepers()) {
        own.ring();
    }
}

/// Notes what `epoll_ctl` did with a socket that is not decided, in case it becomes ours.
pub fn note_undecided(index: u32, operation: c_int, fd: c_int, event: Option<epoll_event>) {
    // Without an engine no socket becomes ours; attaching here would make every program with an epoll set pay for it.
    let Ok(engine) = engine::get() else {
        return;
    };
    let Ok(memory) = sets::memory_or_new(index, engine) else {
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
    /// Where events go.
    pub events: &'a mut [epoll_event],
    /// How long in microseconds; none is for ever.
    pub timeout_us: Option<u64>,
    /// Signals blocked meanwhile, as the kernel wants it.
    pub mask: *const libc::sigset_t,
    /// The program's call.
    pub call: Call,
}

/// `epoll_wait` on a set that has memory.
pub fn wait(mut wait: Wait<'_>, memory: Memory) -> Result<usize> {
    let engine = engine::get()?;
    if wait.events.is_empty() {
        return Err(Errno::INVAL);
    }
    lane::pause_batch(engine);
    if !sets::watches_engine(wait.index) {
        sets::watch_engine(wait.index, engine);
    }
    let until = wait.timeout_us.map(|us| sys::now_us().saturating_add(us));
    loop {
        let mut count = collect(&mut wait, 0, memory, engine);
        if count > 0 {
            if count < wait.events.len() && (sets::is_mixed(wait.index) || memory.is_kernels_turn())
            {
                count = look_in_kernel(&mut wait, count, memory, engine).unwrap_or(count);
            }
            lane::begin_batch(engine);
            return Ok(count);
        }
        lane::end_batch(engine);
        let left = until.map(|until| until.saturating_sub(sys::now_us()));
        if left == Some(0) {
            return look_in_kernel(&mut wait, 0, memory, engine);
        }
        let marked;
        (count, marked) = match sleep(&mut wait, left, memory, engine) {
            // As in the kernel: what had come by the time the thread stopped waiting is reported. It may have been given to this thread alone.
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
            lane::begin_batch(engine);
            return Ok(count);
        }
    }
}

/// Sleeps until something comes, counted among the poller's sleepers. How many of the kernel's events there are, and whether our mark was among them.
fn sleep(
    wait: &mut Wait<'_>,
    left_us: Option<u64>,
    memory: Memory,
    engine: &'static Engine,
) -> Result<(usize, bool)> {
    let own = sets::poller(wait.index);
    let Some((shared, _)) = own.and_then(|own| poller::shared(engine, own.index)) else {
        // Nothing here can have news for us until the set has a poller: who makes it counts this thread among its sleepers.
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
    let epoll = sets::kernel_fd_or_new(wait.index)?;
    let room = &mut *wait.events;
    let got = wait.call.epoll(epoll, room, left_us, wait.mask)?;
    let (kept, marked) = without_marks(wait.index, &mut room[..got]);
    Ok((kept, marked))
}

/// Appends what the kernel's set has now after the first `count`.
fn look_in_kernel(
    wait: &mut Wait<'_>,
    count: usize,
    memory: Memory,
    engine: &'static Engine,
) -> Result<usize> {
    let epoll = sets::kernel_fd_or_new(wait.index)?;
    let room = &mut wait.events[count..];
    let mut marked = false;
    let mut kept = 0;
    for _ in 0..LOOKS {
        let got = sys::epoll_look(epoll, room)?;
        let (left, any) = without_marks(wait.index, &mut room[..got]);
        kept = left;
        marked |= any;
        // What had room for marks only may have more behind them.
        if kept > 0 || got < room.len() {
            break;
        }
    }
    if marked {
        pass_on(wait.index, memory, engine);
    }
    Ok(count + kept)
}

/// Our mark, which wakes one sleeper, has been taken by a thread that leaves: if there is something for others, it rings again for them.
fn pass_on(index: u32, memory: Memory, engine: &'static Engine) {
    let Some(own) = sets::poller(index) else {
        return;
    };
    let listed = || memory.lock().is_some_and(|set| set.listed() > 0);
    if poller::shared(engine, own.index).is_some_and(|(shared, _)| shared.must_pass_on(listed)) {
        own.ring();
    }
}

/// Takes our own marks out of the kernel's events, and finds what stands for other sets; how many are left, at the front, and whether hints were among the marks.
pub fn without_marks(index: u32, events: &mut [epoll_event]) -> (usize, bool) {
    let (mut kept, mut marked) = (0, false);
    for at in 0..events.len() {
        let event = events[at];
        let shown = match (event.u64, sets::marked_item(event.u64)) {
            (sets::HINTS, _) => {
                marked = true;
                None
            }
            (sets::CONTROL, _) => {
                if let Some(engine) = engine::mapped() {
                    engine.check();
                }
                None
            }
            (_, Some(item)) => inner::report(index, item, event),
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
    // A signal handler in the middle of another call on the set finds nothing.
    let Some(set) = memory.lock() else {
        return count;
    };
    let Some(own) = sets::poller(wait.index) else {
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
        // As in the kernel: what is left is for the next thread.
        own.ring();
    }
    count
}

/// From hints to the list of items that may be ready.
fn take_hints(set: &Set<'_>, index: u32, engine: &'static Engine) {
    let Some((shared, ring)) = poller::shared(engine, index) else {
        return;
    };
    let Some(_turn) = crate::lock::take(shared.lock(), Rank::Leaf) else {
        return;
    };
    while let Some(slot) = shared.take(ring) {
        for item in set.of_slot(slot) {
            set.list(item);
        }
    }
    if shared.overflowed() || engine.is_lost() {
        set.list_all();
    }
    // The engine gives no new hint while an old one stands: what it changed after we took them is seen from here on, or hinted anew.
    fence(Ordering::SeqCst);
}

/// What is to be reported of an item that has been taken off the list. If `for_good`, it counts as reported.
fn report(set: &Set<'_>, index: u32, for_good: bool) -> Option<(u32, u64)> {
    let item = set.item(index);
    let slot = set.slot_of(index)?;
    let Some(socket) = peek(slot, set.is_shared()) else {
        if !set.is_shared() {
            set.remove(index);
        }
        return None;
    };
    let state = item.state.load(Ordering::Relaxed);
    if state & state::SPENT != 0 {
        return None;
    }
    let interest = item.events.load(Ordering::Relaxed);
    let (ready, edge) = readiness::of(&socket, interest);
    let events = ready & (interest | bits::ALWAYS);
    let news = interest & bits::EDGE == 0
        || state & state::FRESH != 0
        || item.has_changed(&edge)
        || state & state::OUT_OWED != 0 && ready & bits::OUT != 0;
    if !for_good {
        if events != 0 && news {
            set.list(index);
            return Some((events, 0));
        }
        // Edges stay to be found by the wait that reports them.
        if interest & bits::EDGE != 0 {
            set.list(index);
        }
        return None;
    }
    let owed = interest & bits::OUT != 0 && ready & bits::OUT == 0;
    let kept = state & !(state::FRESH | state::OUT_OWED | state::LISTED);
    item.state.store(
        kept | if owed { state::OUT_OWED } else { 0 },
        Ordering::Relaxed,
    );
    item.has_seen(&edge);
    if events == 0 || !news {
        return None;
    }
    if interest & bits::ONESHOT != 0 {
        item.state.fetch_or(state::SPENT, Ordering::Relaxed);
    } else if interest & bits::EDGE == 0 {
        // Level-triggered: looked at again by the next wait.
        set.list(index);
    }
    Some((events, item.data.load(Ordering::Relaxed)))
}

/// A socket to look at, if the slot still is its own and this process may hold it, or another one that has the set or the socket too.
fn peek(slot: SlotRef, shared_set: bool) -> Option<ManuallyDrop<Socket>> {
    let engine = engine::mapped()?;
    let shared = engine.region.slot(slot.index)?;
    let current = shared.engine.generation.load(Ordering::Acquire) == slot.generation;
    let flags = || shared.app.flags.load(Ordering::Relaxed);
    let others = || flags() & (flag::SHARED | flag::IN_SHARED_SET) != 0;
    (current && (shared_set || refs::any(slot.index) || others())).then(|| {
        // Not counted, and so not dropped: the set is locked, and a close removes its registrations before the slot can be used again.
        ManuallyDrop::new(Socket {
            engine,
            slot: shared,
            reference: slot,
        })
    })
}

/// Whether a locked set has a millrace socket to report, without reporting it: for a wait on the set itself.
fn has_ready(set: &Set<'_>, own: Own, engine: &'static Engine) -> bool {
    take_hints(set, own.index, engine);
    for _ in 0..set.listed() {
        let Some(item) = set.next_listed() else {
            break;
        };
        if report(set, item, false).is_some() {
            return true;
        }
    }
    false
}

/// Whether a set has a millrace socket to report; its doorbells stay as they are.
pub fn is_ready_here(index: u32, engine: &'static Engine) -> bool {
    let memory = sets::memory(index);
    let set = memory.and_then(Memory::lock);
    let (Some(set), Some(own)) = (set, sets::poller(index)) else {
        return false;
    };
    has_ready(&set, own, engine)
}

/// Makes the kernel's set readable if there is something to report, for whoever waits for the set itself; if not, rings are taken back. Whether there is something.
pub fn show(index: u32, engine: &'static Engine) -> bool {
    let Some(memory) = sets::memory(index) else {
        return false;
    };
    // A signal handler in the middle of another call on the set leaves it as it is.
    let (Some(set), Some(own)) = (memory.lock(), sets::poller(index)) else {
        return false;
    };
    let is_ready = has_ready(&set, own, engine);
    show_locked(&set, own, engine, is_ready);
    is_ready
}

fn show_locked(set: &Set<'_>, own: Own, engine: &'static Engine, is_ready: bool) {
    if is_ready {
        // One more ring would be one more edge to who waits for the set.
        if !own.is_rung() {
            own.ring();
        }
        return;
    }
    set.note_silenced();
    own.silence();
    fence(Ordering::SeqCst);
    if poller::shared(engine, own.index).is_some_and(|(shared, _)| shared.pending()) {
        own.ring();
    }
}

/// What the sets do when a kernel socket becomes a millrace socket in the same descriptor.
pub struct Migration(c_int);

impl Migration {
    /// Before the kernel socket is replaced.
    pub fn begin(fd: c_int) -> Migration {
        sets::leave_kernel(fd);
        Migration(fd)
    }

    /// After.
    pub fn finish(self, socket: &Socket) {
        sets::enter(self.0, socket);
    }
}

/// A descriptor's kernel socket is the kernel's, or closed.
pub fn forget_undecided(fd: c_int) {
    sets::forget_undecided(fd);
}
